"""Copying a store into another one, whatever kinds of store they are: an export, an import, and a comparison."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backtrail import moving
from backtrail.engine import log
from backtrail.engine.archive_reader import Archive
from backtrail.errors import Corrupt, Invalid
from backtrail.reports import CopyReport
from backtrail.store import Store, open  # noqa: A004 - as backtrail.open

if TYPE_CHECKING:
    from collections.abc import Callable

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
    with ExitStack() as stack:
        source = _store(src, stack, read_only=True)
        target = _store(dst, stack, read_only=False)
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backtrail-")), "copy")
        moving.export(source._engine, path, progress=progress)  # noqa: SLF001 - a part of what a store does
        made = moving.import_(target._engine, path, progress)  # noqa: SLF001
        with Archive(path) as archive:
            backend = target._engine.direct.heads.backend  # noqa: SLF001
            count = sum(_compared(backend, archive, entry) for entry in archive.entries)
    return CopyReport(made.threads, made.created, made.extended, count)


def _store(given: Any, stack: ExitStack, *, read_only: bool) -> Store:
    if isinstance(given, Store):
        return given
    if not isinstance(given, str | os.PathLike):
        raise Invalid(f"a copy is between stores or their URLs, not {given!r}", code="invalid.argument")
    return stack.enter_context(open(given, read_only=read_only))


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
