"""Many coroutines on one store, and the event loop during a large save.

"One commit each" means the same appends by the synchronous store, one after the other: each waits for its own commit,
without switching threads.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import backtrail
from backtrail import aio
from backtrail.backends.sqlite import commit
from backtrail.backends.sqlite.backend import SqliteBackend
from bench.clock import Times, timed
from bench.data import Messages, noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

    from bench.data import Message
    from bench.scale import Scale

Place = Callable[[str], dict[str, Any]]
"""What to open a store of a name with."""
SLOWER = 0.001
"""How much longer a commit takes on a slower disk, in seconds."""
TICK = 0.001
"""How often the loop is asked whether it still turns, in seconds."""


def coroutines(directory: Path, scale: Scale) -> Result:
    """Measure the rates and the lag."""
    count = f"{scale.coroutines:,} coroutines"
    rate: dict[str, Any] = {"better": "higher", "samples": scale.async_rounds}
    figures = []
    for where, threads in (("a thread each", scale.coroutines), ("one thread", 1)):
        each, one_by_one, grouped = rates(_files(directory / where), scale, threads)
        marks = {"gate": 2, "goal": 3} if threads > 1 else {}
        alone, awaited = each.median.over(grouped.median), one_by_one.median.over(grouped.median)
        figures += [
            Figure(f"{count}, {where}: one commit each / grouped", *alone, **marks, **rate),
            Figure(f"{count}, {where}: awaited one by one / grouped", *awaited, **rate),
        ]
    with _slower(SLOWER):
        each, _, grouped = rates(_files(directory / "slow"), replace(scale, async_rounds=1), scale.coroutines)
    name = f"{count}, a thread each, if a commit takes {SLOWER * 1e3:g} ms longer: one commit each / grouped"
    figures.append(Figure(name, *each.median.over(grouped.median), better="higher", samples=1))
    figures.append(
        Figure(f"{count}: commits that their appends share", asyncio.run(_commits(directory, scale)), unit="commits")
    )
    saving, again, loading = (late * 1e3 for late in asyncio.run(_lags(directory, scale)))
    size = f"{scale.large / 1e6:g} MB"
    figures += [
        Figure(f"event loop lag, p99, during a save of {size}", saving, gate=10, unit="ms"),
        Figure("event loop lag, p99, during saves of it with one more", again, gate=10, unit="ms"),
        Figure(f"event loop lag, p99, during a load of {size}", loading, unit="ms"),
    ]
    return Result(figures)


@contextmanager
def _slower(seconds: float) -> Iterator[None]:
    """Make every commit take longer, as it does on most disks."""
    end = commit.end

    def slow(*arguments: Any) -> None:
        end(*arguments)
        time.sleep(seconds)

    with mock.patch.object(commit, "end", slow):
        yield


def _files(directory: Path) -> Place:
    directory.mkdir()
    return lambda name: {"url": directory / f"{name}.db"}


def rates(place: Place, scale: Scale, count: int) -> tuple[Times, Times, Times]:
    """Time the three ways in turns, each on its own store; the coroutines share this many threads."""
    source = Messages(10)
    each, one_by_one, grouped = Times(), Times(), Times()
    with asyncio.Runner() as runner:
        plain = backtrail.open(**place("each"))
        stores = [runner.run(_opened(place(name))) for name in ("one by one", "grouped")]
        plain.thread("filler").save(noise(WAL_BYTES))
        names = [f"t{at % count}" for at in range(scale.coroutines)]
        threads = [plain.thread(name) for name in names]
        others = [[store.thread(name) for name in names] for store in stores]
        for some, way in zip(others, (_await_each, _gather), strict=True):
            runner.run(_begin(some[:count]))
            runner.run(way(some, source.many(scale.coroutines)))
        for thread in threads[:count]:
            thread.save({"messages": []})
        for _ in range(scale.async_rounds):
            messages = [source.many(scale.coroutines) for _ in range(3)]
            each.taken.append(timed(lambda: _append_each(threads, messages[0])))  # noqa: B023 - called at once
            one_by_one.taken.append(timed(lambda: runner.run(_await_each(others[0], messages[1]))))  # noqa: B023
            grouped.taken.append(timed(lambda: runner.run(_gather(others[1], messages[2]))))  # noqa: B023
        plain.close()
        for store in stores:
            runner.run(store.close())
    return each, one_by_one, grouped


async def _opened(options: dict[str, Any]) -> aio.Store:
    store = await aio.open(**options)
    await store.thread("filler").save(noise(WAL_BYTES))
    return store


async def _begin(threads: list[aio.Thread[Any]]) -> None:
    await asyncio.gather(*(thread.save({"messages": []}) for thread in threads))


def _append_each(threads: list[backtrail.Thread[Any]], messages: list[Message]) -> None:
    for thread, message in zip(threads, messages, strict=True):
        thread.append("messages", message)


async def _await_each(threads: list[aio.Thread[Any]], messages: list[Message]) -> None:
    for thread, message in zip(threads, messages, strict=True):
        await thread.append("messages", message)


async def _gather(threads: list[aio.Thread[Any]], messages: list[Message]) -> None:
    pairs = zip(threads, messages, strict=True)
    await asyncio.gather(*(thread.append("messages", message) for thread, message in pairs))


async def _commits(directory: Path, scale: Scale) -> int:
    """Return how many commits it takes when all coroutines append at once, to a thread each."""
    with mock.patch.object(SqliteBackend, "group", autospec=True, side_effect=SqliteBackend.group) as group:
        async with aio.open(directory / "commits.db") as store:
            threads: list[aio.Thread[Any]] = [store.thread(f"t{at}") for at in range(scale.coroutines)]
            await _begin(threads)
            before = group.call_count
            await _gather(threads, Messages(12).many(scale.coroutines))
            return group.call_count - before


async def _lags(directory: Path, scale: Scale) -> tuple[float, float, float]:
    """Return how late the loop is while a large state is saved, saved again with a little more, and loaded."""
    source = Messages(11)
    state = {"messages": source.many(max(scale.large // 1_000, 1))}

    async def more() -> None:
        for _ in range(3):
            state["messages"].append(source.one())
            await thread.save(state)

    async def load() -> None:
        async with aio.open(directory / "large.db") as cold:
            await (await cold.thread("t").load()).load_state()

    async with aio.open(directory / "large.db") as store:
        thread: aio.Thread[Any] = store.thread("t")
        return await _late(thread.save(state)), await _late(more()), await _late(load())


async def _late(work: Awaitable[Any]) -> float:
    """Return the 99th percentile of how late the loop is, in seconds, while some work is done."""
    late: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - begun - TICK)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        await work
    finally:
        done.set()
        await watching
    return statistics.quantiles(late, n=100)[98] if len(late) > 1 else late[0]
