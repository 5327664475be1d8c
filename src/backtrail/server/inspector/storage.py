"""The page of the storage: bytes by thread, what a policy would remove, verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Error
from backtrail.operations.answers import whole_number
from backtrail.operations.threads import KINDS, handle
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from backtrail.server.context import Context
    from backtrail.store import Store

_THREADS: Final = 100
"""Threads of each kind whose bytes are counted."""
_CHECKPOINTS: Final = 2_000
"""The newest checkpoints of a thread that are counted."""
_ALL: Final = 20_000
"""The checkpoints of a kind of threads that are counted."""
_COUNTS: Final = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "older_than", "idle_days")
_DAY: Final = 86_400


async def storage(ctx: Context) -> Response:
    """Show the figures of the store. With the fields of a policy: what a prune would remove."""
    policy = policy_of(ctx.request.query_params)
    plan = await ctx.call("prune_plan", **policy) if policy else None
    return ctx.page(
        "storage.html",
        stats=await ctx.call("persistence_stats"),
        plan=plan,
        policy=policy,
        query=ctx.request.query_params,
        agents=(await ctx.call("agent_list", limit=100))["agents"],
        write=ctx.access.write,
    )


def policy_of(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a prune in a query; nothing if it has no rule. `older_than` is in days there."""
    counts = {name: whole_number(query.get(name, "")) for name in _COUNTS}
    policy: dict[str, Any] = {name: count for name, count in counts.items() if count is not None}
    if not policy:
        return {}
    if "older_than" in policy:
        policy["older_than"] *= _DAY
    if query.get("rules"):  # a box that is not checked sends nothing
        policy |= {name: name in query for name in ("keep_tagged", "keep_labelled")}
    return policy | ({"agent_id": query["agent_id"]} if query.get("agent_id") else {})


async def threads(ctx: Context) -> Response:
    """Return the bytes of the threads that were active last, the largest first."""
    found = await ctx.run(_usage, ctx.store)
    return ctx.page("storage_threads.html", threads=found, most=max((each["stored"] for each in found), default=1))


def _usage(store: Store) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        left = _ALL
        for info in store.threads(kind=kind, limit=_THREADS):
            stored = whole = count = 0
            most = min(_CHECKPOINTS, left)
            try:
                newest = handle(store, kind, info.id).history(everything=True, newest_first=True, limit=most)
                for each in newest:
                    stored, whole, count = stored + each.stored, whole + each.size, count + 1
            except Error:  # damaged: verification names it
                continue
            left -= count
            found.append(
                {
                    "kind": kind,
                    "id": info.id,
                    "stored": stored,
                    "whole": whole,
                    "checkpoints": count,
                    "cut": count == most,
                }
            )
    return sorted(found, key=lambda each: each["stored"], reverse=True)


ROUTES: Final[tuple[Route, ...]] = (Route("GET /storage", storage), Route("GET /storage/threads", threads))
