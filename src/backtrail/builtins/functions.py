"""The functions behind the builtins. Each takes the arguments of its schema in `definitions`, already validated.

Each returns JSON data. A function that deletes or restores describes the effect, and how to undo it.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.agents.models import AgentState
from backtrail.builtins.answers import PREVIEW, brief, decode_cursor, encode_cursor, outline, page, part, plain
from backtrail.builtins.definitions import CHARS, LIMIT, MESSAGES
from backtrail.conversations.models import Conversation
from backtrail.engine.tree.path import parse
from backtrail.errors import Conflict, Invalid, NotFound
from backtrail.models import MISSING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.models import AgentCheckpoint, AgentInfo, ConversationInfo
    from backtrail.store import Store

    Answer = dict[str, Any]

T = TypeVar("T")
_ARGUMENT: Final = "invalid.argument"
_TRIES: Final = 20
_AGENT_FIELDS: Final = tuple(field.name for field in fields(AgentState) if field.init and field.name[0] != "_")
_MERGED: Final = ("config", "custom_state", "metadata")
_STATS: Final = (
    *("agents", "conversations", "messages", "agent_checkpoints", "threads", "checkpoints"),
    *("chunks", "logical_bytes", "payload_bytes", "stored_bytes", "sharing"),
)
"""The fields of `Stats` in the answer."""


# -- agents -----------------------------------------------------------------------------------------------


def agent_save(
    store: Store,
    *,
    agent_id: str,
    replace: bool = False,
    **given: Any,
) -> Answer:
    """Create an agent, or change the given fields of an existing one."""
    return _with_retries(lambda: _agent_saved(store, agent_id, given, whole=replace))


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
            raise Invalid("nothing to save: pass a field to change, such as custom_state", code=_ARGUMENT)
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


def agent_load(
    store: Store, *, agent_id: str, path: str | None = None, max_chars: int | None = None, offset: int | None = None
) -> Answer:
    """Return an overview of an agent, or one whole value."""
    state = store.agents.load(agent_id)
    if path is not None:
        data = {name: getattr(state, name) for name in _AGENT_FIELDS}
        return {"agent_id": agent_id, **_value_part(path, _at(data, path), max_chars, offset)}
    _only_with_path(max_chars, offset)
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


def agent_delete(store: Store, *, agent_id: str) -> Answer:
    """Delete an agent with its conversations and checkpoints."""
    return _deleted(
        {"agent_id": agent_id},
        f"agent {agent_id!r}",
        existed=store.agents.delete(agent_id),
        verb=", its conversations and its checkpoints are",
        undo="It cannot be undone: the agent's checkpoints were deleted, too.",
    )


def agent_list(store: Store, *, limit: int = LIMIT, cursor: str | None = None) -> Answer:
    """List the agents, latest activity first."""
    (after,) = decode_cursor("agent_list", cursor, 1)
    agents = store.agents.list(limit=limit + 1, after=after)
    return _page("agent_list", "agents", agents, _agent_entry, limit)


def _agent_entry(info: AgentInfo) -> Answer:
    fields = {name: brief(getattr(info, name)) for name in ("name", "agent_type", "version")}
    times = {name: plain(getattr(info, name)) for name in ("created_at", "modified_at")}
    return {"agent_id": info.agent_id, **fields, **times, **_damage(info.damaged)}


# -- conversations ----------------------------------------------------------------------------------------


def conversation_save(
    store: Store,
    *,
    agent_id: str,
    conversation_id: str | None = None,
    messages: list[Answer] | None = None,
    **given: Any,
) -> Answer:
    """Create a conversation, or add messages to an existing one and change the given fields."""
    new = Conversation.from_json({"agent_id": agent_id, "id": conversation_id, "messages": messages, **given})
    return _with_retries(lambda: _conversation_saved(store, new, given, exists=conversation_id is not None))


def _conversation_saved(store: Store, new: Conversation, given: dict[str, Any], *, exists: bool) -> Answer:
    try:
        info = store.conversations.info(new.id) if exists else None
    except NotFound:
        info = None
    if info is None:
        store.conversations.save(new.auto_title())
    elif info.agent_id != new.agent_id:
        message = f"conversation {new.id!r} belongs to agent {info.agent_id!r}, not {new.agent_id!r}"
        raise Conflict(f"{message}: pass another conversation_id, or none", code="conflict.agent")
    elif given:
        _in_transaction(store, lambda: _conversation_changed(store, new, given))
    elif new.messages:
        store.conversations.append(new.id, *new.messages)
    else:
        raise Invalid("nothing to save: pass messages, or a field to change, such as title", code=_ARGUMENT)
    return {
        "conversation_id": new.id,
        "agent_id": new.agent_id,
        "result": "created" if info is None else "updated",
        "saved": [*given],
        "messages_added": len(new.messages),
        "message_ids": outline([message.id for message in new.messages]),
        "message_count": store.conversations.info(new.id).message_count,
    }


def _conversation_changed(store: Store, new: Conversation, given: dict[str, Any]) -> None:
    if new.messages:
        store.conversations.append(new.id, *new.messages)
    if "metadata" in given:
        given = given | {"metadata": {**store.conversations.info(new.id).metadata, **given["metadata"]}}
    store.conversations.update(new.id, **given)


def conversation_load(
    store: Store,
    *,
    conversation_id: str,
    messages: int | None = None,
    before: int | None = None,
    path: str | None = None,
    max_chars: int | None = None,
    offset: int | None = None,
) -> Answer:
    """Return an overview of a conversation with its last messages, or earlier ones, or one whole value."""
    info = store.conversations.info(conversation_id)
    head = store.conversations.thread(conversation_id).latest()
    if head is None:
        raise NotFound(f"there is no conversation {conversation_id!r}", code="not_found.conversation")
    if path is not None:
        if messages is not None or before is not None:
            raise Invalid("path excludes messages and before: pass one or the other", code=_ARGUMENT)
        value = head.get(path, MISSING)
        if value is MISSING:
            raise _nothing_at(path, "conversation_load")
        return {"conversation_id": conversation_id, **_value_part(path, value, max_chars, offset)}
    _only_with_path(max_chars, offset)
    end = info.message_count if before is None else min(before, info.message_count)
    wanted = ((at, head.get(("messages", at), MISSING)) for at in range(end - 1, -1, -1))
    entries = (_message_entry(at, data) for at, data in wanted if data is not MISSING)
    newest_first, _ = page(entries, MESSAGES if messages is None else messages)
    first = newest_first[-1]["index"] if newest_first else end
    return {
        **_conversation_entry(info),
        "metadata": outline(info.metadata),
        "forked_from": info.forked_from,
        "size_bytes": head.size,
        "messages": newest_first[::-1],
        "next_before": first or None,
    }


def _message_entry(index: int, data: Any) -> Answer:
    fields = data if isinstance(data, dict) else {"content": data}
    return {"index": index, **{str(name)[:PREVIEW]: brief(value) for name, value in fields.items()}}


def conversation_delete(store: Store, *, conversation_id: str) -> Answer:
    """Delete a conversation."""
    return _deleted(
        {"conversation_id": conversation_id},
        f"conversation {conversation_id!r}",
        existed=store.conversations.delete(conversation_id),
        verb=" is",
        undo="If a checkpoint of its agent includes it (checkpoint_list), checkpoint_restore brings it and the whole"
        " agent back to that point. Otherwise it cannot be undone.",
    )


def conversation_list(
    store: Store,
    *,
    agent_id: str,
    archived: bool | None = None,
    tag: str | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List the conversations of an agent, latest activity first."""
    (after,) = decode_cursor("conversation_list", cursor, 1)
    infos = store.conversations.list(agent_id, archived=archived, tag=tag, limit=limit + 1, after=after)
    return _page("conversation_list", "conversations", infos, _conversation_entry, limit)


def _conversation_entry(info: ConversationInfo) -> Answer:
    return {
        "conversation_id": info.id,
        "agent_id": info.agent_id,
        "title": brief(info.title),
        "message_count": info.message_count,
        "created_at": plain(info.created_at),
        "last_message_at": plain(info.last_message_at),
        "archived": info.archived,
        "tags": brief(info.tags),
        **_damage(info.damaged),
    }


def conversation_search(
    store: Store, *, query: str, agent_id: str | None = None, limit: int = LIMIT, cursor: str | None = None
) -> Answer:
    """List the messages that contain a text, newest first."""
    (after,) = decode_cursor("conversation_search", cursor, 1)
    hits = store.search(query, contains=True, kind="conversation", agent=agent_id, limit=limit + 1, after=after)
    return _page(
        "conversation_search",
        "hits",
        hits,
        lambda hit: {
            "conversation_id": hit.conversation_id,
            "agent_id": hit.agent,
            "message_id": hit.message_id,
            "index": hit.position,
            "role": hit.role,
            "created_at": hit.created_at.isoformat(),
            "snippet": brief(hit.snippet),
        },
        limit,
    )


# -- checkpoints ------------------------------------------------------------------------------------------


def checkpoint_create(
    store: Store, *, agent_id: str, name: str, description: str | None = None, kind: str = "manual"
) -> Answer:
    """Create a checkpoint of an agent and its conversations."""
    return _checkpoint_entry(store.agents.checkpoint(agent_id, name, description=description, kind=kind))


def checkpoint_restore(store: Store, *, checkpoint_id: str, agent_id: str | None = None) -> Answer:
    """Restore an agent and its conversations from a checkpoint."""
    state = store.agents.restore(checkpoint_id, agent_id=agent_id)
    return {
        "checkpoint_id": checkpoint_id,
        "agent_id": state.agent_id,
        "restored": True,
        "message": f"Agent {state.agent_id!r} and all its conversations have the state of this checkpoint."
        " Later conversations are hidden, not deleted.",
        "undo": f"store.agents.undo({state.agent_id!r}), called in Python, reverts the restore.",
    }


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
    }


def _time(checkpoint: AgentCheckpoint) -> str:
    return checkpoint.created_at.isoformat(timespec="microseconds")  # of one length, so that texts compare like times


def checkpoint_delete(store: Store, *, checkpoint_id: str) -> Answer:
    """Delete a checkpoint."""
    return _deleted(
        {"checkpoint_id": checkpoint_id},
        f"checkpoint {checkpoint_id!r}",
        existed=store.agents.delete_checkpoint(checkpoint_id),
        verb=" is",
        undo="It cannot be undone. The agent and its conversations are unchanged.",
    )


def persistence_stats(store: Store) -> Answer:
    """Return the figures of the store."""
    stats = store.stats()
    return {name: getattr(stats, name) for name in _STATS}


# -- shared --------------------------------------------------------------------------------------


def _with_retries(work: Callable[[], T]) -> T:
    """Call `work` and return its result; retry after a conflict with another writer."""
    for attempt in range(_TRIES - 1):
        try:
            return work()
        except Conflict as error:
            if error.code == "conflict.agent":  # a retry cannot help: another agent owns the thread
                raise
            time.sleep(0.001 * attempt)
    return work()


def _in_transaction(store: Store, work: Callable[[], None]) -> None:
    """Call `work` in a transaction: in a new one, or in the caller's open transaction."""
    try:
        with store.transaction():
            work()
    except Invalid as error:
        if error.code != "invalid.transaction":
            raise
        work()


def _at(value: Any, path: str) -> Any:
    """Return the part of a value at a path; `NotFound` if there is none."""
    for step in parse(path):
        try:
            value = value[step] if isinstance(value, dict | list | tuple) else MISSING
        except (KeyError, IndexError, TypeError):
            value = MISSING
        if value is MISSING:
            raise _nothing_at(path, "agent_load")
    return value


def _nothing_at(path: str, tool: str) -> NotFound:
    return NotFound(f"there is no value at {path:.200}; {tool} without path lists the fields", code="not_found.path")


def _value_part(path: str, value: Any, max_chars: int | None, offset: int | None) -> Answer:
    return {"path": path, **part(value, max_chars=CHARS if max_chars is None else max_chars, offset=offset or 0)}


def _only_with_path(max_chars: int | None, offset: int | None) -> None:
    if max_chars is not None or offset is not None:
        raise Invalid("max_chars and offset require path", code=_ARGUMENT)


def _page(tool: str, name: str, values: list[Any], entry: Callable[[Any], Answer], limit: int) -> Answer:
    """Return an answer with a page of values under `name`, and the cursor of the next page."""
    entries, more = page(map(entry, values), limit)
    return {name: entries, "next_cursor": encode_cursor(tool, values[len(entries) - 1].cursor) if more else None}


def _deleted(ids: Answer, subject: str, *, existed: bool, verb: str, undo: str) -> Answer:
    if not existed:
        return {**ids, "deleted": False, "message": f"There is no {subject}: nothing was deleted."}
    return {**ids, "deleted": True, "message": f"{subject[0].upper()}{subject[1:]}{verb} deleted.", "undo": undo}


def _damage(reason: str | None) -> Answer:
    return {} if reason is None else {"damaged": brief(reason)}


FUNCTIONS: Final[Mapping[str, Callable[..., Answer]]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            agent_save,
            agent_load,
            agent_delete,
            agent_list,
            conversation_save,
            conversation_load,
            conversation_delete,
            conversation_list,
            conversation_search,
            checkpoint_create,
            checkpoint_restore,
            checkpoint_list,
            checkpoint_delete,
            persistence_stats,
        )
    }
)
"""The functions by the names of their builtins."""
