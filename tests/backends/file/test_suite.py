"""The whole suite on stores in directories of files."""

import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import backtrail
from tests.conformance import StoreConformance
from tests.machine import thread_machine as machine
from tests.support.lengths import QUARTERS, parts


@contextmanager
def place():
    directory = tempfile.mkdtemp()
    try:
        yield partial(
            backtrail.open, Path(directory, "store").as_uri(), durability="relaxed"
        )  # a disk's speed proves nothing
    finally:
        shutil.rmtree(directory)


class TestFile(StoreConformance):
    @pytest.fixture
    def opener(self, tmp_path):
        return partial(backtrail.open, (tmp_path / "new" / "store").as_uri())


@pytest.mark.hypothesis
@QUARTERS
def test_random_histories_are_as_the_model_says(quarter):
    machine.run(place, parts=parts(2))  # its tables are those of a store in memory
