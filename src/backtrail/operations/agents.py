"""Operations on agents and their checkpoints.

An operation that deletes or restores describes the effect, and how to undo it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.models import AgentState, CheckpointType
from backtrail.engine.tree.path import parse
from backtrail.errors import Invalid, NotFound
from backtrail.models import MISSING
from backtrail.operations.answers import (
    brief,
    damage,
    decode_cursor,
    deleted,
    encode_cursor,
    listed,
    nothing_at,
    only_with_path,
    outline,
    page,
    plain,
    value_part,
)
from backtrail.operations.retries import with_retries
from backtrail.operations.schema import (
    ANY,
    COUNT,
    FLAG,
    LIMIT,
    PAGE,
    PART,
    PERIOD,
    TEXT,
    TIME,
    arguments,
    flag,
    listing,
    mapping,
    one_of,
    optional,
    result,
    text,
    texts,
)
from backtrail.operations.table import Answer, Effect, Operation, operation

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.models import AgentCheckpoint, AgentInfo
    from backtrail.store import Store

ARGUMENT: Final = "invalid.argument"
_AGENT_FIELDS: Final = tuple(field.name for field in fields(AgentState) if field.init and field.name[0] != "_")
_MERGED: Final = ("config", "custom_state", "metadata")
AGENT: Final = text("The agent's id.")
_CHECKPOINT: Final = text("The checkpoint's id, from checkpoint_list or checkpoint_create.")
_AGENT_ENTRY: Final = result(
    ("damaged",),
    agent_id=TEXT,
    name=ANY,
    agent_type=ANY,
    version=optional(COUNT),
    created_at=optional(TIME),
    modified_at=optional(TIME),
    damaged=ANY,
)
_CHECKPOINT_ENTRY: Final = result(
    checkpoint_id=TEXT,
    agent_id=TEXT,
    name=ANY,
    description=ANY,
    kind=TEXT,
    created_at=TIME,
    conversations=COUNT,
    size_bytes=COUNT,
    erased={"type": "array", "items": TEXT},
)
PARTS: Final = {
    "path": TEXT,
    "value": ANY,
    "part": TEXT,
    "part_of": TEXT,
    "truncated": FLAG,
    "size": COUNT,
    "next_offset": optional(COUNT),
}
"""The properties of a result that is a part of a long value."""


# -- agents -----------------------------------------------------------------------------------------------


@operation(
    "PUT /agents/{agent_id}",
    "Save an agent's state to persistent storage.",
    arguments(
        ("agent_id",),
        agent_id=AGENT,
        name=text("The agent's name; required for a new agent."),
        agent_type=text("The model that the agent uses; required for a new agent."),
        system_prompt=text("The agent's system prompt."),
        capabilities=texts("The agent's capabilities."),
        config=mapping("Settings. Other keys stay unchanged."),
        custom_state=mapping("The agent's memory. Other keys stay unchanged."),
        metadata=mapping("Texts by key. Other keys stay unchanged.", "string"),
        replace=flag("Replace the whole state with these fields. Requires name and agent_type."),
    ),
    result(
        agent_id=TEXT,
        result=one_of(("created", "updated", "replaced"), "What the save did."),
        saved={"type": "array", "items": TEXT},
        version=COUNT,
        modified_at=TIME,
    ),
    effect=Effect.WRITE,
)
def agent_save(
    store: Store,
    *,
    agent_id: str,
    replace: bool = False,
    **given: Any,
) -> Answer:
    """Create an agent, or change the given fields of an existing one."""
    return with_retries(lambda: _agent_saved(store, agent_id, given, whole=replace))


def _agent_saved(store: Store, agent_id: str, given: dict[str, Any], *, whole: bool) -> Answer:
    agent = store.agents.get(agent_id)
    if agent is None or whole:
        missing = [name for name in ("name", "agent_type") if name not in given]
        if missing:
            why = "to replace an agent" if whole else f"there is no agent {agent_id!r}: to create it"
            raise Invalid(f"{why}, pass {' and '.join(missing)}", code="invalid.argument", path=missing[0])
        saved = store.agents.save(AgentState(agent_id, **given), replace=whole)
        result = "created" if agent is None else "replaced"
    else:
        if not given:
            raise Invalid("nothing to save: pass a field to change, such as custom_state", code=ARGUMENT)
        merged: dict[str, Any] = {n: {**getattr(agent, n), **given[n]} for n in _MERGED if n in given}
        saved = store.agents.save(replace(agent, **{**given, **merged}).touch())
        result = "updated"
    return {
        "agent_id": agent_id,
        "result": result,
        "saved": [*given],
        "version": saved.version,
        "modified_at": saved.modified_at.isoformat(),
    }


@operation(
    "GET /agents/{agent_id}",
    "Load an agent's state from persistent storage.",
    arguments(
        ("agent_id",),
        agent_id=AGENT,
        path=text("Return one whole value, such as custom_state.plan, instead of an overview."),
        **PART,
    ),
    {
        "anyOf": [
            result(
                agent_id=TEXT,
                **dict.fromkeys(("name", "agent_type", "system_prompt", "capabilities", "config"), ANY),
                **dict.fromkeys(("custom_state", "active_conversations", "metadata"), ANY),
                created_at=TIME,
                modified_at=TIME,
                version=COUNT,
                size_bytes=COUNT,
            ),
            result(("value", "part", "part_of"), agent_id=TEXT, **PARTS),
        ]
    },
)
def agent_load(
    store: Store, *, agent_id: str, path: str | None = None, max_chars: int | None = None, offset: int | None = None
) -> Answer:
    """Return an overview of an agent, or one whole value."""
    state = store.agents.load(agent_id)
    if path is not None:
        data = {name: getattr(state, name) for name in _AGENT_FIELDS}
        return {"agent_id": agent_id, **value_part(path, _at(data, path), max_chars, offset)}
    only_with_path(max_chars, offset)
    head = store.agents.thread(agent_id).latest()
    texts = {name: brief(getattr(state, name)) for name in ("name", "agent_type", "system_prompt")}
    lists = ("capabilities", "config", "custom_state", "active_conversations", "metadata")
    return {
        "agent_id": agent_id,
        **texts,
        **{name: outline(getattr(state, name)) for name in lists},
        "created_at": state.created_at.isoformat(),
        "modified_at": state.modified_at.isoformat(),
        "version": state.version,
        "size_bytes": 0 if head is None else head.size,
    }


def _at(value: Any, path: str) -> Any:
    """Return the part of a value at a path; `NotFound` if there is none."""
    for step in parse(path):
        try:
            value = value[step] if isinstance(value, dict | list | tuple) else MISSING
        except (KeyError, IndexError, TypeError):
            value = MISSING
        if value is MISSING:
            raise nothing_at(path, "agent_load")
    return value


@operation(
    "DELETE /agents/{agent_id}",
    "Delete an agent and all associated data.",
    arguments(("agent_id",), agent_id=AGENT),
    result(("undo",), agent_id=TEXT, deleted=FLAG, message=TEXT, undo=TEXT),
    effect=Effect.DESTROY,
)
def agent_delete(store: Store, *, agent_id: str) -> Answer:
    """Delete an agent with its conversations and checkpoints."""
    return deleted(
        {"agent_id": agent_id},
        f"agent {agent_id!r}",
        existed=store.agents.delete(agent_id),
        verb=", its conversations and its checkpoints are",
        undo="It cannot be undone: the agent's checkpoints were deleted, too.",
    )


@operation(
    "GET /agents",
    "List all persisted agents.",
    arguments(**PERIOD, **PAGE),
    listing("agents", _AGENT_ENTRY),
)
def agent_list(
    store: Store,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List the agents, latest activity first."""
    (after,) = decode_cursor("agent_list", cursor, 1)
    agents = store.agents.list(since=since, until=until, limit=limit + 1, after=after)
    return listed("agent_list", "agents", agents, _agent_entry, limit)


def _agent_entry(info: AgentInfo) -> Answer:
    fields = {name: brief(getattr(info, name)) for name in ("name", "agent_type", "version")}
    times = {name: plain(getattr(info, name)) for name in ("created_at", "modified_at")}
    return {"agent_id": info.agent_id, **fields, **times, **damage(info.damaged)}


@operation(
    "POST /agents/{agent_id}/undo",
    "Undo the last restore of an agent.",
    arguments(
        ("agent_id",),
        agent_id=AGENT,
        force=flag("Undo it even if the agent or its conversations have changed since."),
    ),
    result(agent_id=TEXT, undone=FLAG, message=TEXT),
    effect=Effect.WRITE,
)
def agent_undo(store: Store, *, agent_id: str, force: bool = False) -> Answer:
    """Undo the last restore of an agent."""
    store.agents.undo(agent_id, force=force)
    message = f"Agent {agent_id!r} and its conversations have the state from before the restore."
    return {"agent_id": agent_id, "undone": True, "message": message}


# -- checkpoints ------------------------------------------------------------------------------------------


@operation(
    "POST /agents/{agent_id}/checkpoints",
    "Create a checkpoint of an agent for recovery.",
    arguments(
        ("agent_id", "name"),
        agent_id=AGENT,
        name=text("A name, such as: before the booking."),
        description=text("The purpose of the checkpoint."),
        kind=one_of(CheckpointType, "The occasion of the checkpoint.", "manual"),
    ),
    _CHECKPOINT_ENTRY,
    effect=Effect.WRITE,
)
def checkpoint_create(
    store: Store, *, agent_id: str, name: str, description: str | None = None, kind: str = "manual"
) -> Answer:
    """Create a checkpoint of an agent and its conversations."""
    return _checkpoint_entry(store.agents.checkpoint(agent_id, name, description=description, kind=kind))


@operation(
    "GET /agent-checkpoints/{checkpoint_id}",
    "Show a checkpoint of an agent.",
    arguments(("checkpoint_id",), checkpoint_id=_CHECKPOINT),
    _CHECKPOINT_ENTRY,
)
def checkpoint_info(store: Store, *, checkpoint_id: str) -> Answer:
    """Return the entry of one checkpoint."""
    checkpoint = store.agents.get_checkpoint(checkpoint_id)
    if checkpoint is None:
        raise NotFound(f"there is no agent checkpoint {checkpoint_id!r:.100}", code="not_found.checkpoint")
    return _checkpoint_entry(checkpoint)


@operation(
    "POST /agent-checkpoints/{checkpoint_id}/restore",
    "Restore an agent from a checkpoint.",
    arguments(
        ("checkpoint_id",),
        checkpoint_id=_CHECKPOINT,
        agent_id=text("The agent that must own the checkpoint; otherwise the call fails."),
    ),
    result(checkpoint_id=TEXT, agent_id=TEXT, restored=FLAG, message=TEXT, undo=TEXT),
    effect=Effect.WRITE,
)
def checkpoint_restore(store: Store, *, checkpoint_id: str, agent_id: str | None = None) -> Answer:
    """Restore an agent and its conversations from a checkpoint."""
    state = store.agents.restore(checkpoint_id, agent_id=agent_id)
    checkpoint = store.agents.get_checkpoint(checkpoint_id)
    erased = checkpoint.erased if checkpoint is not None else ()
    skipped = f" {len(erased)} of them were erased since, and do not return." if erased else ""
    return {
        "checkpoint_id": checkpoint_id,
        "agent_id": state.agent_id,
        "restored": True,
        "message": f"Agent {state.agent_id!r} and all its conversations have the state of this checkpoint.{skipped}"
        " Later conversations are hidden, not deleted.",
        "undo": f"store.agents.undo({state.agent_id!r}), called in Python, reverts the restore.",
    }


@operation(
    "GET /agents/{agent_id}/checkpoints",
    "List an agent's checkpoints.",
    arguments(("agent_id",), agent_id=AGENT, **PAGE),
    listing("checkpoints", _CHECKPOINT_ENTRY),
)
def checkpoint_list(store: Store, *, agent_id: str, limit: int = LIMIT, cursor: str | None = None) -> Answer:
    """List the checkpoints of an agent, newest first."""
    last, time_of_last = decode_cursor("checkpoint_list", cursor, 2)
    checkpoints = store.agents.checkpoints(agent_id)
    if last is not None:
        start = next((at + 1 for at, each in enumerate(checkpoints) if each.id == last), None)
        # if the last checkpoint of the previous page was deleted, its time decides
        checkpoints = checkpoints[start:] if start else [each for each in checkpoints if _time(each) < time_of_last]
    entries, more = page(map(_checkpoint_entry, checkpoints), limit)
    end = entries[-1] if more else None
    return {
        "checkpoints": entries,
        "next_cursor": end and encode_cursor("checkpoint_list", end["checkpoint_id"], end["created_at"]),
    }


def _checkpoint_entry(checkpoint: AgentCheckpoint) -> Answer:
    return {
        "checkpoint_id": checkpoint.id,
        "agent_id": checkpoint.agent_id,
        "name": brief(checkpoint.name),
        "description": brief(checkpoint.description),
        "kind": checkpoint.kind,
        "created_at": _time(checkpoint),
        "conversations": checkpoint.conversations,
        "size_bytes": checkpoint.size_bytes,
        "erased": [*checkpoint.erased],
    }


def _time(checkpoint: AgentCheckpoint) -> str:
    return checkpoint.created_at.isoformat(timespec="microseconds")  # of one length, so that texts compare like times


@operation(
    "DELETE /agent-checkpoints/{checkpoint_id}",
    "Delete a checkpoint.",
    arguments(("checkpoint_id",), checkpoint_id=_CHECKPOINT),
    result(("undo",), checkpoint_id=TEXT, deleted=FLAG, message=TEXT, undo=TEXT),
    effect=Effect.DESTROY,
)
def checkpoint_delete(store: Store, *, checkpoint_id: str) -> Answer:
    """Delete a checkpoint."""
    return deleted(
        {"checkpoint_id": checkpoint_id},
        f"checkpoint {checkpoint_id!r}",
        existed=store.agents.delete_checkpoint(checkpoint_id),
        verb=" is",
        undo="It cannot be undone. The agent and its conversations are unchanged.",
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    agent_save,
    agent_load,
    agent_delete,
    agent_list,
    agent_undo,
    checkpoint_create,
    checkpoint_info,
    checkpoint_restore,
    checkpoint_list,
    checkpoint_delete,
)
