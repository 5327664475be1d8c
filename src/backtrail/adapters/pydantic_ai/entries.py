"""Entries and records of Pydantic AI as data of a conversation.

A message of the conversation keeps the framework's message in `raw`, as the framework's own JSON has it; its id and
parent id are those of the entry. Its other fields are derived for search, titles and listings, and never read back. The
record is JSON text in the conversation's metadata, so listings do not read messages.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import pydantic
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessage

from backtrail.conversations.models import Message, Role, ToolCall
from backtrail.errors import Corrupt, Invalid
from backtrail.validation import MAX_ID, check_id, now, to_data

FORMAT: Final = "pydantic-ai"
"""The `raw_format` of messages that hold a message of Pydantic AI."""

_CONFIG: Final = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
"""The configuration of the framework's own adapter; besides, nan and infinite numbers are kept."""
_messages: Final[pydantic.TypeAdapter[Any]] = pydantic.TypeAdapter(ModelMessage, config=_CONFIG)
_lists: Final[pydantic.TypeAdapter[Any]] = pydantic.TypeAdapter(list[ModelMessage], config=_CONFIG)
_records: Final[pydantic.TypeAdapter[ConversationRecord]] = pydantic.TypeAdapter(ConversationRecord)


# -- records ----------------------------------------------------------------------------------------


def record_text(record: Any) -> str:
    """Return a record as JSON; `Invalid` if it cannot be read back."""
    if not isinstance(record, ConversationRecord):
        raise Invalid(f"write_record takes a ConversationRecord, not {type(record).__name__}", code="invalid.argument")
    check_id(record.conversation_id, "a conversation's id")
    try:
        text = _records.dump_json(record, warnings=False).decode()
        is_same = _records.validate_json(text).revision == record.revision
    except (pydantic.ValidationError, ValueError, RecursionError) as error:
        raise Invalid(f"the record cannot be kept as JSON: {error}", code="invalid.value", path="record") from error
    if not is_same or not record.revision:
        raise Invalid("a record's revision is a text that is not empty", code="invalid.value", path="record.revision")
    return text


def record_of(text: Any, conversation_id: str) -> ConversationRecord:
    """Return a stored record. A fork or a copy of the thread has the id of its own thread."""
    try:
        record = _records.validate_json(text)
    except pydantic.ValidationError as error:
        raise Corrupt(f"the record of conversation {conversation_id!r} is damaged", code="corrupt.state") from error
    record.conversation_id = conversation_id
    return record


# -- entries ----------------------------------------------------------------------------------------


def message_data(entry: Any, path: str) -> dict[str, Any]:
    """Return an entry as a message of the conversation; `Invalid` if it cannot be read back."""
    if not isinstance(entry, ConversationEntry) or entry.kind != "message":
        raise Invalid(f"{path} must be a ConversationEntry of the kind 'message'", code="invalid.argument", path=path)
    try:
        text = _messages.dump_json(entry.message, warnings=False)
        _messages.validate_json(text)
    except (pydantic.ValidationError, ValueError, RecursionError) as error:
        what = f"{path}.message cannot be kept as JSON: {error}"
        raise Invalid(what, code="invalid.value", path=f"{path}.message") from error
    raw = json.loads(text)
    parts = [part for part in raw["parts"] if isinstance(part, dict)]
    is_response = raw["kind"] == "response"
    answers = [part["tool_call_id"] for part in parts if part["part_kind"] in _ANSWERS and part.get("tool_call_id")]
    usage = raw["usage"]["output_tokens"] if is_response else 0
    message = Message(
        Role.ASSISTANT if is_response else _role(parts),
        "\n".join(text for part in parts for text in _texts(part)),
        id=entry.id,
        timestamp=_time([raw, *parts]),
        tokens=usage if type(usage) is int and usage > 0 else None,
        tool_calls=[call for part in parts for call in _calls(part)],
        parent_id=entry.parent_id,
        metadata={"tool_call_id": answers[0]} if len(answers) == 1 else {},
        raw=raw,
        raw_format=FORMAT,
    )
    return to_data(message)


def entries_of(messages: list[dict[str, Any]]) -> list[ConversationEntry]:
    """Return the entries that messages of a conversation hold."""
    try:
        text = json.dumps([message["raw"] for message in messages])
        found = _lists.validate_json(text)
    except (pydantic.ValidationError, KeyError, ValueError) as error:
        raise Corrupt(f"a message of Pydantic AI cannot be read: {error}", code="corrupt.state") from error
    return [
        ConversationEntry(id=message["id"], parent_id=message.get("parent_id"), message=each)
        for message, each in zip(messages, found, strict=True)
    ]


# -- the derived fields -----------------------------------------------------------------------------

_ANSWERS: Final = ("tool-return", "retry-prompt", "builtin-tool-return")
_UNSEARCHED: Final = ("tool-call", "builtin-tool-call")


def _role(parts: list[dict[str, Any]]) -> Role:
    kinds = [part["part_kind"] for part in parts]
    if "user-prompt" in kinds or not kinds:
        return Role.USER
    if any(part["part_kind"] in _ANSWERS and part.get("tool_name") for part in parts):
        return Role.TOOL
    return Role.SYSTEM if all(kind == "system-prompt" for kind in kinds) else Role.USER


def _texts(part: dict[str, Any]) -> list[str]:
    content = part.get("content")
    if part["part_kind"] in _UNSEARCHED or content is None:
        return []
    if part["part_kind"] in _ANSWERS:
        return [content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)]
    several = content if isinstance(content, list) else [content]
    texts = (each.get("content") if isinstance(each, dict) else each for each in several)
    return [text for text in texts if isinstance(text, str) and text]


def _calls(part: dict[str, Any]) -> list[ToolCall]:
    if part["part_kind"] not in _UNSEARCHED:
        return []
    name, call_id, arguments = part.get("tool_name"), part.get("tool_call_id"), part.get("args")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    has_id = isinstance(call_id, str) and 0 < len(call_id) <= MAX_ID
    if not isinstance(name, str) or not has_id:
        return []
    return [ToolCall(name, arguments if isinstance(arguments, dict) else {}, id=str(call_id))]


def _time(holders: list[dict[str, Any]]) -> dt.datetime:
    """Return the time of the message, or of its first part that has one, or the present."""
    for holder in holders:
        text = holder.get("timestamp")
        try:
            time = dt.datetime.fromisoformat(text) if isinstance(text, str) else None
        except ValueError:
            continue
        if time is not None and time.tzinfo is not None:
            return time
    return now()
