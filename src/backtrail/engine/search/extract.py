"""The messages of a state: the items of its top-level list `messages`, and the fields of each that search reads.

A message is a dict, or an instance of a class, whose text is its `content`: a string, or a list of parts, some with a
`text`. It may have a `role` (or a `type`), an `id`, and a time: `created_at` or `timestamp`. A plain string is a
message, too. An item without text is not a message. Of a long text, only the start is read; of a large message, only
these fields.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.schema.registry import Member, Types
from backtrail.engine.tree import chunked, encode, msgpack
from backtrail.engine.tree import text as texts
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.tree import value_of
from backtrail.errors import Corrupt, Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.engine.tree.chunked import Spine
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.tree import Tree

TEXT_MAX: Final = 256 * 1024
"""The most bytes of a message's text that are read."""
_PLAIN: Final = Types()
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_CHARACTER: Final = 4
"""The most bytes of one character."""
_LISTS: Final = (msgpack.LIST, msgpack.TUPLE)
_SHORT: Final = 512
"""The most bytes of an id, a role or a time. Longer values are ignored."""


class MessageText(NamedTuple):
    """The fields of a message that search reads."""

    text: str
    role: str | None = None
    id: str | None = None
    time: int | None = None
    """Microseconds since 1970; None if the message has no time."""


def listed(tree: Tree) -> Spine | None:
    """Return the spine of a state's list of messages, without reading the messages; None if there is no list."""
    top = None if texts.code_of(tree.rep) is not None else chunked.open_rep(tree.rep, tree.nodes)
    if top is None or not top.is_mapping:
        return None
    rep = _field(tree.nodes, top, "messages")
    spine = None if rep is None or texts.code_of(rep) is not None else chunked.open_rep(rep, tree.nodes)
    return spine if spine is not None and spine.code in _LISTS else None


def has(tree: Tree, name: str) -> bool:
    """Tell whether a state is a dict with this key."""
    top = None if texts.code_of(tree.rep) is not None else chunked.open_rep(tree.rep, tree.nodes)
    return top is not None and top.is_mapping and _field(tree.nodes, top, name) is not None


def read(nodes: Nodes, rep: bytes) -> MessageText | None:
    """Return the message of a representation; None if it is not a message."""
    value = _value(rep)
    if value is None:
        value = _large(nodes, rep)
    if isinstance(value, str):
        return MessageText(_clipped(value)) if value else None
    text = _clipped("\n".join(_texts(value.get("content")))) if isinstance(value, dict) else ""
    if not text:
        return None
    role, name, time = value.get("role", value.get("type")), value.get("id"), _time(value.get("created_at"))
    return MessageText(
        text,
        _word(role.value if isinstance(role, Member) else role),
        _word(_named(name)),
        _time(value.get("timestamp")) if time is None else time,
    )


def _value(rep: bytes) -> Any:
    """Return the value of encoded bytes, with Records for instances; None if they contain REFs or cannot be decoded."""
    if msgpack.may_hold_refs(rep):
        return None
    try:
        return Unpacker(_PLAIN)(rep)
    except Corrupt:
        raise
    except Error:  # such as an unknown time zone
        return None


def _large(nodes: Nodes, rep: bytes) -> Any:
    """Return the fields for search of a large message, which contains REFs."""
    text = _text(nodes, rep)
    spine = None if text is not None else chunked.open_rep(rep, nodes)
    if spine is None or not spine.is_mapping:
        return text
    fields: dict[str, Any] = {}
    for name in ("role", "type", "id", "created_at", "timestamp"):
        field = _field(nodes, spine, name)
        if field is not None:
            fields[name] = _value(field) if len(field) <= _SHORT else None
    content = _field(nodes, spine, "content")
    if content is not None:
        text = _text(nodes, content)
        fields["content"] = list(_parts(nodes, content)) if text is None else text
    return fields


def _parts(nodes: Nodes, content: bytes) -> Iterator[str]:
    """Yield the texts of a content in parts, up to TEXT_MAX."""
    spine = chunked.open_rep(content, nodes)
    if spine is None or spine.code not in _LISTS:
        return
    size = 0
    for at in range(spine.length):
        (rep,) = chunked.entries(nodes, spine, at, at + 1)
        text = _text(nodes, rep)
        part = None if text is not None else chunked.open_rep(rep, nodes)
        field = _field(nodes, part, "text") if part is not None and part.is_mapping else None
        text = _text(nodes, field) if field is not None else text
        yield text or ""
        size += len(text or "")
        if size >= TEXT_MAX:
            return


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content."""
    for part in content if isinstance(content, list | tuple) else (content,):
        text = part.get("text") if isinstance(part, dict) and part is not content else part
        if isinstance(text, str) and text:
            yield text


def _field(nodes: Nodes, spine: Spine, name: str) -> bytes | None:
    key = encode.atom(name, _PLAIN)
    pos = None if key is None else chunked.find_key(nodes, spine, key)
    if pos is None:
        return None
    (entry,) = chunked.entries(nodes, spine, pos, pos + 1)
    return value_of(entry)


def _text(nodes: Nodes, rep: bytes) -> str | None:
    """Return the start of a str, up to TEXT_MAX bytes or more; None for another value."""
    if texts.code_of(rep) not in (msgpack.STR, msgpack.TEXT):
        return None
    data = texts.beginning(nodes, rep, TEXT_MAX + _CHARACTER)
    return _decoded(data, len(data) if texts.length_of(rep) == len(data) else TEXT_MAX)


def _clipped(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= TEXT_MAX else _decoded(data, TEXT_MAX)


def _decoded(data: bytes, end: int) -> str:
    while end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - inside a character
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def _named(value: Any) -> Any:
    """Return an id as text, if it is a str, an int or a UUID."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 8 * _SHORT else None
    return str(value) if isinstance(value, uuid.UUID) else value


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(value: Any) -> int | None:
    """Return microseconds since 1970 of a datetime, ISO 8601 text, or seconds; UTC if it has no zone."""
    try:
        if isinstance(value, str):
            value = dt.datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = _EPOCH + dt.timedelta(seconds=value)
        if not isinstance(value, dt.datetime):
            return None
        aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        return (aware.astimezone(dt.UTC) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        return None
