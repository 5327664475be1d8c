"""`AgentState` as a frozen value. A change returns a new value; docs/agents.md has the fields.

This module evaluates its annotations: they name the classes that a loaded state may hold.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, cast

from backtrail import validation
from backtrail.engine.schema.upcast import schema, upcasters_of
from backtrail.models import Items, Saved
from backtrail.validation import Entity, now

_NO_TIME: Final = cast("dt.datetime", None)
_NONE: Final[Items[Any]] = Items()
_put: Final = object.__setattr__


class CheckpointType(StrEnum):
    """The reason for which an agent's checkpoint was made."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"
    PRE_OPERATION = "pre_operation"
    RECOVERY = "recovery"


def newest_version() -> int:
    """Return the version of a new `AgentState`: 1, or the version that the last upcaster produces."""
    return 1 + max(upcasters_of(AgentState), default=0)


@schema("backtrail.AgentState")
@dataclass(frozen=True, slots=True)
class AgentState(Entity):
    """The state of an agent: its description, capabilities, configuration and memory (`custom_state`).

    `version` is for migrations: `@backtrail.upcast(AgentState, from_version=1)` updates a state of an older version.
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
        """Return the value of a key in the custom state, or the default."""
        return self.custom_state.get(key, default)

    def set_state(self, key: str, value: Any) -> Self:
        """Return the agent with this value under this key of its custom state."""
        return replace(self, custom_state={**self.custom_state, key: value}, modified_at=now())

    def remove_state(self, key: str) -> Self:
        """Return the agent without a key in its custom state; the same object if the key is missing."""
        if key not in self.custom_state:
            return self
        remaining = {name: value for name, value in self.custom_state.items() if name != key}
        return replace(self, custom_state=remaining, modified_at=now())

    def touch(self) -> Self:
        """Return the agent with the current time as `modified_at`."""
        return replace(self, modified_at=now())


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
