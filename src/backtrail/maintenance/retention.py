"""Policies: which checkpoints are to stay when threads are pruned, and the report of what went and what stayed.

A report may be of very many checkpoints: it holds numbers, and makes ids and words of them when they are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from backtrail.engine import journal, log, pins, retention
from backtrail.engine.retention import Rules, Sorted
from backtrail.engine.writer import Key
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.maintenance import gc, idle
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

    from backtrail.backends.port import ThreadRecord
    from backtrail.engine.moves import Tagged
    from backtrail.engine.reader import Heads, Standing
    from backtrail.maintenance.idle import Idle
    from backtrail.transaction import Engine


T = TypeVar("T")
_COUNTS = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What stays of each thread that is pruned: all that one of these keeps. All other checkpoints go.

    `idle` says which threads go as a whole; if it is all that is said, the others stay as they are.

    It has to keep something: `Invalid` if it says nothing, or keeps nothing. The head always stays, and what a
    checkpoint of an agent holds. What was rewound away is counted apart from what is in view.
    """

    keep_last: int | None = None
    """So many, the newest."""
    keep_hourly: int | None = None
    """The newest one of each of the last so many hours that have one; hours, days and weeks are those of UTC."""
    keep_daily: int | None = None
    keep_weekly: int | None = None
    """Weeks begin on Mondays, as ISO 8601 has them."""
    older_than: dt.timedelta | float | None = None
    """Those that are not older than this."""
    keep_tagged: bool | tuple[str, ...] = True
    """Those that have a tag, or one of these tags."""
    keep_labelled: bool = True
    """Those that have a label of the user's; adapters label all that they save, and that keeps nothing."""
    idle: dt.timedelta | float | None = None
    """Whole threads, conversations and runs go that were last written to longer ago than this: a timedelta, or days.

    They are deleted, heads and all, unless one of their checkpoints is tagged, labelled or held by one of an agent.
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
            raise Invalid(f"keep_labelled is True or False, not {self.keep_labelled!r}", code="invalid.argument")
        keeps = any(getattr(self, name) for name in given) or self.older_than is not None
        if not keeps and self.keep_tagged in (True, False, ()) and (given or self.idle is None):
            raise Invalid(
                f"a policy needs one of {', '.join(_COUNTS)} above 0, or older_than, or idle, or the names of tags, or "
                "all would go but heads and what is marked; to remove everything, delete the thread",
                code="invalid.policy",
            )


def rules_of(policy: Policy, now: int) -> Rules:
    """Return a policy as rules that hold at a time, in microseconds since 1970."""
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
    """Return the policy that was handed in: as one, or in words."""
    if policy is None:
        _require_words(keep_last, older_than)
        labelled = keep_tagged is not False  # one word for both
        return Policy(keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged, keep_labelled=labelled)
    if not isinstance(policy, Policy):
        raise Invalid(f"a policy is a backtrail.Policy, not {policy!r:.100}", code="invalid.policy")
    if keep_last is not None or older_than is not None or keep_tagged is not True:
        raise Invalid("say a policy, or keep_last, older_than and keep_tagged, not both", code="invalid.policy")
    return policy


def rules_for_one(policy: Any, keep_last: Any, older_than: Any, keep_tagged: Any, now: int) -> Rules:
    """Return the rules for one thread. In words they may keep nothing but its head, and what else is named."""
    if policy is None and keep_last == 0 and older_than is None and isinstance(keep_tagged, bool):
        return Rules(keep_last=check_count(keep_last, "keep_last"), keep_tagged=keep_tagged, keep_labelled=keep_tagged)
    return rules_of(check_policy(policy, keep_last, older_than, keep_tagged), now)


def _require_words(keep_last: Any, older_than: Any) -> None:
    if keep_last is None and older_than is None:
        raise Invalid(
            "prune needs a policy, keep_last or older_than; to remove everything, delete the thread",
            code="invalid.policy",
        )


# -- the report ---------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What is told of one thread."""

    uid: bytes
    name: str
    kind: str
    seqs: array[int]
    reasons: tuple[tuple[str, ...], ...] = ()


class _Told(Sequence[T]):
    """What was told of threads, one after the other; each entry is made when it is read."""

    def __init__(self, parts: list[_Part], make: Callable[[_Part, int], T]) -> None:
        self._parts = parts
        self._make = make
        self._begins = [0]
        for part in parts:
            self._begins.append(self._begins[-1] + len(part.seqs))

    def __len__(self) -> int:
        return self._begins[-1]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        places = range(len(self))[index]
        return tuple(map(self._at, places)) if isinstance(places, range) else self._at(places)

    def _at(self, place: int) -> T:
        number = bisect_right(self._begins, place) - 1
        return self._make(self._parts[number], place - self._begins[number])

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
    """Return a reason without what it says of one checkpoint or thread alone."""
    word = reason.partition(" ")[0]
    kinds = {"hour": "newest of an hour", "day": "newest of a day", "week": "newest of a week", "tagged": "tagged"}
    return "held by a checkpoint of an agent" if word == "held" else kinds.get(word, reason)


class Account:
    """Adds up what goes and what stays."""

    def __init__(self, rules: Rules, *, dry_run: bool) -> None:
        self._reason = rules.reason
        self._dry_run = dry_run
        self._gone: list[_Part] = []
        self._kept: list[_Part] = []
        self._reasons: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._untouched = 0
        self._damaged: list[str] = []
        self._idle = retention.idle_reason(rules)
        self._removed_threads: list[tuple[str, str, str]] = []
        self._why: Counter[str] = Counter()

    def add(self, record: ThreadRecord, found: Sorted) -> None:
        """Take note of what becomes of a thread."""
        if found.gone:
            self._gone.append(_Part(record.uid, record.name, record.space, array("I", found.gone)))
        if found.kept:
            seqs = array("I", (seq for seq, _ in found.kept))
            reasons = tuple(self._reasons.setdefault(each, each) for _, each in found.kept)
            self._kept.append(_Part(record.uid, record.name, record.space, seqs, reasons))
            self._count(found)

    def settle(self, record: ThreadRecord, found: Idle, *, alone: bool) -> None:
        """Take note of a thread that may be idle; of one in use if nothing else decides about its checkpoints."""
        if found.seqs is not None:
            self._removed_threads.append((found.kind, record.name, self._idle))
            if found.seqs:
                self._gone.append(_Part(record.uid, record.name, found.kind, array("I", found.seqs), ((self._idle,),)))
        elif found.head is not None:
            self.add(record, Sorted({}, [(found.head, found.why)]))
        elif found.why and alone:
            self.pass_over(why=found.why[0])

    def pass_over(self, found: Sorted | None = None, *, why: str | None = None, count: int = 1) -> None:
        """Take note of a thread of which everything stays, and why that is."""
        self._untouched += 1
        if found is not None:
            self._count(found)
        elif why is not None and count:
            self._why[why] += count

    def _count(self, found: Sorted) -> None:
        for _, reasons in found.kept:
            self._why.update({_kind_of(reason) for reason in reasons})

    def leave(self, record: ThreadRecord) -> None:
        """Take note of a thread that is damaged, so that nothing of it goes."""
        self._damaged.append(record.name)

    def report(self) -> PruneReport:
        """Return what was noted."""
        reason = self._reason

        def gone(part: _Part, at: int) -> tuple[str, str]:
            return log.checkpoint_id(part.uid, part.seqs[at]), part.reasons[0][0] if part.reasons else reason

        def kept(part: _Part, at: int) -> tuple[str, str, tuple[str, ...]]:
            return log.checkpoint_id(part.uid, part.seqs[at]), part.name, part.reasons[at]

        return PruneReport(
            _Told(self._gone, gone),
            _Told(self._kept, kept),
            removed_from=_Told(self._gone, lambda part, _: (part.kind, part.name)),
            kinds=_Told(self._kept, lambda part, _: part.kind),
            untouched=self._untouched,
            damaged=tuple(self._damaged),
            threads=tuple(self._removed_threads),
            reasons=dict(self._why.most_common()),
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
    """Prune the threads of some name spaces: all, those of an agent, or those of these ids, of a kind or of any."""
    check_progress(progress)
    spaces = check_kind_of_ids(kind, threads, spaces)
    heads = engine.desk.heads
    rules = rules_of(policy, heads.clock())
    account = Account(rules, dry_run=dry_run)
    holders, keepers = pins.Holders(heads), pins.Holders(heads, of_heads=False)
    workers = idle.Workers(heads)
    if rules.idle is not None and journal.RUN in spaces:
        spaces = (*spaces, journal.SPACE)  # a run without checkpoints is known by its journal alone
    for count, record in enumerate(_chosen(heads, spaces, agent, threads), 1):
        try:
            _prune(engine, record, rules, account, holders=holders, keepers=keepers, workers=workers, dry_run=dry_run)
        except Corrupt:  # it is not known where its head is
            account.leave(record)
        if progress:
            progress("threads", count)
    return account.report()


def _prune(
    engine: Engine,
    record: ThreadRecord,
    rules: retention.Rules,
    account: Account,
    *,
    holders: pins.Holders,
    keepers: pins.Holders,
    workers: idle.Workers,
    dry_run: bool,
) -> None:
    """Prune one thread, or remove it."""
    if rules.idle is not None:
        found = idle.remove(engine, record, rules, keepers, dry_run=dry_run, workers=workers)
        alone = record.space == journal.SPACE or not rules.prunes
        account.settle(record, found, alone=alone)
        if not found.why or alone:
            return
    few = retention.few(engine.desk.heads, record, rules)
    pruned = None if few is not None else _pruned(engine, record, rules, holders, dry_run=dry_run)
    if pruned is not None and pruned.gone:
        account.add(record, pruned)
    else:
        account.pass_over(pruned, why=f"newest {rules.keep_last}", count=few or 0)


# -- checkpoints ----------------------------------------------------------------------------------------


def _pruned(
    engine: Engine, record: ThreadRecord, rules: retention.Rules, holders: pins.Holders, *, dry_run: bool
) -> retention.Sorted | None:
    """Prune one thread; return what became of it, None if there is none any more."""
    heads = engine.desk.heads
    found: retention.Sorted | None = None

    def choose(standing: Standing) -> Tagged:
        nonlocal found
        found = retention.sort_out(heads, standing, rules, holders)
        return found.gone

    if dry_run:
        standing = heads.standing_of(record)
        if standing is not None:
            choose(standing)
    else:
        hidden = engine.desk.moves.hide(Key(record.space, record.name, record.agent), choose)
        found = found and found._replace(gone=dict(sorted(hidden.items())))
    return found


def _chosen(heads: Heads, spaces: tuple[str, ...], agent: Any, threads: Any) -> Iterator[ThreadRecord]:
    if agent is not None and threads is not None:
        raise Invalid("say threads=, or agent=, not both", code="invalid.argument")
    if agent is not None:
        stands = heads.backend.standings(check_id(agent, "an agent's id"), touched=False)
        return (stand.record for stand in stands if stand.record.space in spaces)
    if threads is not None:
        return iter(_named(heads, spaces, check_ids(threads)))
    return (record for record in gc.threads(heads) if record.space in spaces)


def _named(heads: Heads, spaces: tuple[str, ...], names: tuple[str, ...]) -> list[ThreadRecord]:
    found: list[ThreadRecord] = []
    for name in names:
        there = [record for space in spaces if (record := heads.backend.find_thread(space, name)) is not None]
        if not there:
            what = spaces[0] if len(spaces) == 1 else "thread"
            raise NotFound(f"there is no {what} {name!r}", code="not_found.thread")
        found += there
    return found
