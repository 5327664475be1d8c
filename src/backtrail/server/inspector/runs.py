"""The page of a run: iterations, calls, what is in doubt, what cannot be undone."""

from __future__ import annotations

import datetime as dt
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Error
from backtrail.operations.answers import brief, plain
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context
    from backtrail.store import Store

_CALLS: Final = 100


async def run(ctx: Context) -> Response:
    """Show a run."""
    name = ctx.params["run_id"]
    status = await ctx.call("run_status", run_id=name)
    current = await ctx.run(_current, ctx.store, name, status)
    calls = _timed([*status["calls"], *current], status["created_at"])
    iterations = [(number, [*each]) for number, each in groupby(calls, lambda call: call["iteration"])]
    return ctx.page(
        "run.html",
        run=status,
        iterations=iterations[::-1],
        calls=calls,
        total=status["tool_calls"] + len(current),
        irreversible=[call for call in calls if call["irreversible"]],
        lease_over=status["lease_until"] is None or status["lease_until"] < dt.datetime.now(dt.UTC).isoformat(),
    )


def _current(store: Store, run_id: str, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of the current iteration in the newest checkpoint: `run_status` has those before it."""
    head = store.runs.thread(run_id).latest()
    known = {call["call_id"] for call in status["calls"]}
    try:
        latest = head.tail("tool_calls", _CALLS) if head else []
    except Error:  # damaged: the page shows what the journal has
        return []
    return [
        {
            "call_id": call["id"],
            "tool": brief(call["tool_name"]),
            "result": brief(call["result"]),
            "arguments": brief(call["arguments"]),
            "ended_at": plain(call["ended_at"]),
            **{name: call[name] for name in ("irreversible", "iteration", "success")},
        }
        for call in latest
        if call["iteration"] >= status["iteration"] and call["id"] not in known and call["ended_at"]
    ]


def _timed(calls: list[dict[str, Any]], begin: str) -> list[dict[str, Any]]:
    """Return the calls with the seconds from the end of the call before to their own: a run records only ends."""
    last = dt.datetime.fromisoformat(begin)
    timed: list[dict[str, Any]] = []
    for call in calls:
        end = dt.datetime.fromisoformat(call["ended_at"]) if call["ended_at"] else None
        seconds = None if end is None else max((end - last).total_seconds(), 0.0)
        timed.append({**call, "seconds": seconds, "after_call": bool(timed)})
        last = end or last
    return timed


ROUTES: Final[tuple[Route, ...]] = (Route("GET /runs/{run_id}", run),)
