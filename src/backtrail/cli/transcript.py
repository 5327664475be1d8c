"""Messages for people: one line in a listing, or the transcript of a conversation.

A message may have the form of this package, of a provider or of a framework. Unexpected values are skipped: no stored
value makes a command fail.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.cli.output import brief, clean, compact, line, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.cli.output import Output

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
"""LangChain's names of roles."""
_INDENT: Final = "  "
_LONG: Final = 2000
"""Characters of arguments in a transcript."""
_STYLES: Final = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "blue"}


class TranscriptMessage(NamedTuple):
    """The parts of a message that a transcript shows."""

    role: str
    name: str
    text: str
    calls: tuple[str, ...]
    """Each with its arguments."""
    content: str
    """The types of content in a message without text."""


def one_line(message: Any, before: Sequence[Any] = ()) -> Any:
    """Return the author and text of a message in one line; return a value that is not a message unchanged.

    `before` are the earlier messages: they name the tool of a tool result.
    """
    shown = _shown(message)
    if shown is None:
        return message
    author = f"{shown.role} {shown.name or _tool_names(before).get(answered_call(message) or '', '')}".strip()
    calls = f"calls {', '.join(shown.calls)}" if shown.calls else ""
    if shown.text:
        return f"{author}: {shown.text}" + (f" ({calls})" if calls else "")
    return f"{author} {calls}" if calls else f"{author}: ({shown.content})"


def print_transcript(out: Output, messages: Sequence[Any]) -> None:
    """Print a transcript."""
    names = _tool_names(messages)
    for message in messages:
        shown = _shown(message)
        line("")
        if shown is None:
            line(clean(brief(message, out.room or _LONG)))
            continue
        name = shown.name or names.get(answered_call(message) or "", "")
        author = " ".join(clean(part) for part in (shown.role, name) if part)
        time = _time(message)
        author = out.fit(author, len(time) + 2) if out.room else author
        line(out.paint(author, _STYLES.get(shown.role)) + (f"  {out.paint(time, 'dim')}" if time else ""))
        for text in _body(message, shown):
            for each in wrapped(text, out.room, _INDENT) if out.room else [text]:
                line(each)


def answered_call(message: Any) -> str | None:
    """Return the id of the call that a tool message answers; None for other messages."""
    if not isinstance(message, dict) or message.get("role") != "tool":
        return None
    metadata = message.get("metadata")
    call_id = metadata.get("tool_call_id") if isinstance(metadata, dict) else message.get("tool_call_id")
    return call_id if isinstance(call_id, str) else None


def _tool_names(messages: Sequence[Any]) -> dict[str, str]:
    """Return the names of called tools, by the ids of the calls."""
    calls = (call for message in messages for call in _dicts(message, "tool_calls"))
    names = ((call.get("id"), call.get("name") or _function(call).get("name")) for call in calls)
    return {key: name for key, name in names if isinstance(key, str) and isinstance(name, str)}


def _function(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    return function if isinstance(function, dict) else {}


def _body(message: Any, shown: TranscriptMessage) -> Iterator[str]:
    for each in shown.text.splitlines():
        yield _INDENT + clean(each)
    if not shown.text and not shown.calls:
        yield f"{_INDENT}({clean(shown.content)})"
    for each in shown.calls:
        yield f"{_INDENT}calls {clean(each)}"
    for call in _dicts(message, "tool_calls"):
        if isinstance(call.get("result"), str):
            yield f"{_INDENT}{clean(str(call.get('name')))} returned {clean(call['result'])}"
    for attached in _dicts(message, "attachments"):
        facts = (attached.get("attachment_type"), attached.get("name"), attached.get("mime_type"))
        yield f"{_INDENT}[{clean(', '.join(str(fact) for fact in facts if fact))}]"


def _dicts(message: Any, name: str) -> Iterator[dict[str, Any]]:
    items = message.get(name) if isinstance(message, dict) else None
    yield from (each for each in (items if isinstance(items, list | tuple) else ()) if isinstance(each, dict))


def _time(message: Any) -> str:
    time = message.get("timestamp") if isinstance(message, dict) else None
    return f"{time:%Y-%m-%d %H:%M:%S}" if isinstance(time, dt.datetime) else ""


def _shown(message: Any) -> TranscriptMessage | None:
    from backtrail.conversations import convert

    if not isinstance(message, dict):
        return None
    form = convert.format_of(message)
    if form in (convert.CHAT, convert.RESPONSES, convert.ANTHROPIC):
        facts = convert.facts(message, form)
        calls = tuple(_call(call.name, call.arguments) for call in facts.calls)
        is_item = form == convert.RESPONSES and "role" not in message
        content = str(message["type"]) if is_item else _content_types(message)
        return TranscriptMessage(facts.role, facts.name or "", facts.content, calls, content)
    role = message.get("role", message.get("type"))
    if not isinstance(role, str) or "content" not in message:
        return None
    calls = tuple(
        _call(each.get("name"), each.get("arguments", each.get("args"))) for each in _dicts(message, "tool_calls")
    )
    metadata = message.get("metadata")
    name = message.get("name") or (metadata.get("name") if isinstance(metadata, dict) else None)
    text = convert.text_of(message["content"])
    name = name if isinstance(name, str) else ""
    return TranscriptMessage(_ROLES.get(role, role), name, text, calls, _content_types(message))


def _call(name: Any, arguments: Any) -> str:
    return f"{name}({brief(compact(arguments), _LONG) if arguments else ''})"


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
