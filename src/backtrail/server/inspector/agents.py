"""The page of an agent: its state, its conversations, its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.errors import NotFound
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.responses import Response

    from backtrail.server.context import Context

_SHOWN: Final = 50


async def agent(ctx: Context) -> Response:
    """Show an agent. One without a state may still own conversations."""
    name = ctx.params["agent_id"]
    try:
        state = await ctx.call("agent_load", agent_id=name)
    except NotFound:
        state = None
    query = ctx.request.query_params
    conversations = await ctx.call(
        "conversation_list", agent_id=name, limit=_SHOWN, cursor=query.get("conversations") or None
    )
    checkpoints = await ctx.call(
        "checkpoint_list", agent_id=name, limit=_SHOWN, cursor=query.get("checkpoints") or None
    )
    runs = await ctx.call("run_list", agent_id=name, limit=20)
    if state is None and not (conversations["conversations"] or checkpoints["checkpoints"] or runs["runs"]):
        raise NotFound(f"there is no agent {name!r:.100}", code="not_found.agent")
    return ctx.page(
        "agent.html",
        agent_id=name,
        state=state,
        conversations=conversations,
        checkpoints=checkpoints,
        runs=runs["runs"],
        write=ctx.access.write,
    )


ROUTES: Final[tuple[Route, ...]] = (Route("GET /agents/{agent_id}", agent),)
