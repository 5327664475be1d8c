"""How many appends a second 1,000 coroutines make that share commits: `python bench/async_appends.py`.

The same appends are made by synchronous code, with a commit each, and by coroutines, in turns, on SQLite with full
durability: each coroutine with a thread of its own, and all of them on one thread. CPU is that of the whole process.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import backtrail
from backtrail import aio

COROUTINES, EACH, ROUNDS = 1_000, 3, 2


def message(n: int) -> dict[str, Any]:
    """Make a short message."""
    return {"role": "user", "content": f"message {n} of this agent, " * 8}


def alone(path: Path, threads: int) -> tuple[float, float]:
    """Append one by one; return the wall and CPU time."""
    with backtrail.open(path) as store:
        handles: list[backtrail.Thread[Any]] = [store.thread(f"t{n}") for n in range(threads)]
        with store.transaction():
            for handle in handles:
                handle.save({"messages": []})
        wall, cpu = time.perf_counter(), time.process_time()
        for n in range(EACH):
            for at in range(COROUTINES):
                handles[at % threads].append("messages", message(n))
        return time.perf_counter() - wall, time.process_time() - cpu


async def together(path: Path, threads: int) -> tuple[float, float]:
    """Append from coroutines; return the wall and CPU time."""
    async with aio.open(path) as store:
        handles = [store.thread(f"t{n}") for n in range(threads)]
        await asyncio.gather(*(handle.save({"messages": []}) for handle in handles))

        async def agent(handle: aio.Thread[Any]) -> None:
            for n in range(EACH):
                await handle.append("messages", message(n))

        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(agent(handles[at % threads]) for at in range(COROUTINES)))
        return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    """Print the figures."""
    count = COROUTINES * EACH * ROUNDS
    with tempfile.TemporaryDirectory(prefix="backtrail-bench-") as name:
        for what, threads in (("a thread each", COROUTINES), ("one thread", 1)):
            one: list[tuple[float, float]] = []
            many: list[tuple[float, float]] = []
            for turn in range(ROUNDS):
                one.append(alone(Path(name, f"alone {threads} {turn}"), threads))
                many.append(asyncio.run(together(Path(name, f"together {threads} {turn}"), threads)))
            (wall, cpu), (shared, spent) = map(sum, zip(*one, strict=True)), map(sum, zip(*many, strict=True))
            print(
                f"{what}: {count / wall:,.0f} appends/s with a commit each, {count / shared:,.0f}/s by coroutines: "
                f"{wall / shared:.1f} x; CPU per append {cpu / count * 1e6:.0f} and {spent / count * 1e6:.0f} us"
            )


if __name__ == "__main__":
    main()
