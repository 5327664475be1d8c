"""How late an event loop wakes up while a large state is saved: `python bench/loop_lag.py`.

A coroutine sleeps 1 ms again and again and notes how late it wakes up: first beside nothing, then beside saves of a
state of about 50 MB, in a store with full durability.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from backtrail import aio

TEXT = "the plan for this week is to compare two offers and then decide which hotel fits the budget"
WORDS = TEXT.split()


def large_state(size: int) -> dict[str, Any]:
    """Make messages of about 1 KB, that many bytes in all."""
    rng = random.Random(7)
    text = [" ".join(rng.choices(WORDS, k=180)) for _ in range(500)]
    return {"messages": [{"role": "user", "id": n, "content": f"{n} {text[n % 500]}"} for n in range(size // 960)]}


class Lag:
    """`async with Lag() as lag:` measures how late the loop is, in milliseconds."""

    async def __aenter__(self) -> Self:
        self.late: list[float] = []
        self._task = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            self.late.append((time.perf_counter() - due) * 1000)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    def __str__(self) -> str:
        ordered = sorted(self.late)
        p99 = ordered[int(len(ordered) * 0.99)]
        return (
            f"median {statistics.median(ordered):.2f}, p99 {p99:.2f}, worst {ordered[-1]:.2f} ms, {len(ordered)} times"
        )


async def loop_lag(path: Path, size: int = 50_000_000, saves: int = 3) -> dict[str, Lag]:
    """Measure beside nothing, beside saves of a large state, and beside one that changed a little."""
    state = large_state(size)
    measured: dict[str, Lag] = {}
    async with Lag() as measured["beside nothing"]:
        await asyncio.sleep(1)
    async with aio.open(path) as store:
        async with Lag() as measured[f"beside the first save of {size / 1e6:.0f} MB"]:
            for n in range(saves):
                await store.thread(f"t{n}").save(state)
        async with Lag() as measured["beside saves of it with one more message"]:
            thread = store.thread("t0")
            for n in range(saves):
                state["messages"].append({"role": "user", "content": str(n)})
                await thread.save(state)
        async with Lag() as measured["beside loads of it"]:
            for n in range(saves):
                await (await store.thread(f"t{n}").load()).load_state()
    return measured


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(prefix="backtrail-bench-") as name:
        for what, lag in asyncio.run(loop_lag(Path(name, "lag.db"))).items():
            print(f"{what:<45}{lag}")


if __name__ == "__main__":
    main()
