"""An asyncio agent that calls tools concurrently, dies while some are finished, and continues.

Each call finds its own result, whatever their order: finished calls are not repeated, calls that had not started are
made, and for the call in progress the run asks outside (`verify`). `python examples/run_parallel.py`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import backtrail
from backtrail import Done, Message, NotDone, aio

if TYPE_CHECKING:
    from backtrail import Call

CITIES = {"Lisbon": 0.02, "Porto": 0.01, "Faro": 5.0}
"""The seconds of each booking: they finish in another order than they start, and one hangs."""
booked: list[str] = []


def look(call: Call) -> object:
    """Ask the hotel whether a booking exists."""
    city = call.arguments["args"][0]
    return Done(f"a bed in {city}") if city in booked else NotDone


@backtrail.tool(verify=look)
async def book(city: str) -> str:
    """Have an effect outside that must not happen twice."""
    booked.append(city)
    await asyncio.sleep(CITIES[city])
    return f"a bed in {city}"


@backtrail.llm(policy="pure")
async def choose(messages: list[Message]) -> list[str]:
    """Play a model that calls three tools at once."""
    return list(CITIES) if len(messages) == 1 else []


async def agent(store: aio.Store) -> aio.Run:
    """Start or continue the trip."""
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
    """Stop the agent while one booking hangs, and start it again."""
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
