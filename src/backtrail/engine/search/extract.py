"""The messages of a state: what stands in the list `messages` at its top, and what search reads of each.

A message is a dict, or an instance of a class, whose text is its `content`: a string, or a list of parts of which some
have a `text`. It may have a `role` (or a `type`), an `id`, and a time: `created_at`, or `timestamp`. A plain string is
a message, too. What has no text is none. Of a long message only the beginning is read, and of a large one only what
counts here.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine.schema.registry import Member, Types
from backtrail.engine.tree import msgpack, packer
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree import text as texts
from backtrail.engine.tree.tree import value_of
from backtrail.engine.tree.unpacker import Unpacker
from backtrail.errors import Corrupt, Error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.spine import Spine
    from backtrail.engine.tree.tree import Tree

TEXT_MAX: Final = 256 * 1024
"""So many bytes of a message's text are read."""
_PLAIN: Final = Types()
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_CHARACTER: Final = 4
"""Bytes of one, at most."""
_LISTS: Final = (msgpack.LIST, msgpack.TUPLE)
_SHORT: Final = 512
"""Ids, roles and times are looked at up to this length, as they are stored."""


class Message(NamedTuple):
    """What search knows of a message."""

    text: str
    role: str | None = None
    id: str | None = None
    time: int | None = None
    """Microseconds since 1970, if it says so itself."""


def listed(tree: Tree) -> Spine | None:
    """Return the list of messages of a state, unread; None if it has none."""
    top = None if texts.code_of(tree.rep) is not None else spines.open_rep(tree.rep, tree.nodes)
    if top is None or not top.is_mapping:
        return None
    rep = _field(tree.nodes, top, "messages")
    found = None if rep is None or texts.code_of(rep) is not None else spines.open_rep(rep, tree.nodes)
    return found if found is not None and found.code in _LISTS else None


def has(tree: Tree, name: str) -> bool:
    """Tell whether a state is a dict that has a key."""
    top = None if texts.code_of(tree.rep) is not None else spines.open_rep(tree.rep, tree.nodes)
    return top is not None and top.is_mapping and _field(tree.nodes, top, name) is not None


def read(nodes: Nodes, rep: bytes) -> Message | None:
    """Return a message from its representation; None if it is none, or has no text."""
    value = _value(rep)
    if value is None:
        value = _large(nodes, rep)
    if isinstance(value, str):
        return Message(_clipped(value)) if value else None
    text = _clipped("\n".join(_texts(value.get("content")))) if isinstance(value, dict) else ""
    if not text:
        return None
    role, name, time = value.get("role", value.get("type")), value.get("id"), _time(value.get("created_at"))
    return Message(
        text,
        _word(role.value if isinstance(role, Member) else role),
        _word(_named(name)),
        _time(value.get("timestamp")) if time is None else time,
    )


def _value(rep: bytes) -> Any:
    """Return a value that stands in its bytes alone, without its classes; None if it does not, or cannot be made."""
    if msgpack.may_hold_refs(rep):
        return None
    try:
        return Unpacker(_PLAIN)(rep)
    except Corrupt:
        raise
    except Error:  # such as a time zone that this machine does not know
        return None


def _large(nodes: Nodes, rep: bytes) -> Any:
    """Return what counts here of a message that is not all in its bytes."""
    text = _text(nodes, rep)
    spine = None if text is not None else spines.open_rep(rep, nodes)
    if spine is None or not spine.is_mapping:
        return text
    fields: dict[str, Any] = {}
    for name in ("role", "type", "id", "created_at", "timestamp"):
        found = _field(nodes, spine, name)
        if found is not None:
            fields[name] = _value(found) if len(found) <= _SHORT else None
    content = _field(nodes, spine, "content")
    if content is not None:
        text = _text(nodes, content)
        fields["content"] = list(_parts(nodes, content)) if text is None else text
    return fields


def _parts(nodes: Nodes, content: bytes) -> Iterator[str]:
    """Give the texts of a content in parts, until there is enough."""
    spine = spines.open_rep(content, nodes)
    if spine is None or spine.code not in _LISTS:
        return
    size = 0
    for at in range(spine.length):
        (rep,) = spines.entries(nodes, spine, at, at + 1)
        text = _text(nodes, rep)
        part = None if text is not None else spines.open_rep(rep, nodes)
        found = _field(nodes, part, "text") if part is not None and part.is_mapping else None
        text = _text(nodes, found) if found is not None else text
        yield text or ""
        size += len(text or "")
        if size >= TEXT_MAX:
            return


def _texts(content: Any) -> Iterator[str]:
    """Give the texts of a content."""
    for part in content if isinstance(content, list | tuple) else (content,):
        text = part.get("text") if isinstance(part, dict) and part is not content else part
        if isinstance(text, str) and text:
            yield text


def _field(nodes: Nodes, spine: Spine, name: str) -> bytes | None:
    key = packer.atom(name, _PLAIN)
    pos = None if key is None else spines.find_key(nodes, spine, key)
    if pos is None:
        return None
    (entry,) = spines.entries(nodes, spine, pos, pos + 1)
    return value_of(entry)


def _text(nodes: Nodes, rep: bytes) -> str | None:
    """Return the beginning of a str, at least as much of it as counts; None for what is none."""
    if texts.code_of(rep) not in (msgpack.STR, msgpack.TEXT):
        return None
    data = texts.beginning(nodes, rep, TEXT_MAX + _CHARACTER)
    return _decoded(data, len(data) if texts.length_of(rep) == len(data) else TEXT_MAX)


def _clipped(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= TEXT_MAX else _decoded(data, TEXT_MAX)


def _decoded(data: bytes, end: int) -> str:
    while end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - inside of a character
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def _named(value: Any) -> Any:
    """Return an id as text, if it is one that people would read."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 8 * _SHORT else None
    return str(value) if isinstance(value, uuid.UUID) else value


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(value: Any) -> int | None:
    """Return a time in microseconds since 1970: of a datetime, ISO 8601, or seconds since then; UTC if it says none."""
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
