"""Many coroutines on one store, and the event loop during a large save.

What is compared with "one commit each" are the same appends by the synchronous store, one after the other: each waits
for its own commit, without a hop between threads.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import backtrail
from bench.clock import Times, timed
from bench.data import Messages, noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from bench.data import Message
    from bench.scale import Scale

TICK = 0.001
"""How often the loop is asked whether it still turns, in seconds."""


def coroutines(directory: Path, scale: Scale) -> Result:
    """Measure, if there is an async mirror."""
    rate: dict[str, Any] = {"better": "higher", "samples": scale.async_rounds}
    named: dict[str, dict[str, Any]] = {
        f"{scale.coroutines:,} coroutines: one commit each / grouped": {"gate": 4, "goal": 5, **rate},
        f"{scale.coroutines:,} coroutines: awaited one by one / grouped": rate,
        f"event loop lag, p99, during a save of {scale.large / 1e6:g} MB": {"gate": 10, "unit": "ms"},
    }
    if find_spec("backtrail.aio") is None:
        return Result([Figure(name, None, note="not built", **marks) for name, marks in named.items()])
    each, one_by_one, grouped = _rates(directory, scale)
    lag = asyncio.run(_lag(directory, scale)) * 1e3
    found = (each.median.over(grouped.median), one_by_one.median.over(grouped.median), (lag, None))
    return Result(
        [Figure(name, wall, cpu, **marks) for (name, marks), (wall, cpu) in zip(named.items(), found, strict=True)]
    )


def _rates(directory: Path, scale: Scale) -> tuple[Times, Times, Times]:
    """Time the three ways in turns, each on a store of its own, a thread for each coroutine."""
    aio: Any = import_module("backtrail.aio")
    source = Messages(10)
    each, one_by_one, grouped = Times(), Times(), Times()
    with asyncio.Runner() as runner:
        plain = backtrail.open(directory / "each.db")
        stores = [runner.run(_opened(aio, directory / name)) for name in ("one by one.db", "grouped.db")]
        plain.thread("filler").save(noise(WAL_BYTES))
        threads = [plain.thread(f"t{at}") for at in range(scale.coroutines)]
        others = [[store.thread(f"t{at}") for at in range(scale.coroutines)] for store in stores]
        for some, way in zip(others, (_await_each, _gather), strict=True):
            runner.run(_gather(some, None))
            runner.run(way(some, source.many(scale.coroutines)))
        for thread in threads:
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


async def _opened(aio: Any, path: Path) -> Any:
    store = await aio.open(path)
    await store.thread("filler").save(noise(WAL_BYTES))
    return store


def _append_each(threads: list[backtrail.Thread[Any]], messages: list[Message]) -> None:
    for thread, message in zip(threads, messages, strict=True):
        thread.append("messages", message)


async def _await_each(threads: list[Any], messages: list[Message]) -> None:
    for thread, message in zip(threads, messages, strict=True):
        await thread.append("messages", message)


async def _gather(threads: list[Any], messages: list[Message] | None) -> None:
    """Append to all at once, or begin all of them."""
    if messages is None:
        await asyncio.gather(*(thread.save({"messages": []}) for thread in threads))
    else:
        pairs = zip(threads, messages, strict=True)
        await asyncio.gather(*(thread.append("messages", message) for thread, message in pairs))


async def _lag(directory: Path, scale: Scale) -> float:
    """Return the 99th percentile of how late the loop is, in seconds, while a large state is saved."""
    aio: Any = import_module("backtrail.aio")
    state = {"messages": Messages(11).many(max(scale.large // 1_000, 1))}
    late: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - begun - TICK)

    store = await aio.open(directory / "large.db")
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        await store.thread("t").save(state)
    finally:
        done.set()
        await watching
        await store.close()
    return statistics.quantiles(late, n=100)[98] if len(late) > 1 else late[0]
