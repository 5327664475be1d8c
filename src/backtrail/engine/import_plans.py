"""What an import is to do: each thread of a file, held against what is in the store.

A thread is the same one if it has the same uid. Its log here and the one in the file must be the same up to where the
shorter one ends, which the row there shows; else they have gone different ways, and that is a `Conflict`. (If that row
was collected where a file comes from that continues another one, the newest one before it shows that.) If the file has
more, the rest is to come, and what is tagged will be as the file says. If both end at the same row, its tags are added;
nothing is taken back. Either way, what the file has hidden is hidden here. If there is more here, nothing is to be
done.

What was hidden here stays so, unless the file goes back to it: it is the head, or was made the head by a rewind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backtrail.engine import log, pins
from backtrail.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail.backends.port import Backend, Row, ThreadRecord
    from backtrail.engine.archive import Entry
    from backtrail.engine.archive_reader import Archive


class Plan(NamedTuple):
    """What is to be done for one thread."""

    entry: Entry
    record: ThreadRecord | None
    """The thread as it is here, None if it is new."""
    newest: int
    """The seq of its newest row here: those behind are to come."""
    hide: tuple[int, ...] = ()
    show: tuple[int, ...] = ()
    tag: tuple[tuple[int, str], ...] = ()
    untag: tuple[tuple[int, str], ...] = ()
    rebased: tuple[Row, ...] = ()
    """Rows that are here already and have to become bases, because the new ones take them for such."""

    @property
    def does(self) -> bool:
        """Whether there is anything to do."""
        return self.grows or self.marked > 0

    @property
    def marked(self) -> int:
        """How many rows that are here are hidden, shown or tagged otherwise."""
        return len({*self.hide, *self.show, *(seq for seq, _ in self.tag + self.untag)})

    @property
    def grows(self) -> bool:
        """Whether rows are to come."""
        return self.newest < self.entry.newest

    @property
    def renewed(self) -> bool:
        """Whether it has begun anew since."""
        return self.record is not None and self.grows and self.record[4:] != self.entry.thread[3:]


def plan_of(backend: Backend, archive: Archive, entry: Entry) -> Plan:
    """Hold a thread against what is here."""
    thread = entry.thread
    # Somebody else may import it between the two: whatever is found is held against what it should be.
    record = backend.find_thread(thread.space, thread.name) or backend.thread_with_uid(thread.uid)
    if record is None:
        if entry.start:
            raise _needs(archive, entry)
        return Plan(entry, None, 0)
    if (record.space, record.name, record.uid) != (thread.space, thread.name, thread.uid):
        raise Conflict(
            f"the {thread.space} {thread.name!r} that is here is another one than that of the import (even if it was "
            "deleted, it keeps its id): import into another store",
            code="conflict.exists",
            thread=thread.name,
            kind=thread.space,
        )
    newest = backend.newest(record.no)
    here = newest.seq if newest is not None else 0
    _require_same_log(backend, archive, entry, record, newest)
    if here > entry.newest:
        return Plan(entry, record, here)  # it has gone on from there
    return _marks(backend, archive, entry, record, here)


def _require_same_log(
    backend: Backend, archive: Archive, entry: Entry, record: ThreadRecord, newest: Row | None
) -> None:
    """Raise unless one of the two logs is the beginning of the other: the same row where the shorter one ends."""
    here = newest.seq if newest is not None else 0
    if here < entry.start:
        raise _needs(archive, entry)
    if here > entry.newest:
        there, op_id = _op_ids(backend.rows(record.no, [(entry.newest, entry.newest)])), entry.newest_op
    else:
        op_id = newest.op_id if newest is not None else b""
        there = [entry.start_op] if here == entry.start else _op_ids(archive.rows(entry, here, here))
    near = _op_ids(backend.rows(record.no, [(entry.near, entry.near)])) if entry.near else []
    if there != [op_id] or (near and near != [entry.near_op]):
        raise Conflict(
            f"{record.space} {record.name!r} has gone another way here than in the import"
            + ("" if there else ", as far as can be told: the rows that would show it were removed")
            + "; nothing was imported: import into a new store",
            code="conflict.import",
            thread=record.name,
            kind=record.space,
        )


def _op_ids(rows: Iterable[Row]) -> list[bytes]:
    return [row.op_id for row in rows]


def _needs(archive: Archive, entry: Entry) -> NotFound:
    return needed(archive, f"{entry.thread.space} {entry.thread.name!r} is not here up to row {entry.start}")


def needed(archive: Archive, why: str) -> NotFound:
    """Return the error of a file that continues one which is not here."""
    return NotFound(
        f"{archive.path} continues export {archive.since}: import that one first ({why})",
        code="not_found.export",
        needs=archive.since,
    )


def require_before(backend: Backend, archive: Archive) -> None:
    """Raise `NotFound` unless all that the file takes for known is here, or was."""
    own = {entry.uid for entry in archive.entries}
    for uid, known in archive.known.items() if archive.since is not None else ():
        record = None if uid in own else backend.thread_with_uid(uid)
        newest = backend.newest(record.no) if record else None
        if uid not in own and (newest is None or newest.seq < known.newest):
            raise needed(archive, "a thread that is not in this file, and that it knows, is not here as far")


def _marks(backend: Backend, archive: Archive, entry: Entry, record: ThreadRecord, here: int) -> Plan:
    """Find what is hidden, shown or tagged otherwise; what goes on from here is right, else nothing is taken back."""
    grows = here < entry.newest
    heads = {
        row.head
        for row in archive.rows(entry, here + 1, entry.newest)
        if row.op == log.REWIND or row.seq == entry.newest
    }
    rows = backend.rows(record.no, [(1, here)])
    tags = backend.tags(record.no)
    both = [(row.seq, set(tags.get(row.seq, ())), entry.tags.get(row.seq, ())) for row in rows]
    return Plan(
        entry,
        record,
        here,
        hide=tuple(row.seq for row in rows if not row.hidden and not entry.shows(row.seq)),
        show=tuple(row.seq for row in rows if row.hidden and row.seq in heads and entry.shows(row.seq)),
        tag=tuple((seq, word) for seq, has, wanted in both for word in wanted if word not in has),
        untag=tuple(
            (seq, word)
            for seq, has, wanted in both
            for word in sorted(has.difference(wanted, pins.pins_in(has)))
            if grows
        ),
        rebased=_rebased(archive, entry, rows) if grows else (),
    )


def _rebased(archive: Archive, entry: Entry, rows: list[Row]) -> tuple[Row, ...]:
    """Return the rows that are bases in the file, and are not here, and that new ones may be read from."""
    here = {row.seq: row for row in rows}
    last = rows[-1].seq if rows else 0
    lowest = min((row.base for row in archive.rows(entry, last + 1, entry.newest) if row.base), default=last + 1)
    if lowest > last:
        return ()
    return tuple(
        row
        for row in archive.rows(entry, lowest, last)
        if row.base == row.seq and row.seq in here and here[row.seq].base != row.seq
    )
