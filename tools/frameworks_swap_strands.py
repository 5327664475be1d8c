"""A pytest plugin for `make test-frameworks`: puts our classes in the place of those that Strands' tests use.

The tests make a repository and storages without arguments. The classes here give each a store of its own, in memory or
in an SQLite file (BACKTRAIL_SWAP=sqlite), and nothing else: all answers come from our classes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import strands.storage
import strands.storage.in_memory_storage as in_memory

import backtrail
from backtrail.adapters.strands import BacktrailSessionRepository, BacktrailStorage

_SWAP = os.environ.get("BACKTRAIL_SWAP")


def _store() -> backtrail.Store:
    if _SWAP == "sqlite":
        return backtrail.open(Path(tempfile.mkdtemp()) / "store.db", durability="relaxed")
    return backtrail.open("memory://")


class SwappedRepository(BacktrailSessionRepository):  # type: ignore[misc]
    """In the place of the repository of the tests."""

    def __init__(self) -> None:
        super().__init__(_store())


class SwappedStorage(BacktrailStorage):
    """In the place of `InMemoryStorage`."""

    def __init__(self, *, search_strategy: Any = None) -> None:
        super().__init__(_store(), search_strategy=search_strategy)

    def clear(self) -> None:
        """Delete all keys, which storages need not be able to."""
        for key in self._keys(self._prefix):
            self._thread(key).delete()


if _SWAP != "no":
    strands.storage.InMemoryStorage = in_memory.InMemoryStorage = SwappedStorage  # type: ignore[misc, assignment]
    sys.path.insert(0, str(Path.cwd()))  # the tests import their own fixtures
    import tests.fixtures.mock_session_repository as fixtures

    fixtures.MockedSessionRepository = SwappedRepository
