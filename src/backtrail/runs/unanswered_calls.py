"""Tool calls without an answer: what a crash between a call and its result leaves in messages.

Models refuse messages in which a call has no result right behind it. The answer that is put there says that it is none,
so that the model, and whoever reads on, can see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.entities import Message, Role, ToolStatus

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

INTERRUPTED: Final = "interrupted: nobody knows whether this call was made"
_OPEN: Final = (ToolStatus.PENDING, ToolStatus.RUNNING)


def repaired(
    messages: Iterable[Message],
    *,
    results: Mapping[str, Any] | None = None,
    last: bool = True,
    leave: Container[str | None] = (),
) -> list[Message]:
    """Return messages in which each tool call has an answer behind it.

    Those that were missing have `metadata["repaired"]`: "recorded" if `results` has what came of the call, by its id,
    else "interrupted". If `last` is False, calls that nothing but answers comes behind are left alone: the others may
    be on their way. So are those of the calls of `leave`.
    """
    found: list[Message] = []
    unanswered: list[str] = []
    known = results or {}
    for message in messages:
        if message.role != Role.TOOL:
            found += [_answer(call_id, known) for call_id in unanswered if call_id not in leave]
            unanswered.clear()
        elif message.metadata.get("tool_call_id") in unanswered:
            unanswered.remove(message.metadata["tool_call_id"])
        found.append(message)
        unanswered += [call.id for call in message.tool_calls if call.result is None and call.status in _OPEN]
    if last:
        found += [_answer(call_id, known) for call_id in unanswered if call_id not in leave]
    return found


def _answer(call_id: str, known: Mapping[str, Any]) -> Message:
    if call_id not in known:
        return Message.tool_result(call_id, INTERRUPTED, metadata={"repaired": "interrupted"})
    value = known[call_id]
    text = value if isinstance(value, str) else repr(value)
    return Message.tool_result(call_id, text, metadata={"repaired": "recorded"})
