"""Items of the Responses API as messages of a conversation, and back.

An item is kept as it came, as plain data, in the `raw` of its message: that is what is given back, whatever the rest
of the message says. The other fields are made from it, so that search, titles and listings have something to read; what
cannot be made is left out, and no item is refused for it. A message that something else has put into the conversation
has no such payload, and becomes the items that say the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from backtrail import fields
from backtrail.entities import Message, Role, ToolCall
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

Item: TypeAlias = dict[str, Any]
FORMAT: Final = "openai.responses"
"""The `raw_format` of our messages."""
_ROLES: Final = {
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
}
_SAID: Final = ("text", "refusal", "transcript")
"""Where a part of a content has its text."""
_GIVEN: Final = ("arguments", "input", "action", "operation")
"""Where a call has what its tool is given."""


# -- to messages --------------------------------------------------------------------------------------


class NotJSON(Invalid, TypeError):  # noqa: N818 - named as its base is
    """JSON cannot hold an item, or would not give it back the same. The SDK's own sessions raise a `TypeError`."""


def message_of(item: Any, path: str) -> Message:
    """Return an item as a message; `NotJSON` with the path of what JSON cannot hold."""
    if not isinstance(item, dict):
        raise NotJSON(f"{path} is a dict, not {type(item).__name__}", code="invalid.value", path=path)
    try:
        raw = fields.json_value(item, path)
    except Invalid as error:
        raise NotJSON(str(error), code=error.code, path=error.path) from error
    role = _ROLES.get(raw.get("role")) if isinstance(raw.get("role"), str) else None
    others: dict[str, Any] = {"raw": raw, "raw_format": FORMAT}
    if role is not None:
        return Message(role, _text(raw.get("content")), **others)
    call_id = raw.get("call_id")
    if not isinstance(call_id, str) or not 0 < len(call_id) <= fields.MAX_ID:
        return Message(Role.ASSISTANT, _text(raw.get("content") or raw.get("summary")), **others)
    if "output" in raw:
        return Message.tool_result(call_id, _text(raw["output"]), **others)
    name = raw.get("name") if isinstance(raw.get("name"), str) else str(raw.get("type"))
    return Message(Role.ASSISTANT, "", tool_calls=[ToolCall(name, _arguments(raw), id=call_id)], **others)


def _text(content: Any) -> str:
    """Return what a content says: it is a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    found = (part.get(key) for part in parts if isinstance(part, dict) for key in _SAID)
    return "\n".join(text for text in found if isinstance(text, str))


def _arguments(call: Item) -> dict[str, Any]:
    for name in _GIVEN:
        given = call.get(name)
        if isinstance(given, str):
            parsed = _parsed(given)
            return {name: given} if parsed is None else parsed
        if isinstance(given, dict):
            return given
    return {}


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(name)  # NaN is no JSON, whatever json.loads says


# -- to items -----------------------------------------------------------------------------------------


def items_of(stored: Any, where: str) -> list[Item]:
    """Return the items that a stored message stands for; `Corrupt` if it is none."""
    if isinstance(stored, dict) and stored.get("raw_format") == FORMAT:
        raw = stored.get("raw")
        if type(raw) is not dict:
            raise Corrupt(f"{where} holds no item but {type(raw).__name__}", code="corrupt.state")
        return [raw]
    try:
        message = Message.from_data(stored)
    except Invalid as error:
        raise Corrupt(f"{where} is no message: {error}", code="corrupt.state") from error
    return list(_neutral(message))


def _neutral(message: Message) -> Iterable[Item]:
    """Give what a message of somebody else's says, as items."""
    call_id = message.metadata.get("tool_call_id")
    if message.role is Role.TOOL and isinstance(call_id, str):
        yield {"type": "function_call_output", "call_id": call_id, "output": message.content}
        return
    if message.content or not message.tool_calls:
        role = Role.ASSISTANT if message.role is Role.TOOL else message.role
        yield {"role": str(role), "content": message.content}
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, default=str)
        yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}
        if call.result is not None:
            yield {"type": "function_call_output", "call_id": call.id, "output": call.result}
