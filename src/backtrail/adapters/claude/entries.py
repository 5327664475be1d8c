"""Transcripts of the Claude Agent SDK: the conversation of a key, and the message of an entry.

Two different keys never name the same conversation. A message keeps its entry unchanged. Its other fields are derived
for search and listings; the conversion skips unexpected values and never fails.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from blake3 import blake3

from backtrail.conversations import convert
from backtrail.conversations.models import Message, Role, ToolCall
from backtrail.errors import Invalid
from backtrail.validation import MAX_ID, json_value, new_id, to_data

if TYPE_CHECKING:
    from backtrail.models import ConversationInfo

FORMAT: Final = "claude"
"""The `raw_format` of messages that hold an entry."""
_PART_MAX: Final = 160
"""The most characters of a part of an id; a longer part is hashed. Three parts and separators fit into an id."""
_HASHED: Final = "~h"
_FIELDS: Final = ("project_key", "session_id", "subpath")
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT}
_TEXTS: Final = ("customTitle", "aiTitle", "summary")
"""The texts of entries that are not messages."""


# -- keys -------------------------------------------------------------------------------------------


class TranscriptKey(NamedTuple):
    """The key of a session's transcript, or, with a subpath, of the transcript of one of its subagents."""

    project_key: str
    session_id: str
    subpath: str | None = None

    @classmethod
    def read(cls, key: object, *, sub: bool = True) -> Self:
        """Return a key that the SDK passed, or raise `Invalid`. `sub`: whether it may have a subpath."""
        if not isinstance(key, Mapping):
            raise Invalid(f"a session's key must be a mapping, not {type(key).__name__}", code="invalid.argument")
        given = {name: value for name, value in key.items() if name != "subpath" or value is not None}
        allowed = _FIELDS if sub else _FIELDS[:2]
        unknown = [name for name in given if name not in allowed]
        missing = [name for name in _FIELDS[:2] if name not in given]
        if unknown or missing:
            what = f"lacks {missing[0]!r}" if missing else f"has an unknown field {unknown[0]!r:.60}"
            raise Invalid(f"the session's key {what}; its fields are {', '.join(allowed)}", code="invalid.argument")
        for name, value in given.items():
            if not isinstance(value, str) or not value:
                what = "empty" if value == "" else f"{value!r:.60}"
                text = f"the {name} of a session's key is a text that is not empty; this one is {what}"
                raise Invalid(text, code="invalid.argument", path=name)
        return cls(**given)

    @property
    def owner(self) -> str:
        """The agent that owns the project's conversations."""
        return owner_of(self.project_key)

    @property
    def id(self) -> str:
        """The id of the conversation. Subagents have another prefix, so that a list of sessions excludes them."""
        if self.subpath is None:
            return f"{_part(self.project_key)}/{_part(self.session_id)}"
        return f"{self.subagent_prefix}{_part(self.subpath)}"

    @property
    def subagent_prefix(self) -> str:
        """The prefix of the ids of the session's subagents."""
        return f"{_part(self.project_key)}~/{_part(self.session_id)}/"

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the conversation: the fields of the key."""
        return {name: value for name, value in zip(_FIELDS, self, strict=True) if value is not None}


def owner_of(project_key: str) -> str:
    """Return the agent of a project: the project's key, or a hash of a key that is too long for an id."""
    plain = len(project_key) <= MAX_ID and not project_key.startswith(_HASHED)
    return project_key if plain else _hashed(project_key)


def session_prefix(project_key: str) -> str:
    """Return the prefix of the ids of a project's sessions."""
    return f"{_part(project_key)}/"


def last_part(info: ConversationInfo, name: str) -> str | None:
    """Return the last part of a conversation's key: the session_id or the subpath.

    Return None if only a hash of it is stored.
    """
    part = info.id.rpartition("/")[2]
    if not part.startswith(_HASHED):
        return part.replace("~1", "/").replace("~0", "~")
    text = info.metadata.get(name)  # a fork has the metadata of another conversation
    return text if text is not None and _part(text) == part else None


def _part(text: str) -> str:
    """Return a part of an id: the text escaped as in a JSON pointer, or its hash if it is long."""
    escaped = text.replace("~", "~0").replace("/", "~1")
    return escaped if len(escaped) <= _PART_MAX else _hashed(text)


def _hashed(text: str) -> str:
    return _HASHED + blake3(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- entries ----------------------------------------------------------------------------------------


class TranscriptEntry(NamedTuple):
    """One line of a transcript."""

    raw: dict[str, Any]
    uuid: str | None
    """The uuid of the entry. An entry without a uuid is never a duplicate."""

    @classmethod
    def read(cls, entry: object, path: str) -> Self:
        """Return a copy of an entry that the SDK passed; `Invalid` if JSON cannot hold it exactly."""
        if type(entry) is not dict:
            raise Invalid(
                f"{path}: an entry must be a dict, not {type(entry).__name__}", code="invalid.value", path=path
            )
        return cls.stored(json_value(entry, path))

    @classmethod
    def stored(cls, raw: dict[str, Any]) -> Self:
        """Return the entry of a stored line, without a copy or a check."""
        uuid = raw.get("uuid")
        return cls(raw, uuid if isinstance(uuid, str) and uuid else None)

    def message(self) -> dict[str, Any]:
        """Return the entry as the plain data of a message."""
        inner = self.raw.get("message")
        content = inner.get("content") if isinstance(inner, dict) else self.raw.get("content")
        facts = convert.facts({"content": content}, convert.ANTHROPIC)
        role = Role.TOOL if facts.answers else _ROLES.get(str(self.raw.get("type")), Role.SYSTEM)
        uuid = self.uuid
        value = Message(
            role,
            facts.content or self._text(),
            id=new_id() if uuid is None else uuid if len(uuid) <= MAX_ID else _hashed(uuid),
            timestamp=_time(self.raw.get("timestamp")),
            tokens=_tokens(inner),
            tool_calls=[ToolCall(call.name, call.arguments, id=call.id) for call in facts.calls],
            parent_id=self.raw["parentUuid"] if convert.is_id(self.raw.get("parentUuid")) else None,
            metadata={"tool_call_id": facts.answers} if facts.answers else {},
            raw=self.raw,
            raw_format=FORMAT,
        )
        return to_data(value)

    def timestamp(self) -> dt.datetime | None:
        """Return the time of the entry; None if it has none."""
        return _parsed_time(self.raw.get("timestamp"))

    def _text(self) -> str:
        return next((self.raw[name] for name in _TEXTS if isinstance(self.raw.get(name), str)), "")

    def title(self) -> tuple[int, str] | None:
        """Return the title that the entry gives its session, with its rank: the user's own title ranks highest."""
        for rank, name in ((3, "customTitle"), (2, "aiTitle")):
            if isinstance(self.raw.get(name), str) and self.raw[name]:
                return rank, self.raw[name]
        inner = self.raw.get("message")
        if self.raw.get("type") != "user" or self.raw.get("isMeta") is True or not isinstance(inner, dict):
            return None
        content = inner.get("content")
        if convert.blocks_of(content, "tool_result"):
            return None
        text = " ".join(" ".join(convert.texts_of_blocks(content)).split())
        return (1, text) if text and not text.startswith("<") else None  # Claude Code's own texts begin with "<"

    def tags(self) -> list[str] | None:
        """Return the tags that the entry gives its session; None if it sets none."""
        if self.raw.get("type") != "tag":
            return None
        tag = self.raw.get("tag")
        return [tag] if isinstance(tag, str) and tag else []


def _tokens(inner: Any) -> int | None:
    usage = inner.get("usage") if isinstance(inner, dict) else None
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _time(text: Any) -> dt.datetime:
    return _parsed_time(text) or dt.datetime.now(dt.UTC)


def _parsed_time(text: Any) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (TypeError, ValueError, OverflowError):
        return None
