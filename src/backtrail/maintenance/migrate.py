"""Bringing what is stored up to date: heads whose states were saved by older versions of their classes.

Each thread is done by itself, on top of the head that was read; whoever saves meanwhile is first, and the thread is
looked at again. Nothing that was saved before is changed: history is brought up to date as it is read. A run that
somebody works on is left alone: its worker may know only the older classes. One that was moved stays where it was moved
to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.repository import current
from backtrail.engine import journal, pins
from backtrail.engine.schema.registry import Member, Record, Type, Types, schema_of
from backtrail.engine.schema.versions import upcasters_of
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.entities import Message, newest_version
from backtrail.errors import Conflict, Error
from backtrail.maintenance import gc
from backtrail.models import MigrateReport, when
from backtrail.runs.recorder import Work
from backtrail.thread import Thread
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import Heads
    from backtrail.transaction import Desk, Engine

_TRIES: Final = 10
_NOTE: Final = {"migrated": True}
_RUNS: Final = (journal.RUN, journal.SPACE)
"""The name spaces of the two threads of a run."""


def migrate(engine: Engine, progress: Callable[[str, int], None] | None) -> MigrateReport:
    """Save anew the heads of all threads whose states are of older versions."""
    check_progress(progress)
    newest = _newest(engine.types)
    count = migrated = 0
    failed: list[tuple[str, str, str]] = []
    for count, record in enumerate(gc.threads(engine.desk.heads), 1):
        if record.space != pins.SPACE:
            try:
                migrated += _migrated(engine, record, newest)
            except Error as error:
                failed.append((record.space, record.name, str(error)))
        if progress:
            progress("threads", count)
    return MigrateReport(count, migrated, tuple(failed))


def _newest(types: Types) -> dict[str, int]:
    """Return the versions of the classes, by their schema names; 0 for those that have no older ones."""
    told = (
        (each.cls, each.name, each.version) if isinstance(each, Type) else (each, *schema_of(each)) for each in types
    )
    return {name: version if upcasters_of(cls) else 0 for cls, name, version in told}


def _migrated(engine: Engine, record: ThreadRecord, newest: dict[str, int]) -> bool:
    """Bring a thread up to date, and tell whether it was not."""
    types = (Message,) if record.space in _RUNS else None  # as a worker reads them
    thread: Thread[Any] = Thread(engine, record.space, record.name, types=types)
    for _ in range(_TRIES):
        head = thread.latest() if newest or record.space == pins.AGENT else None
        state = None if head is None else _renewed(record, head, newest)
        if head is None or state is None:
            return False

        def save(desk: Desk, head: Checkpoint[Any] = head, state: Any = state[0]) -> None:
            if record.space in _RUNS:
                _refuse_leased(desk.heads, record.name)
            if record.space == journal.RUN:  # a move is the newest row, or it does not count
                Work(engine, record.name, None).settle_move(desk)
            thread.save(state, kind="automatic", metadata=_NOTE, expect=head)

        try:
            engine.atomic(save)
        except Conflict as error:
            if error.code == "conflict.lease":
                raise
            continue
        return True
    raise Conflict(f"thread {record.name!r} is written to without pause; try again", code="conflict.stale")


def _refuse_leased(heads: Heads, session_id: str) -> None:
    """Raise `Conflict` if somebody works on a run. Who begins to do so after this look writes to its journal first."""
    standing = heads.standing(journal.SPACE, session_id)
    if standing is None or standing.head is None:
        return
    tree = heads.chain(standing.record, standing.head).tree
    lease = Decoder(tree.nodes, Types()).value(locate(tree, Path(("lease",)), Types())[0])
    if lease is not None and lease[2] > heads.shared_time():
        until = f"{when(lease[2]):%Y-%m-%d %H:%M:%S} UTC"
        raise Conflict(
            f"run {session_id!r} is being worked on by {lease[0]}, until {until} at least: migrate again when that has "
            "ended; if it is opened before, it is brought up to date then",
            code="conflict.lease",
        )


def _renewed(record: ThreadRecord, head: Checkpoint[Any], newest: dict[str, int]) -> tuple[Any] | None:
    """Return the state as the newest versions have it; None if that is what it is."""
    tree = head._opened()  # noqa: SLF001 - a checkpoint's state, before its classes are made
    met = _Met()
    plain = Decoder(tree.nodes, met).value(tree.rep)
    if record.space == pins.AGENT and isinstance(plain, dict) and newest_version() not in (1, plain.get("version", 1)):
        return (current(head.state),)
    if not any(schema in newest for schema, _ in met.versions):
        return None
    state = head.state  # whatever version it is of: what cannot be made of it is told
    return (state,) if any(version < newest.get(schema, 0) for schema, version in met.versions) else None


class _Met(Types):
    """Takes note of the versions of all records and members of a state, and makes nothing of them.

    None stands in their places: it is hashable, as not all of them are without their classes.
    """

    __slots__ = ("versions",)

    def __init__(self) -> None:
        super().__init__()
        self.versions: set[tuple[str, int]] = set()

    def load(self, value: Record | Member) -> None:
        self.versions.add((value.schema, value.version))
