"""The whole suite on stores in PostgreSQL."""

import pytest
from hypothesis import settings

from backtrail.testing import machine
from backtrail.testing.conformance import StoreConformance
from tests.schemas import swept


class TestPostgres(StoreConformance):
    @pytest.fixture
    def opener(self):
        with swept() as opener:
            yield opener


@pytest.mark.hypothesis
@pytest.mark.parametrize("quarter", range(4))  # so that the long run takes turns with others
def test_random_histories_are_as_the_model_says(quarter):
    long = settings.default.max_examples > 1000
    machine.run(swept, parts=4 if long else 12)  # each takes four times as long as elsewhere
