"""Bytes that steps, small changes, forks and compaction add to a store. Sizes are counted; a few figures are times.

1 KB is 1,000 bytes here, which is the stricter reading.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import backtrail
from bench.clock import Times, take_turns, timed
from bench.data import Messages, noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from bench.scale import Scale


def sizes(directory: Path, scale: Scale) -> Result:
    """Count what saves add."""
    figures = [figure for count in scale.steps for figure in _steps(directory, count)]
    figures += _small_changes(directory)
    figures += _beside_a_large_dict(directory, scale)
    figures += _forks(directory, scale)
    figures += _summary(directory, scale)
    return Result(figures)


MANY = 10_000
"""From so many steps on, what an empty store takes does not count."""


def _steps(directory: Path, count: int) -> list[Figure]:
    """The file after so many appends of one message, and after a collection."""
    path = directory / f"steps {count}.db"
    source = Messages(3)
    with backtrail.open(path, durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": []})
        for _ in range(count):
            thread.append("messages", source.one())
    written = path.stat().st_size / count
    with backtrail.open(path, durability="relaxed") as store:
        store.gc()
    left = path.stat().st_size / count
    held: list[dict[str, Any]] = (
        [{"gate": 1000, "goal": 900}, {"gate": 580, "goal": 500}] if count >= MANY else [{}, {}]
    )
    return [
        Figure(f"file, bytes per 1 KB step: {count:,} as written", written, unit="B", **held[0]),
        Figure(f"file, bytes per 1 KB step: {count:,} after gc()", left, unit="B", **held[1]),
    ]


def _small_changes(directory: Path) -> list[Figure]:
    """A status flip on the last of 100 messages, and a token appended to it; means over many."""
    source = Messages(4)
    with backtrail.open(directory / "small.db", durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": [*source.many(100), source.one() | {"status": "open"}]})
        flips = [thread.set("messages[-1].status", ("done", "open")[at % 2]).stored for at in range(200)]
        tokens = [thread.append("messages[-1].content", " and").stored for _ in range(200)]
    return [
        Figure("bytes of a status flip on the last message", statistics.fmean(flips), **SMALL, samples=200),
        Figure("bytes of a token appended to the last message", statistics.fmean(tokens), **SMALL, samples=200),
    ]


SMALL: dict[str, Any] = {"gate": 1000, "goal": 300, "unit": "B"}


def _beside_a_large_dict(directory: Path, scale: Scale) -> list[Figure]:
    """One message beside a dict that does not change, in turns with an append to a thread without one."""
    source = Messages(5)
    stored: list[int] = []
    with backtrail.open(directory / "beside.db") as store, backtrail.open(directory / "alone.db") as other:
        large = {f"key {at}": noise(at + 500)[:500].hex() for at in range(scale.dict_keys)}
        threads: list[backtrail.Thread[Any]] = [store.thread("t"), other.thread("t")]
        for thread, state in zip(threads, ({"large": large}, {}), strict=True):
            thread.save({"messages": source.many(10), **state})
            thread.set("filler", noise(WAL_BYTES))
            thread.delete_at("filler")
        messages = source.supply(2 * scale.rounds + 2)
        actions = {
            "beside": lambda: stored.append(threads[0].append("messages", next(messages)).stored),
            "alone": lambda: threads[1].append("messages", next(messages)),
        }
        times = take_turns(actions, scale.rounds, scale.budget)
    wall, cpu = times["beside"].mean.over(times["alone"].mean)
    size = f"{scale.dict_keys / 1000:g} MB"
    count = len(stored)
    return [
        Figure(
            f"bytes of a message beside a {size} dict",
            statistics.fmean(stored),
            gate=2000,
            goal=1000,
            unit="B",
            samples=count,
        ),
        Figure(f"append beside a {size} dict / append", wall, cpu, gate=2, goal=1.2, samples=count),
    ]


def _forks(directory: Path, scale: Scale) -> list[Figure]:
    """Forks at places all over a thread of 1,000 steps, each with its first save."""
    source = Messages(6)
    path = directory / "forks.db"
    with backtrail.open(path, durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": []})
        for _ in range(1_000):
            thread.append("messages", source.one())
        thread.set("filler", noise(WAL_BYTES))
    times = Times()
    stored = []
    with backtrail.open(path) as store:
        thread = store.thread("t")
        for at, message in enumerate(source.many(scale.forks)):
            kept: list[backtrail.Checkpoint[Any]] = []

            def fork(at: int = at, message: Any = message, kept: Any = kept) -> None:
                new = thread.fork(f"fork {at}", at=1 + at * 1_000 // scale.forks)
                kept.append(new.append("messages", message))

            times.taken.append(timed(fork))
            stored.append(kept[0].stored + store.thread(f"fork {at}").load("@-").stored)
    taken = times.median
    return [
        Figure(
            "bytes of a fork and its first save",
            statistics.fmean(stored),
            gate=6000,
            goal=1500,
            unit="B",
            samples=len(stored),
        ),
        Figure(
            "fork and its first save", taken.wall * 1e3, taken.cpu * 1e3, gate=2, goal=1, unit="ms", samples=len(stored)
        ),
    ]


def _summary(directory: Path, scale: Scale) -> list[Figure]:
    """The first 30 % of the messages replaced by one, as agents do when their context is full."""
    source = Messages(8)
    with backtrail.open(directory / "summary.db", durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        state = {"messages": source.many(scale.long)}
        first = thread.save(state).stored
        state["messages"][: scale.long * 3 // 10] = [{"role": "system", "content": "a summary"}]
        rewritten = 100 * thread.save(state).stored / first
    name = f"first 30 % of {scale.long:,} messages replaced: rewritten"
    return [Figure(name, rewritten, gate=1, goal=0.4, unit="%")]
