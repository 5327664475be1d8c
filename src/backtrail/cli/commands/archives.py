"""Commands that move stores: export, import, copy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from backtrail.cli.output import Progress, clean, count, quoted, say, size
from backtrail.cli.parameters import (
    KINDS,
    USAGE,
    Failure,
    Invocation,
    NewFile,
    agent_option,
    command,
    find_ids,
    in_memory,
    is_encrypted,
    passphrase_option,
    threads_option,
)
from backtrail.cli.summary import progress_in

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail.cli.output import Output
    from backtrail.models import CopyReport, ImportReport
    from backtrail.sealed.keys import Key
    from backtrail.store import Store

_SHOWN: Final = 20
_SQLITE: Final = b"SQLite format 3\0"
_HEADER: Final = 72
"""Bytes of an SQLite file up to the end of its application id, which has four."""


class _Source(NamedTuple):
    """A program whose data can be imported, by its adapter."""

    what: str
    """The description of its file or database, for messages."""
    tables: frozenset[str] = frozenset()
    """The tables by which a database of it is recognised."""
    data: str = "database"
    """The end of the names of the adapter's functions: import_database, check_database."""


_SOURCES: Final = {
    "langgraph": _Source("a database of LangGraph's checkpoints", frozenset({"checkpoints", "writes"})),
    "openai": _Source("a database of OpenAI's SQLiteSession", frozenset({"agent_sessions", "agent_messages"})),
    "adk": _Source("a database of ADK's sessions", frozenset({"sessions", "events", "app_states", "user_states"})),
    "claude": _Source("a transcript of Claude Code", data="transcripts"),
}
_EXPORT_KINDS: Final = tuple(kind for kind in KINDS if kind != "agent")
"""The kinds of --thread. --agent exports an agent with everything that it owns."""


@command(examples=("backtrail export all.backtrail", "backtrail export trip.backtrail --thread trip"))
@click.argument("file", type=NewFile())
@threads_option
@click.option("--kind", type=click.Choice(_EXPORT_KINDS), help="The kind of thing that has the id.")
@agent_option
@click.option("--since", metavar="FILE", help="Only what is new since this export.")
@click.option("--to-key-file", metavar="FILE", help="The key that encrypts the new file. Default: the store's key.")
@passphrase_option
@click.option("--plain", is_flag=True, help="Do not encrypt the new file.")
def export(
    session: Invocation,
    *,
    out: Output,
    file: str,
    threads: tuple[str, ...],
    kind: str | None,
    agent: str | None,
    since: str | None,
    to_key_file: str | None,
    passphrase_file: str | None,
    plain: bool,
) -> None:
    """Export the store to the new file FILE.

    Exports a snapshot; other processes may write meanwhile. The file has checksums, and every import checks them.

    FILE is encrypted by --to-key-file or a passphrase, or else by the key of --key-file or the environment. Without
    any of these it is not encrypted; an encrypted store needs --plain for that.
    """
    if sum(map(bool, (to_key_file, passphrase_file, plain))) > 1:
        raise click.UsageError("pass one of --to-key-file, --passphrase-file and --plain")
    secret = {"plain": True} if plain else _secret(session, to_key_file, passphrase_file)
    with _without_unused_key(session).read() as store, progress_in(store) as progress:
        where = find_ids(store, threads, kind, kinds=_EXPORT_KINDS)
        report = store.export(file, **where, agent=agent, since=since, **secret, progress=progress)
    if out.human:
        contents = f"{count(report.threads, 'thread')}, {count(report.visible_rows, 'visible row')}"
        out.tell(f"{file}: {contents}, {size(report.bytes)}")
    else:
        out.value(report)


@command(
    name="import",
    examples=("backtrail export all.backtrail", "backtrail import all.backtrail --store sqlite:///other.db"),
)
@click.argument("file")
@click.option(
    "--from",
    "source",
    type=click.Choice(["backtrail", *_SOURCES]),
    default="backtrail",
    help="The program that wrote FILE.",
)
@click.option("--from-key-file", metavar="FILE", help="The key of an encrypted FILE. Default: the store's key.")
@passphrase_option
def import_(
    session: Invocation,
    *,
    out: Output,
    file: str,
    source: str,
    from_key_file: str | None,
    passphrase_file: str | None,
) -> None:
    """Add the contents of FILE to the store.

    Adds nothing twice, and creates a missing store. FILE is an export, which is added completely or not at all. With
    --from, it is what another program keeps: an SQLite database or the URL of a PostgreSQL database of LangGraph's
    checkpoints, an SQLite database of OpenAI's SQLiteSession or of ADK's sessions, or a transcript of Claude Code, a
    project's directory of them, or a directory of such directories. Threads and sessions that cannot be added are
    listed with the reason.
    """
    from pathlib import Path

    from backtrail.urls import in_postgres

    in_server = source == "langgraph" and in_postgres(file)
    path = Path(file).expanduser()
    if not in_server:
        _check_path(session, file, path, source)
    session, secret = _of_file(session, path if source == "backtrail" else None, from_key_file, passphrase_file)
    with Progress(lambda: {"bytes": path.stat().st_size if path.is_file() else 0}) as progress:
        if not session.exists():  # a bad file must not create a store
            _check(source, file, secret, progress)
        with session.write(create=True) as store:
            report: Any = (
                store.import_(file, **secret, progress=progress)
                if source == "backtrail"
                else _adapter_function("import", source)(file, store, progress=progress)
            )
    if not out.human:
        out.value(report)
    elif source == "backtrail":
        _say_erased(report)
        marked = f", {report.marked:,} with other marks or tags" if report.marked else ""
        out.tell(
            f"{count(report.created, 'new thread')}, {report.extended:,} extended, "
            f"{count(report.visible_rows, 'visible row')} added{marked}"
        )
    else:
        _tell_report(out, report, source)


def _tell_report(out: Output, report: Any, source: str) -> None:
    """Show what an adapter imported, and what it left out."""
    one = "thread" if source == "langgraph" else "session"
    for each in report.skipped[:_SHOWN]:
        say(f"skipped: {one} {clean(each.thread_id)}: {clean(each.reason)}")
    rest = len(report.skipped) - _SHOWN
    if rest > 0:
        say(f"... and {rest:,} more")
    if source == "langgraph":
        contents = f"{count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}"
    else:
        contents = f"{count(report.sessions, 'session')}, {count(report.messages, 'message')}"
    out.tell(f"{contents}, {len(report.skipped):,} skipped")


def _check_path(session: Invocation, file: str, path: Path, source: str) -> None:
    """Raise an error unless a path can be a file of this source."""
    if not path.exists():
        raise Failure(f"there is no file {clean(file)}" + ("; stdin is not supported" if file == "-" else ""), 3)
    other = _other_format(session, file, path, source)
    if other is not None:
        raise Failure(f"{file} {other}", USAGE)
    if path.is_dir() and source != "claude":
        raise Failure(f"{clean(file)} is a directory: pass a file")
    if not path.is_dir() and not path.is_file():
        raise Failure(f"{clean(file)} is not a regular file: copy its contents into one first")


def _say_erased(report: ImportReport | CopyReport) -> None:
    """Print the threads that were erased in one of two stores."""
    for threads, text in (
        (report.erased, "was erased in the other store, and now here, too"),
        (report.refused, "was erased here, so it was not imported"),
    ):
        for kind, name in threads[:_SHOWN]:
            say(f"{kind} {clean(name)} {text}")
        if len(threads) > _SHOWN:
            say(f"... and {len(threads) - _SHOWN:,} more")
    if report.remains is not None:
        say(clean(report.remains))


def _other_format(session: Invocation, file: str, path: Path, source: str) -> str | None:
    """Return the real format of a file and the command for it, if the file is of another known format."""
    from backtrail.archive.envelope import LINE
    from backtrail.archive.format import MAGIC
    from backtrail.backends.file.disk import STORE

    if path.is_dir():
        return _store_hint(session, f"file://{path.absolute()}") if (path / STORE).is_file() else None
    if not path.is_file():
        return None
    with path.open("rb") as opened:
        head = opened.read(_HEADER)
    if head.startswith(_SQLITE):
        return _other_database(session, file, path, source, int.from_bytes(head[_HEADER - 4 :]))
    if head.startswith((MAGIC, LINE)) and source != "backtrail":
        return f"is an export, not {_SOURCES[source].what}: `{session.command('import', file)}`"
    if path.suffix == ".jsonl" and source != "claude":
        return f"looks like {_SOURCES['claude'].what}: use `{session.command('import', file, '--from', 'claude')}`"
    return None


def _other_database(session: Invocation, file: str, path: Path, source: str, application: int) -> str | None:
    from backtrail.backends.sqlite.schema import APPLICATION_ID

    if application == APPLICATION_ID:
        return _store_hint(session, f"sqlite:///{path.absolute()}")
    tables = _tables(path)
    if source != "backtrail" and _SOURCES[source].tables <= tables:
        return None
    for name, other in _SOURCES.items():
        if other.tables and other.tables <= tables:
            return f"is {other.what}: use `{session.command('import', file, '--from', name)}`"
    if source != "backtrail":
        return None  # its adapter knows what is wrong
    known = ", ".join(name for name, other in _SOURCES.items() if other.tables)
    return (
        "is an SQLite database, but not a store, and not one of a program whose data can be imported: "
        f"pass a file of `backtrail export`, or --from ({known}) and a database of that program"
    )


def _store_hint(session: Invocation, url: str) -> str:
    from backtrail.urls import default_url, shown

    words = " ".join(map(quoted, ["backtrail", "copy", url, shown(session.url or default_url())]))
    return f"is a store, not an export: `{words}` copies it"


def _tables(path: Path) -> set[str]:
    """Return the names of a database's tables; an empty set if the file cannot be read."""
    import apsw

    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        finally:
            connection.close()
    except apsw.Error:
        return set()


def _check(source: str, file: str, secret: dict[str, Any], progress: Any) -> None:
    """Raise an error unless a file can be imported."""
    from backtrail.archive.envelope import secret_of
    from backtrail.archive.import_ import check

    if source != "backtrail":
        _adapter_function("check", source)(file)
    elif check(file, progress, secret=secret_of(secret.get("key"), secret.get("passphrase"))) is not None:
        with in_memory() as store:  # it continues another export: only a trial shows whether it can
            store.import_(file, **secret)


def _secret(session: Invocation, key_file: str | None, passphrase_file: str | None) -> dict[str, Any]:
    """Return the arguments of the library that encrypt or open a file: options first, then the environment."""
    from backtrail.archive.envelope import Passphrase
    from backtrail.sealed.keys import Key

    if key_file and passphrase_file:
        raise click.UsageError("pass --passphrase-file or the file of a key, not both")
    if key_file:
        return {"key": Key.from_file(key_file)}
    if passphrase_file := passphrase_file or os.environ.get("BACKTRAIL_PASSPHRASE_FILE"):
        return {"passphrase": Passphrase.from_file(passphrase_file)}
    if text := os.environ.get("BACKTRAIL_PASSPHRASE"):
        return {"passphrase": text}
    key = session.key()
    return {} if key is None else {"key": key}


def _of_file(
    session: Invocation, path: Path | None, key_file: str | None, passphrase_file: str | None
) -> tuple[Invocation, dict[str, Any]]:
    """Return the invocation for the store, and the arguments of the library that open an export, if it is encrypted.

    If only the environment has a key or a passphrase, an export that is not encrypted needs none of them.
    """
    from backtrail.archive.reader import head_of

    head = head_of(path) if path is not None and path.is_file() else None
    if head is None:
        return session, _secret(session, key_file, passphrase_file) if key_file or passphrase_file else {}
    if key_file is None and passphrase_file is None and not head.has_passphrase:
        key = session.key()
        secret = {} if key is None else {"key": key}
    else:
        secret = _secret(session, key_file, passphrase_file)
    return _without_unused_key(session), secret


def _without_unused_key(session: Invocation) -> Invocation:
    """Return the invocation without its key if the store is not encrypted: the key then belongs to an export file."""
    from backtrail.errors import Invalid, NotFound

    if session.key() is None:
        return session
    try:
        session.read().close()
    except NotFound:
        return session
    except Invalid as error:
        if error.code != "invalid.not_encrypted":
            raise
        return TargetStore(session.url, session.schema, debug=session.debug)
    return session


def _adapter_function(verb: str, source: str) -> Any:
    from importlib import import_module  # by name: the command line does not depend on adapters

    return getattr(import_module(f"backtrail.adapters.{source}"), f"{verb}_{_SOURCES[source].data}")


@command(examples=("backtrail copy sqlite:///agents.db sqlite:///copied.db",))
@click.argument("src")
@click.argument("dst")
@click.option("--to-schema", metavar="NAME", help="The schema of DST, if it differs from that of SRC.")
@click.option("--to-key-file", metavar="FILE", help="The key of DST, if it is to be encrypted.")
@click.option("--to-keyring", metavar="URL", help="The keyring of DST, if it is not beside it.")
@click.option("--to-plain", is_flag=True, help="Copy an encrypted SRC into a DST that is not encrypted.")
def copy(
    session: Invocation,
    *,
    out: Output,
    src: str,
    dst: str,
    to_schema: str | None,
    to_key_file: str | None,
    to_keyring: str | None,
    to_plain: bool,
) -> None:
    """Copy the store SRC into the store DST.

    Both are URLs. The copy compares every checkpoint. --store is ignored. --key-file and the environment have the key
    of SRC, if SRC is encrypted.
    """
    from backtrail.archive.copy import copy_to
    from backtrail.urls import in_postgres

    if to_plain and to_key_file:
        raise click.UsageError("pass --to-key-file or --to-plain, not both")
    target = TargetStore()
    schema = to_schema or (session.schema if in_postgres(dst) else None)
    target.take(dst, schema, key_file=to_key_file, keyring=to_keyring)
    if in_postgres(dst) and not in_postgres(src):
        session.schema = None
    session.take(src)
    with _source(session) as source, progress_in(source) as progress:
        if is_encrypted(source) and not to_key_file and not to_plain:
            raise click.UsageError("SRC is encrypted: pass --to-key-file FILE to encrypt DST, or --to-plain")
        report = copy_to(source, lambda: target.write(create=True), hidden=to_key_file is not None, progress=progress)
    if out.human:
        _say_erased(report)
        added = f"{count(report.created, 'new thread')}, {report.extended:,} extended"
        out.tell(f"{added}, {count(report.checkpoints, 'checkpoint')} compared")
    else:
        out.value(report)


class TargetStore(Invocation):
    """The store to which a copy is written. The key in the environment is not its key, but the source's."""

    def key(self) -> Key | None:
        """Return the key of --to-key-file; None for a plain store."""
        return super().key() if self.key_file else None


def _source(session: Invocation) -> Store:
    """Open the store to copy from. A key in the environment is not used if the store is not encrypted."""
    from backtrail.errors import Invalid

    try:
        return session.read()
    except Invalid as error:
        if error.code != "invalid.not_encrypted" or session.key_file:
            raise
    return TargetStore(session.url, session.schema, keyring=session.keyring, debug=session.debug).read()


COMMANDS: Final = (export, import_, copy)
