"""The whole suite on encrypted stores in memory: they do what every store does."""

import pytest

from tests.conformance import StoreConformance
from tests.support.sealing import sealed_in_memory


class TestSealedMemory(StoreConformance):
    @pytest.fixture
    def opener(self):
        with sealed_in_memory() as opener:
            yield opener
