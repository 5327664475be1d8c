"""The first page, with the latest activity, and the search page."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Error
from backtrail.operations import TABLE
from backtrail.operations.threads import KINDS
from backtrail.runs.strategies import RunState
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context
    from backtrail.store import Store

_SHOWN: Final = 50
_WAITING: Final = 20
"""Runs of each status that may need a person."""
_TIMES: Final = {"1h": dt.timedelta(hours=1), "24h": dt.timedelta(days=1), "7d": dt.timedelta(days=7)}
_DETAILS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "conversation": ("conversation_load", "conversation_id", {"messages": 0}),
    "run": ("run_status", "run_id", {}),
    "agent": ("agent_load", "agent_id", {}),
}
"""Per kind: the operation that tells more than the thread, the name of the id, and further arguments."""


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
    cursor = query.get("cursor") if kind else None
    page: dict[str, Any] = {}
    if kind == "run":
        page = await ctx.call("run_list", agent_id=agent, status=status, limit=_SHOWN, cursor=cursor)
        entries = [await ctx.run(_run_entry, ctx.store, run) for run in page["runs"]]
    else:
        entries = []
        for each in (kind,) if kind else KINDS:
            page = await ctx.call("thread_list", kind=each, agent_id=agent, limit=_SHOWN, cursor=cursor)
            entries += page["threads"]
        entries = sorted(entries, key=lambda entry: entry["updated_at"], reverse=True)[:_SHOWN]
        entries = [await ctx.run(_detailed, ctx.store, entry) for entry in entries]
    entries = [entry for entry in entries if entry["updated_at"] >= start]
    return ctx.page(
        "overview.html",
        entries=entries,
        attention=await _attention(ctx, agent) if kind in (None, "run") and "cursor" not in query else [],
        agents=(await ctx.call("agent_list", limit=100))["agents"],
        kinds=KINDS,
        statuses=[*RunState],
        times=[*_TIMES],
        query={"kind": kind, "status": status, "agent": agent, "since": query.get("since")},
        cursor=page["next_cursor"] if kind else None,
    )


def _run_entry(store: Store, run: dict[str, Any]) -> dict[str, Any]:
    info = store.info(run["run_id"], kind="run")
    updated = run["created_at"] if info is None else info.updated_at.isoformat()
    return {**run, "kind": "run", "thread_id": run["run_id"], "updated_at": updated, "forked_from": None}


def _detailed(store: Store, entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with what is known of its conversation, run or agent."""
    if entry["kind"] not in _DETAILS:
        return entry
    operation, name, more = _DETAILS[entry["kind"]]
    try:
        return {**TABLE[operation](store, {name: entry["thread_id"], **more}), **entry}
    except Error:  # damaged, or just deleted
        return entry


async def _attention(ctx: Context, agent: str | None) -> list[dict[str, Any]]:
    """Return the runs that wait for a person: halted, in doubt, or left by their worker."""
    found = []
    now = dt.datetime.now(dt.UTC).isoformat()
    for status in (RunState.IN_PROGRESS, RunState.HALTED):
        for run in (await ctx.call("run_list", agent_id=agent, status=status, limit=_WAITING))["runs"]:
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
