"""Idle threads: whether one is, by its last write, and removing it with all that belongs to it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import adapter_labels, journal, log, retention
from backtrail.engine.asides import ASIDE
from backtrail.engine.pins import AGENT, CONVERSATION
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import Key
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine import pins
    from backtrail.engine.reader import Heads, Standing
    from backtrail.transaction import Desk, Engine

_THREAD: Final = "thread"
_PAGE: Final = 10_000


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
    engine: Engine,
    record: ThreadRecord,
    rules: retention.Rules,
    holders: pins.Holders,
    *,
    dry_run: bool,
    workers: Workers | None = None,
) -> Idle:
    """Remove a thread that is idle, with what stands beside it: all of it or nothing, decided on what is there."""
    workers = workers or Workers(engine.desk.heads)

    def work(desk: Desk) -> Idle:
        found = _looked_at(desk.heads, record, rules, holders)
        if found.seqs is not None and record.space == CONVERSATION and workers.have(record.name):
            found = Idle(found.kind, why=("a worker has its run",), head=max(found.seqs, default=None))
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
    if not why and _is_needed(heads, record):
        why = ("deltas of a fork need it",)
    if why:
        return Idle(kind, why=why, head=standing.head.seq)
    rows = heads.backend.rows(record.no, [(1, standing.newest.seq)], visible=True)
    return Idle(kind, [] if record.space == journal.SPACE else [row.seq for row in rows])


def _is_needed(heads: Heads, record: ThreadRecord) -> bool:
    """Tell whether channels of a fork are made from a thread, or from the one of which it is a namespace."""
    if record.space != _THREAD:
        return False
    outer = heads.backend.find_thread(_THREAD, adapter_labels.outermost(record.name))
    for each in (record, outer):
        if each is not None and heads.has_deltas(each):
            forks = heads.backend.threads(space=_THREAD, agent=None, prefix=None, origin=each.uid, after=None, limit=1)
            if forks:
                return True
    return False


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
    lease = _field(heads, session_id, "lease")
    return lease is not None and lease[2] > heads.shared_time()


def _field(heads: Heads, session_id: str, name: str) -> Any:
    """Return a field of what a run goes on from; None if it has none."""
    standing = heads.standing(journal.SPACE, session_id)
    if standing is None or standing.head is None:
        return None
    tree = heads.chain(standing.record, standing.head).tree
    try:
        return Decoder(tree.nodes, heads.types).value(locate(tree, Path((name,)), heads.types)[0])
    except NotFound:
        return None


class Workers:
    """The runs that workers have, looked up once, when the first conversation is about to go."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._conversations: set[Any] | None = None

    def have(self, conversation: str) -> bool:
        """Tell whether a worker has a run whose messages go to a conversation."""
        if self._conversations is None:
            self._conversations = {_field(self._heads, name, "conversation") for name in self._runs()}
        return conversation in self._conversations

    def _runs(self) -> Iterator[str]:
        after: tuple[int, int] | None = None
        while True:
            page = self._heads.backend.threads(space=journal.SPACE, agent=None, prefix=None, after=after, limit=_PAGE)
            for record, newest in page:
                with suppress(Corrupt):  # a run that cannot be read keeps no conversation
                    if _goes_on(record, newest) and _has_worker(self._heads, record.name):
                        yield record.name
            if len(page) < _PAGE:
                return
            after = (page[-1][1].created_at, page[-1][0].no)


def _goes_on(record: ThreadRecord, newest: Row) -> bool:
    """Tell whether a run may go on: the row of one that has ended, or waits, says how it stands."""
    return not log.unpack_extra(log.checked(newest, record.uid))[0]
