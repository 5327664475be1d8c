"""Repair of tool calls without an answer: a crash between a call and its result leaves them in the messages.

Models refuse messages in which a tool call has no result right after it. The inserted answer is the recorded result,
or tells the model that the result is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.models import Message, Role, ToolStatus

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

INTERRUPTED: Final = "interrupted: it is unknown whether this call was made"
_OPEN: Final = (ToolStatus.PENDING, ToolStatus.RUNNING)


def repaired(
    messages: Iterable[Message],
    *,
    results: Mapping[str, Any] | None = None,
    last: bool = True,
    leave: Container[str | None] = (),
) -> list[Message]:
    """Return the messages with an answer after each tool call that has none.

    An inserted answer has `metadata["repaired"]`: "recorded" if `results` has the call's result under its id,
    otherwise "interrupted". With `last=False`, the calls of the last message stay unanswered: their answers may still
    come. The calls in `leave` stay unanswered, too.
    """
    answered: list[Message] = []
    unanswered: list[str] = []
    known = results or {}
    for message in messages:
        if message.role != Role.TOOL:
            answered += [_answer(call_id, known) for call_id in unanswered if call_id not in leave]
            unanswered.clear()
        elif message.metadata.get("tool_call_id") in unanswered:
            unanswered.remove(message.metadata["tool_call_id"])
        answered.append(message)
        unanswered += [call.id for call in message.tool_calls if call.result is None and call.status in _OPEN]
    if last:
        answered += [_answer(call_id, known) for call_id in unanswered if call_id not in leave]
    return answered


def _answer(call_id: str, known: Mapping[str, Any]) -> Message:
    if call_id not in known:
        return Message.tool_result(call_id, INTERRUPTED, metadata={"repaired": "interrupted"})
    value = known[call_id]
    text = value if isinstance(value, str) else repr(value)
    return Message.tool_result(call_id, text, metadata={"repaired": "recorded"})
