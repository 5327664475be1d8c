"""Items of the Responses API as messages of a conversation, and back.

An item is kept as it came, as plain data, in the `raw` of its message: that is what is given back, whatever the rest
of the message says. The other fields are made from it, so that search, titles and listings have something to read; what
cannot be made is left out, and no item is refused for it. A message that something else has put into the conversation
has no such payload, and becomes the items that say the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from backtrail import validation
from backtrail.conversations import convert
from backtrail.conversations.messages import from_raw
from backtrail.entities import Message, Role
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

Item: TypeAlias = dict[str, Any]
FORMAT: Final = convert.RESPONSES
"""The `raw_format` of our messages."""


# -- to messages --------------------------------------------------------------------------------------


class NotJSON(Invalid, TypeError):  # noqa: N818 - named as its base is
    """JSON cannot hold an item, or would not give it back the same. The SDK's own sessions raise a `TypeError`."""


def message_of(item: Any, path: str) -> Message:
    """Return an item as a message; `NotJSON` with the path of what JSON cannot hold."""
    if not isinstance(item, dict):
        raise NotJSON(f"{path} is a dict, not {type(item).__name__}", code="invalid.value", path=path)
    try:
        raw = validation.json_value(item, path)
    except Invalid as error:
        raise NotJSON(str(error), code=error.code, path=error.path) from error
    return from_raw(Message, raw, FORMAT, {})


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
