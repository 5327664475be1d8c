"""Checkpoints and messages for people: a few words, a transcript, JSON; and the progress of long work."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.output import Progress, brief, clean, compact, cut, line, width, wrapped
from backtrail.conversations.transcript import answered_call, dicts, read_message, tool_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.output import Output
    from backtrail.conversations.transcript import TranscriptCall, TranscriptMessage
    from backtrail.store import Store

_SMALL: Final = 65_536
"""Bytes of the largest state that is loaded for its first words."""
_CALLS: Final = 8
"""Messages that are searched for the call of the last tool result."""
_PAGE: Final = 4096
"""Bytes of an SQLite page."""
_INDENT: Final = "  "
_LONG: Final = 2000
"""Characters of arguments in a transcript."""
_STYLES: Final = {"user": "green", "assistant": "cyan", "tool": "yellow", "system": "blue"}


def checkpoint_data(checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return the fields of a checkpoint without its state."""
    return {
        "id": checkpoint.id,
        "thread_id": checkpoint.thread_id,
        "seq": checkpoint.seq,
        "step": checkpoint.step,
        "parent_id": checkpoint.parent_id,
        "label": checkpoint.label,
        "tags": sorted(checkpoint.tags),
        "kind": checkpoint.kind,
        "metadata": checkpoint.metadata,
        "created_at": checkpoint.created_at,
        "size": checkpoint.size,
        "stored": checkpoint.stored,
        "root": checkpoint.root,
        "damaged": checkpoint.damaged,
    }


def first_words(checkpoint: Checkpoint[Any], most: int) -> str:
    """Return the first words of a checkpoint's last message, or of a small state."""
    from backtrail.errors import Corrupt, Invalid, NotFound

    try:
        try:
            last = checkpoint.tail("messages", 1)
        except (Invalid, NotFound):
            last = []
        if last:
            before = checkpoint.tail("messages", _CALLS) if answered_call(last[0]) else ()
            return brief(one_line(last[0], before), most)
        return brief(checkpoint.state, most) if checkpoint.size <= _SMALL else ""
    except Corrupt:
        return "(damaged)"


def print_checkpoint(out: Output, checkpoint: Checkpoint[Any], **more: Any) -> None:
    """Print the checkpoint that a change made, in one line."""
    if not out.human:
        out.value({**checkpoint_data(checkpoint), **more})
        return
    label = f"  {clean(checkpoint.label)}" if checkpoint.label is not None else ""
    rest = f"@{checkpoint.id[:8]}  step {checkpoint.step}"
    name = clean(checkpoint.thread_id)
    name = name if out.room is None else cut(name, max(out.room - width(rest), 1))
    text = f"{name}{rest}{label}"
    text = text if out.room is None else cut(text, out.room)
    end = len(name) + 9
    line(f"{out.paint(text[:end], 'yellow')}{text[end:]}")


def progress_in(store: Store) -> Progress:
    """Return the progress of work on a whole store."""
    from backtrail.errors import Error

    def totals() -> dict[str, int]:
        try:
            stats = store.stats()
        except Error:  # a damaged store gets numbers without a bar
            return {}
        threads = stats.threads + stats.agents + stats.conversations + stats.runs
        pages = stats.stored_bytes // _PAGE
        return {
            "threads": threads,
            "checkpoints": stats.checkpoints,
            "chunks": stats.chunks,
            "pages": pages,
            "index": threads,
        }

    return Progress(totals)


# -- messages ---------------------------------------------------------------------------------------------


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
