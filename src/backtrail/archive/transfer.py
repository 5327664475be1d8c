"""Stores on the move: exported, imported, copied, backed up. What callers hand in is checked here."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, Final

from backtrail.archive import export as exporting
from backtrail.archive import import_ as importing
from backtrail.archive.reader import Archive
from backtrail.atomic_file import path_of, placed, temporary
from backtrail.backends.port import Copyable
from backtrail.engine import log, pins
from backtrail.engine.reader import Options
from backtrail.engine.schema.registry import Types
from backtrail.errors import Corrupt, Invalid, Unavailable
from backtrail.loading import loading
from backtrail.models import CopyReport, ExportReport, ImportReport
from backtrail.transaction import Engine
from backtrail.validation import check_id, check_ids, check_kind_of_ids, check_progress

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from backtrail.archive.layout import Entry
    from backtrail.backends.port import Backend
    from backtrail.engine.reader import Heads

    Progress = Callable[[str, int], None] | None

_WRITING: Final = (
    "an import is being written, all of it or nothing: do not use the store in its progress=, but before or after it"
)


def export(
    engine: Engine,
    path: Any,
    *,
    threads: Any = None,
    kind: Any = None,
    agent: Any = None,
    since: Any = None,
    progress: Progress = None,
) -> ExportReport:
    """Write a store, or a part of it, to a new file."""
    check_progress(progress)
    if threads is not None and agent is not None:
        raise Invalid("say threads=, or agent=, not both", code="invalid.argument")
    scope = exporting.Scope(
        None if agent is None else check_id(agent, "an agent's id"),
        None if threads is None else check_ids(threads),
        check_kind_of_ids(kind, threads, tuple(exporting.NAMED)),
    )
    target = path_of(path)
    heads = _outside(engine)
    access = heads.backend.access() if isinstance(heads.backend, Copyable) else None
    made = exporting.export(heads, target, scope, since, progress, access=access)
    return ExportReport(made.id, str(target), made.since, *made.totals, made.size)


def import_(engine: Engine, path: Any, progress: Progress) -> ImportReport:
    """Make what is in a file part of a store."""
    check_progress(progress)
    heads = _outside(engine)

    def writing(what: str, count: int) -> None:
        if progress:
            with engine.barred(_WRITING):
                progress(what, count)

    with Archive(path_of(path), progress) as archive:
        made = importing.import_(heads, archive, progress, writing)
        return ImportReport(archive.id, archive.totals.threads, *made)


def check(path: Any, progress: Progress) -> str | None:
    """Read all of a file, and see whether it can be imported; whether it fits to a store is not known then.

    Return the id of the export that it continues, if it does.
    """
    with Archive(path_of(path), progress) as archive:
        return archive.since


def backup(engine: Engine, path: Any, progress: Progress) -> int:
    """Make a store of its own of all that a store holds; return its size in bytes.

    It is of the same kind, if that can be a file or a directory; else a file of SQLite.
    """
    check_progress(progress)
    backend = _outside(engine).backend
    target = path_of(path)
    if isinstance(backend, Copyable):
        with placed(target, beside=backend.beside) as part:
            return backend.backup(part, progress)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415 - few need it here

    with (
        placed(target, beside=SqliteBackend.beside) as part,
        temporary() as folder,
        closing(SqliteBackend(folder / "backup", durability="relaxed")) as other,
    ):
        copy(engine, lambda: nullcontext(Engine(other, Types(), Options())), progress)
        return other.backup(part, progress)


def copy(source: Engine, target: Callable[[], AbstractContextManager[Engine]], progress: Progress) -> CopyReport:
    """Copy a store to one that is opened, and perhaps made, only when all of the other has been read.

    The roots of all visible checkpoints are compared.
    """
    with temporary() as folder:
        path = folder / "copy"
        export(source, path, progress=progress)
        with target() as engine, Archive(path) as archive:
            made = import_(engine, path, progress)
            backend = engine.direct.heads.backend
            count = sum(_compared(backend, archive, entry) for entry in archive.entries)
    return CopyReport(made.threads, made.created, made.extended, count)


def _compared(backend: Backend, archive: Archive, entry: Entry) -> int:
    """Return how many visible checkpoints of a thread have the same root here as in the file; all of them must.

    Of an agent's checkpoints, a repair on either side may have changed what they hold: they are told by their op_ids.
    """
    record = backend.thread_with_uid(entry.uid)
    here = {row.seq: row for row in backend.rows(record.no, [(1, entry.newest)])} if record else {}
    roots = entry.thread.space != pins.SPACE
    count = 0
    for row in archive.rows(entry, 1, entry.newest):
        if row.op not in log.CHECKPOINTS or row.hidden:
            continue
        copied = here.get(row.seq)
        if copied is not None and (copied.op_id != row.op_id or (roots and copied.root != row.root)):
            name = log.checkpoint_id(entry.uid, row.seq)
            raise Corrupt(f"checkpoint {name} is not what it was copied from", code="corrupt.root", checkpoint_id=name)
        count += copied is not None
    return count


def _outside(engine: Engine) -> Heads:
    """Return where to read and write, outside of any transaction."""
    if engine.desk.overlay is not None:
        raise Unavailable("not inside a transaction; do it before or after", code="unavailable.transaction")
    return engine.direct.heads
