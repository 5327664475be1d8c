"""Stores on the move: exported to a file, imported from one, backed up. What callers hand in is checked here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.arguments import check_id, check_ids, check_kind_of_ids, check_progress
from backtrail.backends.port import Copyable
from backtrail.engine import exporting, importing
from backtrail.engine.archive_reader import Archive
from backtrail.errors import Invalid, Unavailable
from backtrail.placing import path_of, placed
from backtrail.reports import ExportReport, ImportReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.engine import Engine
    from backtrail.engine.heads import Heads

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
    made = exporting.export(_outside(engine), target, scope, since, progress)
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
    """Copy a store to a new file of its own kind; return its size in bytes."""
    check_progress(progress)
    backend = _outside(engine).backend
    if not isinstance(backend, Copyable):
        raise Invalid(
            "only a store in SQLite is one file that can be copied as it is: use export(path) for this one",
            code="invalid.backup",
        )
    with placed(path_of(path), beside=backend.beside) as part:
        return backend.backup(part, progress)


def _outside(engine: Engine) -> Heads:
    """Return where to read and write, outside of any transaction."""
    if engine.desk.overlay is not None:
        raise Unavailable("not inside a transaction; do it before or after", code="unavailable.transaction")
    return engine.direct.heads
