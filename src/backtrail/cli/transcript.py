"""What is said in messages: in one line of a listing, or as the transcript of a conversation.

A message may be ours, a provider's or a framework's: a dict, or the record of a class. What is not as expected is
passed over: nothing here fails because of what was stored.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.cli.output import brief, clean, compact, line, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.cli.output import Output

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
"""What LangChain calls them."""
_INDENT: Final = "  "
_LONG: Final = 2000
"""Characters of arguments that a transcript shows."""
_STYLES: Final = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "blue"}


class Said(NamedTuple):
    """A message, as far as people want to see it."""

    role: str
    name: str
    text: str
    calls: tuple[str, ...]
    """Each with what the tool is given."""
    else_: str
    """What is there instead of a text."""


def sentence(message: Any, before: Sequence[Any] = ()) -> Any:
    """Return who says what, for one line; what is no message is returned as it is. `before`: what was said before."""
    said = _said(message)
    if said is None:
        return message
    said = said._replace(name=said.name or _names(before).get(answered(message) or "", ""))
    who = f"{said.role} {said.name}".strip()
    calls = f"calls {', '.join(said.calls)}" if said.calls else ""
    if said.text:
        return f"{who}: {said.text}" + (f" ({calls})" if calls else "")
    return f"{who} {calls}" if calls else f"{who}: ({said.else_})"


def show(out: Output, messages: Sequence[Any]) -> None:
    """Print a transcript."""
    names = _names(messages)
    for message in messages:
        said = _said(message)
        line("")
        if said is None:
            line(clean(brief(message, out.room or _LONG)))
            continue
        name = said.name or names.get(answered(message) or "", "")
        who = " ".join(clean(part) for part in (said.role, name) if part)
        when = _time(message)
        who = out.fit(who, len(when) + 2) if out.room else who
        line(out.paint(who, _STYLES.get(said.role)) + (f"  {out.paint(when, 'dim')}" if when else ""))
        for text in _body(message, said):
            for each in wrapped(text, out.room, _INDENT) if out.room else [text]:
                line(each)


def answered(message: Any) -> str | None:
    """Return the id of the call that a message is the result of, if it does not say the tool's name itself."""
    if not isinstance(message, dict) or message.get("role") != "tool":
        return None
    metadata = message.get("metadata")
    found = metadata.get("tool_call_id") if isinstance(metadata, dict) else message.get("tool_call_id")
    return found if isinstance(found, str) else None


def _names(messages: Sequence[Any]) -> dict[str, str]:
    """Return the names of the tools that were called, by the ids of the calls."""
    calls = (call for message in messages for call in _dicts(message, "tool_calls"))
    found = ((call.get("id"), call.get("name") or _inner(call).get("name")) for call in calls)
    return {key: name for key, name in found if isinstance(key, str) and isinstance(name, str)}


def _inner(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    return function if isinstance(function, dict) else {}


def _body(message: Any, said: Said) -> Iterator[str]:
    for each in said.text.splitlines():
        yield _INDENT + clean(each)
    if not said.text and not said.calls:
        yield f"{_INDENT}({clean(said.else_)})"
    for each in said.calls:
        yield f"{_INDENT}calls {clean(each)}"
    for call in _dicts(message, "tool_calls"):
        if isinstance(call.get("result"), str):
            yield f"{_INDENT}{clean(str(call.get('name')))} gave {clean(call['result'])}"
    for attached in _dicts(message, "attachments"):
        facts = (attached.get("attachment_type"), attached.get("name"), attached.get("mime_type"))
        yield f"{_INDENT}[{clean(', '.join(str(fact) for fact in facts if fact))}]"


def _dicts(message: Any, name: str) -> Iterator[dict[str, Any]]:
    found = message.get(name) if isinstance(message, dict) else None
    yield from (each for each in (found if isinstance(found, list | tuple) else ()) if isinstance(each, dict))


def _time(message: Any) -> str:
    when = message.get("timestamp") if isinstance(message, dict) else None
    return f"{when:%Y-%m-%d %H:%M:%S}" if isinstance(when, dt.datetime) else ""


def _said(message: Any) -> Said | None:
    from backtrail.conversations import convert

    if not isinstance(message, dict):
        return None
    form = convert.format_of(message)
    if form in (convert.CHAT, convert.RESPONSES, convert.ANTHROPIC):
        found = convert.facts(message, form)
        calls = tuple(_call(call.name, call.arguments) for call in found.calls)
        instead = str(message["type"]) if form == convert.RESPONSES and "role" not in message else _instead(message)
        return Said(found.role, found.name or "", found.content, calls, instead)
    role = message.get("role", message.get("type"))
    if not isinstance(role, str) or "content" not in message:
        return None
    made = [_call(each.get("name"), each.get("arguments", each.get("args"))) for each in _dicts(message, "tool_calls")]
    metadata = message.get("metadata")
    name = message.get("name") or (metadata.get("name") if isinstance(metadata, dict) else None)
    text = convert.text_of(message["content"])
    who = _ROLES.get(role, role)
    return Said(who, name if isinstance(name, str) else "", text, tuple(made), _instead(message))


def _call(name: Any, arguments: Any) -> str:
    return f"{name}({brief(compact(arguments), _LONG) if arguments else ''})"


def _instead(message: dict[str, Any]) -> str:
    """Say what a message without a text holds."""
    kept = message.get("raw")
    raw: dict[str, Any] = kept if isinstance(kept, dict) else message
    content, kind = raw.get("content"), raw.get("type")
    parts = [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    kinds = dict.fromkeys(str(part) for part in parts if part)
    if kinds:
        return ", ".join(kinds)
    return kind if isinstance(kind, str) and "role" not in raw and raw is not message else "no text"
