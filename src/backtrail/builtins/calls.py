"""What the builtins do: one function for each, with the arguments that its schema in `tools` names, checked already.

Each answers with JSON. What deletes or goes back says in words what happened, and how it can be undone.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.builtins import showing
from backtrail.builtins.showing import brief, outline
from backtrail.builtins.tools import CHARS, LIMIT, MESSAGES
from backtrail.engine.tree.path import parse
from backtrail.entities import AgentState, Conversation
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
"""The figures of `Stats` that are told."""


# -- agents -----------------------------------------------------------------------------------------------


def agent_save(
    store: Store,
    *,
    agent_id: str,
    replace: bool = False,
    **given: Any,
) -> Answer:
    """Create an agent, or change what is given of the one that is there."""
    return _again(lambda: _agent_saved(store, agent_id, given, anew=replace))


def _agent_saved(store: Store, agent_id: str, given: dict[str, Any], *, anew: bool) -> Answer:
    there = store.agents.get(agent_id)
    if there is None or anew:
        missing = [name for name in ("name", "agent_type") if name not in given]
        if missing:
            why = "to replace an agent" if anew else f"there is no agent {agent_id!r} yet: to create it"
            raise Invalid(f"{why}, give {' and '.join(missing)}", code="invalid.argument", path=missing[0])
        saved = store.agents.save(AgentState(agent_id, **given), replace=anew)
        done = "created" if there is None else "replaced"
    else:
        if not given:
            raise Invalid("there is nothing to save: give what is to change, such as custom_state", code=_ARGUMENT)
        merged: dict[str, Any] = {n: {**getattr(there, n), **given[n]} for n in _MERGED if n in given}
        saved = store.agents.save(replace(there, **{**given, **merged}).touch())
        done = "updated"
    return {
        "agent_id": agent_id,
        "result": done,
        "saved": [*given],
        "version": saved.version,
        "modified_at": saved.modified_at.isoformat(),
    }


def agent_load(
    store: Store, *, agent_id: str, path: str | None = None, max_chars: int | None = None, offset: int | None = None
) -> Answer:
    """Show an agent: an overview, or the whole of a part."""
    state = store.agents.load(agent_id)
    if path is not None:
        data = {name: getattr(state, name) for name in _AGENT_FIELDS}
        return {"agent_id": agent_id, **_part(path, _at(data, path), max_chars, offset)}
    _only_with_path(max_chars, offset)
    head = store.agents.thread(agent_id).latest()
    shown = {name: brief(getattr(state, name)) for name in ("name", "agent_type", "system_prompt")}
    lists = ("capabilities", "config", "custom_state", "active_conversations", "metadata")
    return {
        "agent_id": agent_id,
        **shown,
        **{name: outline(getattr(state, name)) for name in lists},
        "created_at": state.created_at.isoformat(),
        "modified_at": state.modified_at.isoformat(),
        "version": state.version,
        "size_bytes": 0 if head is None else head.size,
    }


def agent_delete(store: Store, *, agent_id: str) -> Answer:
    """Delete an agent with all that belongs to it."""
    return _deleted(
        {"agent_id": agent_id},
        f"agent {agent_id!r}",
        there=store.agents.delete(agent_id),
        with_it=", its conversations and its checkpoints are",
        undo="It cannot be undone: the checkpoints of the agent are gone, too.",
    )


def agent_list(store: Store, *, limit: int = LIMIT, cursor: str | None = None) -> Answer:
    """List the agents, newest activity first."""
    (after,) = showing.place("agent_list", cursor, 1)
    found = store.agents.list(limit=limit + 1, after=after)
    return _page("agent_list", "agents", found, _agent_entry, limit)


def _agent_entry(info: AgentInfo) -> Answer:
    shown = {name: brief(getattr(info, name)) for name in ("name", "agent_type", "version")}
    times = {name: showing.plain(getattr(info, name)) for name in ("created_at", "modified_at")}
    return {"agent_id": info.agent_id, **shown, **times, **_damage(info.damaged)}


# -- conversations ----------------------------------------------------------------------------------------


def conversation_save(
    store: Store,
    *,
    agent_id: str,
    conversation_id: str | None = None,
    messages: list[Answer] | None = None,
    **given: Any,
) -> Answer:
    """Create a conversation, or add to the one that is there and change what is given."""
    made = Conversation.from_json({"agent_id": agent_id, "id": conversation_id, "messages": messages, **given})
    return _again(lambda: _conversation_saved(store, made, given, new=conversation_id is None))


def _conversation_saved(store: Store, made: Conversation, given: dict[str, Any], *, new: bool) -> Answer:
    try:
        there = None if new else store.conversations.info(made.id)
    except NotFound:
        there = None
    if there is None:
        store.conversations.save(made.auto_title())
    elif there.agent_id != made.agent_id:
        message = f"conversation {made.id!r} belongs to agent {there.agent_id!r}, not {made.agent_id!r}"
        raise Conflict(f"{message}: choose another conversation_id, or leave it out", code="conflict.agent")
    elif given:
        _together(store, lambda: _conversation_changed(store, made, given))
    elif made.messages:
        store.conversations.append(made.id, *made.messages)
    else:
        raise Invalid("there is nothing to save: give messages, or what is to change, such as title", code=_ARGUMENT)
    return {
        "conversation_id": made.id,
        "agent_id": made.agent_id,
        "result": "created" if there is None else "updated",
        "saved": [*given],
        "messages_added": len(made.messages),
        "message_ids": outline([message.id for message in made.messages]),
        "message_count": store.conversations.info(made.id).message_count,
    }


def _conversation_changed(store: Store, made: Conversation, given: dict[str, Any]) -> None:
    if made.messages:
        store.conversations.append(made.id, *made.messages)
    if "metadata" in given:
        given = given | {"metadata": {**store.conversations.info(made.id).metadata, **given["metadata"]}}
    store.conversations.update(made.id, **given)


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
    """Show a conversation: an overview with its last messages, or those before, or the whole of a part."""
    info = store.conversations.info(conversation_id)
    head = store.conversations.thread(conversation_id).latest()
    if head is None:
        raise NotFound(f"there is no conversation {conversation_id!r}", code="not_found.conversation")
    if path is not None:
        if messages is not None or before is not None:
            raise Invalid("path shows one part, messages and before show a page: give one or the other", code=_ARGUMENT)
        found = head.get(path, MISSING)
        if found is MISSING:
            raise _nothing_at(path, "conversation_load")
        return {"conversation_id": conversation_id, **_part(path, found, max_chars, offset)}
    _only_with_path(max_chars, offset)
    end = info.message_count if before is None else min(before, info.message_count)
    wanted = ((at, head.get(("messages", at), MISSING)) for at in range(end - 1, -1, -1))
    entries = (_message_entry(at, data) for at, data in wanted if data is not MISSING)
    shown, _ = showing.page(entries, MESSAGES if messages is None else messages)
    first = shown[-1]["index"] if shown else end
    return {
        **_conversation_entry(info),
        "metadata": outline(info.metadata),
        "forked_from": info.forked_from,
        "size_bytes": head.size,
        "messages": shown[::-1],
        "next_before": first or None,
    }


def _message_entry(index: int, data: Any) -> Answer:
    parts = data if isinstance(data, dict) else {"content": data}
    return {"index": index, **{str(name)[: showing.PREVIEW]: brief(part) for name, part in parts.items()}}


def conversation_delete(store: Store, *, conversation_id: str) -> Answer:
    """Delete a conversation."""
    return _deleted(
        {"conversation_id": conversation_id},
        f"conversation {conversation_id!r}",
        there=store.conversations.delete(conversation_id),
        with_it=" is",
        undo="If a checkpoint of its agent holds it (checkpoint_list), checkpoint_restore brings it back, and the whole"
        " agent with it to that point. Else it cannot be undone.",
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
    """List the conversations of an agent, newest activity first."""
    (after,) = showing.place("conversation_list", cursor, 1)
    found = store.conversations.list(agent_id, archived=archived, tag=tag, limit=limit + 1, after=after)
    return _page("conversation_list", "conversations", found, _conversation_entry, limit)


def _conversation_entry(info: ConversationInfo) -> Answer:
    return {
        "conversation_id": info.id,
        "agent_id": info.agent_id,
        "title": brief(info.title),
        "message_count": info.message_count,
        "created_at": showing.plain(info.created_at),
        "last_message_at": showing.plain(info.last_message_at),
        "archived": info.archived,
        "tags": brief(info.tags),
        **_damage(info.damaged),
    }


def conversation_search(
    store: Store, *, query: str, agent_id: str | None = None, limit: int = LIMIT, cursor: str | None = None
) -> Answer:
    """List the messages that have a text in them, newest first."""
    (after,) = showing.place("conversation_search", cursor, 1)
    found = store.search(query, contains=True, kind="conversation", agent=agent_id, limit=limit + 1, after=after)
    return _page(
        "conversation_search",
        "hits",
        found,
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
    """Make a point to which an agent and its conversations can be brought back."""
    return _checkpoint_entry(store.agents.checkpoint(agent_id, name, description=description, kind=kind))


def checkpoint_restore(store: Store, *, checkpoint_id: str, agent_id: str | None = None) -> Answer:
    """Bring an agent and its conversations back to a checkpoint."""
    state = store.agents.restore(checkpoint_id, agent_id=agent_id)
    return {
        "checkpoint_id": checkpoint_id,
        "agent_id": state.agent_id,
        "restored": True,
        "message": f"Agent {state.agent_id!r} and all its conversations are as they were when this checkpoint was made."
        " Conversations that were begun later are out of view, not deleted.",
        "undo": f"store.agents.undo({state.agent_id!r}), called in Python, brings everything back as it was before.",
    }


def checkpoint_list(store: Store, *, agent_id: str, limit: int = LIMIT, cursor: str | None = None) -> Answer:
    """List the checkpoints of an agent, newest first."""
    last, moment = showing.place("checkpoint_list", cursor, 2)
    found = store.agents.checkpoints(agent_id)
    if last is not None:
        start = next((at + 1 for at, made in enumerate(found) if made.id == last), None)
        # the one that the page before ended with may be deleted: then the time has to do
        found = found[start:] if start else [made for made in found if _moment(made) < moment]
    kept, more = showing.page(map(_checkpoint_entry, found), limit)
    end = kept[-1] if more else None
    return {
        "checkpoints": kept,
        "next_cursor": end and showing.cursor("checkpoint_list", end["checkpoint_id"], end["created_at"]),
    }


def _checkpoint_entry(made: AgentCheckpoint) -> Answer:
    return {
        "checkpoint_id": made.id,
        "agent_id": made.agent_id,
        "name": brief(made.name),
        "description": brief(made.description),
        "kind": made.kind,
        "created_at": _moment(made),
        "conversations": made.conversations,
        "size_bytes": made.size_bytes,
    }


def _moment(made: AgentCheckpoint) -> str:
    return made.created_at.isoformat(timespec="microseconds")  # always as long, so that texts compare as times do


def checkpoint_delete(store: Store, *, checkpoint_id: str) -> Answer:
    """Delete a checkpoint."""
    return _deleted(
        {"checkpoint_id": checkpoint_id},
        f"checkpoint {checkpoint_id!r}",
        there=store.agents.delete_checkpoint(checkpoint_id),
        with_it=" is",
        undo="It cannot be undone. The agent and its conversations are as they were.",
    )


def persistence_stats(store: Store) -> Answer:
    """Tell what the store holds."""
    stats = store.stats()
    return {name: getattr(stats, name) for name in _STATS}


# -- what they share --------------------------------------------------------------------------------------


def _again(work: Callable[[], T]) -> T:
    """Do something that begins by reading; if somebody else was faster, again."""
    for tried in range(_TRIES - 1):
        try:
            return work()
        except Conflict as error:
            if error.code == "conflict.agent":  # it will not go away
                raise
            time.sleep(0.001 * tried)
    return work()


def _together(store: Store, work: Callable[[], None]) -> None:
    """Do several writes as one: in a transaction of their own, or in that of the caller."""
    try:
        with store.transaction():
            work()
    except Invalid as error:
        if error.code != "invalid.transaction":
            raise
        work()


def _at(value: Any, path: str) -> Any:
    """Return what is at a path of a value."""
    for step in parse(path):
        try:
            value = value[step] if isinstance(value, dict | list | tuple) else MISSING
        except (KeyError, IndexError, TypeError):
            value = MISSING
        if value is MISSING:
            raise _nothing_at(path, "agent_load")
    return value


def _nothing_at(path: str, tool: str) -> NotFound:
    return NotFound(f"there is nothing at {path:.200}; {tool} without path shows what there is", code="not_found.path")


def _part(path: str, value: Any, max_chars: int | None, offset: int | None) -> Answer:
    shown = showing.part(value, max_chars=CHARS if max_chars is None else max_chars, offset=offset or 0)
    return {"path": path, **shown}


def _only_with_path(max_chars: int | None, offset: int | None) -> None:
    if max_chars is not None or offset is not None:
        raise Invalid("max_chars and offset go with path, which is missing", code=_ARGUMENT)


def _page(tool: str, name: str, found: list[Any], entry: Callable[[Any], Answer], limit: int) -> Answer:
    """Return a page of what was found, whose entries know where to go on."""
    kept, more = showing.page(map(entry, found), limit)
    return {name: kept, "next_cursor": showing.cursor(tool, found[len(kept) - 1].cursor) if more else None}


def _deleted(ids: Answer, what: str, *, there: bool, with_it: str, undo: str) -> Answer:
    if not there:
        return {**ids, "deleted": False, "message": f"There is no {what}: nothing was deleted."}
    return {**ids, "deleted": True, "message": f"{what[0].upper()}{what[1:]}{with_it} deleted.", "undo": undo}


def _damage(what: str | None) -> Answer:
    return {} if what is None else {"damaged": brief(what)}


CALLS: Final[Mapping[str, Callable[..., Answer]]] = MappingProxyType(
    {
        call.__name__: call
        for call in (
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
"""The functions by name."""
