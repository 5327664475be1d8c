"""An asyncio agent that calls its tools side by side, dies while some are done and some are not, and goes on.

Each call finds its own result again, whatever order they finish in: what was done is not done again, what was not begun
is done now, and the one that was on its way is looked for outside (`verify`). `python examples/run_parallel.py`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import backtrail
from backtrail import Done, Message, NotDone, aio

if TYPE_CHECKING:
    from backtrail import Call

CITIES = {"Lisbon": 0.02, "Porto": 0.01, "Faro": 5.0}
"""How long each booking takes: they finish in another order than they begin, and one of them hangs."""
booked: list[str] = []


def look(call: Call) -> object:
    """Find out whether a booking was made, from whoever keeps them."""
    city = call.arguments["args"][0]
    return Done(f"a bed in {city}") if city in booked else NotDone


@backtrail.tool(verify=look)
async def book(city: str) -> str:
    """Do something outside that must not happen twice."""
    booked.append(city)
    await asyncio.sleep(CITIES[city])
    return f"a bed in {city}"


@backtrail.llm(policy="pure")
async def choose(messages: list[Message]) -> list[str]:
    """Stand in for a model, which asks for three tools at once."""
    return list(CITIES) if len(messages) == 1 else []


async def agent(store: aio.Store) -> aio.Run:
    """Work on the trip, from wherever it is."""
    async with store.run("trip", messages=[Message.user("Three cities, please")], state={"beds": []}) as run:
        async for _ in run.iterations():
            cities = await choose(run.messages)
            if not cities:
                break
            beds = await asyncio.gather(*(book(city) for city in cities))
            run.message(Message.assistant(", ".join(beds)))
            run.state["beds"] += beds
    return run


async def main() -> None:
    """Stop it while one booking hangs, and start it again."""
    async with aio.open("memory://") as store:
        try:
            async with asyncio.timeout(0.5):
                await agent(store)
        except TimeoutError:
            found = await store.runs.load("trip")
            print(f"{found.status}; in doubt: {[call.arguments['args'][0] for call in found.in_doubt]}")
        run = await agent(store)
        print(f"{run.status}: {run.state['beds']}")
        print(f"booked, each once: {booked}")
        assert sorted(booked) == sorted(CITIES)


if __name__ == "__main__":
    asyncio.run(main())
