"""Agents and conversations as values: what users make, change and hold.

All of them are frozen: what "changes" one returns a new value. What is not given is empty or None; ids are random,
times are in UTC. A value that exists has fields of the right types (`fields`), and shares no list or dict with what it
was made from, on its outside.

Each is also data, in two forms. `to_data` and `from_data` are what a store keeps: plain data, times among it, and the
same value whenever it is read. `to_json` and `from_json` are for the world outside: times are text, and what is left
out gets its default.

This module evaluates its annotations: they say which classes a state that holds a message may come back as.
"""

import base64
import datetime as dt
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, cast

from backtrail import fields
from backtrail.engine.versions import schema, upcasters_of
from backtrail.errors import Invalid
from backtrail.fields import Entity, new_id
from backtrail.values import Items, Saved

__all__ = [
    "AgentState",
    "Attachment",
    "AttachmentType",
    "CheckpointType",
    "Conversation",
    "Entity",
    "Items",
    "Message",
    "Role",
    "ToolCall",
    "ToolStatus",
    "to_data",
    "to_json",
]

TITLE_MAX: Final = 50
_SHOWN: Final = 60
"""Characters of a text that a value shows of itself."""
_NO_TIME: Final = cast("dt.datetime", None)
_NONE: Final[Items[Any]] = Items()
_put: Final = object.__setattr__


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class AttachmentType(StrEnum):
    """What is attached to a message."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    CODE = "code"


class ToolStatus(StrEnum):
    """How far a tool call has got."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class CheckpointType(StrEnum):
    """Why an agent's checkpoint was made."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    PRE_OPERATION = "pre_operation"
    RECOVERY = "recovery"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _short(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}... ({len(text):,} characters)"


@schema("backtrail.Attachment")
@dataclass(frozen=True, slots=True, repr=False)
class Attachment(Entity):
    """A file or the like that belongs to a message: its content (base64 if it is binary), or where it is."""

    attachment_type: AttachmentType | str
    name: str
    mime_type: str
    content: str | None = None
    url: str | None = None
    size: int | None = None
    """In bytes."""
    id: str = field(default_factory=new_id)

    _NEEDED: ClassVar = ("id", "attachment_type", "name", "mime_type")

    def __post_init__(self) -> None:
        _put(self, "attachment_type", fields.member(AttachmentType, self.attachment_type, "attachment_type"))
        _put(self, "name", fields.text(self.name, "name"))
        _put(self, "mime_type", fields.text(self.mime_type, "mime_type"))
        _put(self, "content", fields.optional(fields.text, self.content, "content"))
        _put(self, "url", fields.optional(fields.text, self.url, "url"))
        _put(self, "size", fields.optional(fields.size, self.size, "size"))
        _put(self, "id", fields.name(self.id, "id"))

    def __repr__(self) -> str:
        size = "" if self.size is None else f" {self.size:,} bytes"
        return f"<Attachment {self.attachment_type} {_short(self.name)} {self.mime_type}{size}>"

    def _data(self) -> dict[str, Any]:
        return _attachment_data(self)

    @classmethod
    def from_bytes(cls, attachment_type: AttachmentType | str, name: str, mime_type: str, data: bytes) -> Self:
        """Attach bytes."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise fields.refuse("data", "bytes", data)
        data = bytes(data)
        return cls(attachment_type, name, mime_type, base64.b64encode(data).decode(), size=len(data))

    def to_bytes(self) -> bytes:
        """Return the bytes that were attached."""
        if self.content is None:
            raise Invalid(
                f"{self.name!r} has no content; its url is {self.url!r}", code="invalid.value", path="content"
            )
        try:
            return base64.b64decode(self.content, validate=True)
        except ValueError as error:
            message = f"the content of {self.name!r} is not base64: read .content as it is"
            raise Invalid(message, code="invalid.value", path="content") from error


@schema("backtrail.ToolCall")
@dataclass(frozen=True, slots=True)
class ToolCall(Entity):
    """A tool that a message asks for, and what came of it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    id: str = field(default_factory=new_id)
    result: str | None = None
    status: ToolStatus | str = ToolStatus.PENDING

    _NEEDED: ClassVar = ("id", "name")

    def __post_init__(self) -> None:
        _put(self, "name", fields.text(self.name, "name"))
        _put(self, "arguments", fields.mapping(self.arguments, "arguments"))
        _put(self, "id", fields.name(self.id, "id"))
        _put(self, "result", fields.optional(fields.text, self.result, "result"))
        _put(self, "status", fields.member(ToolStatus, self.status, "status"))

    def _data(self) -> dict[str, Any]:
        return _tool_call_data(self)

    def completed(self, result: str) -> Self:
        """Return the call with its result."""
        return replace(self, result=result, status=ToolStatus.COMPLETED)

    def failed(self, result: str) -> Self:
        """Return the call with what went wrong."""
        return replace(self, result=result, status=ToolStatus.FAILED)


@schema("backtrail.Message")
@dataclass(frozen=True, slots=True, repr=False)
class Message(Entity):
    """One message of a conversation. `raw` is a framework's own payload, as it came, in the format of that name."""

    role: Role | str
    content: str
    _: KW_ONLY
    id: str = field(default_factory=new_id)
    timestamp: dt.datetime = field(default_factory=_now)
    tokens: int | None = None
    attachments: Sequence[Attachment] = _NONE
    tool_calls: Sequence[ToolCall] = _NONE
    parent_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    raw: Any = field(default=None, hash=False)
    raw_format: str | None = None

    _NEEDED: ClassVar = ("id", "role", "content")
    _TIMES: ClassVar = ("timestamp",)
    _PARTS: ClassVar = (("attachments", Attachment), ("tool_calls", ToolCall))

    def __post_init__(self) -> None:  # on the way of every append and every load: what is as it should be costs little
        if type(self.role) is not Role:
            _put(self, "role", fields.member(Role, self.role, "role"))
        if type(self.content) is not str:
            _put(self, "content", fields.text(self.content, "content"))
        if type(self.id) is not str or not 0 < len(self.id) <= fields.MAX_ID:
            _put(self, "id", fields.name(self.id, "id"))
        if type(self.timestamp) is not dt.datetime or self.timestamp.tzinfo is not dt.UTC:
            _put(self, "timestamp", fields.time(self.timestamp, "timestamp"))
        if self.tokens is not None:
            _put(self, "tokens", fields.size(self.tokens, "tokens"))
        if self.attachments is not _NONE:
            _put(self, "attachments", fields.instances(self.attachments, "attachments", Attachment))
        if self.tool_calls is not _NONE:
            _put(self, "tool_calls", fields.instances(self.tool_calls, "tool_calls", ToolCall))
        if self.parent_id is not None:
            _put(self, "parent_id", fields.name(self.parent_id, "parent_id"))
        _put(self, "metadata", fields.mapping(self.metadata, "metadata"))
        if self.raw is not None or self.raw_format is not None:
            self._check_raw()

    def _check_raw(self) -> None:
        if self.raw is None or self.raw_format is None:
            raise Invalid(
                "raw and raw_format go together: a payload, and the name of its format",
                code="invalid.argument",
                path="raw" if self.raw is None else "raw_format",
            )
        _put(self, "raw_format", fields.text(self.raw_format, "raw_format"))

    def __repr__(self) -> str:
        parts = [f"{len(self.tool_calls)} tool calls"] if self.tool_calls else []
        parts += [f"{len(self.attachments)} attachments"] if self.attachments else []
        return f"<Message {', '.join([f'{self.role} {_short(self.content)}', *parts])} {self.id}>"

    def _data(self) -> dict[str, Any]:
        return _message_data(self)

    @classmethod
    def user(cls, content: str, **others: Any) -> Self:
        """Make a message of the user. `others` are fields."""
        return cls(Role.USER, content, **others)

    @classmethod
    def assistant(cls, content: str, **others: Any) -> Self:
        """Make a message of the model."""
        return cls(Role.ASSISTANT, content, **others)

    @classmethod
    def system(cls, content: str, **others: Any) -> Self:
        """Make a message that tells the model what it is."""
        return cls(Role.SYSTEM, content, **others)

    @classmethod
    def tool_result(cls, tool_call_id: str, content: str, **others: Any) -> Self:
        """Make a message that says what came of a tool call, whose id is kept as `metadata["tool_call_id"]`."""
        metadata = fields.mapping(others.pop("metadata", {}), "metadata")
        metadata["tool_call_id"] = fields.name(tool_call_id, "tool_call_id")
        return cls(Role.TOOL, content, metadata=metadata, **others)


@schema("backtrail.Conversation")
@dataclass(frozen=True, slots=True, repr=False)
class Conversation(Entity):
    """Messages in their order, and what is known of them as a whole."""

    agent_id: str
    _: KW_ONLY
    id: str = field(default_factory=new_id)
    title: str | None = None
    messages: Sequence[Message] = _NONE
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    created_at: dt.datetime = field(default_factory=_now)
    last_message_at: dt.datetime = _NO_TIME
    """When its last message was made. What is given counts as long as it has none; else that is when it was made."""
    archived: bool = False
    tags: Sequence[str] = _NONE
    forked_from: str | None = None
    """The id of the conversation that it branched from."""
    forked_at: str | None = None
    """The id of the last message that both have."""
    _saved: Saved = field(default_factory=Saved, compare=False, repr=False, kw_only=True)

    _NEEDED: ClassVar = ("id", "agent_id")
    _TIMES: ClassVar = ("created_at", "last_message_at")
    _PARTS: ClassVar = (("messages", Message),)

    def __post_init__(self) -> None:
        _put(self, "agent_id", fields.name(self.agent_id, "agent_id"))
        _put(self, "id", fields.name(self.id, "id"))
        _put(self, "title", fields.optional(fields.text, self.title, "title"))
        _put(self, "messages", fields.instances(self.messages, "messages", Message))
        _put(self, "metadata", fields.mapping(self.metadata, "metadata", texts=True))
        _put(self, "created_at", fields.time(self.created_at, "created_at"))
        given = self.created_at if self.last_message_at is _NO_TIME else self.last_message_at
        last = self.messages[-1].timestamp if self.messages else fields.time(given, "last_message_at")
        _put(self, "last_message_at", last)
        if type(self.archived) is not bool:
            raise fields.refuse("archived", "True or False", self.archived)
        _put(self, "tags", fields.items(self.tags, "tags", fields.text))
        _put(self, "forked_from", fields.optional(fields.name, self.forked_from, "forked_from"))
        _put(self, "forked_at", fields.optional(fields.name, self.forked_at, "forked_at"))
        _put(self, "_saved", Saved.of(self._saved))

    def __repr__(self) -> str:
        title = "" if self.title is None else f" {_short(self.title)}"
        return f"<Conversation {_short(self.id)} of {_short(self.agent_id)}{title}, {len(self.messages)} messages>"

    def _data(self) -> dict[str, Any]:
        return _conversation_data(self)

    @property
    def message_count(self) -> int:
        """How many messages there are."""
        return len(self.messages)

    def add_message(self, message: Message) -> Self:
        """Return the conversation with one message more."""
        (checked,) = fields.instances([message], "messages", Message)
        return replace(self, messages=Items((*self.messages, checked)))

    def auto_title(self) -> Self:
        """Return the conversation with a title made of what the user said first, if it has none."""
        if self.title is not None:
            return self
        said = (message.content for message in self.messages if message.role is Role.USER)
        first = next((text for text in said if text.strip()), None)
        if first is None:
            return self
        return replace(self, title=first if len(first) <= TITLE_MAX else first[: TITLE_MAX - 3] + "...")


def newest_version() -> int:
    """Return the version of a new `AgentState`: 1, or what its upcasters lead to."""
    return 1 + max(upcasters_of(AgentState), default=0)


@schema("backtrail.AgentState")
@dataclass(frozen=True, slots=True)
class AgentState(Entity):
    """An agent: what it is, what it can do, and what it has to remember.

    `version` is for migrations: an older one is brought up to date by `@backtrail.upcast(AgentState, from_version=1)`.
    """

    agent_id: str
    name: str
    agent_type: str
    system_prompt: str | None = None
    capabilities: Sequence[str] = _NONE
    config: dict[str, Any] = field(default_factory=dict, hash=False)
    custom_state: dict[str, Any] = field(default_factory=dict, hash=False)
    active_conversations: Sequence[str] = _NONE
    created_at: dt.datetime = field(default_factory=_now)
    modified_at: dt.datetime = _NO_TIME
    version: int = field(default_factory=newest_version)
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    _saved: Saved = field(default_factory=Saved, compare=False, repr=False, kw_only=True)

    _NEEDED: ClassVar = ("agent_id", "name", "agent_type")
    _TIMES: ClassVar = ("created_at", "modified_at")

    def __post_init__(self) -> None:
        _put(self, "agent_id", fields.name(self.agent_id, "agent_id"))
        _put(self, "name", fields.text(self.name, "name"))
        _put(self, "agent_type", fields.text(self.agent_type, "agent_type"))
        _put(self, "system_prompt", fields.optional(fields.text, self.system_prompt, "system_prompt"))
        _put(self, "capabilities", fields.items(self.capabilities, "capabilities", fields.text))
        _put(self, "config", fields.mapping(self.config, "config"))
        _put(self, "custom_state", fields.mapping(self.custom_state, "custom_state"))
        conversations = fields.items(self.active_conversations, "active_conversations", fields.name)
        _put(self, "active_conversations", conversations)
        _put(self, "created_at", fields.time(self.created_at, "created_at"))
        modified = self.created_at if self.modified_at is _NO_TIME else self.modified_at
        _put(self, "modified_at", fields.time(modified, "modified_at"))
        _put(self, "version", fields.number(self.version, "version", 1))
        _put(self, "metadata", fields.mapping(self.metadata, "metadata", texts=True))
        _put(self, "_saved", Saved.of(self._saved))

    def _data(self) -> dict[str, Any]:
        return _agent_data(self)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return what is in the custom state under a key; what is not there reads as the default."""
        return self.custom_state.get(key, default)

    def set_state(self, key: str, value: Any) -> Self:
        """Return the agent with one more key, or another value, in its custom state."""
        return replace(self, custom_state={**self.custom_state, key: value}, modified_at=_now())

    def remove_state(self, key: str) -> Self:
        """Return the agent without a key in its custom state; the same value if it is not there."""
        if key not in self.custom_state:
            return self
        kept = {name: value for name, value in self.custom_state.items() if name != key}
        return replace(self, custom_state=kept, modified_at=_now())

    def touch(self) -> Self:
        """Return the agent, modified now."""
        return replace(self, modified_at=_now())


# ---- as data --------------------------------------------------------------------------------------------------------


def to_data(value: Entity) -> dict[str, Any]:
    """Return a value as plain data, to be stored. Dicts in it are the value's own: do not change them."""
    if not isinstance(value, Entity):
        raise Invalid(f"there is no data of a {type(value).__name__}: make a value of it", code="invalid.argument")
    return value._data()  # noqa: SLF001 - its other half


def to_json(value: Entity) -> dict[str, Any]:
    """Return a value as JSON has it, as its method does."""
    if not isinstance(value, Entity):
        raise Invalid(f"there is no JSON of a {type(value).__name__}: make a value of it", code="invalid.argument")
    return value.to_json()


def _attachment_data(value: Attachment) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": value.id,
        "attachment_type": str(value.attachment_type),
        "name": value.name,
        "mime_type": value.mime_type,
    }
    for name in ("content", "url", "size"):
        if (held := getattr(value, name)) is not None:
            data[name] = held
    return data


def _tool_call_data(value: ToolCall) -> dict[str, Any]:
    data: dict[str, Any] = {"id": value.id, "name": value.name, "status": str(value.status)}
    if value.arguments:
        data["arguments"] = value.arguments
    if value.result is not None:
        data["result"] = value.result
    return data


def _message_data(value: Message) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": value.id,
        "role": str(value.role),
        "content": value.content,
        "timestamp": value.timestamp,
    }
    if value.tokens is not None:
        data["tokens"] = value.tokens
    if value.attachments:
        data["attachments"] = [_attachment_data(part) for part in value.attachments]
    if value.tool_calls:
        data["tool_calls"] = [_tool_call_data(part) for part in value.tool_calls]
    if value.parent_id is not None:
        data["parent_id"] = value.parent_id
    if value.metadata:
        data["metadata"] = value.metadata
    if value.raw_format is not None:
        data["raw"] = value.raw
        data["raw_format"] = value.raw_format
    return data


def _conversation_data(value: Conversation) -> dict[str, Any]:
    return {
        "id": value.id,
        "agent_id": value.agent_id,
        "title": value.title,
        "metadata": value.metadata,
        "created_at": value.created_at,
        "last_message_at": value.last_message_at,
        "archived": value.archived,
        "tags": list(value.tags),
        "forked_from": value.forked_from,
        "forked_at": value.forked_at,
        "messages": [_message_data(message) for message in value.messages],
    }


def _agent_data(value: AgentState) -> dict[str, Any]:
    return {
        "agent_id": value.agent_id,
        "name": value.name,
        "agent_type": value.agent_type,
        "system_prompt": value.system_prompt,
        "capabilities": list(value.capabilities),
        "config": value.config,
        "custom_state": value.custom_state,
        "active_conversations": list(value.active_conversations),
        "created_at": value.created_at,
        "modified_at": value.modified_at,
        "version": value.version,
        "metadata": value.metadata,
    }
