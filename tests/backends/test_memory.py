"""The whole suite on stores in memory."""

import pytest

from tests.conformance import StoreConformance
from tests.machine import thread_machine as machine
from tests.support.lengths import QUARTERS, parts
from tests.support.places import in_memory


class TestMemory(StoreConformance):
    @pytest.fixture
    def opener(self):
        with in_memory() as opener:
            yield opener


@pytest.mark.hypothesis
@QUARTERS
def test_random_histories_are_as_the_model_says(quarter):
    machine.run(in_memory, parts=parts(2))
