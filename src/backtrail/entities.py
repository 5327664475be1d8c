"""Agents and conversations as values: what users make, change and hold. `messages` is what is said in them.

All of them are frozen: what "changes" one returns a new value. What is not given is empty or None; ids are random,
times are in UTC. A value that exists has fields of the right types (`fields`), and shares no list or dict with what it
was made from, on its outside.

Each is also data, in two forms. `to_data` and `from_data` are what a store keeps: plain data, times among it, and the
same value whenever it is read. `to_json` and `from_json` are for the world outside: times are text, and what is left
out gets its default.

This module evaluates its annotations: they say which classes a state that holds a message may come back as.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, cast

from backtrail import validation
from backtrail.conversations.messages import (
    Attachment,
    AttachmentType,
    Message,
    Role,
    ToolCall,
    ToolStatus,
    message_data,
)
from backtrail.engine.schema.versions import schema, upcasters_of
from backtrail.errors import Invalid
from backtrail.models import Items, Saved
from backtrail.validation import Entity, new_id, now, shortened

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
_NO_TIME: Final = cast("dt.datetime", None)
_NONE: Final[Items[Any]] = Items()
_put: Final = object.__setattr__


class CheckpointType(StrEnum):
    """Why an agent's checkpoint was made."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    PRE_OPERATION = "pre_operation"
    RECOVERY = "recovery"


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
    created_at: dt.datetime = field(default_factory=now)
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
        _put(self, "agent_id", validation.name(self.agent_id, "agent_id"))
        _put(self, "id", validation.name(self.id, "id"))
        _put(self, "title", validation.optional(validation.text, self.title, "title"))
        _put(self, "messages", validation.instances(self.messages, "messages", Message))
        _put(self, "metadata", validation.mapping(self.metadata, "metadata", texts=True))
        _put(self, "created_at", validation.time(self.created_at, "created_at"))
        given = self.created_at if self.last_message_at is _NO_TIME else self.last_message_at
        last = self.messages[-1].timestamp if self.messages else validation.time(given, "last_message_at")
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
        """How many messages there are."""
        return len(self.messages)

    def add_message(self, message: Message) -> Self:
        """Return the conversation with one message more."""
        (checked,) = validation.instances([message], "messages", Message)
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
    created_at: dt.datetime = field(default_factory=now)
    modified_at: dt.datetime = _NO_TIME
    version: int = field(default_factory=newest_version)
    metadata: dict[str, str] = field(default_factory=dict, hash=False)
    _saved: Saved = field(default_factory=Saved, compare=False, repr=False, kw_only=True)

    _NEEDED: ClassVar = ("agent_id", "name", "agent_type")
    _TIMES: ClassVar = ("created_at", "modified_at")

    def __post_init__(self) -> None:
        _put(self, "agent_id", validation.name(self.agent_id, "agent_id"))
        _put(self, "name", validation.text(self.name, "name"))
        _put(self, "agent_type", validation.text(self.agent_type, "agent_type"))
        _put(self, "system_prompt", validation.optional(validation.text, self.system_prompt, "system_prompt"))
        _put(self, "capabilities", validation.items(self.capabilities, "capabilities", validation.text))
        _put(self, "config", validation.mapping(self.config, "config"))
        _put(self, "custom_state", validation.mapping(self.custom_state, "custom_state"))
        conversations = validation.items(self.active_conversations, "active_conversations", validation.name)
        _put(self, "active_conversations", conversations)
        _put(self, "created_at", validation.time(self.created_at, "created_at"))
        modified = self.created_at if self.modified_at is _NO_TIME else self.modified_at
        _put(self, "modified_at", validation.time(modified, "modified_at"))
        _put(self, "version", validation.number(self.version, "version", 1))
        _put(self, "metadata", validation.mapping(self.metadata, "metadata", texts=True))
        _put(self, "_saved", Saved.of(self._saved))

    def _data(self) -> dict[str, Any]:
        return _agent_data(self)

    def get_state(self, key: str, default: Any = None) -> Any:
        """Return what is in the custom state under a key; what is not there reads as the default."""
        return self.custom_state.get(key, default)

    def set_state(self, key: str, value: Any) -> Self:
        """Return the agent with one more key, or another value, in its custom state."""
        return replace(self, custom_state={**self.custom_state, key: value}, modified_at=now())

    def remove_state(self, key: str) -> Self:
        """Return the agent without a key in its custom state; the same value if it is not there."""
        if key not in self.custom_state:
            return self
        kept = {name: value for name, value in self.custom_state.items() if name != key}
        return replace(self, custom_state=kept, modified_at=now())

    def touch(self) -> Self:
        """Return the agent, modified now."""
        return replace(self, modified_at=now())


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
