"""A hundred agents in one event loop: each has its own thread, and all write to a shared board.

Their writes share commits; the example prints the writes per second. `python examples/async_agents.py [store]`
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field

import backtrail
from backtrail import aio

AGENTS, TURNS = 100, 3


@dataclass
class Notes:
    """The state of an agent."""

    turns: int = 0
    seen: list[str] = field(default_factory=list)


async def think(turn: int) -> str:
    """Play a model that answers after a while."""
    await asyncio.sleep(0.001)
    return f"thought {turn}"


async def agent(store: aio.Store, name: str) -> int:
    """Take some turns and save each; return the number of the agent's turns so far."""
    notes: aio.Thread[Notes] = store.thread(name, Notes)
    if await notes.latest() is None:
        await notes.save(Notes())
    board = store.thread("board")
    for turn in range(TURNS):
        thought = await think(turn)
        async with notes.step() as mine:  # all or nothing
            mine.turns += 1
            mine.seen.append(thought)
        await board.append("posts", {"by": name, "text": thought})  # appends never conflict
    head: aio.Checkpoint[Notes] = await notes.load()
    state = await head.load_state()
    return state.turns


async def main(url: str) -> None:
    """Run the agents, and cancel one more."""
    async with aio.open(url) as store:
        board = store.thread("board")
        try:
            await board.save({"posts": []}, expect=backtrail.NEW)
        except backtrail.Conflict:
            print("going on")
        began = time.perf_counter()
        turns = await asyncio.gather(*(agent(store, f"agent {n}") for n in range(AGENTS)))
        seconds = time.perf_counter() - began
        print(f"{len(turns)} agents, {turns[0]} turns each, {2 * AGENTS * TURNS / seconds:,.0f} writes a second")

        # A cancelled task leaves only complete writes, and can be started again.
        task = asyncio.create_task(agent(store, "impatient"))
        await asyncio.sleep(0.004)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        print(f"given up and started again: {await agent(store, 'impatient')} turns")

        head = await board.load()
        posts = await head.tail("posts", 3)
        print(f"{await board.count()} checkpoints of the board, at the end of it {[post['text'] for post in posts]}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "agents.db"))
