"""A quarter of the suite runs on encrypted stores every day, always the same tests; all of it in `make torture`."""

import zlib

import pytest

SUITE = "TestSealedMemory"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.cls is not None and item.cls.__name__ == SUITE and zlib.crc32(item.originalname.encode()) % 4:
            item.add_marker(pytest.mark.torture)
