"""Bringing what is stored up to date: heads whose states were saved by older versions of their classes.

Each thread is done by itself, on top of the head that was read; whoever saves meanwhile is first, and the thread is
looked at again. Nothing that was saved before is changed: history is brought up to date as it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.agents import current
from backtrail.engine import pins, upkeep
from backtrail.engine.codec import Decoder
from backtrail.engine.schema import Member, Record, Types, schema_of
from backtrail.engine.versions import upcasters_of
from backtrail.errors import Conflict, Error
from backtrail.reports import MigrateReport
from backtrail.threads import Thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import ThreadRecord
    from backtrail.checkpoints import Checkpoint
    from backtrail.engine.engine import Engine

_TRIES: Final = 10
_NOTE: Final = {"migrated": True}


def migrate(engine: Engine, progress: Callable[[str, int], None] | None) -> MigrateReport:
    """Save anew the heads of all threads whose states are of older versions."""
    newest = _newest(engine.types)
    count = migrated = 0
    failed: list[tuple[str, str, str]] = []
    for count, record in enumerate(upkeep.threads(engine.desk.heads), 1):
        if record.space != pins.SPACE:
            try:
                migrated += _migrated(engine, record, newest)
            except Error as error:
                failed.append((record.space, record.name, str(error)))
        if progress:
            progress("threads", count)
    return MigrateReport(count, migrated, tuple(failed))


def _newest(types: Types) -> dict[str, int]:
    """Return the versions of the classes that have older ones, by their schema names."""
    classes = [each for each in types if isinstance(each, type) and upcasters_of(each)]
    return dict(schema_of(cls) for cls in classes)


def _migrated(engine: Engine, record: ThreadRecord, newest: dict[str, int]) -> bool:
    """Bring a thread up to date, and tell whether it was not."""
    thread: Thread[Any] = Thread(engine, record.space, record.name)
    for _ in range(_TRIES):
        head = thread.latest() if newest or record.space == pins.AGENT else None
        state = None if head is None else _renewed(record, head, newest)
        if head is None or state is None:
            return False
        try:
            thread.save(state[0], kind="automatic", metadata=_NOTE, expect=head)
        except Conflict:
            continue
        return True
    raise Conflict(f"thread {record.name!r} is written to without pause; try again", code="conflict.stale")


def _renewed(record: ThreadRecord, head: Checkpoint[Any], newest: dict[str, int]) -> tuple[Any] | None:
    """Return the state as the newest versions have it; None if that is what it is."""
    tree = head._opened()  # noqa: SLF001 - a checkpoint's state, before its classes are made
    plain = Decoder(tree.nodes, Types()).value(tree.rep)
    old = any(value.version < newest.get(value.schema, 0) for value in _records(plain))
    state = head.state if old else plain
    if record.space == pins.AGENT and isinstance(state, dict):
        renewed = current(state)
        old = old or (renewed is not state and renewed.get("version") != state.get("version"))
        state = renewed
    return (state,) if old else None


def _records(value: Any) -> Iterator[Record | Member]:
    """Give every record and member of a state."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Record | Member):
            yield item
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
