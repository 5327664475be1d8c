"""Items of the Responses API as messages of a conversation.

A message keeps its item unchanged in `raw`, and a session returns exactly that. The other fields of the message are
derived from the item, for search, titles and listings. A field that cannot be derived is left out; no item is refused
for it.
"""

from __future__ import annotations

from typing import Any

from backtrail import validation
from backtrail.conversations.items import FORMAT
from backtrail.conversations.models import Message, from_raw
from backtrail.errors import Invalid


class NotJSON(Invalid, TypeError):  # noqa: N818 - named as its base is
    """An item that JSON cannot hold exactly. It is a `TypeError`, too, as in the SDK's own sessions."""


def message_of(item: Any, path: str) -> Message:
    """Return an item as a message; `NotJSON` with the path of a value that JSON cannot hold."""
    if not isinstance(item, dict):
        raise NotJSON(f"{path} must be a dict, not {type(item).__name__}", code="invalid.value", path=path)
    try:
        raw = validation.json_value(item, path)
    except Invalid as error:
        raise NotJSON(str(error), code=error.code, path=error.path) from error
    return from_raw(Message, raw, FORMAT, {})
