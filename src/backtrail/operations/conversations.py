"""Operations on conversations and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.models import AttachmentType, Conversation, Role, ToolStatus
from backtrail.errors import Conflict, Invalid, NotFound
from backtrail.models import MISSING
from backtrail.operations.agents import ARGUMENT, PARTS
from backtrail.operations.answers import (
    PREVIEW,
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
    whole_number,
)
from backtrail.operations.retries import in_transaction, with_retries
from backtrail.operations.schema import (
    ANY,
    COUNT,
    FLAG,
    LIMIT,
    LIMIT_MAX,
    MESSAGES,
    PAGE,
    PART,
    PERIOD,
    TEXT,
    TIME,
    arguments,
    flag,
    listing,
    mapping,
    number,
    one_of,
    optional,
    result,
    text,
    texts,
)
from backtrail.operations.table import Answer, Effect, Operation, operation

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.models import ConversationInfo
    from backtrail.store import Store

_CONVERSATION: Final = text("The conversation's id.")
_TOOL_CALL: Final = arguments(
    ("name",),
    id=text("The id of the call; omit it for a new id."),
    name=text("The tool's name."),
    arguments=mapping("The tool's arguments."),
    result=text("The result of the call."),
    status=one_of(ToolStatus, "The status of the call.", "pending"),
)
_ATTACHMENT: Final = arguments(
    ("attachment_type", "name", "mime_type"),
    id=text("The id of the attachment; omit it for a new id."),
    attachment_type=one_of(AttachmentType, "The type of the attachment."),
    name=text("Its name."),
    mime_type=text("Its MIME type, such as image/png."),
    content=text("Its content; base64 for binary content."),
    url=text("Its URL, instead of content."),
    size=number("Its size in bytes.", 0),
)
_MESSAGE: Final = arguments(
    ("role", "content"),
    id=text("The message's id; omit it for a new id."),
    role=one_of(Role, "The author's role."),
    content=text("The text."),
    timestamp=text("Its time in ISO 8601, such as 2026-01-31T12:00:00Z; omit it for now."),
    tokens=number("The number of tokens.", 0),
    parent_id=text("The id of the message that this one answers."),
    tool_calls={"type": "array", "items": _TOOL_CALL, "description": "The tool calls of the message."},
    attachments={"type": "array", "items": _ATTACHMENT, "description": "The attachments of the message."},
    metadata=mapping("Any other data about the message."),
)
_MESSAGES: Final = {
    "type": "array",
    "items": _MESSAGE,
    "description": "New messages, oldest first. They are added to the end.",
    "examples": [[{"role": "user", "content": "Hello"}]],
}

_ENTRY: Final = {
    "conversation_id": TEXT,
    "agent_id": optional(TEXT),
    "title": ANY,
    "message_count": COUNT,
    "created_at": optional(TIME),
    "last_message_at": optional(TIME),
    "archived": FLAG,
    "tags": ANY,
    "damaged": ANY,
}
_PREVIEWS: Final = {"type": "array", "items": {"type": "object", "properties": {"index": COUNT}, "required": ["index"]}}


@operation(
    "POST /conversations",
    "Save a conversation to persistent storage.",
    arguments(
        ("agent_id",),
        agent_id=text("The id of the agent that owns the conversation."),
        conversation_id=text("The id of a conversation to change; omit it for a new conversation."),
        title=text("Its title. A new conversation without one takes it from the first user message."),
        tags=texts("The complete list of tags."),
        metadata=mapping("Texts by key. Other keys stay unchanged.", "string"),
        archived=flag("Whether the conversation is archived."),
        messages=_MESSAGES,
    ),
    result(
        conversation_id=TEXT,
        agent_id=TEXT,
        result=one_of(("created", "updated"), "What the save did."),
        saved={"type": "array", "items": TEXT},
        messages_added=COUNT,
        message_ids=ANY,
        message_count=COUNT,
    ),
    effect=Effect.WRITE,
)
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
    return with_retries(lambda: _conversation_saved(store, new, given, exists=conversation_id is not None))


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
        in_transaction(store, lambda: _conversation_changed(store, new, given))
    elif new.messages:
        store.conversations.append(new.id, *new.messages)
    else:
        raise Invalid("nothing to save: pass messages, or a field to change, such as title", code=ARGUMENT)
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


@operation(
    "GET /conversations/{conversation_id}",
    "Load a conversation from persistent storage.",
    arguments(
        ("conversation_id",),
        conversation_id=_CONVERSATION,
        messages=number("Return previews of the last messages, this many.", 0, LIMIT_MAX, MESSAGES),
        before=number("Return messages before this index: next_before of the previous page.", 0),
        path=text("Return one whole value, such as messages[3].content, instead of an overview."),
        **PART,
    ),
    {
        "anyOf": [
            result(
                ("damaged",),
                **_ENTRY,
                metadata=ANY,
                forked_from=optional(TEXT),
                size_bytes=COUNT,
                messages=_PREVIEWS,
                next_before=optional(COUNT),
            ),
            result(("value", "part", "part_of"), conversation_id=TEXT, **PARTS),
        ]
    },
)
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
            raise Invalid("path excludes messages and before: pass one or the other", code=ARGUMENT)
        value = head.get(path, MISSING)
        if value is MISSING:
            raise nothing_at(path, "conversation_load")
        return {"conversation_id": conversation_id, **value_part(path, value, max_chars, offset)}
    only_with_path(max_chars, offset)
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


@operation(
    "DELETE /conversations/{conversation_id}",
    "Delete a conversation.",
    arguments(("conversation_id",), conversation_id=_CONVERSATION),
    result(("undo",), conversation_id=TEXT, deleted=FLAG, message=TEXT, undo=TEXT),
    effect=Effect.DESTROY,
)
def conversation_delete(store: Store, *, conversation_id: str) -> Answer:
    """Delete a conversation."""
    return deleted(
        {"conversation_id": conversation_id},
        f"conversation {conversation_id!r}",
        existed=store.conversations.delete(conversation_id),
        verb=" is",
        undo="If a checkpoint of its agent includes it (checkpoint_list), checkpoint_restore brings it and the whole"
        " agent back to that point. Otherwise it cannot be undone.",
    )


@operation(
    "GET /conversations",
    "List an agent's conversations.",
    arguments(
        (),
        agent_id=text("The agent's id; omit it for the conversations of all agents."),
        archived=flag("Only archived (true) or not archived (false) conversations; omit it for all."),
        tag=text("Only conversations with this tag."),
        **PERIOD,
        **PAGE,
    ),
    listing("conversations", result(("damaged",), **_ENTRY)),
)
def conversation_list(
    store: Store,
    *,
    agent_id: str | None = None,
    archived: bool | None = None,
    tag: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List the conversations of an agent, latest activity first."""
    (after,) = decode_cursor("conversation_list", cursor, 1)
    agent = MISSING if agent_id is None else agent_id
    infos = store.conversations.list(
        agent, archived=archived, tag=tag, since=since, until=until, limit=limit + 1, after=after
    )
    return listed("conversation_list", "conversations", infos, _conversation_entry, limit)


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
        **damage(info.damaged),
    }


@operation(
    "GET /conversation-search",
    "Search conversations by content.",
    arguments(
        ("query",),
        query=text("The text to find in messages; case is ignored."),
        agent_id=text("Search only this agent's conversations."),
        **PAGE,
    ),
    listing(
        "hits",
        result(
            conversation_id=TEXT,
            agent_id=optional(TEXT),
            message_id=optional(TEXT),
            index=COUNT,
            role=optional(TEXT),
            created_at=TIME,
            snippet=ANY,
        ),
    ),
)
def conversation_search(
    store: Store, *, query: str, agent_id: str | None = None, limit: int = LIMIT, cursor: str | None = None
) -> Answer:
    """List the messages that contain a text, newest first."""
    (after,) = decode_cursor("conversation_search", cursor, 1)
    hits = store.search(query, contains=True, kind="conversation", agent=agent_id, limit=limit + 1, after=after)
    return listed(
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


@operation(
    "GET /conversations/{conversation_id}/messages",
    "List the messages of a conversation, oldest first.",
    arguments(
        ("conversation_id",),
        conversation_id=_CONVERSATION,
        newest_first=flag("The newest messages first."),
        **PAGE,
    ),
    listing("messages", {"type": "object", "properties": {"index": COUNT, "message": ANY}}),
)
def conversation_messages(
    store: Store, *, conversation_id: str, newest_first: bool = False, limit: int = LIMIT, cursor: str | None = None
) -> Answer:
    """Return whole messages, as they are stored. A page ends early if its messages are long."""
    (last,) = decode_cursor("conversation_messages", cursor, 1)
    head = store.conversations.thread(conversation_id).latest()
    if head is None:
        raise NotFound(f"there is no conversation {conversation_id!r}", code="not_found.conversation")
    count = store.conversations.info(conversation_id).message_count
    after = whole_number(last)
    if last is not None and after is None:
        raise Invalid("cursor is the next_cursor of an earlier conversation_messages", code=ARGUMENT)
    if newest_first:
        places = range(count - 1 if after is None else min(after, count) - 1, -1, -1)
    else:
        places = range(0 if after is None else after + 1, count)
    read = ((at, head.get(("messages", at), MISSING)) for at in places)
    entries, more = page(({"index": at, "message": plain(data)} for at, data in read if data is not MISSING), limit)
    end = encode_cursor("conversation_messages", str(entries[-1]["index"])) if more else None
    return {"messages": entries, "next_cursor": end}


OPERATIONS: Final[tuple[Operation, ...]] = (
    conversation_save,
    conversation_load,
    conversation_delete,
    conversation_list,
    conversation_search,
    conversation_messages,
)
