"""Retention: which checkpoints are hidden, by the store's options at each save, and by `Rules` when a thread is pruned.

The head and pinned checkpoints always stay. Labelled and tagged checkpoints stay, unless the rules say otherwise.
Checkpoints in view and out of view are counted separately, so that neither group displaces the other. The log gives
the order; the writer's clock gives ages and dates. So the newest checkpoint of a day is the last one in the log with
that date. Hours, days and weeks are in UTC.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import adapter_labels, log, manifests
from backtrail.engine.reader import Examined
from backtrail.models import when

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader, Tip


_PAGE: Final = 50
_HOUR: Final = 3_600_000_000
_DAY: Final = 24 * _HOUR
_WEEK: Final = 7 * _DAY
_MONDAY: Final = 3 * _DAY
"""Added to a time before division by a week, so that weeks begin on Monday: 1970-01-01 was a Thursday."""


class Rules(NamedTuple):
    """The rules of a prune. None: the rule is not used. A checkpoint that any rule keeps stays."""

    keep_last: int | None = None
    """Keep this many of the newest checkpoints."""
    oldest: int | None = None
    """Keep checkpoints that were saved at this time or later (microseconds since 1970)."""
    older_than: int | None = None
    """The age that gave `oldest`, for the reports (microseconds)."""
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None
    """Keep the newest checkpoint of each of the last n hours, days or weeks in which one was saved."""
    keep_tagged: bool | frozenset[str] = True
    keep_labelled: bool = True
    idle_since: int | None = None
    """Delete whole threads that were last written to before this time (microseconds since 1970)."""
    idle: int | None = None
    """The duration that gave `idle_since`, for the reports (microseconds)."""

    @property
    def prunes(self) -> bool:
        """Whether the rules can hide single checkpoints, not only delete idle threads."""
        counts = (self.keep_last, self.keep_hourly, self.keep_daily, self.keep_weekly, self.oldest)
        return any(each is not None for each in counts) or isinstance(self.keep_tagged, frozenset)

    @property
    def reason(self) -> str:
        """Why these rules hide a checkpoint, as text for a report."""
        parts = [f"not among the newest {self.keep_last}"] if self.keep_last is not None else []
        periods = (("hours", self.keep_hourly), ("days", self.keep_daily), ("weeks", self.keep_weekly))
        parts += [f"not the newest of one of the last {count} {name}" for name, count in periods if count is not None]
        if self.older_than is not None:
            parts.append(f"older than {_age(self.older_than)}")
        if isinstance(self.keep_tagged, frozenset):
            parts.append(f"not tagged {', '.join(sorted(self.keep_tagged))}")
        return " and ".join(parts)


class Sorted(NamedTuple):
    """The checkpoints of a thread, sorted out by seq, ascending."""

    gone: dict[int, tuple[str, ...]]
    """The seqs of the checkpoints to hide, with their tags. A checkpoint whose tags change meanwhile is not hidden."""
    kept: list[tuple[int, tuple[str, ...]]]
    """The seqs of the checkpoints that stay, with the reasons."""


def _places(reader: LogReader, tip: Tip, rows: list[Row]) -> Iterator[tuple[int, Row]]:
    """Yield each checkpoint with its index from the newest. It counts those in view and out of view separately."""
    view = reader.view(tip)
    yield from enumerate(row for row in rows if log.contains(view, row.seq))
    yield from enumerate(row for row in rows if not log.contains(view, row.seq))


def _all(reader: LogReader, tip: Tip, limit: int | None = None) -> list[Row]:
    return reader.backend.rows(tip.record.no, [(1, tip.newest.seq)], visible=True, newest_first=True, limit=limit)


def _exempt(reader: LogReader, record: ThreadRecord, rows: list[Row], new: Row) -> set[int]:
    seqs = [row.seq for row in rows]
    tagged = reader.backend.tags(record.no, seqs).keys() | manifests.pinned_seqs(reader, record, seqs)
    deltas = adapter_labels.has_deltas(new, reader.types)
    return {
        row.seq
        for row in rows
        if row.seq in tagged or reader.exempt_by_label(record, row) or (deltas and row.label is not None)
    }


def few(reader: LogReader, record: ThreadRecord, rules: Rules) -> int | None:
    """Return the number of a thread's checkpoints if `keep_last` keeps them all, else None. This reads few rows."""
    newest = reader.backend.newest(record.no)
    if newest is None or rules.keep_last is None:
        return 0 if newest is None else None
    if newest.seq <= rules.keep_last:
        return reader.backend.count(record.no, [(1, newest.seq)])
    rows = reader.backend.rows(record.no, [(1, newest.seq)], visible=True, limit=rules.keep_last + 1)
    return len(rows) if len(rows) <= rules.keep_last else None


def idle_reason(rules: Rules) -> str:
    """Return why the rules delete an idle thread, as text for a report."""
    return f"idle for more than {_age(rules.idle or 0)}"


def _age(microseconds: int) -> str:
    """Return an age in words: `30 days`, `1 day, 2:00:00`, `1:00:00`."""
    return str(dt.timedelta(microseconds=microseconds)).removesuffix(", 0:00:00")


def marked(reader: LogReader, tip: Tip, rules: Rules, holders: manifests.PinIndex) -> tuple[str, ...]:
    """Return the reasons to keep an idle thread: its tagged, labelled and pinned checkpoints. () if there are none."""
    rows = _all(reader, tip)
    why: dict[int, list[str]] = {row.seq: [] for row in rows}
    _keep_marked(reader, tip, rules._replace(keep_labelled=False), rows, why)
    pins = manifests.pins_of(reader, tip.record)
    for row in rows:
        if rules.keep_labelled and row.label is not None and adapter_labels.mark_of(row, reader.types) is None:
            why[row.seq].append("labelled")
        held = holders.agents(tip.record, row.seq, pins.get(row.seq, ()))
        why[row.seq] += [f"held by a checkpoint of agent {name}" for name in held]
    return tuple(dict.fromkeys(reason for reasons in why.values() for reason in reasons))


def sort_out(
    reader: LogReader,
    tip: Tip,
    rules: Rules,
    holders: manifests.PinIndex,
    *,
    named: Container[int] = (),
    until: int = log.MAX_SEQ,
) -> Sorted:
    """Return which checkpoints of a thread the rules hide and keep, with the reasons.

    A checkpoint stays if its seq is in `named` or above `until`. Damaged rows stay, too, because their time is unknown.
    They do not count towards the limits of the rules.
    """
    found = _all(reader, tip)
    rows = [row for row in found if log.is_sound(row, tip.record.uid)]
    sound = {row.seq for row in rows}
    why: dict[int, list[str]] = {row.seq: [] if row.seq in sound else ["damaged"] for row in reversed(found)}
    if tip.newest.head in why:
        why[tip.newest.head].append("head")
    for place, row in _places(reader, tip, rows):
        if rules.keep_last is not None and place < rules.keep_last:
            why[row.seq].append(f"newest {rules.keep_last}")
    _keep_periods(reader, tip, rules, rows, why)
    for row in rows:
        if rules.oldest is not None and row.created_at >= rules.oldest:
            why[row.seq].append(f"younger than {_age(rules.older_than or 0)}")
    given = _keep_marked(reader, tip, rules, rows, why)
    pins = manifests.pins_of(reader, tip.record)
    for row in rows:
        held = holders.agents(tip.record, row.seq, pins.get(row.seq, ()))
        why[row.seq] += [f"held by a checkpoint of agent {name}" for name in held]
    for seq, reasons in why.items():
        if seq in named:
            reasons.append("named")
        if seq > until:
            reasons.append("saved later")
    gone = {seq: given.get(seq, ()) for seq, reasons in why.items() if not reasons}
    return Sorted(gone, [(seq, tuple(reasons)) for seq, reasons in why.items() if reasons])


def _keep_periods(reader: LogReader, tip: Tip, rules: Rules, rows: list[Row], why: dict[int, list[str]]) -> None:
    """Add to `why` the reason of each checkpoint that is the newest of a kept hour, day or week."""
    periods: tuple[tuple[int | None, Callable[[int], int], Callable[[int], str]], ...] = (
        (rules.keep_hourly, lambda at: at // _HOUR, lambda at: f"hour {when(at):%Y-%m-%d %H:00}"),
        (rules.keep_daily, lambda at: at // _DAY, lambda at: f"day {when(at):%Y-%m-%d}"),
        (rules.keep_weekly, lambda at: (at + _MONDAY) // _WEEK, _week),
    )
    if not any(count for count, _, _ in periods):
        return
    view = reader.view(tip)
    seen = [row for row in rows if log.contains(view, row.seq)]
    unseen = [row for row in rows if not log.contains(view, row.seq)]
    for count, period, name in periods:
        for group in (seen, unseen):
            newest: dict[int, Row] = {}
            for row in group:  # newest first
                newest.setdefault(period(row.created_at), row)
            for number in sorted(newest, reverse=True)[: count or 0]:
                why[newest[number].seq].append(name(newest[number].created_at))


def _week(at: int) -> str:
    year, week, _ = when(at).isocalendar()
    return f"week {year}-W{week:02}"


def _keep_marked(
    reader: LogReader, tip: Tip, rules: Rules, rows: list[Row], why: dict[int, list[str]]
) -> dict[int, tuple[str, ...]]:
    """Add to `why` the reason of each tagged or labelled checkpoint; return the tags of all checkpoints."""
    given = reader.backend.tags(tip.record.no, list(why))
    for row in rows:
        shown = given.get(row.seq, ())
        if isinstance(rules.keep_tagged, frozenset):
            shown = tuple(tag for tag in shown if tag in rules.keep_tagged)
        if shown and rules.keep_tagged:
            why[row.seq].append(f"tagged {', '.join(shown)}")
        if rules.keep_labelled and reader.exempt_by_label(tip.record, row):
            why[row.seq].append("labelled")
    return given


class Retired(NamedTuple):
    """The checkpoints that a save hides."""

    hide: tuple[int, ...] = ()
    """The seqs to hide."""
    examined: Examined | None = None
    """The rows that have been checked, to remember once the save is committed."""


def retired(reader: LogReader, tip: Tip, new: Row) -> Retired:
    """Return the checkpoints that the store's options hide when `new` is saved. Checkpoints with tags are never hidden.

    Rows that an earlier save checked and kept are not checked again, so the time of a save does not depend on the
    number of exempt checkpoints.
    """
    options, record = reader.options, tip.record
    if not options.retires or record.space == manifests.SPACE:
        return Retired()
    before = reader.examined.get(record.no) or Examined(-1, 0, 0)
    gone: dict[int, Row] = {}
    upto, aged = 0, before.aged
    if options.max_checkpoints is not None:
        view = reader.view(tip)
        upto = _end_of_rest(reader, tip, view, options.max_checkpoints - 1)  # - 1: the new checkpoint counts, too
        same = before.view == new.view
        rest = log.clip(view, before.upto + 1 if same else 1, upto)
        rows = reader.backend.rows(record.no, rest, visible=True) if rest else []
        rows += [] if same else _out_of_view(reader, tip, view)[options.max_checkpoints :]
        gone.update({row.seq: row for row in rows})
    if options.ttl is not None:
        old, aged = _older_than(reader, tip, new.created_at - options.ttl, before.aged)
        gone.update({row.seq: row for row in old})
    head = tip.head
    if options.auto_interval is not None and head is not None and head.kind == new.kind == log.AUTOMATIC:
        every = options.auto_interval
        if head.created_at // every == new.created_at // every:
            gone[head.seq] = head
    gone = {seq: row for seq, row in gone.items() if log.is_sound(row, record.uid)}
    exempt = _exempt(reader, record, list(gone.values()), new) if gone else set()
    return Retired(tuple(sorted(gone.keys() - exempt)), Examined(new.view, upto, aged))


def _end_of_rest(reader: LogReader, tip: Tip, view: log.Ranges, count: int) -> int:
    """Return a seq such that `count` visible checkpoints in view are newer; 0 if there are not more than `count`."""
    left, end = count, 0
    for low, high in reversed(view):  # a guess, right if no checkpoint was deleted
        if left <= high - low:
            end = high - left
            break
        left -= high - low + 1
    no, newer = tip.record.no, log.clip(view, end + 1, log.MAX_SEQ)
    if end == 0 or not newer or reader.backend.count(no, newer) == count:
        return end
    rows = reader.backend.rows(no, view, visible=True, newest_first=True, limit=count)
    return rows[-1].seq - 1 if len(rows) == count else 0


def _out_of_view(reader: LogReader, tip: Tip, view: log.Ranges) -> list[Row]:
    """Return the checkpoints that are out of view, newest first."""
    ends = [0, *(high for _, high in view)]
    begins = [*(low for low, _ in view), tip.newest.seq + 1]
    ranges = [(end + 1, begin - 1) for end, begin in zip(ends, begins, strict=True) if end + 1 < begin]
    return reader.backend.rows(tip.record.no, ranges, visible=True, newest_first=True) if ranges else []


def outlived(reader: LogReader, tip: Tip) -> dict[int, tuple[str, ...]]:
    """Return the seqs of the visible checkpoints whose ttl has passed, each with () for its tags: none has a tag."""
    record = tip.record
    rows = [row for row in _all(reader, tip) if log.is_sound(row, record.uid)]  # the time of a damaged row is unknown
    return dict.fromkeys(sorted(reader.expired(record, rows, tip.newest.head)), ())


def _older_than(reader: LogReader, tip: Tip, oldest: int, behind: int) -> tuple[list[Row], int]:
    """Return the checkpoints after the seq `behind` that are older than `oldest`, up to the first page without any.

    Also returns the seq up to which all checkpoints are older.
    """
    found: list[Row] = []
    aged, low = behind, behind + 1
    while rows := reader.backend.rows(tip.record.no, [(low, tip.newest.seq)], visible=True, limit=_PAGE):
        old = [row for row in rows if row.created_at < oldest]
        if aged == low - 1:
            aged = next((row.seq - 1 for row in rows if row.created_at >= oldest), rows[-1].seq)
        found += old
        if not old or len(rows) < _PAGE:
            break
        low = rows[-1].seq + 1
    return found, aged
