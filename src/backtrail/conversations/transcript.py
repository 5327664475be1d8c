"""Messages for people: the parts that a transcript shows.

A message may have the form of this package, of a provider or of a framework. Unexpected values are skipped: no stored
value makes a reader fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.conversations import convert

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
"""LangChain's names of roles."""


class TranscriptCall(NamedTuple):
    """A tool call of a message."""

    id: str | None
    name: str
    arguments: Any
    result: str | None = None
    """The result, if it is in the same message."""


class TranscriptMessage(NamedTuple):
    """The parts of a message that a transcript shows."""

    role: str
    name: str
    text: str
    calls: tuple[TranscriptCall, ...]
    content: str
    """The types of content in a message without text."""


def read_message(message: Any) -> TranscriptMessage | None:
    """Return the parts of a message; None for a value that is not a message."""
    if not isinstance(message, dict):
        return None
    form = convert.format_of(message)
    if form in (convert.CHAT, convert.RESPONSES, convert.ANTHROPIC):
        facts = convert.facts(message, form)
        calls = tuple(TranscriptCall(*call) for call in facts.calls)
        is_item = form == convert.RESPONSES and "role" not in message
        content = str(message["type"]) if is_item else _content_types(message)
        return TranscriptMessage(facts.role, facts.name or "", facts.content, calls, content)
    role = message.get("role", message.get("type"))
    if not isinstance(role, str) or "content" not in message:
        return None
    metadata = message.get("metadata")
    name = message.get("name") or (metadata.get("name") if isinstance(metadata, dict) else None)
    text = convert.text_of(message["content"])
    calls = tuple(_call(each) for each in dicts(message, "tool_calls"))
    return TranscriptMessage(
        _ROLES.get(role, role), name if isinstance(name, str) else "", text, calls, _content_types(message)
    )


def answered_call(message: Any) -> str | None:
    """Return the id of the call that a tool message answers; None for other messages."""
    if not isinstance(message, dict) or message.get("role") != "tool":
        return None
    metadata = message.get("metadata")
    call_id = metadata.get("tool_call_id") if isinstance(metadata, dict) else message.get("tool_call_id")
    return call_id if isinstance(call_id, str) else None


def tool_names(messages: Iterable[Any]) -> dict[str, str]:
    """Return the names of called tools, by the ids of the calls."""
    calls = (call for message in messages for call in dicts(message, "tool_calls"))
    names = ((call.get("id"), call.get("name") or _function(call).get("name")) for call in calls)
    return {key: name for key, name in names if isinstance(key, str) and isinstance(name, str)}


def dicts(message: Any, name: str) -> Iterator[dict[str, Any]]:
    """Give the dicts in a list of a message, such as its attachments."""
    items = message.get(name) if isinstance(message, dict) else None
    yield from (each for each in (items if isinstance(items, list | tuple) else ()) if isinstance(each, dict))


def _call(call: dict[str, Any]) -> TranscriptCall:
    call_id, result = call.get("id"), call.get("result")
    return TranscriptCall(
        call_id if isinstance(call_id, str) else None,
        str(call.get("name")),
        call.get("arguments", call.get("args")),
        result if isinstance(result, str) else None,
    )


def _function(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    return function if isinstance(function, dict) else {}


def _content_types(message: dict[str, Any]) -> str:
    """Return the types of content in a message without text."""
    own = message.get("raw")
    raw: dict[str, Any] = own if isinstance(own, dict) else message
    content, kind = raw.get("content"), raw.get("type")
    parts = [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    kinds = dict.fromkeys(str(part) for part in parts if part)
    if kinds:
        return ", ".join(kinds)
    return kind if isinstance(kind, str) and "role" not in raw and raw is not message else "no text"
