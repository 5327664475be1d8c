"""Messages for people: one line in a listing, or the transcript of a conversation."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.output import brief, clean, compact, line, wrapped
from backtrail.conversations.transcript import answered_call, dicts, read_message, tool_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.cli.output import Output
    from backtrail.conversations.transcript import TranscriptCall, TranscriptMessage

_INDENT: Final = "  "
_LONG: Final = 2000
"""Characters of arguments in a transcript."""
_STYLES: Final = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "blue"}


def one_line(message: Any, before: Sequence[Any] = ()) -> Any:
    """Return the author and text of a message in one line; return a value that is not a message unchanged.

    `before` are the earlier messages: they name the tool of a tool result.
    """
    shown = read_message(message)
    if shown is None:
        return message
    author = f"{shown.role} {shown.name or tool_names(before).get(answered_call(message) or '', '')}".strip()
    calls = f"calls {', '.join(map(_call, shown.calls))}" if shown.calls else ""
    if shown.text:
        return f"{author}: {shown.text}" + (f" ({calls})" if calls else "")
    return f"{author} {calls}" if calls else f"{author}: ({shown.content})"


def print_transcript(out: Output, messages: Sequence[Any]) -> None:
    """Print a transcript."""
    names = tool_names(messages)
    for message in messages:
        shown = read_message(message)
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


def _body(message: Any, shown: TranscriptMessage) -> Iterator[str]:
    for each in shown.text.splitlines():
        yield _INDENT + clean(each)
    if not shown.text and not shown.calls:
        yield f"{_INDENT}({clean(shown.content)})"
    for call in shown.calls:
        yield f"{_INDENT}calls {clean(_call(call))}"
    for call in shown.calls:
        if call.result is not None:
            yield f"{_INDENT}{clean(call.name)} returned {clean(call.result)}"
    for attached in dicts(message, "attachments"):
        facts = (attached.get("attachment_type"), attached.get("name"), attached.get("mime_type"))
        yield f"{_INDENT}[{clean(', '.join(str(fact) for fact in facts if fact))}]"


def _time(message: Any) -> str:
    time = message.get("timestamp") if isinstance(message, dict) else None
    return f"{time:%Y-%m-%d %H:%M:%S}" if isinstance(time, dt.datetime) else ""


def _call(call: TranscriptCall) -> str:
    return f"{call.name}({brief(compact(call.arguments), _LONG) if call.arguments else ''})"
