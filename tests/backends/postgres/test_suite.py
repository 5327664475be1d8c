"""The whole suite on stores in PostgreSQL."""

import pytest

from tests.conformance import StoreConformance
from tests.machine import thread_machine as machine
from tests.support.lengths import QUARTERS, parts
from tests.support.schemas import swept


class TestPostgres(StoreConformance):
    @pytest.fixture
    def opener(self):
        with swept() as opener:
            yield opener


@pytest.mark.hypothesis
@QUARTERS
def test_random_histories_are_as_the_model_says(quarter):
    machine.run(swept, parts=parts(3))  # each takes four times as long as elsewhere
