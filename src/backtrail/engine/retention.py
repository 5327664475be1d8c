"""Which checkpoints may go: by the store's options when one is saved, and by rules when a thread is pruned.

The head never goes, nor does what a checkpoint of an agent holds. Labelled and tagged checkpoints are exempt, unless
the rules say otherwise. What was rewound away is counted apart from what is in view: neither crowds the other out.
Order comes from the log, age and dates from the clock of whoever saved: the newest of a day is the last one in the log
of those that were saved on it. Days are those of UTC.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import adapter_labels, log, pins
from backtrail.engine.reader import Examined
from backtrail.models import when

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads, Standing


_PAGE: Final = 50
_HOUR: Final = 3_600_000_000
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY
_MONDAY: Final = 3 * _DAY
"""What 1970 began with is a Thursday."""


class Rules(NamedTuple):
    """What stays; None: not asked. Whatever one of them keeps stays."""

    keep_last: int | None = None
    oldest: int | None = None
    """What was saved at this time or later stays (microseconds since 1970) ..."""
    older_than: int | None = None
    """... because it is younger than this (microseconds)."""
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    """The newest of each of the last so many hours, days, weeks that have one."""
    keep_tagged: bool | frozenset[str] = True
    keep_labelled: bool = True
    idle_since: int | None = None
    """What was last written to before this time is idle (microseconds since 1970): all of it goes ..."""
    idle: int | None = None
    """... because that is longer ago than this (microseconds)."""

    @property
    def prunes(self) -> bool:
        """Whether checkpoints may go of a thread that stays."""
        counts = (self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly, self.oldest)
        return any(each is not None for each in counts) or isinstance(self.keep_tagged, frozenset)

    @property
    def reason(self) -> str:
        """Why something goes under these rules."""
        parts = [f"not among the newest {self.keep_last}"] if self.keep_last is not None else []
        periods = (("hours", self.keep_hourly), ("days", self.keep_daily), ("weeks", self.keep_weekly))
        parts += [f"not the newest of one of the last {count} {name}" for name, count in periods if count is not None]
        if self.older_than is not None:
            parts.append(f"older than {dt.timedelta(microseconds=self.older_than)}")
        if isinstance(self.keep_tagged, frozenset):
            parts.append(f"not tagged {', '.join(sorted(self.keep_tagged))}")
        return " and ".join(parts)


class Sorted(NamedTuple):
    """The checkpoints of a thread, by seq, ascending: those that go, and those that stay, each with its reasons."""

    gone: dict[int, tuple[str, ...]]
    """With the tags that they had: they go as long as they have these."""
    kept: list[tuple[int, tuple[str, ...]]]


def _places(heads: Heads, standing: Standing, rows: list[Row]) -> Iterator[tuple[int, Row]]:
    """Give checkpoints with their places, newest first, in view and out of view apart."""
    view = heads.view(standing)
    yield from enumerate(row for row in rows if log.contains(view, row.seq))
    yield from enumerate(row for row in rows if not log.contains(view, row.seq))


def _all(heads: Heads, standing: Standing, limit: int | None = None) -> list[Row]:
    return heads.backend.rows(
        standing.record.no, [(1, standing.newest.seq)], visible=True, newest_first=True, limit=limit
    )


def _exempt(heads: Heads, record: ThreadRecord, rows: list[Row], new: Row) -> set[int]:
    tagged = heads.backend.tags(record.no, [row.seq for row in rows])
    deltas = adapter_labels.has_deltas(new, heads.types)
    return {
        row.seq
        for row in rows
        if row.seq in tagged or heads.exempt_by_label(record, row) or (deltas and row.label is not None)
    }


def few(heads: Heads, record: ThreadRecord, rules: Rules) -> int | None:
    """Return how many checkpoints a thread has if all of them stay because they are so few; no more are read."""
    newest = heads.backend.newest(record.no)
    if newest is None or rules.keep_last is None:
        return 0 if newest is None else None
    if newest.seq <= rules.keep_last:
        return heads.backend.count(record.no, [(1, newest.seq)])
    rows = heads.backend.rows(record.no, [(1, newest.seq)], visible=True, limit=rules.keep_last + 1)
    return len(rows) if len(rows) <= rules.keep_last else None


def idle_reason(rules: Rules) -> str:
    """Return why a whole thread goes."""
    return f"idle for more than {dt.timedelta(microseconds=rules.idle or 0)}"


def marked(heads: Heads, standing: Standing, rules: Rules, holders: pins.Holders) -> tuple[str, ...]:
    """Return why an idle thread stays: what users and agents' checkpoints keep of it."""
    rows = _all(heads, standing)
    why: dict[int, list[str]] = {row.seq: [] for row in rows}
    given = _keep_marked(heads, standing, rules._replace(keep_labelled=False), rows, why)
    for row in rows:
        if rules.keep_labelled and row.label is not None and adapter_labels.mark_of(row, heads.types) is None:
            why[row.seq].append("labelled")
        held = holders.of(standing.record, row.seq, given.get(row.seq, ()))
        why[row.seq] += [f"held by a checkpoint of agent {name}" for name in held]
    return tuple(dict.fromkeys(reason for reasons in why.values() for reason in reasons))


def sort_out(
    heads: Heads,
    standing: Standing,
    rules: Rules,
    holders: pins.Holders,
    *,
    named: Container[int] = (),
    until: int = log.MAX_SEQ,
) -> Sorted:
    """Say which checkpoints of a thread go and which stay, and why. Those `named` stay, and those behind `until`.

    So do those whose rows are damaged: nobody knows when they were saved, and they take the place of no other.
    """
    found = _all(heads, standing)
    rows = [row for row in found if log.is_sound(row, standing.record.uid)]
    sound = {row.seq for row in rows}
    why: dict[int, list[str]] = {row.seq: [] if row.seq in sound else ["damaged"] for row in reversed(found)}
    if standing.newest.head in why:
        why[standing.newest.head].append("head")
    for place, row in _places(heads, standing, rows):
        if rules.keep_last is not None and place < rules.keep_last:
            why[row.seq].append(f"newest {rules.keep_last}")
    _keep_periods(heads, standing, rules, rows, why)
    for row in rows:
        if rules.oldest is not None and row.created_at >= rules.oldest:
            why[row.seq].append(f"younger than {dt.timedelta(microseconds=rules.older_than or 0)}")
    given = _keep_marked(heads, standing, rules, rows, why)
    for row in rows:
        held = holders.of(standing.record, row.seq, given.get(row.seq, ()))
        why[row.seq] += [f"held by a checkpoint of agent {name}" for name in held]
    for seq, reasons in why.items():
        if seq in named:
            reasons.append("named")
        if seq > until:
            reasons.append("saved later")
    gone = {seq: given.get(seq, ()) for seq, reasons in why.items() if not reasons}
    return Sorted(gone, [(seq, tuple(reasons)) for seq, reasons in why.items() if reasons])


def _keep_periods(heads: Heads, standing: Standing, rules: Rules, rows: list[Row], why: dict[int, list[str]]) -> None:
    """Note the newest of the last hours, days and weeks."""
    periods: tuple[tuple[int | None, Callable[[int], int], Callable[[int], str]], ...] = (
        (rules.keep_hourly, lambda at: at // _HOUR, lambda at: f"hour {when(at):%Y-%m-%d %H:00}"),
        (rules.keep_daily, lambda at: at // _DAY, lambda at: f"day {when(at):%Y-%m-%d}"),
        (rules.keep_weekly, lambda at: (at + _MONDAY) // _WEEK, _week),
    )
    if not any(count for count, _, _ in periods):
        return
    view = heads.view(standing)
    seen = [row for row in rows if log.contains(view, row.seq)]
    unseen = [row for row in rows if not log.contains(view, row.seq)]
    for count, period, name in periods:
        for group in (seen, unseen):
            newest: dict[int, Row] = {}
            for row in group:  # the newest first
                newest.setdefault(period(row.created_at), row)
            for number in sorted(newest, reverse=True)[: count or 0]:
                why[newest[number].seq].append(name(newest[number].created_at))


def _week(at: int) -> str:
    year, week, _ = when(at).isocalendar()
    return f"week {year}-W{week:02}"


def _keep_marked(
    heads: Heads, standing: Standing, rules: Rules, rows: list[Row], why: dict[int, list[str]]
) -> dict[int, tuple[str, ...]]:
    """Note what is tagged or labelled; return the tags."""
    given = heads.backend.tags(standing.record.no, list(why))
    for row in rows:
        tags = given.get(row.seq, ())
        shown = pins.shown(tags)
        if isinstance(rules.keep_tagged, frozenset):
            shown = tuple(tag for tag in shown if tag in rules.keep_tagged)
        if shown and rules.keep_tagged:
            why[row.seq].append(f"tagged {', '.join(shown)}")
        if rules.keep_labelled and heads.exempt_by_label(standing.record, row):
            why[row.seq].append("labelled")
    return given


class Retired(NamedTuple):
    """What goes with a save, by seq, and what has been looked at when it is written."""

    hide: tuple[int, ...] = ()
    examined: Examined | None = None


def retired(heads: Heads, standing: Standing, new: Row) -> Retired:
    """Return what the store's options hide when a new checkpoint is written; none of it has a tag.

    What was looked at by an earlier save, and stayed, is not looked at again: so a save takes what it takes however
    many checkpoints are exempt.
    """
    options, record = heads.options, standing.record
    if not options.retires or record.space == pins.SPACE:
        return Retired()
    before = heads.examined.get(record.no) or Examined(-1, 0, 0)
    gone: dict[int, Row] = {}
    upto, aged = 0, before.aged
    if options.max_checkpoints is not None:
        view = heads.view(standing)
        upto = _end_of_rest(heads, standing, view, options.max_checkpoints - 1)  # the new one is the newest in view
        same = before.view == new.view
        rest = log.clip(view, before.upto + 1 if same else 1, upto)
        rows = heads.backend.rows(record.no, rest, visible=True) if rest else []
        rows += [] if same else _out_of_view(heads, standing, view)[options.max_checkpoints :]
        gone.update({row.seq: row for row in rows})
    if options.ttl is not None:
        old, aged = _older_than(heads, standing, new.created_at - options.ttl, before.aged)
        gone.update({row.seq: row for row in old})
    head = standing.head
    if options.auto_interval is not None and head is not None and head.kind == new.kind == log.AUTOMATIC:
        every = options.auto_interval
        if head.created_at // every == new.created_at // every:
            gone[head.seq] = head
    gone = {seq: row for seq, row in gone.items() if log.is_sound(row, record.uid)}
    exempt = _exempt(heads, record, list(gone.values()), new) if gone else set()
    return Retired(tuple(sorted(gone.keys() - exempt)), Examined(new.view, upto, aged))


def _end_of_rest(heads: Heads, standing: Standing, view: log.Ranges, count: int) -> int:
    """Return the seq of the newest checkpoint in view that is behind so many others; 0 if there is none."""
    left, end = count, 0
    for low, high in reversed(view):  # as if none had been deleted
        if left <= high - low:
            end = high - left
            break
        left -= high - low + 1
    no, newer = standing.record.no, log.clip(view, end + 1, log.MAX_SEQ)
    if end == 0 or not newer or heads.backend.count(no, newer) == count:
        return end
    rows = heads.backend.rows(no, view, visible=True, newest_first=True, limit=count)
    return rows[-1].seq - 1 if len(rows) == count else 0


def _out_of_view(heads: Heads, standing: Standing, view: log.Ranges) -> list[Row]:
    """Return the checkpoints that are out of view, newest first."""
    ends = [0, *(high for _, high in view)]
    begins = [*(low for low, _ in view), standing.newest.seq + 1]
    ranges = [(end + 1, begin - 1) for end, begin in zip(ends, begins, strict=True) if end + 1 < begin]
    return heads.backend.rows(standing.record.no, ranges, visible=True, newest_first=True) if ranges else []


def outlived(heads: Heads, standing: Standing) -> dict[int, tuple[str, ...]]:
    """Return the seqs of what the store's ttl has ended, and nobody has hidden yet; none of it has a tag."""
    record = standing.record
    rows = [row for row in _all(heads, standing) if log.is_sound(row, record.uid)]  # when others were saved is unknown
    return dict.fromkeys(sorted(heads.expired(record, rows, standing.newest.head)), ())


def _older_than(heads: Heads, standing: Standing, oldest: int, behind: int) -> tuple[list[Row], int]:
    """Return checkpoints older than a time, behind a seq, until a whole page of them is younger.

    Also return up to which seq all of them are older.
    """
    found: list[Row] = []
    aged, low = behind, behind + 1
    while rows := heads.backend.rows(standing.record.no, [(low, standing.newest.seq)], visible=True, limit=_PAGE):
        old = [row for row in rows if row.created_at < oldest]
        if aged == low - 1:
            aged = next((row.seq - 1 for row in rows if row.created_at >= oldest), rows[-1].seq)
        found += old
        if not old or len(rows) < _PAGE:
            break
        low = rows[-1].seq + 1
    return found, aged
