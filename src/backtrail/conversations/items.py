"""Messages of a conversation as items of the Responses API.

A message that was made from an item keeps it unchanged in `raw`: that is its item. A message from another source is
converted to items.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from backtrail.conversations import convert
from backtrail.conversations.models import Message, Role
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

Item: TypeAlias = dict[str, Any]
FORMAT: Final = convert.RESPONSES
"""The `raw_format` of messages that hold an item."""


def items_of(stored: Any, where: str) -> list[Item]:
    """Return the items of a stored message; `Corrupt` if it is not a message."""
    if isinstance(stored, dict) and stored.get("raw_format") == FORMAT:
        raw = stored.get("raw")
        if type(raw) is not dict:
            raise Corrupt(f"{where} holds a {type(raw).__name__} instead of an item", code="corrupt.state")
        return [raw]
    try:
        message = Message.from_data(stored)
    except Invalid as error:
        raise Corrupt(f"{where} is not a message: {error}", code="corrupt.state") from error
    return list(_converted(message))


def _converted(message: Message) -> Iterable[Item]:
    """Give the items of a message from another source."""
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
