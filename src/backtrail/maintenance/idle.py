"""Idle threads: whether one is, by its last write, and removing it with all that belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import adapter_labels, journal, retention
from backtrail.engine.asides import ASIDE
from backtrail.engine.pins import AGENT
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import Key
from backtrail.errors import NotFound

if TYPE_CHECKING:
    from backtrail.backends.port import ThreadRecord
    from backtrail.engine import pins
    from backtrail.engine.reader import Heads, Standing
    from backtrail.transaction import Desk, Engine

_THREAD: Final = "thread"


class Idle(NamedTuple):
    """What becomes of a thread that may be idle."""

    kind: str
    seqs: list[int] | None = None
    """The checkpoints with which it goes; None if it stays, or is not there."""
    why: tuple[str, ...] = ()
    """Why it stays, if it does."""
    head: int | None = None
    """Its head, if it is idle and stays."""


def remove(
    engine: Engine, record: ThreadRecord, rules: retention.Rules, holders: pins.Holders, *, dry_run: bool
) -> Idle:
    """Remove a thread that is idle, with what stands beside it: all of it or nothing, decided on what is there."""

    def work(desk: Desk) -> Idle:
        found = _looked_at(desk.heads, record, rules, holders)
        if found.seqs is not None and not dry_run:
            for space in _together(record.space):
                desk.moves.delete_thread(Key(space, record.name))
        return found

    return work(engine.desk) if dry_run else engine.atomic(work)


def _together(space: str) -> tuple[str, ...]:
    """Return the name spaces of what goes with a thread, itself included."""
    if space in (journal.RUN, journal.SPACE):
        return journal.RUN, journal.SPACE
    return (space, ASIDE) if space == _THREAD else (space,)


def _looked_at(heads: Heads, record: ThreadRecord, rules: retention.Rules, holders: pins.Holders) -> Idle:
    kind = journal.RUN if record.space == journal.SPACE else record.space
    standing = heads.standing_of(record)
    if standing is None or standing.head is None:
        return Idle(kind)
    if record.space == journal.SPACE and _is_there(heads, journal.RUN, record.name):
        return Idle(kind)  # it is looked at with its checkpoints
    if record.space == AGENT or _last_written(heads, standing) >= (rules.idle_since or 0):
        return Idle(kind, why=("agent",) if record.space == AGENT else ("in use",))
    working = kind == journal.RUN and _has_worker(heads, record.name)
    why = ("a worker has it",) if working else retention.marked(heads, standing, rules, holders)
    if why:
        return Idle(kind, why=why, head=standing.head.seq)
    rows = heads.backend.rows(record.no, [(1, standing.newest.seq)], visible=True)
    return Idle(kind, [] if record.space == journal.SPACE else [row.seq for row in rows])


def _is_there(heads: Heads, space: str, name: str) -> bool:
    standing = heads.standing(space, name)
    return standing is not None and standing.head is not None


def _last_written(heads: Heads, standing: Standing) -> int:
    """Return when a thread was last written to, or what belongs to it: its journal, the namespaces of its graph."""
    record = standing.record
    names = {record.name}
    found = [standing.newest.created_at]
    if (
        record.space == _THREAD
        and standing.head is not None
        and adapter_labels.mark_of(standing.head, heads.types) is not None
    ):
        outer = adapter_labels.outermost(record.name)
        names.add(outer)
        for space in _together(record.space):
            page = heads.backend.threads(space=space, agent=None, prefix=f"{outer}|", after=None, limit=1)
            found += [newest.created_at for _, newest in page]
    for space in _together(record.space):
        for name in names:
            other = heads.backend.find_thread(space, name)
            newest = None if other is None else heads.backend.newest(other.no)
            found += [] if newest is None or not newest.head else [newest.created_at]
    return max(found)


def _has_worker(heads: Heads, session_id: str) -> bool:
    standing = heads.standing(journal.SPACE, session_id)
    if standing is None or standing.head is None:
        return False
    tree = heads.chain(standing.record, standing.head).tree
    try:
        lease = Decoder(tree.nodes, heads.types).value(locate(tree, Path(("lease",)), heads.types)[0])
    except NotFound:
        return False
    return lease is not None and lease[2] > heads.shared_time()
