"""Saves at several lengths of the history: append, a step, a plain save, beside a raw insert, and in memory.

A figure for n messages is measured between n and 2n: each thread is used n times, then the next one. Each series has
its own store, and so its own WAL, as the raw insert has.
"""

from __future__ import annotations

import statistics
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import backtrail
from bench.clock import Cost, Times, take_turns
from bench.data import Message, Messages, noise
from bench.figures import Figure, Point, Result
from bench.raw import WAL_BYTES, Raw, pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.scale import Scale

State = dict[str, Any]
APPEND, STEP, PLAIN = "append", "step", "plain save"


def _append(thread: backtrail.Thread[Any], _: State, message: Message) -> None:
    thread.append("messages", message)


def _step(thread: backtrail.Thread[Any], _: State, message: Message) -> None:
    with thread.step() as state:
        state["messages"].append(message)


def _plain(thread: backtrail.Thread[Any], state: State, message: Message) -> None:
    state["messages"].append(message)
    thread.save(state)


SLOW_DISK = 4
SLOW = "a slow or busy disk: wall ratios are close to 1, CPU ratios tell more"
"""Said when a raw insert waits for the disk for most of its time."""

WAYS = {APPEND: _append, STEP: _step, PLAIN: _plain}


class Series:
    """Saves of one kind to threads that begin with the same messages, in a store of their own. Calling it saves.

    `size` tells how many bytes the store takes.
    """

    def __init__(
        self,
        store: backtrail.Store,
        way: str,
        history: list[Message],
        saves: int,
        *,
        size: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._way = WAYS[way]
        self._size = size
        each = max(len(history), 1)
        count = -(-(saves + 1) // each)
        source = Messages(len(history) + 1)
        self._messages = source.supply(saves + 1)
        used = [self._begin(f"t{at}", history, source.one()) for at in range(count)]
        self._turns = chain.from_iterable(repeat(one, each) for one in used)
        self._before = size()

    def _begin(self, name: str, history: list[Message], first: Message) -> tuple[backtrail.Thread[Any], State]:
        thread: backtrail.Thread[Any] = self._store.thread(name)
        state = {"messages": list(history)}
        thread.save(state)
        self._way(thread, state, first)  # what is done once for a handle, such as loading the state, is done here
        return thread, (state if self._way is _plain else {})

    def __call__(self) -> None:
        """Save one more message."""
        thread, state = next(self._turns)
        self._way(thread, state, next(self._messages))

    def added(self) -> int:
        """How many bytes the store has grown by since its histories were put there."""
        return self._size() - self._before

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def on_sqlite(path: Path, way: str, history: list[Message], saves: int) -> Series:
    """Make a series in its own file, whose WAL has its full size."""
    store = backtrail.open(path)
    store.thread("filler").save(noise(WAL_BYTES))
    return Series(store, way, history, saves, size=partial(pages, path))


def in_memory(way: str, history: list[Message], saves: int) -> Series:
    """Make a series in memory."""
    return Series(backtrail.open("memory://"), way, history, saves)


def stored_by_an_append(count: int = 50) -> int:
    """Return how many bytes an append stores, in the median: so many does the raw insert write."""
    with backtrail.open("memory://") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": []})
        return int(statistics.median(thread.append("messages", m).stored for m in Messages(7).many(count)))


def point(series: str, length: int, times: Times, added: int) -> Point:
    """Make a point of the plots. The bytes of the save that went before the loop count as well."""
    saves = len(times.taken)
    return Point(series, length, times.mean.wall * 1e3, added / (saves + 1), saves)


def ratio(name: str, one: Times, other: Cost, **marks: Any) -> Figure:
    """Make a figure of a mean and its baseline."""
    wall, cpu = one.mean.over(other)
    return Figure(name, wall, cpu, samples=len(one.taken), **marks)


def raw_time(times: Times) -> Figure:
    """Report the time of a raw insert: the slower the disk, the closer to 1 are ratios of wall times."""
    wall, cpu = times.mean
    note = SLOW if wall > SLOW_DISK * cpu else ""
    return Figure("raw insert", wall * 1e3, cpu * 1e3, unit="ms", samples=len(times.taken), note=note)


def appends(directory: Path, scale: Scale) -> Result:
    """Append at every length, then a step at every length, on SQLite and in memory.

    The loop of the steps is another one: a long step leaves the processor's caches cold for what comes after it.
    """
    size = stored_by_an_append()
    first, *rest = scale.lengths
    figures, points = [], []
    for way in (APPEND, STEP):
        place = directory / way
        place.mkdir()
        lengths = {APPEND: [first]} | {way: [first, *rest]}
        times, raw, found = _saves(place, lengths, size, scale)
        points += found
        figures += [raw_time(raw)] if way == APPEND else []
        figures += _over_raw(way, times, raw.mean, scale, size)
        for at in ("SQLite", "memory"):
            base = times[at, APPEND, first].mean
            for length in rest if way == APPEND else scale.lengths:
                held = way == APPEND and at == "SQLite" and length == rest[-1]
                marks = {"gate": 1.1, "goal": 1.0} if held else {}
                name = f"{at}: {way} at {length:,} / append at {first}"
                figures.append(ratio(name, times[at, way, length], base, **marks))
    return Result(figures, points)


def _saves(
    directory: Path, lengths: dict[str, list[int]], size: int, scale: Scale
) -> tuple[dict[tuple[str, str, int], Times], Times, list[Point]]:
    """Take saves of these kinds, at these lengths, and raw inserts in turns; return their times and points."""
    histories = _histories(scale)
    raw = Raw(directory / "raw.db", size)
    kept: dict[tuple[str, str, int], Series] = {}
    for way, some in lengths.items():
        for length in some:
            history = histories[length]
            kept["SQLite", way, length] = on_sqlite(directory / f"{way} {length}.db", way, history, scale.rounds)
            kept["memory", way, length] = in_memory(way, history, scale.rounds)
    named = {" ".join(map(str, key)): key for key in kept}
    actions = {"raw": raw.insert} | {name: kept[key] for name, key in named.items()}
    times = take_turns(actions, scale.rounds, scale.budget)
    by_key = {key: times[name] for name, key in named.items()}
    last = list(lengths)[-1]
    points = [
        point(way, length, by_key[at, way, length], one.added())
        for (at, way, length), one in kept.items()
        if at == "SQLite" and way == last
    ]
    for one in kept.values():
        one.close()
    raw.close()
    return by_key, times["raw"], points


def _histories(scale: Scale) -> dict[int, list[Message]]:
    longest = Messages(1).many(max(scale.lengths))
    return {length: longest[:length] for length in scale.lengths}


def _over_raw(
    way: str, times: dict[tuple[str, str, int], Times], raw: Cost, scale: Scale, size: int
) -> Iterator[Figure]:
    """Hold saves at every length against a raw insert: by wall time, and an append by CPU time, too."""
    for length in scale.lengths:
        one = times["SQLite", way, length]
        if way != APPEND:
            yield ratio(f"{way} at {length:,} / raw insert", one, raw)
            continue
        name = f"append at {length:,} / raw insert of {size} bytes"
        yield ratio(name, one, raw, gate=1.3, goal=1.2)
        yield Figure(f"{name}: CPU", one.mean.over(raw).cpu, gate=1.6, goal=1.4, samples=len(one.taken))


PLAIN_MARKS = {100: {"gate": 2.0, "goal": 1.5}, 1_000: {"gate": 4.0, "goal": 3.0}}


def plain(directory: Path, scale: Scale) -> Result:
    """Plain saves at every length: the whole state is handed over, one message longer than before."""
    raw = Raw(directory / "raw.db", stored_by_an_append())
    kept = {
        length: on_sqlite(directory / f"plain {length}.db", PLAIN, history, scale.rounds)
        for length, history in _histories(scale).items()
    }
    times = take_turns(
        {"raw": raw.insert} | {str(length): one for length, one in kept.items()}, scale.rounds, scale.budget
    )
    result = Result([raw_time(times["raw"])])
    for length, one in kept.items():
        taken = times[str(length)]
        name = f"plain save at {length:,} / raw insert"
        result.figures.append(ratio(name, taken, times["raw"].mean, **PLAIN_MARKS.get(length, {})))
        result.points.append(point(PLAIN, length, taken, one.added()))
        one.close()
    raw.close()
    return result
