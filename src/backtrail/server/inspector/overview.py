"""The first page, with the latest activity, and the search page."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from backtrail.operations.threads import KINDS
from backtrail.runs.strategies import RunState
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context

_SHOWN: Final = 50
_TIMES: Final = {"1h": dt.timedelta(hours=1), "24h": dt.timedelta(days=1), "7d": dt.timedelta(days=7)}
_LISTS: Final = {
    "conversation": ("conversation_list", "conversations", "conversation_id"),
    "run": ("run_list", "runs", "run_id"),
    "agent": ("agent_list", "agents", "agent_id"),
}
"""Per kind: the operation that lists more than the thread, the name of its list, and of the id."""


async def overview(ctx: Context) -> Response:
    """Show the latest activity, and the runs that need a person."""
    query = ctx.request.query_params
    kind = query.get("kind") if query.get("kind") in KINDS else None
    status = query.get("status") if query.get("status") in [*RunState] else None
    if status is not None:
        kind = "run"
    agent = query.get("agent") or None
    since = _TIMES.get(query.get("since", ""))
    start = (dt.datetime.now(dt.UTC) - since).isoformat() if since else ""
    entries: list[dict[str, Any]] = []
    cursor = None
    for each in (kind,) if kind else KINDS:
        found, cursor = await _entries(ctx, each, agent, status, query.get("cursor") if kind else None)
        entries += found
    entries.sort(key=lambda entry: entry["updated_at"], reverse=True)
    entries = [entry for entry in entries if entry["updated_at"] >= start][: _SHOWN * 2 if kind else _SHOWN]
    return ctx.page(
        "overview.html",
        entries=entries,
        attention=await _attention(ctx, agent) if kind in (None, "run") and "cursor" not in query else [],
        agents=(await ctx.call("agent_list", limit=100))["agents"],
        kinds=KINDS,
        statuses=[*RunState],
        times=[*_TIMES],
        query={"kind": kind, "status": status, "agent": agent, "since": query.get("since")},
        cursor=cursor if kind else None,
    )


async def _entries(
    ctx: Context, kind: str, agent: str | None, status: str | None, cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return threads of one kind with what is known of their conversations, runs or agents."""
    page = await ctx.call("thread_list", kind=kind, agent_id=agent, limit=_SHOWN, cursor=cursor)
    more: dict[str, dict[str, Any]] = {}
    if kind in _LISTS:
        operation, name, key = _LISTS[kind]
        wanted = {} if kind == "agent" else {"agent_id": agent}
        if kind == "run":
            wanted["status"] = status
        listed = await ctx.call(operation, limit=100, **wanted)
        more = {each[key]: each for each in listed[name]}
    entries = [{**more.get(each["thread_id"], {}), **each} for each in page["threads"]]
    if status is not None:
        entries = [each for each in entries if each.get("status") == status]
    return entries, page["next_cursor"]


async def _attention(ctx: Context, agent: str | None) -> list[dict[str, Any]]:
    """Return the runs that wait for a person: halted, in doubt, or left by their worker."""
    found = []
    now = dt.datetime.now(dt.UTC).isoformat()
    for status in (RunState.IN_PROGRESS, RunState.HALTED):
        for run in (await ctx.call("run_list", agent_id=agent, status=status, limit=100))["runs"]:
            idle = run["lease_until"] is None or run["lease_until"] < now
            reason = "waits" if status == RunState.HALTED else "interrupted" if idle else None
            why = "in doubt" if run["in_doubt"] else reason
            if why:
                found.append({**run, "why": why})
    return found


async def search(ctx: Context) -> Response:
    """Show the messages that match a query."""
    query = ctx.request.query_params
    words = query.get("q", "").strip()
    options = {
        "kind": query.get("kind") if query.get("kind") in KINDS else None,
        "agent_id": query.get("agent") or None,
        "contains": query.get("contains") == "1" or None,
    }
    found: dict[str, Any] = {"hits": [], "next_cursor": None}
    if words:
        found = await ctx.call("search", query=words, limit=50, cursor=query.get("cursor"), **options)
    return ctx.page("search.html", words=words, found=found, kinds=KINDS, query=options)


ROUTES: Final[tuple[Route, ...]] = (Route("GET /", overview), Route("GET /search", search))
