"""Pruning: hide the checkpoints that a policy does not keep, and delete idle threads.

A report can name millions of checkpoints. So it stores only seqs, and makes the ids and reasons when they are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from backtrail.backends.port import Stale
from backtrail.engine import adapter_labels, journal, log, manifests, retention, throttle
from backtrail.engine.asides import ASIDE
from backtrail.engine.head import Doomed
from backtrail.engine.retention import Rules, Sorted
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import ThreadKey
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.maintenance import gc
from backtrail.models import PruneReport
from backtrail.validation import (
    check_count,
    check_days,
    check_duration,
    check_id,
    check_ids,
    check_kind_of_ids,
    check_progress,
    check_tags,
)

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.head import Tagged
    from backtrail.engine.reader import LogReader, Tip
    from backtrail.transaction import Engine, Session


_MANY: Final = throttle.SLICE // 2
"""How many checkpoints of several threads are enough for a commit; one commit then hides less than a slice."""
T = TypeVar("T")
_THREAD: Final = "thread"
_RUNS: Final = 10_000
"""How many runs `_Workers` reads per page."""
_COUNTS: Final = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules of pruning: a checkpoint stays if at least one field keeps it; all others are removed.

    `idle` deletes whole threads. If only `idle` is given, the other threads do not change.

    A policy that keeps nothing raises `Invalid`. The head always stays, and so do checkpoints that an agent checkpoint
    points at. Checkpoints that a rewind took out of view are counted separately from those in view.
    """

    keep_last: int | None = None
    """Keep this many of the newest checkpoints."""
    keep_hourly: int | None = None
    """Keep the newest checkpoint of each of the last `keep_hourly` hours that have one. All times are in UTC."""
    keep_daily: int | None = None
    keep_weekly: int | None = None
    """Weeks begin on Mondays, as in ISO 8601."""
    older_than: dt.timedelta | float | None = None
    """Keep checkpoints that are not older than this."""
    keep_tagged: bool | tuple[str, ...] = True
    """True: keep checkpoints that have a tag. A tuple: keep checkpoints that have one of these tags."""
    keep_labelled: bool = True
    """Keep checkpoints that have a label of the user. Labels that adapters put on every checkpoint do not count."""
    idle: dt.timedelta | float | None = None
    """Delete threads, conversations and runs without a write for longer than this: a timedelta, or a number of days.

    A thread stays if one of its checkpoints has a tag or a label, or if an agent checkpoint points at it.
    """

    def __post_init__(self) -> None:
        given = [name for name in _COUNTS if getattr(self, name) is not None]
        for name in given:
            check_count(getattr(self, name), name)
        if self.older_than is not None:
            check_duration(self.older_than, "older_than")
        if self.idle is not None:
            check_days(self.idle, "idle")
        if not isinstance(self.keep_tagged, bool):
            object.__setattr__(self, "keep_tagged", check_tags(self.keep_tagged, "keep_tagged"))
        if not isinstance(self.keep_labelled, bool):
            raise Invalid(f"keep_labelled must be True or False, not {self.keep_labelled!r}", code="invalid.argument")
        keeps = any(getattr(self, name) for name in given) or self.older_than is not None
        if not keeps and self.keep_tagged in (True, False, ()) and (given or self.idle is None):
            raise Invalid(
                f"this policy keeps nothing but heads and marked checkpoints: set one of {', '.join(_COUNTS)} above 0, "
                "or older_than, idle or keep_tagged=[...]; to remove everything, delete the thread",
                code="invalid.policy",
            )


def rules_of(policy: Policy, now: int) -> Rules:
    """Return the rules of a policy at the time `now`, in microseconds since 1970."""
    age = None if policy.older_than is None else check_duration(policy.older_than, "older_than")
    idle = None if policy.idle is None else check_days(policy.idle, "idle")
    return Rules(
        keep_last=policy.keep_last,
        oldest=None if age is None else now - age,
        older_than=age,
        keep_hourly=policy.keep_hourly,
        keep_daily=policy.keep_daily,
        keep_weekly=policy.keep_weekly,
        keep_tagged=frozenset(policy.keep_tagged) if isinstance(policy.keep_tagged, tuple) else policy.keep_tagged,
        keep_labelled=policy.keep_labelled,
        idle_since=None if idle is None else now - idle,
        idle=idle,
    )


def check_policy(policy: Any, keep_last: Any, older_than: Any, keep_tagged: Any) -> Policy:
    """Return the `policy` argument, or a policy from the other arguments; `Invalid` if both or none are given."""
    if policy is None:
        _require_rule(keep_last, older_than)
        labelled = keep_tagged is not False  # keep_tagged is for tags and labels
        return Policy(keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged, keep_labelled=labelled)
    if not isinstance(policy, Policy):
        raise Invalid(f"a policy must be a backtrail.Policy, not {policy!r:.100}", code="invalid.policy")
    if keep_last is not None or older_than is not None or keep_tagged is not True:
        raise Invalid("pass a policy, or keep_last, older_than and keep_tagged, not both", code="invalid.policy")
    return policy


def rules_for_one(policy: Any, keep_last: Any, older_than: Any, keep_tagged: Any, now: int) -> Rules:
    """Return the rules for pruning one thread. Unlike in a policy, keep_last=0 is allowed: it keeps only the head."""
    if policy is None and keep_last == 0 and older_than is None and isinstance(keep_tagged, bool):
        return Rules(keep_last=check_count(keep_last, "keep_last"), keep_tagged=keep_tagged, keep_labelled=keep_tagged)
    return rules_of(check_policy(policy, keep_last, older_than, keep_tagged), now)


def _require_rule(keep_last: Any, older_than: Any) -> None:
    if keep_last is None and older_than is None:
        raise Invalid(
            "prune needs a policy, keep_last or older_than; to remove everything, delete the thread",
            code="invalid.policy",
        )


# -- the report ---------------------------------------------------------------------------------------


class _ThreadPart(NamedTuple):
    """The checkpoints of one thread in a report."""

    uid: bytes
    name: str
    kind: str
    seqs: array[int]
    reasons: tuple[tuple[str, ...], ...] = ()


class _Entries(Sequence[T]):
    """The entries of all threads in a report: a sequence that makes each entry when it is read."""

    def __init__(self, parts: list[_ThreadPart], make: Callable[[_ThreadPart, int], T]) -> None:
        self._parts = parts
        self._make = make
        self._starts = [0]
        for part in parts:
            self._starts.append(self._starts[-1] + len(part.seqs))

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        places = range(len(self))[index]
        return tuple(map(self._at, places)) if isinstance(places, range) else self._at(places)

    def _at(self, place: int) -> T:
        number = bisect_right(self._starts, place) - 1
        return self._make(self._parts[number], place - self._starts[number])

    def __iter__(self) -> Iterator[T]:
        return (self._make(part, at) for part in self._parts for at in range(len(part.seqs)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} checkpoints>"


def _kind_of(reason: str) -> str:
    """Return the kind of a reason, without the hour, tag or agent that differs between checkpoints."""
    word = reason.partition(" ")[0]
    kinds = {"hour": "newest of an hour", "day": "newest of a day", "week": "newest of a week", "tagged": "tagged"}
    return "held by a checkpoint of an agent" if word == "held" else kinds.get(word, reason)


class Account:
    """Collects the removed and the kept checkpoints and threads for a `PruneReport`."""

    def __init__(self, rules: Rules, *, dry_run: bool) -> None:
        self._reason = rules.reason
        self._dry_run = dry_run
        self._removed: list[_ThreadPart] = []
        self._kept: list[_ThreadPart] = []
        self._reasons: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._untouched = 0
        self._damaged: list[str] = []
        self._idle = retention.idle_reason(rules)
        self._removed_threads: list[tuple[str, str, str]] = []
        self._reason_counts: Counter[str] = Counter()

    def add(self, record: ThreadRecord, sorted_rows: Sorted) -> None:
        """Add the removed and the kept checkpoints of a thread."""
        if sorted_rows.gone:
            self._removed.append(_ThreadPart(record.uid, record.name, record.space, array("I", sorted_rows.gone)))
        if sorted_rows.kept:
            seqs = array("I", (seq for seq, _ in sorted_rows.kept))
            reasons = tuple(self._reasons.setdefault(each, each) for _, each in sorted_rows.kept)
            self._kept.append(_ThreadPart(record.uid, record.name, record.space, seqs, reasons))
            self._count(sorted_rows)

    def add_pruned(self, record: ThreadRecord, sorted_rows: Sorted) -> None:
        """Add a thread that was pruned, and may have kept all its checkpoints."""
        if sorted_rows.gone:
            self.add(record, sorted_rows)
        else:
            self.add_unchanged(sorted_rows)

    def settle(self, record: ThreadRecord, decision: Idle, *, alone: bool) -> None:
        """Add the decision about an idle thread; `alone` means that the policy has no rules for single checkpoints."""
        if decision.seqs is not None:
            self._removed_threads.append((decision.kind, record.name, self._idle))
            if decision.seqs:
                self._removed.append(
                    _ThreadPart(record.uid, record.name, decision.kind, array("I", decision.seqs), ((self._idle,),))
                )
        elif decision.head is not None:
            self.add(record, Sorted({}, [(decision.head, decision.why)]))
        elif decision.why and alone:
            self.add_unchanged(why=decision.why[0])

    def add_unchanged(self, sorted_rows: Sorted | None = None, *, why: str | None = None, count: int = 1) -> None:
        """Add a thread that keeps all its checkpoints, and count the reasons."""
        self._untouched += 1
        if sorted_rows is not None:
            self._count(sorted_rows)
        elif why is not None and count:
            self._reason_counts[why] += count

    def _count(self, sorted_rows: Sorted) -> None:
        for _, reasons in sorted_rows.kept:
            self._reason_counts.update({_kind_of(reason) for reason in reasons})

    def add_damaged(self, record: ThreadRecord) -> None:
        """Add a damaged thread: it is not pruned."""
        self._damaged.append(record.name)

    def report(self) -> PruneReport:
        """Return the report of all added threads."""
        reason = self._reason

        def removed(part: _ThreadPart, at: int) -> tuple[str, str]:
            return log.checkpoint_id(part.uid, part.seqs[at]), part.reasons[0][0] if part.reasons else reason

        def kept(part: _ThreadPart, at: int) -> tuple[str, str, tuple[str, ...]]:
            return log.checkpoint_id(part.uid, part.seqs[at]), part.name, part.reasons[at]

        return PruneReport(
            _Entries(self._removed, removed),
            _Entries(self._kept, kept),
            removed_from=_Entries(self._removed, lambda part, _: (part.kind, part.name)),
            kinds=_Entries(self._kept, lambda part, _: part.kind),
            untouched=self._untouched,
            damaged=tuple(self._damaged),
            threads=tuple(self._removed_threads),
            reasons=dict(self._reason_counts.most_common()),
            dry_run=self._dry_run,
        )


def prune(
    engine: Engine,
    policy: Policy,
    spaces: tuple[str, ...],
    *,
    agent: Any = None,
    threads: Any = None,
    kind: Any = None,
    dry_run: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> PruneReport:
    """Prune the threads of the name spaces: all, or those of one agent, or those with the given ids and kind."""
    check_progress(progress)
    spaces = check_kind_of_ids(kind, threads, spaces)
    reader = engine.session.reader
    rules = rules_of(policy, reader.clock())
    account = Account(rules, dry_run=dry_run)
    holders, keepers = manifests.PinIndex(reader), manifests.PinIndex(reader, of_heads=False)
    workers = _Workers(reader)
    pending = _Pending(engine, rules, account, holders)
    if rules.idle is not None and journal.RUN in spaces:
        spaces = (*spaces, journal.SPACE)  # a run without checkpoints is known by its journal alone
    for count, record in enumerate(_selected(reader, spaces, agent, threads), 1):
        try:
            _prune(engine, record, rules, account, pending, keepers=keepers, workers=workers, dry_run=dry_run)
        except Corrupt:  # the head is unknown
            account.add_damaged(record)
        if pending.rows >= _MANY:
            pending.write()
        if progress:
            try:
                progress("threads", count)
            except BaseException:
                pending.write()  # these threads were reported
                raise
    pending.write()
    return account.report()


def _prune(
    engine: Engine,
    record: ThreadRecord,
    rules: Rules,
    account: Account,
    pending: _Pending,
    *,
    keepers: manifests.PinIndex,
    workers: _Workers,
    dry_run: bool,
) -> None:
    """Delete one thread if it is idle, or prune its checkpoints; add the result to the account."""
    if rules.idle is not None:
        pending.write()
        decision = remove_idle(engine, record, rules, keepers, dry_run=dry_run, workers=workers)
        alone = record.space == journal.SPACE or not rules.prunes
        account.settle(record, decision, alone=alone)
        if not decision.why or alone:
            return
    reader = engine.session.reader
    few = retention.few(reader, record, rules)
    tip = reader.tip_of(record) if few is None else None
    if tip is None:
        account.add_unchanged(why=f"newest {rules.keep_last}", count=few or 0)
    elif dry_run:
        account.add_pruned(record, retention.sort_out(reader, tip, rules, pending.holders))
    else:
        pending.add(tip)


# -- checkpoints ----------------------------------------------------------------------------------------


class _Pending:
    """The checkpoints of several threads that are to be hidden in one commit, so that few commits wait for the disk."""

    def __init__(self, engine: Engine, rules: Rules, account: Account, holders: manifests.PinIndex) -> None:
        self._reader = engine.session.reader
        self._mover = engine.session.mover
        self._rules = rules
        self._account = account
        self.holders = holders
        self._threads: list[tuple[Doomed, Sorted]] = []
        self.rows = 0
        """How many checkpoints are to be hidden."""
        self._pace = throttle.Upkeep()

    def add(self, tip: Tip) -> None:
        """Choose the checkpoints of a thread, and hide them later; if there are many, hide them now, in slices."""
        pins = self._reader.backend.pins(tip.record.no)  # before the choice
        chosen = retention.sort_out(self._reader, tip, self._rules, self.holders)
        size = len(chosen.gone)
        if not size:
            self._account.add_unchanged(chosen)
        elif size > _MANY:
            self._prune_one(tip, chosen)
        else:
            self._threads.append((Doomed(tip, pins, chosen.gone), chosen))
            self.rows += size

    def write(self) -> None:
        """Hide the chosen checkpoints, and add their threads to the account."""
        threads, self._threads, self.rows = self._threads, [], 0
        if not threads:
            return
        try:
            with self._pace.write():
                self._mover.hide_all([each for each, _ in threads])
        except Stale:
            for each, chosen in threads:
                self._prune_one(each.tip, chosen)
        else:
            for each, chosen in threads:
                self._account.add(each.tip.record, chosen)

    def _prune_one(self, known: Tip, chosen: Sorted) -> None:
        """Prune one thread. If another writer changes it, choose again among the checkpoints in `chosen.gone`."""
        record, kept = known.record, dict(chosen.kept)
        result = chosen

        def choose(tip: Tip) -> Tagged:
            nonlocal result
            now = retention.sort_out(self._reader, tip, self._rules, self.holders, until=known.newest.seq)
            gone = {seq: tags for seq, tags in now.gone.items() if seq not in kept}
            result = Sorted(gone, sorted([*now.kept, *((seq, kept[seq]) for seq in now.gone if seq in kept)]))
            return gone

        try:
            hidden = self._mover.hide(ThreadKey(record.space, record.name, record.agent), choose)
        except Corrupt:  # the head is unknown
            self._account.add_damaged(record)
        else:
            self._account.add_pruned(record, result._replace(gone=dict(sorted(hidden.items()))))


def _selected(reader: LogReader, spaces: tuple[str, ...], agent: Any, threads: Any) -> Iterator[ThreadRecord]:
    if agent is not None and threads is not None:
        raise Invalid("pass threads= or agent=, not both", code="invalid.argument")
    if agent is not None:
        tips = reader.backend.tips(check_id(agent, "an agent's id"), touched=False)
        return (tip.record for tip in tips if tip.record.space in spaces)
    if threads is not None:
        return iter(_by_name(reader, spaces, check_ids(threads)))
    return (record for record in gc.threads(reader) if record.space in spaces)


def _by_name(reader: LogReader, spaces: tuple[str, ...], names: tuple[str, ...]) -> list[ThreadRecord]:
    records: list[ThreadRecord] = []
    for name in names:
        matches = [record for space in spaces if (record := reader.backend.find_thread(space, name)) is not None]
        if not matches:
            what = spaces[0] if len(spaces) == 1 else "thread"
            raise NotFound(f"there is no {what} {name!r}", code="not_found.thread")
        records += matches
    return records


# -- idle threads ---------------------------------------------------------------------------------------


class Idle(NamedTuple):
    """The decision about a thread that may be idle."""

    kind: str
    seqs: list[int] | None = None
    """The seqs of the checkpoints that are deleted with the thread; None if it stays, or does not exist."""
    why: tuple[str, ...] = ()
    """The reasons why the thread stays."""
    head: int | None = None
    """The seq of the head, if the thread is idle and stays."""


def remove_idle(
    engine: Engine,
    record: ThreadRecord,
    rules: Rules,
    holders: manifests.PinIndex,
    *,
    dry_run: bool,
    workers: _Workers | None = None,
) -> Idle:
    """Delete a thread and its dependent threads if it is idle, in one transaction; return the decision."""
    workers = workers or _Workers(engine.session.reader)

    def work(session: Session) -> Idle:
        decision = _decision(session.reader, record, rules, holders)
        if decision.seqs is not None and record.space == manifests.CONVERSATION and workers.use(record.name):
            decision = Idle(decision.kind, why=("a worker has its run",), head=max(decision.seqs, default=None))
        if decision.seqs is not None and not dry_run:
            for space in _spaces_of(record.space):
                session.mover.delete_thread(ThreadKey(space, record.name))
        return decision

    return work(engine.session) if dry_run else engine.atomic(work)


def _spaces_of(space: str) -> tuple[str, ...]:
    """Return the name spaces of the threads that are deleted together with a thread, its own included."""
    if space in (journal.RUN, journal.SPACE):
        return journal.RUN, journal.SPACE
    return (space, ASIDE) if space == _THREAD else (space,)


def _decision(reader: LogReader, record: ThreadRecord, rules: Rules, holders: manifests.PinIndex) -> Idle:
    kind = journal.RUN if record.space == journal.SPACE else record.space
    tip = reader.tip_of(record)
    if tip is None or tip.head is None:
        return Idle(kind)
    if record.space == journal.SPACE and _has_head(reader, journal.RUN, record.name):
        return Idle(kind)  # the thread with the run's checkpoints decides for both threads of the run
    if record.space == manifests.AGENT or _last_written(reader, tip) >= (rules.idle_since or 0):
        return Idle(kind, why=("agent",) if record.space == manifests.AGENT else ("in use",))
    working = kind == journal.RUN and lease_of(reader, record.name) is not None
    why = ("a worker has it",) if working else retention.marked(reader, tip, rules, holders)
    if not why and _is_needed(reader, record):
        why = ("deltas of a fork need it",)
    if why:
        return Idle(kind, why=why, head=tip.head.seq)
    rows = reader.backend.rows(record.no, [(1, tip.newest.seq)], visible=True)
    return Idle(kind, [] if record.space == journal.SPACE else [row.seq for row in rows])


def _is_needed(reader: LogReader, record: ThreadRecord) -> bool:
    """Tell whether a fork reads deltas from the thread, or from its outer thread, if it is a namespace of a graph."""
    if record.space != _THREAD:
        return False
    outer = reader.backend.find_thread(_THREAD, adapter_labels.outermost(record.name))
    for each in (record, outer):
        if each is not None and reader.has_deltas(each):
            forks = reader.backend.threads(space=_THREAD, agent=None, prefix=None, origin=each.uid, after=None, limit=1)
            if forks:
                return True
    return False


def _has_head(reader: LogReader, space: str, name: str) -> bool:
    tip = reader.tip(space, name)
    return tip is not None and tip.head is not None


def _last_written(reader: LogReader, tip: Tip) -> int:
    """Return the time of the last write to a thread, its journal, its asides or the namespaces of its graph.

    The time is in microseconds since 1970.
    """
    record = tip.record
    names = {record.name}
    times = [tip.newest.created_at]
    if record.space == _THREAD and tip.head is not None and adapter_labels.mark_of(tip.head, reader.types) is not None:
        outer = adapter_labels.outermost(record.name)
        names.add(outer)
        for space in _spaces_of(record.space):
            page = reader.backend.threads(space=space, agent=None, prefix=f"{outer}|", after=None, limit=1)
            times += [newest.created_at for _, newest in page]
    for space in _spaces_of(record.space):
        for name in names:
            other = reader.backend.find_thread(space, name)
            newest = None if other is None else reader.backend.newest(other.no)
            times += [] if newest is None or not newest.head else [newest.created_at]
    return max(times)


def lease_of(reader: LogReader, session_id: str) -> Any:
    """Return the lease of a run, or None if no worker has one. The third field is the time at which it ends."""
    lease = _field(reader, session_id, "lease")
    return lease if lease is not None and lease[2] > reader.shared_time() else None


def _field(reader: LogReader, session_id: str, name: str) -> Any:
    """Return a field of the head of a run's journal; None if it has no such field, or no head."""
    tip = reader.tip(journal.SPACE, session_id)
    if tip is None or tip.head is None:
        return None
    tree = reader.chain(tip.record, tip.head).tree
    try:
        return Decoder(tree.nodes, reader.types).value(locate(tree, Path((name,)), reader.types)[0])
    except NotFound:
        return None


class _Workers:
    """The conversations of leased runs. They are read once, before the first conversation is deleted."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._conversations: set[Any] | None = None

    def use(self, conversation: str) -> bool:
        """Tell whether a leased run writes its messages to this conversation."""
        if self._conversations is None:
            self._conversations = {_field(self._reader, name, "conversation") for name in self._runs()}
        return conversation in self._conversations

    def _runs(self) -> Iterator[str]:
        after: tuple[int, int] | None = None
        while True:
            page = self._reader.backend.threads(space=journal.SPACE, agent=None, prefix=None, after=after, limit=_RUNS)
            for record, newest in page:
                with suppress(Corrupt):  # a run that cannot be read keeps no conversation
                    if _may_be_leased(record, newest) and lease_of(self._reader, record.name) is not None:
                        yield record.name
            if len(page) < _RUNS:
                return
            after = (page[-1][1].created_at, page[-1][0].no)


def _may_be_leased(record: ThreadRecord, newest: Row) -> bool:
    """Tell whether a run may have a worker: if it has ended or waits, its newest journal row has a status."""
    return not log.unpack_extra(log.checked(newest, record.uid))[0]
