"""Messages of Strands as messages of a conversation.

A message keeps the framework's `SessionMessage` in `raw`, as its own `to_dict` has it. Its other fields are derived for
search, titles and listings, and never read back. The text of a redacted message is its redacted text.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

from strands.types.session import SessionMessage

from backtrail.adapters.plain_values import plain_data
from backtrail.conversations.models import Message, Role, ToolCall
from backtrail.errors import Corrupt, Invalid
from backtrail.validation import MAX_ID, now, to_data

FORMAT: Final = "strands"
"""The `raw_format` of messages that hold a message of Strands."""


def message_data(given: Any) -> dict[str, Any]:
    """Return a `SessionMessage` as a message of the conversation; `Invalid` if it is none."""
    if not isinstance(given, SessionMessage):
        raise Invalid(
            f"a message of a session must be a SessionMessage, not {type(given).__name__}", code="invalid.argument"
        )
    number = given.message_id
    if type(number) is not int or number < 0:
        raise Invalid(
            f"a message's id must be a number from 0 on, not {number!r:.60}", code="invalid.id", path="message_id"
        )
    inner = given.to_message()
    if not isinstance(given.message, dict) or not isinstance(inner, dict):
        raise Invalid("a SessionMessage holds a message, which is a dict", code="invalid.value", path="message")
    try:
        raw = plain_data(given.to_dict())
    except (TypeError, RecursionError) as error:  # what cannot be copied cannot be kept either
        raise Invalid(f"message {number} cannot be kept: {error}", code="invalid.value", path="message") from error
    content = inner.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    results = [block["toolResult"] for block in blocks if isinstance(block.get("toolResult"), dict)]
    answers = [result["toolUseId"] for result in results if _is_id(result.get("toolUseId"))]
    message = Message(
        Role.TOOL if results else Role.ASSISTANT if inner.get("role") == "assistant" else Role.USER,
        "\n".join(text for block in blocks for text in _texts(block)),
        id=str(number),
        timestamp=_time(given.created_at),
        tokens=_tokens(inner),
        tool_calls=[call for block in blocks for call in _calls(block)],
        metadata={"tool_call_id": answers[0]} if len(answers) == 1 else {},
        raw=raw,
        raw_format=FORMAT,
    )
    return to_data(message)


def session_message(message: dict[str, Any]) -> SessionMessage:
    """Return the framework's message of a message of the conversation."""
    try:
        return SessionMessage.from_dict(message["raw"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"a message of Strands cannot be read: {error}", code="corrupt.state") from error


def own_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages that Strands wrote. Others, such as appended by hand, are not part of the session."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Corrupt("an agent of a session has no list of messages", code="corrupt.state")
    return [message for message in messages if message.get("raw_format") == FORMAT]


def number_of(message: Any) -> int | None:
    """Return the number of a message of Strands; None for another message."""
    if not isinstance(message, dict) or message.get("raw_format") != FORMAT:
        return None
    number = (message.get("raw") or {}).get("message_id")
    return number if type(number) is int else None


# -- the derived fields -----------------------------------------------------------------------------


def _texts(block: dict[str, Any]) -> list[str]:
    result = block.get("toolResult")
    if not isinstance(result, dict):
        return [block["text"]] if isinstance(block.get("text"), str) else []
    content = result.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part["text"] if isinstance(part.get("text"), str) else _json_text(part.get("json")) for part in parts]
    return [text for text in texts if text]


def _json_text(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _calls(block: dict[str, Any]) -> list[ToolCall]:
    call = block.get("toolUse")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return []
    call_id, arguments = call.get("toolUseId"), plain_data(call.get("input"))
    known: dict[str, Any] = {"id": call_id} if _is_id(call_id) else {}
    return [ToolCall(call["name"], arguments if isinstance(arguments, dict) else {}, **known)]


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID


def _tokens(message: dict[str, Any]) -> int | None:
    metadata = message.get("metadata")
    usage = metadata.get("usage") if isinstance(metadata, dict) else None
    tokens = usage.get("outputTokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _time(text: Any) -> dt.datetime:
    try:
        time = dt.datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        return now()
