"""Changes: each shows first what it will do, and how to take it back.

A change is made on trial, in a transaction that is dropped: so its effect is known exactly, and not written. The page
of a change has a form; JavaScript sends it to the HTTP API, with the head that the effect was shown for.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.operations.threads import KINDS, handle
from backtrail.server.inspector.storage import policy_of
from backtrail.server.inspector.threads import names
from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response

    from backtrail.server.context import Context
    from backtrail.store import Store

    Describe = Callable[["Context"], Awaitable["PendingChange"]]

T = TypeVar("T")
_LISTED: Final = 10
"""Threads that a prune names."""
_CHANGES: Final = 20
"""Differences that are shown for each thread."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change that a person may make: its effect, the fields to fill in, and the call of the API."""

    title: str
    button: str
    effects: list[str]
    url: str
    """The path of the API."""
    done: str
    """What the page says afterwards."""
    back: str
    """How to take the change back."""
    next: str
    """The page to show afterwards."""
    method: str = "POST"
    body: dict[str, Any] = field(default_factory=dict)
    match: str | None = None
    """The head that the effect was shown for."""
    fields: list[dict[str, Any]] = field(default_factory=list)
    back_url: str | None = None
    """The page of the change that takes this one back."""
    back_button: str = "Undo"
    threads: list[dict[str, Any]] = field(default_factory=list)
    """The threads whose heads move, with the differences."""
    calls: list[str] = field(default_factory=list)
    """Calls with effects outside of the store, which stay."""
    final: bool = False
    """Whether it cannot be taken back."""


class _Dropped(Exception):  # noqa: N818 - ends a trial, no error
    pass


def on_trial(store: Store, change: Callable[[], T]) -> T:
    """Make a change in a transaction, drop it, and return the result."""
    results: list[T] = []
    with suppress(_Dropped), store.transaction():
        results.append(change())
        raise _Dropped
    return results[0]


# -- threads ----------------------------------------------------------------------------------------------


async def _move(ctx: Context, name: str, **options: Any) -> PendingChange:
    """Describe a rewind, an undo or a redo: the head moves to another checkpoint."""
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]

    def trial() -> tuple[Any, Any, int, int, list[str]]:
        thread = handle(ctx.store, kind, thread_id)
        head, count = thread.load(), len(thread)
        calls = ctx.store.runs.irreversible(thread_id, options["ref"]) if name == "rewind" and kind == "run" else []
        after, left = on_trial(ctx.store, lambda: (getattr(thread, name)(*options.values()), len(thread)))
        return head, after, count, left, [f"{call.tool_name} ({call.id})" for call in calls]

    head, after, count, left, calls = await ctx.run(trial)
    effects = [f"The head moves from step {head.step} to step {after.step}."]
    if left < count:
        gone = "1 checkpoint goes" if count - left == 1 else f"{count - left:,} checkpoints go"
        effects.append(f"{gone} out of view. Nothing is deleted.")
    elif left > count:
        come = "1 checkpoint comes" if left - count == 1 else f"{left - count:,} checkpoints come"
        effects.append(f"{come} back into view.")
    back = "redo" if name == "undo" else "undo"
    return PendingChange(
        title={"rewind": f"Rewind to step {after.step}", "undo": "Undo", "redo": "Redo"}[name],
        button=name.capitalize(),
        effects=effects,
        url=ctx.url("api", "v1", "threads", thread_id, name),
        body={"kind": kind, **options},
        match=head.id,
        done=f"The head is step {after.step} again.",
        back=f"{back.capitalize()} takes it back.",
        back_url=ctx.url("threads", kind, thread_id, "change", back),
        back_button=back.capitalize(),
        next=ctx.url("threads", kind, thread_id),
        threads=[await _differences(ctx, kind, thread_id, head.id, after.id)],
        calls=calls,
    )


async def _differences(ctx: Context, kind: str, thread_id: str, old: str, new: str) -> dict[str, Any]:
    diff = await ctx.call("thread_diff", kind=kind, thread_id=thread_id, a=old, b=new, limit=_CHANGES)
    return {"kind": kind, "thread_id": thread_id, "old": old, "new": new, "diff": diff}


async def _rewind(ctx: Context) -> PendingChange:
    at = await ctx.call("thread_checkpoint", **names(ctx), ref=_ref(ctx))
    return await _move(ctx, "rewind", ref=at["checkpoint_id"])


async def _undo(ctx: Context) -> PendingChange:
    return await _move(ctx, "undo")


async def _redo(ctx: Context) -> PendingChange:
    return await _move(ctx, "redo")


def _ref(ctx: Context) -> str:
    return ctx.request.query_params.get("ref") or "@"


async def _fork(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]
    at = await ctx.call("thread_checkpoint", **which, ref=_ref(ctx))
    can_delete = kind in ("thread", "conversation")
    return PendingChange(
        title=f"Fork at step {at['step']}",
        button="Fork",
        effects=[f"A new {kind} begins with the state of step {at['step']}. This one stays as it is."],
        url=ctx.url("api", "v1", "threads", thread_id, "fork"),
        body={"kind": kind, "ref": at["checkpoint_id"]},
        fields=[{"name": "new_id", "label": "Id of the fork", "value": f"{thread_id}-fork", "required": True}],
        done="The fork {new_id} was made.",
        back="Delete the fork to take it back." if can_delete else f"In Python: store.{kind}s can delete the fork.",
        back_url=ctx.url("threads", kind) + "/{new_id}/change/delete" if can_delete else None,
        back_button="Delete the fork",
        next=ctx.url("threads", kind) + "/{new_id}",
    )


async def _label(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]
    if kind == "run":
        raise Problem(404, "not_found.path", "a run makes its checkpoints itself: tag one of them instead")
    head = await ctx.call("thread_checkpoint", **which, ref="@")
    return PendingChange(
        title="Label the head",
        button="Save",
        effects=[f"The state of step {head['step']} is saved again as step {head['step'] + 1}, with a label."],
        url=ctx.url("api", "v1", "threads", thread_id, "label"),
        body={"kind": kind},
        match=head["checkpoint_id"],
        fields=[{"name": "label", "label": "Label", "value": "", "required": True}],
        done="The head has the label {label}.",
        back="Undo takes it back.",
        back_url=ctx.url("threads", kind, thread_id, "change", "undo"),
        next=ctx.url("threads", kind, thread_id),
    )


async def _tag(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]
    tag = ctx.request.query_params.get("tag", "")
    at = await ctx.call("thread_checkpoint", **which, ref=_ref(ctx))
    return PendingChange(
        title=f"Tag step {at['step']}",
        button="Tag",
        effects=[f"Step {at['step']} gets a tag. A prune keeps checkpoints that have a tag."],
        url=ctx.url("api", "v1", "threads", thread_id, "tag"),
        body={"kind": kind, "ref": at["checkpoint_id"]},
        fields=[{"name": "tags", "label": "Tag", "value": tag, "required": True, "list": True}],
        done="Step " + str(at["step"]) + " has the tag {tags}.",
        back="Remove the tag to take it back.",
        back_url=ctx.url("threads", kind, thread_id, "change", "untag", ref=at["checkpoint_id"]) + "&tag={tags}",
        back_button="Remove the tag",
        next=ctx.url("threads", kind, thread_id, ref=at["checkpoint_id"]),
    )


async def _untag(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id, tag = which["kind"], which["thread_id"], ctx.request.query_params.get("tag", "")
    at = await ctx.call("thread_checkpoint", **which, ref=_ref(ctx))
    return PendingChange(
        title=f"Remove the tag “{tag}”",
        button="Remove",
        effects=[f"Step {at['step']} loses the tag {tag}."],
        url=ctx.url("api", "v1", "threads", thread_id, "untag"),
        body={"kind": kind, "ref": at["checkpoint_id"], "tags": [tag]},
        done="The tag was removed.",
        back="Tag the checkpoint again to take it back.",
        back_url=ctx.url("threads", kind, thread_id, "change", "tag", ref=at["checkpoint_id"], tag=tag),
        back_button="Tag it again",
        next=ctx.url("threads", kind, thread_id, ref=at["checkpoint_id"]),
    )


async def _delete(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]
    if kind not in ("thread", "conversation"):
        raise Problem(404, "not_found.path", "only threads and conversations are deleted here")
    info = await ctx.call("thread_show", **which)
    return PendingChange(
        title=f"Delete the {kind}",
        button="Delete",
        effects=[f"The {kind} {thread_id} is deleted with {info['checkpoints']:,} checkpoints in view."],
        method="DELETE",
        url=ctx.url("api", "v1", f"{kind}s", thread_id),
        done=f"The {kind} was deleted.",
        back="This cannot be undone.",
        next=ctx.url(""),
        final=True,
    )


async def _erase(ctx: Context) -> PendingChange:
    which = names(ctx)
    kind, thread_id = which["kind"], which["thread_id"]
    if kind == "agent":
        raise Problem(404, "not_found.path", "agents are not erased here")
    info = await ctx.call("thread_show", **which)
    return PendingChange(
        title=f"Erase the {kind}",
        button="Erase",
        effects=[
            f"The {kind} {thread_id} is erased with {info['checkpoints']:,} checkpoints in view, and all others.",
            "What was forked from it is erased, too. Checkpoints of its agent restore all but this.",
            "The store's files are rewritten: other processes wait for that.",
        ],
        url=ctx.url("api", "v1", "erase"),
        body={"kind": kind, "ids": [thread_id]},
        done=f"The {kind} was erased.",
        back="This cannot be undone.",
        next=ctx.url(""),
        final=True,
    )


# -- agents -----------------------------------------------------------------------------------------------


async def _restore(ctx: Context) -> PendingChange:
    agent_id = ctx.params["agent_id"]
    checkpoint_id = ctx.request.query_params.get("checkpoint", "")
    entry = await ctx.call("checkpoint_info", checkpoint_id=checkpoint_id)

    def irreversible() -> list[str]:
        return [f"{call.tool_name} ({call.id})" for call in ctx.store.agents.irreversible(checkpoint_id)]

    return PendingChange(
        title=f"Restore “{_text(entry['name'])}”",
        button="Restore",
        effects=[
            "The agent and all its conversations get the state of this checkpoint. Nothing is deleted.",
            *(f"The conversation {each} was erased, and does not return." for each in entry["erased"]),
        ],
        url=ctx.url("api", "v1", "agent-checkpoints", checkpoint_id, "restore"),
        body={"agent_id": agent_id},
        done="The agent was restored.",
        back="Undo takes it back, until the agent or its conversations change.",
        back_url=ctx.url("agents", agent_id, "change", "undo"),
        next=ctx.url("agents", agent_id),
        threads=await _moved(ctx, agent_id, lambda: ctx.store.agents.restore(checkpoint_id, agent_id=agent_id)),
        calls=await ctx.run(irreversible),
    )


async def _undo_restore(ctx: Context) -> PendingChange:
    agent_id = ctx.params["agent_id"]
    return PendingChange(
        title="Undo the last restore",
        button="Undo",
        effects=["The agent and its conversations get the state from before the restore."],
        url=ctx.url("api", "v1", "agents", agent_id, "undo"),
        done="The restore was undone.",
        back="Restore the checkpoint again to take it back.",
        next=ctx.url("agents", agent_id),
        threads=await _moved(ctx, agent_id, lambda: ctx.store.agents.undo(agent_id)),
    )


async def _moved(ctx: Context, agent_id: str, change: Callable[[], Any]) -> list[dict[str, Any]]:
    """Return the threads of an agent whose heads a change moves, with the differences."""

    def heads() -> dict[tuple[str, str], str]:
        infos = ((kind, info) for kind in KINDS for info in ctx.store.threads(kind=kind, agent=agent_id))
        own = ctx.store.info(agent_id, kind="agent")
        return {(kind, info.id): info.head_id for kind, info in infos} | (
            {("agent", agent_id): own.head_id} if own else {}
        )

    def changed() -> dict[tuple[str, str], str]:
        change()
        return heads()

    before = await ctx.run(heads)
    after = await ctx.run(on_trial, ctx.store, changed)
    threads = []
    for kind, thread_id in sorted({*before, *after}):
        old, new = before.get((kind, thread_id)), after.get((kind, thread_id))
        if old and new and old != new:
            threads.append(await _differences(ctx, kind, thread_id, old, new))
        elif old != new:
            note = "goes out of view" if new is None else "comes back"
            threads.append({"kind": kind, "thread_id": thread_id, "note": note})
    return threads


async def _checkpoint(ctx: Context) -> PendingChange:
    agent_id = ctx.params["agent_id"]
    return PendingChange(
        title="Make a checkpoint",
        button="Make it",
        effects=["The checkpoint holds the agent's state and the heads of all its conversations."],
        url=ctx.url("api", "v1", "agents", agent_id, "checkpoints"),
        fields=[
            {"name": "name", "label": "Name", "value": "", "required": True},
            {"name": "description", "label": "Description", "value": ""},
        ],
        done="The checkpoint {name} was made.",
        back="Delete the checkpoint to take it back.",
        next=ctx.url("agents", agent_id),
    )


async def _delete_checkpoint(ctx: Context) -> PendingChange:
    checkpoint_id = ctx.request.query_params.get("checkpoint", "")
    entry = await ctx.call("checkpoint_info", checkpoint_id=checkpoint_id)
    return PendingChange(
        title=f"Delete “{_text(entry['name'])}”",
        button="Delete",
        effects=["The checkpoint is deleted. The agent and its conversations stay as they are."],
        method="DELETE",
        url=ctx.url("api", "v1", "agent-checkpoints", checkpoint_id),
        done="The checkpoint was deleted.",
        back="This cannot be undone.",
        next=ctx.url("agents", ctx.params["agent_id"]),
        final=True,
    )


# -- runs, storage ----------------------------------------------------------------------------------------


async def _settle(ctx: Context) -> PendingChange:
    run_id, call_id = ctx.params["run_id"], ctx.request.query_params.get("call", "")
    run = await ctx.call("run_status", run_id=run_id)
    call = next((each for each in run["calls_in_doubt"] if each["call_id"] == call_id), None)
    if call is None:
        raise Problem(404, "not_found.call", "this call is not in doubt")
    if ctx.request.query_params.get("as") == "not_done":
        effects = ["The call is recorded as not made. The run makes it when it resumes."]
        body, fields = {"not_done": True}, []
    else:
        effects = ["The call is recorded as made, with this result. The run does not make it again."]
        body = {}
        fields = [{"name": "result", "label": "Result, as JSON", "value": "null", "json": True, "required": True}]
    return PendingChange(
        title=f"Settle {_text(call['tool'])}",
        button="Settle",
        effects=effects,
        url=ctx.url("api", "v1", "runs", run_id, "settle"),
        body={"call_id": call_id, **body},
        fields=fields,
        done="The call is settled.",
        back="This cannot be undone.",
        next=ctx.url("runs", run_id),
        final=True,
    )


async def _prune(ctx: Context) -> PendingChange:
    policy = policy_of(ctx.request.query_params)
    if not policy:
        raise Problem(400, "invalid.argument", "a policy needs a rule, such as keep_last")
    plan = await ctx.call("prune_plan", **policy)
    effects = [f"{plan['count']:,} checkpoints are removed."]
    if plan["threads"]:
        effects.append(f"{len(plan['threads']):,} idle threads are removed whole.")
    removed = Counter(f"{each['kind']} {each['thread_id']}" for each in plan["removed"])
    listed = ", ".join(f"{count:,} of {thread}" for thread, count in removed.most_common(_LISTED))
    if listed:
        rest = len(removed) - _LISTED
        more = "and more" if plan["truncated"] else f"and of {rest:,} more threads" if rest > 0 else ""
        effects.append(f"They are {listed}{', ' if more else ''}{more}.")
    return PendingChange(
        title="Prune",
        button="Prune",
        effects=effects,
        url=ctx.url("api", "v1", "prune"),
        body=policy,
        done="The checkpoints were removed.",
        back="This cannot be undone.",
        next=ctx.url("storage"),
        final=True,
    )


def _text(value: Any) -> str:
    """Return a text that may be a preview."""
    return f"{value['preview']}…" if isinstance(value, dict) else str(value)


# -- routes -----------------------------------------------------------------------------------------------

_THREADS: Final[dict[str, Describe]] = {
    "rewind": _rewind,
    "undo": _undo,
    "redo": _redo,
    "fork": _fork,
    "label": _label,
    "tag": _tag,
    "untag": _untag,
    "delete": _delete,
    "erase": _erase,
}
_AGENTS: Final[dict[str, Describe]] = {
    "restore": _restore,
    "undo": _undo_restore,
    "checkpoint": _checkpoint,
    "delete-checkpoint": _delete_checkpoint,
}


def _page(path: str, changes: dict[str, Describe]) -> Route:
    async def endpoint(ctx: Context) -> Response:
        describe = changes.get(ctx.params.get("change", ""))
        if describe is None:
            raise Problem(404, "not_found.path", "there is no such change")
        if not ctx.access.write:
            raise Problem(403, "unavailable.read_only", "this server takes no changes: start it with --write")
        layout = "part.html" if ctx.request.query_params.get("part") else "base.html"
        return ctx.page("change.html", change=await describe(ctx), layout=layout)

    return Route(path, endpoint)


ROUTES: Final[tuple[Route, ...]] = (
    _page("GET /threads/{kind}/{thread_id}/change/{change}", _THREADS),
    _page("GET /agents/{agent_id}/change/{change}", _AGENTS),
    _page("GET /runs/{run_id}/change/{change}", {"settle": _settle}),
    _page("GET /storage/change/{change}", {"prune": _prune}),
)
