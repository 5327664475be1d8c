"""The whole suite on stores in memory."""

import pytest

from backtrail.testing import machine
from backtrail.testing.conformance import StoreConformance
from backtrail.testing.places import in_memory
from tests.support.lengths import QUARTERS, parts


class TestMemory(StoreConformance):
    @pytest.fixture
    def opener(self):
        with in_memory() as opener:
            yield opener


@pytest.mark.hypothesis
@QUARTERS
def test_random_histories_are_as_the_model_says(quarter):
    machine.run(in_memory, parts=parts(2))
