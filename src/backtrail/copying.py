"""Copying a store into another one, whatever kinds of store they are: an export, an import, and a comparison."""

from __future__ import annotations

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from backtrail import moving
from backtrail.arguments import check_progress
from backtrail.engine import log
from backtrail.engine.archive_reader import Archive
from backtrail.errors import Corrupt, Invalid
from backtrail.reports import CopyReport
from backtrail.store import Store, open  # noqa: A004 - as backtrail.open

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from backtrail.backends.port import Backend
    from backtrail.engine.archive import Entry


def copy(
    src: Store | str | os.PathLike[str],
    dst: Store | str | os.PathLike[str],
    *,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy all of a store into another one, and compare the root of every checkpoint.

    Both are stores, or URLs; `src` is only read, and must be there. `dst` may have other threads, and those of an
    earlier copy, which go on; see `Store.import_`. What is copied lies in a temporary file meanwhile.
    """
    for given in (src, dst):
        if not isinstance(given, Store | str | os.PathLike):
            raise Invalid(f"a copy is between stores or their URLs, not {given!r}", code="invalid.argument")
    check_progress(progress)
    with _store(src, read_only=True) as source:
        return copy_to(source, lambda: _store(dst, read_only=False), progress=progress)


def copy_to(
    source: Store,
    target: Callable[[], AbstractContextManager[Store]],
    *,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy a store to one that is opened, and perhaps made, only when all of the other has been read."""
    with tempfile.TemporaryDirectory(prefix="backtrail-") as folder:
        path = Path(folder, "copy")
        moving.export(source._engine, path, progress=progress)  # noqa: SLF001 - a part of what a store does
        with target() as store, Archive(path) as archive:
            made = moving.import_(store._engine, path, progress)  # noqa: SLF001
            backend = store._engine.direct.heads.backend  # noqa: SLF001
            count = sum(_compared(backend, archive, entry) for entry in archive.entries)
    return CopyReport(made.threads, made.created, made.extended, count)


def _store(given: Store | str | os.PathLike[str], *, read_only: bool) -> AbstractContextManager[Store]:
    return nullcontext(given) if isinstance(given, Store) else open(given, read_only=read_only)


def _compared(backend: Backend, archive: Archive, entry: Entry) -> int:
    """Return how many visible checkpoints of a thread have the same root here as in the file; all of them must."""
    record = backend.thread_with_uid(entry.uid)
    here = {row.seq: row for row in backend.rows(record.no, [(1, entry.newest)])} if record else {}
    count = 0
    for row in archive.rows(entry, 1, entry.newest):
        if row.op not in log.CHECKPOINTS or row.hidden:
            continue
        copied = here.get(row.seq)
        if copied is not None and (copied.root, copied.op_id) != (row.root, row.op_id):
            name = log.checkpoint_id(entry.uid, row.seq)
            raise Corrupt(f"checkpoint {name} is not what it was copied from", code="corrupt.root", checkpoint_id=name)
        count += copied is not None
    return count
