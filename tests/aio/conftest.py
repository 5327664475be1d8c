"""The stores of the tests of asyncio."""

from functools import partial

import pytest

import backtrail
from backtrail import aio
from tests.support.places import in_memory
from tests.support.schemas import swept


@pytest.fixture(params=["memory", "sqlite", pytest.param("file", marks=pytest.mark.torture), "postgres"])
def opener(request, tmp_path):
    """Opens the same store each time it is called, for the synchronous code."""
    if request.param == "memory":
        with in_memory() as opener:
            yield opener
    elif request.param == "postgres":
        with swept(durability="relaxed") as opener:
            yield opener
    elif request.param == "file":
        yield partial(backtrail.open, (tmp_path / "store").as_uri(), durability="relaxed")
    else:
        yield partial(backtrail.open, tmp_path / "store.db", durability="relaxed")


@pytest.fixture
def opened(opener):
    """Opens the same store each time it is called, for asyncio."""
    return lambda **options: aio.Store(opener(**options))
