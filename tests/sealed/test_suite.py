"""The whole suite and the state machine on encrypted stores of every kind: they do what every store does.

`make test` runs a quarter of the suite in memory; all kinds are for `make torture`. `test_port` tests all kinds every
day.
"""

import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from backtrail.sealed import keyring as keyrings
from tests.conformance import StoreConformance
from tests.machine import thread_machine as machine
from tests.support.lengths import QUARTERS, parts
from tests.support.sealing import KINDS, sealed_at, sealed_in_memory, sealed_in_postgres


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(keyrings, "FRESH", 0.0)


class TestSealedMemory(StoreConformance):
    @pytest.fixture
    def opener(self):
        with sealed_in_memory() as opener:
            yield opener


@pytest.mark.torture
class TestSealedSqlite(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path):
        with sealed_at("sqlite", tmp_path / "new") as opener:
            yield opener


@pytest.mark.torture
class TestSealedFile(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path):
        with sealed_at("file", tmp_path / "new") as opener:
            yield opener


@pytest.mark.torture
class TestSealedPostgres(StoreConformance):
    @pytest.fixture
    def opener(self):
        with sealed_in_postgres() as opener:
            yield opener


@contextmanager
def place(kind):
    with tempfile.TemporaryDirectory() as folder, sealed_at(kind, Path(folder)) as opener:
        yield opener


@pytest.mark.hypothesis
@QUARTERS
def test_random_histories_in_memory_are_as_the_model_says(quarter):
    machine.run(partial(place, "memory"), parts=parts(2))


@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
def test_random_histories_are_as_the_model_says(kind):
    machine.run(partial(place, kind), parts=parts(2))
