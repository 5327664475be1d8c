"""Migration: update heads that older versions of their classes saved.

A migration makes one save per thread, on top of its head. If another process saves at the same time, the migration
reads the thread again. Older checkpoints do not change: their states are upcast when they are read. A run with a worker
is skipped, because the worker may know only the older classes. A rewound run stays at its current head.
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
    """Update the heads of all threads whose states have older versions; return the report."""
    check_progress(progress)
    newest = _newest_versions(engine.types)
    count = migrated = 0
    failed: list[tuple[str, str, str]] = []
    for count, record in enumerate(gc.threads(engine.session.reader), 1):
        if record.space != manifests.SPACE:
            try:
                migrated += _migrate_thread(engine, record, newest)
            except Error as error:
                failed.append((record.space, record.name, str(error)))
        if progress:
            progress("threads", count)
    return MigrateReport(count, migrated, tuple(failed))


def _newest_versions(types: Types) -> dict[str, int]:
    """Return the newest version of each class by schema name; 0 for a class without upcasters."""
    versions = (
        (each.cls, each.name, each.version) if isinstance(each, Type) else (each, *schema_of(each)) for each in types
    )
    return {name: version if upcasters_of(cls) else 0 for cls, name, version in versions}


def _migrate_thread(engine: Engine, record: ThreadRecord, newest: dict[str, int]) -> bool:
    """Update the head of a thread if its state is out of date; tell whether it was."""
    types = (Message,) if record.space in _RUNS else None  # the types with which a worker reads a run
    thread: Thread[Any] = Thread(engine, record.space, record.name, types=types)
    for _ in range(_TRIES):
        head = thread.latest() if newest or record.space == manifests.AGENT else None
        state = None if head is None else _updated_state(record, head, newest)
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
        f"thread {record.name!r} keeps changing: other processes write to it; try again later", code="conflict.stale"
    )


def _refuse_leased(reader: LogReader, session_id: str) -> None:
    """Raise `Conflict` if a run has a worker. A worker that opens the run later writes to the journal first."""
    lease = lease_of(reader, session_id)
    if lease is not None:
        until = f"{when(lease[2]):%Y-%m-%d %H:%M:%S} UTC"
        raise Conflict(
            f"run {session_id!r} is leased by worker {lease[0]} until {until}: migrate again after the worker ends; "
            "opening the run also migrates it",
            code="conflict.lease",
        )


def _updated_state(record: ThreadRecord, head: Checkpoint[Any], newest: dict[str, int]) -> tuple[Any] | None:
    """Return the state in the newest versions of its classes, as a 1-tuple; None if it is up to date."""
    tree = head._opened()  # noqa: SLF001 - a checkpoint's state, before its classes are made
    collector = _SchemaVersions()
    plain = Decoder(tree.nodes, collector).value(tree.rep)
    of_agent = record.space == manifests.AGENT and isinstance(plain, dict)
    if of_agent and newest_version() not in (1, plain.get("version", 1)):
        return (current(head.state),)
    if not any(schema in newest for schema, _ in collector.versions):
        return None
    state = head.state  # decode even a current state: a state that cannot be upcast raises an error here
    return (state,) if any(version < newest.get(schema, 0) for schema, version in collector.versions) else None


class _SchemaVersions(Types):
    """Collects the schema versions of all records and enum members of a state while it is decoded.

    Each record and member is decoded as None, which can be an item of a set or the key of a dict.
    """

    __slots__ = ("versions",)

    def __init__(self) -> None:
        super().__init__()
        self.versions: set[tuple[str, int]] = set()

    def load(self, value: Record | Member) -> None:
        self.versions.add((value.schema, value.version))
