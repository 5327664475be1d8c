"""Copy a SQLite store to another SQLite file while other processes write.

The pages are consistent: the source connection has an open transaction, which does not see later commits in the WAL.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import apsw

from backtrail.backends.sqlite.connection import translated
from backtrail.backends.sqlite.wal_mark import make_another

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backtrail.atomic_file import FileAccess

_PAGES: Final = 512
"""How many pages are copied per step."""


def copy(
    source: apsw.Connection, path: Path, access: FileAccess | None, progress: Callable[[str, int], None] | None
) -> int:
    """Copy all pages to a new file with the given access rights; return its size in bytes."""
    with suppress(OSError):  # SQLite will report the error
        path.touch(0o600, exist_ok=False)
        if access is not None:
            access.give(path)
    try:
        target = apsw.Connection(str(path))
        try:
            with target.backup("main", source, "main") as pages:
                while not pages.done:
                    pages.step(_PAGES)
                    if progress:
                        progress("pages", pages.page_count - pages.remaining)
            make_another(target)
        finally:
            target.close()
    except apsw.Error as error:
        raise translated(error, str(path)) from error
    return path.stat().st_size
