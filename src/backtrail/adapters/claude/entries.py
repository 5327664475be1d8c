"""The transcripts of the Claude Agent SDK as backtrail has them: which conversation a key means, what an entry says.

Two keys never mean the same conversation, whatever characters are in them. An entry is kept as it came; what is read
of it besides, for search and for listings, never fails: what is not as expected is passed over.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from blake3 import blake3

from backtrail.conversations import convert
from backtrail.entities import Message, Role, ToolCall, to_data
from backtrail.errors import Invalid
from backtrail.validation import MAX_ID, json_value, new_id

if TYPE_CHECKING:
    from backtrail.models import ConversationInfo

FORMAT: Final = "claude"
"""The `raw_format` of a message that is an entry."""
_PART_MAX: Final = 160
"""Characters of a part of a key in an id; three of them and what is between fit into an id."""
_HASHED: Final = "~h"
_FIELDS: Final = ("project_key", "session_id", "subpath")
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT}
_SAID: Final = ("customTitle", "aiTitle", "summary")
"""What is said by entries that are no messages."""


# -- keys -------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """Which transcript is meant: that of a session, or, with a subpath, of one of its subagents."""

    project_key: str
    session_id: str
    subpath: str | None = None

    @classmethod
    def read(cls, key: object, *, sub: bool = True) -> Self:
        """Return a key that the SDK has made; `Invalid` if it is none. `sub`: whether it may have a subpath."""
        if not isinstance(key, Mapping):
            raise Invalid(f"a session's key is a mapping, not {type(key).__name__}", code="invalid.argument")
        given = {name: value for name, value in key.items() if name != "subpath" or value is not None}
        allowed = _FIELDS if sub else _FIELDS[:2]
        unknown = [name for name in given if name not in allowed]
        missing = [name for name in _FIELDS[:2] if name not in given]
        if unknown or missing:
            what = f"has no {missing[0]!r}" if missing else f"has {unknown[0]!r:.60}, of which nothing is known here"
            raise Invalid(f"this session's key {what}; it has {', '.join(allowed)}", code="invalid.argument")
        for name, value in given.items():
            if not isinstance(value, str) or not value:
                what = "empty" if value == "" else f"{value!r:.60}"
                text = f"the {name} of a session's key is a text with something in it; this one is {what}"
                raise Invalid(text, code="invalid.argument", path=name)
        return cls(**given)

    @property
    def owner(self) -> str:
        """The agent whose conversations the sessions of the project are."""
        return owner_of(self.project_key)

    @property
    def id(self) -> str:
        """The id of the conversation. Subagents stand apart, so that sessions are listed without them."""
        if self.subpath is None:
            return f"{_part(self.project_key)}/{_part(self.session_id)}"
        return f"{self.below}{_part(self.subpath)}"

    @property
    def below(self) -> str:
        """How the ids of a session's subagents begin."""
        return f"{_part(self.project_key)}~/{_part(self.session_id)}/"

    @property
    def metadata(self) -> dict[str, str]:
        """The key, as the metadata of the conversation."""
        return {name: value for name, value in zip(_FIELDS, self, strict=True) if value is not None}


def owner_of(project_key: str) -> str:
    """Return the agent that a project is: its key as it is, unless that is too long for an id."""
    plain = len(project_key) <= MAX_ID and not project_key.startswith(_HASHED)
    return project_key if plain else _hashed(project_key)


def sessions_below(project_key: str) -> str:
    """Return how the ids of a project's sessions begin."""
    return f"{_part(project_key)}/"


def last_part(info: ConversationInfo, name: str) -> str | None:
    """Return the last part of a conversation's key, a session_id or a subpath; None if nobody knows it."""
    part = info.id.rpartition("/")[2]
    if not part.startswith(_HASHED):
        return part.replace("~1", "/").replace("~0", "~")
    kept = info.metadata.get(name)  # of another conversation, if this one was forked from it
    return kept if kept is not None and _part(kept) == part else None


def _part(text: str) -> str:
    """Return a part of a key as it stands in an id: escaped as in a JSON pointer, or hashed if it is long."""
    escaped = text.replace("~", "~0").replace("/", "~1")
    return escaped if len(escaped) <= _PART_MAX else _hashed(text)


def _hashed(text: str) -> str:
    return _HASHED + blake3(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- entries ----------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One line of a transcript."""

    raw: dict[str, Any]
    uuid: str | None
    """By which it is known; one that has none is never the same as another."""

    @classmethod
    def read(cls, entry: object, path: str) -> Self:
        """Return a copy of an entry that the SDK hands over; `Invalid` if JSON does not hold it as it is."""
        if type(entry) is not dict:
            raise Invalid(f"{path}: an entry is a dict, not {type(entry).__name__}", code="invalid.value", path=path)
        return cls.kept(json_value(entry, path))

    @classmethod
    def kept(cls, raw: dict[str, Any]) -> Self:
        """Return an entry of a store."""
        uuid = raw.get("uuid")
        return cls(raw, uuid if isinstance(uuid, str) and uuid else None)

    def message(self) -> dict[str, Any]:
        """Return it as a message of a conversation, as data: itself, and what it says."""
        inner = self.raw.get("message")
        content = inner.get("content") if isinstance(inner, dict) else self.raw.get("content")
        found = convert.facts({"content": content}, convert.ANTHROPIC)
        role = Role.TOOL if found.answers else _ROLES.get(str(self.raw.get("type")), Role.SYSTEM)
        uuid = self.uuid
        value = Message(
            role,
            found.content or self._said(),
            id=new_id() if uuid is None else uuid if len(uuid) <= MAX_ID else _hashed(uuid),
            timestamp=_time(self.raw.get("timestamp")),
            tokens=_tokens(inner),
            tool_calls=[ToolCall(call.name, call.arguments, id=call.id) for call in found.calls],
            parent_id=self.raw["parentUuid"] if convert.is_id(self.raw.get("parentUuid")) else None,
            metadata={"tool_call_id": found.answers} if found.answers else {},
            raw=self.raw,
            raw_format=FORMAT,
        )
        return to_data(value)

    def _said(self) -> str:
        return next((self.raw[name] for name in _SAID if isinstance(self.raw.get(name), str)), "")

    def title(self) -> tuple[int, str] | None:
        """Return the title that it gives its session, and how much that counts: the user's own counts most."""
        for rank, name in ((3, "customTitle"), (2, "aiTitle")):
            if isinstance(self.raw.get(name), str) and self.raw[name]:
                return rank, self.raw[name]
        inner = self.raw.get("message")
        if self.raw.get("type") != "user" or self.raw.get("isMeta") is True or not isinstance(inner, dict):
            return None
        content = inner.get("content")
        if convert.blocks_of(content, "tool_result"):
            return None
        said = " ".join(" ".join(convert.texts_of_blocks(content)).split())
        return (1, said) if said and not said.startswith("<") else None  # what begins so is the program's, not said

    def tags(self) -> list[str] | None:
        """Return the tags that it gives its session; None if it says nothing of them."""
        if self.raw.get("type") != "tag":
            return None
        tag = self.raw.get("tag")
        return [tag] if isinstance(tag, str) and tag else []


def _tokens(inner: Any) -> int | None:
    usage = inner.get("usage") if isinstance(inner, dict) else None
    found = usage.get("output_tokens") if isinstance(usage, dict) else None
    return found if type(found) is int and found >= 0 else None


def _time(text: Any) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        return dt.datetime.now(dt.UTC)
