"""Migration: save heads again whose states were saved by older versions of their classes.

Each thread is one save on top of its head. If another process saves meanwhile, the thread is read again. Older
checkpoints do not change: their states are upcast when they are read. A run with a worker is skipped, because the
worker may know only the older classes. A run whose head was moved stays at the head that it was moved to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.models import newest_version
from backtrail.agents.repository import current
from backtrail.conversations.models import Message
from backtrail.engine import journal, manifests
from backtrail.engine.schema.registry import Member, Record, Type, Types, schema_of
from backtrail.engine.schema.upcast import upcasters_of
from backtrail.engine.tree.decode import Decoder
from backtrail.errors import Conflict, Error
from backtrail.maintenance import gc
from backtrail.maintenance.retention import lease_of
from backtrail.models import MigrateReport, when
from backtrail.runs.recorder import JournalThread
from backtrail.thread import Thread
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import LogReader
    from backtrail.transaction import Engine, Session

_TRIES: Final = 10
_NOTE: Final = {"migrated": True}
_RUNS: Final = (journal.RUN, journal.SPACE)
"""The name spaces of the two threads of a run."""


def migrate(engine: Engine, progress: Callable[[str, int], None] | None) -> MigrateReport:
    """Save the heads of all threads again whose states have older versions; return the report."""
    check_progress(progress)
    newest = _newest(engine.types)
    count = migrated = 0
    failed: list[tuple[str, str, str]] = []
    for count, record in enumerate(gc.threads(engine.session.reader), 1):
        if record.space != manifests.SPACE:
            try:
                migrated += _migrated(engine, record, newest)
            except Error as error:
                failed.append((record.space, record.name, str(error)))
        if progress:
            progress("threads", count)
    return MigrateReport(count, migrated, tuple(failed))


def _newest(types: Types) -> dict[str, int]:
    """Return the newest version of each class by schema name; 0 for a class without upcasters."""
    versions = (
        (each.cls, each.name, each.version) if isinstance(each, Type) else (each, *schema_of(each)) for each in types
    )
    return {name: version if upcasters_of(cls) else 0 for cls, name, version in versions}


def _migrated(engine: Engine, record: ThreadRecord, newest: dict[str, int]) -> bool:
    """Save the head of a thread again if its state is out of date; tell whether it was."""
    types = (Message,) if record.space in _RUNS else None  # as a worker reads them
    thread: Thread[Any] = Thread(engine, record.space, record.name, types=types)
    for _ in range(_TRIES):
        head = thread.latest() if newest or record.space == manifests.AGENT else None
        state = None if head is None else _renewed(record, head, newest)
        if head is None or state is None:
            return False

        def save(session: Session, head: Checkpoint[Any] = head, state: Any = state[0]) -> None:
            if record.space in _RUNS:
                _refuse_leased(session.reader, record.name)
            run = JournalThread(engine, record.name) if record.space == journal.RUN else None
            if run is not None:  # a move counts only while it is the newest row: settle it before the save
                run.settle(session)
            made = thread.save(state, kind="automatic", metadata=_NOTE, expect=head)
            if run is not None and run.place.tip is not None:
                run.extend(session, (), {"at": made.seq})

        try:
            engine.atomic(save)
        except Conflict as error:
            if error.code == "conflict.lease":
                raise
            continue
        return True
    raise Conflict(
        f"thread {record.name!r} is being written by other processes all the time; try again", code="conflict.stale"
    )


def _refuse_leased(reader: LogReader, session_id: str) -> None:
    """Raise `Conflict` if a run has a worker. A worker that opens the run later writes to the journal first."""
    lease = lease_of(reader, session_id)
    if lease is not None:
        until = f"{when(lease[2]):%Y-%m-%d %H:%M:%S} UTC"
        raise Conflict(
            f"run {session_id!r} is being worked on by {lease[0]}, until {until} at least: migrate again when that has "
            "ended; if it is opened before, it is brought up to date then",
            code="conflict.lease",
        )


def _renewed(record: ThreadRecord, head: Checkpoint[Any], newest: dict[str, int]) -> tuple[Any] | None:
    """Return the state in the newest versions of its classes, as a 1-tuple; None if it is up to date."""
    tree = head._opened()  # noqa: SLF001 - a checkpoint's state, before its classes are made
    seen = _SchemaVersions()
    plain = Decoder(tree.nodes, seen).value(tree.rep)
    of_agent = record.space == manifests.AGENT and isinstance(plain, dict)
    if of_agent and newest_version() not in (1, plain.get("version", 1)):
        return (current(head.state),)
    if not any(schema in newest for schema, _ in seen.versions):
        return None
    state = head.state  # also if no version is old: an error names a state that cannot be upcast
    return (state,) if any(version < newest.get(schema, 0) for schema, version in seen.versions) else None


class _SchemaVersions(Types):
    """Collects the schema versions of all records and members of a state while it is decoded.

    Each record and member is decoded as None, which is hashable: a set or dict key may need that.
    """

    __slots__ = ("versions",)

    def __init__(self) -> None:
        super().__init__()
        self.versions: set[tuple[str, int]] = set()

    def load(self, value: Record | Member) -> None:
        self.versions.add((value.schema, value.version))
