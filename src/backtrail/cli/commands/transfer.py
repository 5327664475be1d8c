"""Commands that move stores: export, import, copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.describe import progress_in
from backtrail.cli.output import Progress, clean, count, quoted, say, size
from backtrail.cli.parameters import (
    KINDS,
    USAGE,
    Failure,
    NewFile,
    Session,
    agent_option,
    command,
    find_ids,
    in_memory,
    threads_option,
)

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail.cli.output import Output

_SHOWN: Final = 20
_SQLITE: Final = b"SQLite format 3\0"
_HEADER: Final = 72
"""Bytes of a database of SQLite's up to the end of its application id, which has four."""
_NAMED: Final = tuple(kind for kind in KINDS if kind != "agent")
"""What is exported by its id: an agent comes with all that belongs to it, by --agent."""


@command(examples=("backtrail export all.backtrail", "backtrail export trip.backtrail --thread trip"))
@click.argument("file", type=NewFile())
@threads_option
@click.option("--kind", type=click.Choice(_NAMED), help="What the id is the id of.")
@agent_option
@click.option("--since", metavar="FILE", help="Only what is new since this earlier export.")
def export(
    session: Session,
    *,
    out: Output,
    file: str,
    threads: tuple[str, ...],
    kind: str | None,
    agent: str | None,
    since: str | None,
) -> None:
    """Write the store to the new file FILE.

    As it is now; others may go on writing. The file verifies itself when it is read.
    """
    with session.read() as store, progress_in(store) as progress:
        where = find_ids(store, threads, kind, kinds=_NAMED)
        report = store.export(file, **where, agent=agent, since=since, progress=progress)
    if out.human:
        held = f"{count(report.threads, 'thread')}, {count(report.visible_rows, 'visible row')}"
        out.tell(f"{file}: {held}, {size(report.bytes)}")
    else:
        out.value(report)


@command(
    name="import",
    examples=("backtrail export all.backtrail", "backtrail import all.backtrail --store sqlite:///other.db"),
)
@click.argument("file")
@click.option(
    "--from", "source", type=click.Choice(["backtrail", "langgraph"]), default="backtrail", help="What wrote FILE."
)
def import_(session: Session, *, out: Output, file: str, source: str) -> None:
    """Add what FILE holds to the store.

    All of it, or nothing; what is there already is not added twice. Makes the store if it is not there. FILE is an
    export; with --from langgraph, an SQLite database of LangGraph's checkpoints.
    """
    from pathlib import Path

    path = Path(file).expanduser()
    if not path.exists():
        raise Failure(f"there is no file {clean(file)}" + ("; stdin is not read" if file == "-" else ""), 3)
    other = _other_format(session, file, path, source)
    if other is not None:
        raise Failure(f"{file} {other}", USAGE)
    if path.is_dir():
        raise Failure(f"{clean(file)} is a directory: name a file in it")
    if not path.is_file():
        raise Failure(f"{clean(file)} is no file that can be read twice: put what it holds into one first")
    with Progress(lambda: {"bytes": path.stat().st_size}) as progress:
        if not session.is_there():  # then a file that is no good must not leave an empty store behind
            _check(source, file, progress)
        with session.write(create=True) as store:
            report: Any = (
                _langgraph().import_database(file, store, progress=progress)
                if source == "langgraph"
                else store.import_(file, progress=progress)
            )
    if not out.human:
        out.value(report)
    elif source == "langgraph":
        for each in report.skipped[:_SHOWN]:
            say(f"not carried over: thread {clean(each.thread_id)}: {clean(each.reason)}")
        rest = len(report.skipped) - _SHOWN
        if rest > 0:
            say(f"... and {rest:,} more")
        held = f"{count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}"
        out.tell(f"{held}, {len(report.skipped):,} skipped")
    else:
        marked = f", {report.marked:,} hidden or tagged otherwise" if report.marked else ""
        out.tell(
            f"{count(report.created, 'new thread')}, {report.extended:,} gone on, "
            f"{count(report.visible_rows, 'visible row')} added{marked}"
        )


def _other_format(session: Session, file: str, path: Path, source: str) -> str | None:
    """Return what a file is, and what to type, if it is known and not what it was said to be."""
    from backtrail.archive.layout import MAGIC
    from backtrail.backends.file.disk import STORE

    if path.is_dir():
        return _store_hint(session, f"file://{path.absolute()}") if (path / STORE).is_file() else None
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        head = opened.read(_HEADER)
    if head.startswith(_SQLITE):
        return _other_database(session, file, path, source, int.from_bytes(head[_HEADER - 4 :]))
    if head.startswith(MAGIC) and source == "langgraph":
        return f"is an export of a store, no database of LangGraph's: `{session.command('import', file)}`"
    return None


def _other_database(session: Session, file: str, path: Path, source: str, application: int) -> str | None:
    from backtrail.backends.sqlite.schema import APPLICATION_ID

    if application == APPLICATION_ID:
        return _store_hint(session, f"sqlite:///{path.absolute()}")
    if source == "langgraph":
        return None
    if {"checkpoints", "writes"} <= _tables(path):
        return f"is a database of LangGraph's checkpoints: `{session.command('import', file, '--from', 'langgraph')}`"
    return (
        "is an SQLite database, but no export, no store and no database of LangGraph's SqliteSaver: "
        "import takes what `backtrail export` wrote, or such a database with --from langgraph"
    )


def _store_hint(session: Session, url: str) -> str:
    from backtrail.urls import default_url, shown

    words = " ".join(map(quoted, ["backtrail", "copy", url, shown(session.url or default_url())]))
    return f"is a store, no export: `{words}` copies all of it"


def _tables(path: Path) -> set[str]:
    """Return the names of the tables of a database; none if it cannot be read."""
    import apsw

    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        finally:
            connection.close()
    except apsw.Error:
        return set()


def _check(source: str, file: str, progress: Any) -> None:
    """Read a file, to see that it is one that can be imported."""
    from backtrail.archive import transfer

    if source == "langgraph":
        _langgraph().importing.check_database(file)
    elif (
        transfer.check(file, progress) is not None
    ):  # it continues another: whether it can be is known when it is tried
        with in_memory() as store:
            store.import_(file)


def _langgraph() -> Any:
    from importlib import import_module  # by its name: neither of the two packages needs the other

    return import_module("backtrail.adapters.langgraph")


@command(examples=("backtrail copy sqlite:///agents.db sqlite:///copied.db",))
@click.argument("src")
@click.argument("dst")
@click.option("--to-schema", metavar="NAME", help="The schema of DST, if it is another than that of SRC.")
def copy(session: Session, *, out: Output, src: str, dst: str, to_schema: str | None) -> None:
    """Copy the store SRC into the store DST.

    Both are URLs. Every checkpoint is compared. --store is not used.
    """
    from backtrail.copying import copy_to
    from backtrail.urls import in_postgres

    target = Session()
    target.take(dst, to_schema or (session.schema if in_postgres(dst) else None), debug=False)
    if in_postgres(dst) and not in_postgres(src):
        session.schema = None
    session.take(src, None, debug=False)
    with session.read() as source, progress_in(source) as progress:
        report = copy_to(source, lambda: target.write(create=True), progress=progress)
    if out.human:
        made = f"{count(report.created, 'new thread')}, {report.extended:,} gone on"
        out.tell(f"{made}, {count(report.checkpoints, 'checkpoint')} compared")
    else:
        out.value(report)


COMMANDS: Final = (export, import_, copy)
