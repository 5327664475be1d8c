"""The page of a run: iterations, calls, what is in doubt, what cannot be undone."""

from __future__ import annotations

import datetime as dt
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context


async def run(ctx: Context) -> Response:
    """Show a run."""
    name = ctx.params["run_id"]
    status = await ctx.call("run_status", run_id=name)
    calls = _timed(status["calls"], status["created_at"])
    iterations = [(number, [*each]) for number, each in groupby(calls, lambda call: call["iteration"])]
    return ctx.page(
        "run.html",
        run=status,
        iterations=iterations[::-1],
        irreversible=[call for call in calls if call["irreversible"]],
        lease_over=status["lease_until"] is None or status["lease_until"] < dt.datetime.now(dt.UTC).isoformat(),
    )


def _timed(calls: list[dict[str, Any]], begin: str) -> list[dict[str, Any]]:
    """Return the calls with the seconds from the end of the call before to their own: a run records only ends."""
    last = dt.datetime.fromisoformat(begin)
    timed = []
    for call in calls:
        end = dt.datetime.fromisoformat(call["ended_at"]) if call["ended_at"] else None
        timed.append({**call, "seconds": None if end is None else max((end - last).total_seconds(), 0.0)})
        last = end or last
    return timed


ROUTES: Final[tuple[Route, ...]] = (Route("GET /runs/{run_id}", run),)
