"""Messages and conversations as frozen values. A change returns a new value; ids are random, times are in UTC.

Each value converts to data in two forms. `to_data` and `from_data` are for the store: plain data with datetimes.
`to_json` and `from_json` are for other programs: times are text, and a missing field gets its default.

This module evaluates its annotations: they name the classes that a loaded state may hold.
"""

import base64
import datetime as dt
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from backtrail import validation
from backtrail.conversations import convert
from backtrail.engine.schema.upcast import schema
from backtrail.errors import Invalid
from backtrail.models import Items, Saved
from backtrail.validation import Entity, new_id, now, shortened

_NONE: Final[Items[Any]] = Items()
_put: Final = object.__setattr__
M = TypeVar("M", bound="Message")


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class AttachmentType(StrEnum):
    """The type of an attachment."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"
    CODE = "code"


class ToolStatus(StrEnum):
    """The progress of a tool call."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@schema("backtrail.Attachment")
@dataclass(frozen=True, slots=True, repr=False)
class Attachment(Entity):
    """An attachment of a message, such as a file: its content (base64 if binary), or its URL."""

    attachment_type: AttachmentType | str
    name: str
    mime_type: str
    content: str | None = None
    url: str | None = None
    size: int | None = None
    """The size in bytes."""
    id: str = field(default_factory=new_id)

    _NEEDED: ClassVar = ("id", "attachment_type", "name", "mime_type")

    def __post_init__(self) -> None:
        _put(self, "attachment_type", validation.member(AttachmentType, self.attachment_type, "attachment_type"))
        _put(self, "name", validation.text(self.name, "name"))
        _put(self, "mime_type", validation.text(self.mime_type, "mime_type"))
        _put(self, "content", validation.optional(validation.text, self.content, "content"))
        _put(self, "url", validation.optional(validation.text, self.url, "url"))
        _put(self, "size", validation.optional(validation.size, self.size, "size"))
        _put(self, "id", validation.name(self.id, "id"))

    def __repr__(self) -> str:
        size = "" if self.size is None else f" {self.size:,} bytes"
        return f"<Attachment {self.attachment_type} {shortened(self.name)} {self.mime_type}{size}>"

    def _data(self) -> dict[str, Any]:
        return _attachment_data(self)

    @classmethod
    def from_bytes(cls, attachment_type: AttachmentType | str, name: str, mime_type: str, data: bytes) -> Self:
        """Return an attachment with these bytes as its content."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise validation.refuse("data", "bytes", data)
        data = bytes(data)
        return cls(attachment_type, name, mime_type, base64.b64encode(data).decode(), size=len(data))

    def to_bytes(self) -> bytes:
        """Return the content as bytes; `Invalid` if there is no content, or if it is not base64."""
        if self.content is None:
            raise Invalid(
                f"{self.name!r} has no content; its url is {self.url!r}", code="invalid.value", path="content"
            )
        try:
            return base64.b64decode(self.content, validate=True)
        except ValueError as error:
            message = f"the content of {self.name!r} is not base64: use .content instead"
            raise Invalid(message, code="invalid.value", path="content") from error


@schema("backtrail.ToolCall")
@dataclass(frozen=True, slots=True)
class ToolCall(Entity):
    """A tool call of a message, with its result if there is one."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    id: str = field(default_factory=new_id)
    result: str | None = None
    status: ToolStatus | str = ToolStatus.PENDING

    _NEEDED: ClassVar = ("id", "name")

    def __post_init__(self) -> None:
        _put(self, "name", validation.text(self.name, "name"))
        _put(self, "arguments", validation.mapping(self.arguments, "arguments"))
        _put(self, "id", validation.name(self.id, "id"))
        _put(self, "result", validation.optional(validation.text, self.result, "result"))
        _put(self, "status", validation.member(ToolStatus, self.status, "status"))

    def _data(self) -> dict[str, Any]:
        return _tool_call_data(self)

    def completed(self, result: str) -> Self:
        """Return the call as completed, with its result."""
        return replace(self, result=result, status=ToolStatus.COMPLETED)

    def failed(self, result: str) -> Self:
        """Return the call as failed, with the error as its result."""
        return replace(self, result=result, status=ToolStatus.FAILED)


@schema("backtrail.Message")
@dataclass(frozen=True, slots=True, repr=False)
class Message(Entity):
    """One message of a conversation.

    `raw` is the unchanged payload of a provider or framework, `raw_format` the name of its format. A message has both
    or neither.
    """

    role: Role | str
    content: str
    _: KW_ONLY
    id: str = field(default_factory=new_id)
    timestamp: dt.datetime = field(default_factory=now)
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

    def __post_init__(self) -> None:  # every append and load calls this, so checking valid fields must be cheap
        if type(self.role) is not Role:
            _put(self, "role", validation.member(Role, self.role, "role"))
        if type(self.content) is not str:
            _put(self, "content", validation.text(self.content, "content"))
        if type(self.id) is not str or not 0 < len(self.id) <= validation.MAX_ID:
            _put(self, "id", validation.name(self.id, "id"))
        if type(self.timestamp) is not dt.datetime or self.timestamp.tzinfo is not dt.UTC:
            _put(self, "timestamp", validation.time(self.timestamp, "timestamp"))
        if self.tokens is not None:
            _put(self, "tokens", validation.size(self.tokens, "tokens"))
        if self.attachments is not _NONE:
            _put(self, "attachments", validation.instances(self.attachments, "attachments", Attachment))
        if self.tool_calls is not _NONE:
            _put(self, "tool_calls", validation.instances(self.tool_calls, "tool_calls", ToolCall))
        if self.parent_id is not None:
            _put(self, "parent_id", validation.name(self.parent_id, "parent_id"))
        _put(self, "metadata", validation.mapping(self.metadata, "metadata"))
        if self.raw is not None or self.raw_format is not None:
            self._check_raw()

    def _check_raw(self) -> None:
        if self.raw is None or self.raw_format is None:
            raise Invalid(
                "raw and raw_format must be given together: a payload, and the name of its format",
                code="invalid.argument",
                path="raw" if self.raw is None else "raw_format",
            )
        _put(self, "raw_format", validation.text(self.raw_format, "raw_format"))

    def __repr__(self) -> str:
        parts = [f"{len(self.tool_calls)} tool calls"] if self.tool_calls else []
        parts += [f"{len(self.attachments)} attachments"] if self.attachments else []
        return f"<Message {', '.join([f'{self.role} {shortened(self.content)}', *parts])} {self.id}>"

    def _data(self) -> dict[str, Any]:
        return message_data(self)

    @classmethod
    def user(cls, content: str, **others: Any) -> Self:
        """Return a message of the user. `others` are further fields."""
        return cls(Role.USER, content, **others)

    @classmethod
    def assistant(cls, content: str, **others: Any) -> Self:
        """Return a message of the model. `others` are further fields."""
        return cls(Role.ASSISTANT, content, **others)

    @classmethod
    def system(cls, content: str, **others: Any) -> Self:
        """Return a system message: instructions for the model. `others` are further fields."""
        return cls(Role.SYSTEM, content, **others)

    @classmethod
    def tool_result(cls, tool_call_id: str, content: str, **others: Any) -> Self:
        """Return a message with the result of a tool call. `metadata["tool_call_id"]` holds the id of the call."""
        metadata = validation.mapping(others.pop("metadata", {}), "metadata")
        metadata["tool_call_id"] = validation.name(tool_call_id, "tool_call_id")
        return cls(Role.TOOL, content, metadata=metadata, **others)

    # -- providers' messages ----------------------------------------------------------------------------

    @classmethod
    def from_openai(cls, message: Any, **others: Any) -> Self:
        """Convert a message of OpenAI: a dict, or its client's object, of Chat Completions or Responses.

        `raw` keeps it unchanged. Role, content, tool calls, `metadata["tool_call_id"]` and `metadata["name"]` are
        derived from it. `others` are further fields.
        """
        return cls._of(message, "openai", others)

    @classmethod
    def from_anthropic(cls, message: Any, **others: Any) -> Self:
        """Convert a message of Anthropic, a dict or its client's object, as `from_openai` does."""
        return cls._of(message, "anthropic", others)

    def to_openai(self) -> dict[str, Any]:
        """Return the message for OpenAI: its `raw` if it came from OpenAI, otherwise converted to Chat Completions.

        `Invalid` if a part of the message has no counterpart there.
        """
        if self.raw_format in (convert.CHAT, convert.RESPONSES) or self._is_common():
            return self._unchanged_raw()
        return convert.to_chat(self._read())

    def to_anthropic(self) -> dict[str, Any]:
        """Return the message for Anthropic: its `raw` if it came from Anthropic, otherwise converted.

        `Invalid` if a part of the message has no counterpart there.
        """
        if self.raw_format == convert.ANTHROPIC or self._is_common():
            return self._unchanged_raw()
        return convert.to_anthropic(self._read())

    @classmethod
    def _of(cls, message: Any, provider: str, others: dict[str, Any]) -> Self:
        raw = convert.plain(message, "message")
        if type(raw) is not dict:
            raise validation.refuse("message", "a dict, or a message of the provider's client", message)
        return from_raw(cls, raw, convert.check(raw, provider), others)

    def _is_common(self) -> bool:
        return self.raw_format in (convert.CHAT, convert.ANTHROPIC) and convert.is_common(self.raw)

    def _unchanged_raw(self) -> dict[str, Any]:
        facts = convert.facts(self.raw, self.raw_format or "")
        calls = tuple(convert.MessageCall(call.id, call.name, call.arguments) for call in self.tool_calls)
        names = {"tool_call_id": facts.answers, "name": facts.name}
        same_metadata = all(value is None or self.metadata.get(name) == value for name, value in names.items())
        if not same_metadata or (self.role, self.content, calls) != (facts.role, facts.content, facts.calls):
            raise Invalid(
                f"this message was changed and differs from its raw {self.raw_format} message: "
                "use replace(message, raw=None, raw_format=None) to drop the raw message",
                code="invalid.value",
                path="raw",
            )
        raw: dict[str, Any] = convert.plain(self.raw, "raw")
        return raw

    def _read(self) -> convert.NeutralMessage:
        """Return the message in neutral form, for conversion to another format."""
        if self.raw_format in (convert.CHAT, convert.RESPONSES, convert.ANTHROPIC):
            return convert.read(self._unchanged_raw(), self.raw_format)
        done = next((call for call in self.tool_calls if call.result is not None), None)
        if done is not None:
            raise Invalid(
                "providers need the result of a call in a separate message: remove it from the call, and add "
                f"Message.tool_result({done.id!r}, ...) after this message",
                code="invalid.value",
                path="tool_calls",
            )
        answers, name = self.metadata.get("tool_call_id"), self.metadata.get("name")
        pictures = tuple(_picture(each, f"attachments[{at}]") for at, each in enumerate(self.attachments))
        return convert.NeutralMessage(
            str(self.role),
            (*([self.content] if self.content or not pictures else []), *pictures),
            bool(pictures),
            tuple(convert.MessageCall(call.id, call.name, call.arguments) for call in self.tool_calls),
            answers if isinstance(answers, str) and self.role is Role.TOOL else None,
            name=name if isinstance(name, str) and self.role is not Role.TOOL else None,
        )


def from_raw(cls: type[M], raw: dict[str, Any], raw_format: str, others: dict[str, Any]) -> M:
    """Convert a payload in a format that `convert` knows to a message, which keeps the payload itself as `raw`."""
    facts = convert.facts(raw, raw_format)
    metadata = validation.mapping(others.get("metadata", {}), "metadata")
    metadata_fields = {"tool_call_id": facts.answers, "name": facts.name}
    metadata |= {name: value for name, value in metadata_fields.items() if value is not None}
    calls = [ToolCall(call.name, call.arguments, id=call.id) for call in facts.calls]
    own: dict[str, Any] = {"raw": raw, "raw_format": raw_format, "tool_calls": calls}
    return cls(facts.role, facts.content, **{**own, **others, "metadata": metadata})


def _picture(attachment: Attachment, path: str) -> convert.Image:
    """Return an attached image in neutral form; `Invalid` for an attachment of another type."""
    if attachment.attachment_type is not AttachmentType.IMAGE:
        raise Invalid(
            f"{path} is of type {attachment.attachment_type}; only attached images can be converted",
            code="invalid.value",
            path=path,
        )
    if attachment.content is None:
        if attachment.url is None:
            raise Invalid(f"{path} has neither content nor url", code="invalid.value", path=path)
        return convert.Image(attachment.url)
    return convert.Image(None, attachment.mime_type, attachment.content)


# ---- conversion to data ---------------------------------------------------------------------------------------------


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


def message_data(value: Message) -> dict[str, Any]:
    """Return a message as plain data for the store, without empty fields."""
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


TITLE_MAX: Final = 50
_NO_TIME: Final = cast("dt.datetime", None)


@schema("backtrail.Conversation")
@dataclass(frozen=True, slots=True, repr=False)
class Conversation(Entity):
    """A conversation of an agent: messages in order, with title, tags and metadata."""

    agent_id: str
    _: KW_ONLY
    id: str = field(default_factory=new_id)
    title: str | None = None
    messages: Sequence[Message] = _NONE
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    created_at: dt.datetime = field(default_factory=now)
    last_message_at: dt.datetime = _NO_TIME
    """The time of the last message. Without messages, the given time, or `created_at`."""
    archived: bool = False
    tags: Sequence[str] = _NONE
    forked_from: str | None = None
    """The id of the conversation that this one was forked from."""
    forked_at: str | None = None
    """The id of the last message that both conversations share."""
    _saved: Saved = field(default_factory=Saved, compare=False, repr=False, kw_only=True)

    _NEEDED: ClassVar = ("id", "agent_id")
    _TIMES: ClassVar = ("created_at", "last_message_at")
    _PARTS: ClassVar = (("messages", Message),)

    def __post_init__(self) -> None:
        _put(self, "agent_id", validation.name(self.agent_id, "agent_id"))
        _put(self, "id", validation.name(self.id, "id"))
        _put(self, "title", validation.optional(validation.text, self.title, "title"))
        _put(self, "messages", validation.instances(self.messages, "messages", Message))
        _put(self, "metadata", validation.mapping(self.metadata, "metadata", texts=True))
        _put(self, "created_at", validation.time(self.created_at, "created_at"))
        last_time = self.created_at if self.last_message_at is _NO_TIME else self.last_message_at
        last = self.messages[-1].timestamp if self.messages else validation.time(last_time, "last_message_at")
        _put(self, "last_message_at", last)
        if type(self.archived) is not bool:
            raise validation.refuse("archived", "True or False", self.archived)
        _put(self, "tags", validation.items(self.tags, "tags", validation.text))
        _put(self, "forked_from", validation.optional(validation.name, self.forked_from, "forked_from"))
        _put(self, "forked_at", validation.optional(validation.name, self.forked_at, "forked_at"))
        _put(self, "_saved", Saved.of(self._saved))

    def __repr__(self) -> str:
        title = "" if self.title is None else f" {shortened(self.title)}"
        return (
            f"<Conversation {shortened(self.id)} of {shortened(self.agent_id)}{title}, {len(self.messages)} messages>"
        )

    def _data(self) -> dict[str, Any]:
        return _conversation_data(self)

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def add_message(self, message: Message) -> Self:
        """Return the conversation with a message added at the end."""
        (checked,) = validation.instances([message], "messages", Message)
        return replace(self, messages=Items((*self.messages, checked)))

    def auto_title(self) -> Self:
        """Return the conversation with a title: its own, or else the user's first message, shortened."""
        if self.title is not None:
            return self
        texts = (message.content for message in self.messages if message.role is Role.USER)
        first = next((text for text in texts if text.strip()), None)
        if first is None:
            return self
        return replace(self, title=first if len(first) <= TITLE_MAX else first[: TITLE_MAX - 3] + "...")


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
        "messages": [message_data(message) for message in value.messages],
    }
