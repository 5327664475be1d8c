"""The base class of the suite's parts: it opens the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


class Conformance:
    """A part of the suite. A test class derives from it and says how to open a backend."""

    persistent = True
    """Whether `open_backend` gives the same store again for the same folder."""

    def open_backend(self, folder: Path) -> AbstractContextManager[Any]:
        """Give the store that is kept in this folder, empty if the folder is; close it when the block ends."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Any]:
        """An empty store."""
        with self.open_backend(tmp_path) as backend:
            yield backend
