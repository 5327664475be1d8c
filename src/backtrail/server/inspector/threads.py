"""The pages of a thread: its graph beside the state of a checkpoint, and differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse

from backtrail.operations.answers import whole_number
from backtrail.operations.threads import KINDS
from backtrail.server.inspector import graph
from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context

_DIFF: Final = 50
_ENTRIES: Final = 100
_TEXT: Final = 4_000
"""Characters of a long text that are shown at once."""


def names(ctx: Context) -> dict[str, Any]:
    """Return the kind and the id in the path of a request."""
    kind = ctx.params["kind"]
    if kind not in KINDS:
        raise Problem(404, "not_found.path", f"a thread is a {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return {"kind": kind, "thread_id": ctx.params["thread_id"]}


async def thread(ctx: Context) -> Response:
    """Show a thread: `ref` is the checkpoint, `against` another one to compare with, `path` a part of the state."""
    query, which = ctx.request.query_params, names(ctx)
    ref = query.get("ref") or None
    info = await ctx.call("thread_show", **which)
    checkpoint = state = window = None
    if ref is not None or info["head"] is not None:
        checkpoint = await ctx.call("thread_checkpoint", **which, ref=ref or "@")
        state = await _state(ctx, which, checkpoint["checkpoint_id"], query.get("path", ""), 0)
    detail_only = query.get("part") == "detail"
    if not detail_only:
        window = await ctx.run(graph.newest, ctx.store, **which)
        known = (row["id"] for row in window.rows)
        if ref and checkpoint and checkpoint["thread_id"] == which["thread_id"]:
            window = window if checkpoint["checkpoint_id"] in known else None  # the page asks for its window later
    return ctx.page(
        "thread_detail.html" if detail_only else "thread.html",
        **which,
        info=info,
        ref=ref,
        checkpoint=checkpoint,
        state=state,
        window=window,
        against=query.get("against") or (checkpoint and _parent(checkpoint)),
        current=checkpoint and checkpoint["checkpoint_id"],
    )


def _parent(checkpoint: dict[str, Any]) -> str | None:
    """Return the parent of a checkpoint; None for the first one of a thread, also of a fork: it equals its origin."""
    parent: str | None = checkpoint["parent_id"]
    uid = checkpoint["checkpoint_id"][8:]  # of the thread
    return parent if parent is not None and parent[8:] == uid else None


async def rows(ctx: Context) -> Response:
    """Return the next window of the graph, the one above a checkpoint, or the one around it."""
    query, which = ctx.request.query_params, names(ctx)
    if "until" in query:
        window = await ctx.run(graph.above, ctx.store, **which, until=query["until"])
    elif "around" in query:
        window = await ctx.run(graph.around, ctx.store, **which, checkpoint_id=query["around"])
    else:
        cursor = query.get("before", ""), query.get("lanes", "")
        window = await ctx.run(graph.below, ctx.store, which["kind"], which["thread_id"], *cursor)
    return ctx.page("thread_rows.html", **which, window=window, current=query.get("current"))


async def words(ctx: Context) -> Response:
    """Return a few words about each checkpoint of a window."""
    query, which = ctx.request.query_params, names(ctx)
    count = whole_number(query.get("count", "")) or 0
    found = await ctx.run(graph.words, ctx.store, **which, before=query.get("before"), count=count)
    return ctx.page("thread_words.html", words=found)


async def state(ctx: Context) -> Response:
    """Return a part of a state."""
    query, which = ctx.request.query_params, names(ctx)
    offset = whole_number(query.get("offset", "")) or 0
    found = await _state(ctx, which, query.get("ref", "@"), query.get("path", ""), offset)
    return ctx.page("thread_state.html", **which, state=found)


async def _state(ctx: Context, which: dict[str, str], ref: str, path: str, offset: int) -> dict[str, Any]:
    found = await ctx.call("thread_state", **which, ref=ref, path=path, offset=offset, limit=_ENTRIES)
    if "entries" not in found and "value" in found and isinstance(found["value"], str) and found["size"] > _TEXT:
        # a long text: ask for more of it at once
        found = await ctx.call("thread_state", **which, ref=ref, path=path, offset=offset, max_bytes=_TEXT)
    return {**found, "offset": offset}


async def diff(ctx: Context) -> Response:
    """Show what differs between two checkpoints, `a` and `b`."""
    query, which = ctx.request.query_params, names(ctx)
    a, b = query.get("a", "@-"), query.get("b", "@")
    found = await ctx.call("thread_diff", **which, a=a, b=b, limit=_DIFF, cursor=query.get("cursor"))
    sides = [await ctx.call("checkpoint_show", checkpoint_id=found[side]) for side in ("a", "b")]
    template = "diff_part.html" if query.get("part") else "diff.html"
    return ctx.page(template, **which, diff=found, old=sides[0], new=sides[1], first="cursor" not in query)


async def checkpoint(ctx: Context) -> Response:
    """Redirect from the id of a checkpoint to its place in its thread."""
    found = await ctx.call("checkpoint_show", checkpoint_id=ctx.params["checkpoint_id"])
    return RedirectResponse(ctx.url("threads", found["kind"], found["thread_id"], ref=found["checkpoint_id"]), 303)


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET /threads/{kind}/{thread_id}", thread),
    Route("GET /threads/{kind}/{thread_id}/graph", rows),
    Route("GET /threads/{kind}/{thread_id}/words", words),
    Route("GET /threads/{kind}/{thread_id}/state", state),
    Route("GET /threads/{kind}/{thread_id}/diff", diff),
    Route("GET /checkpoints/{checkpoint_id}", checkpoint),
)
