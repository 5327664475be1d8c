"""The definitions that a model gets: the name, description and arguments (JSON Schema) of each builtin.

The schemas name the defaults of the functions in `functions`; a test compares them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.models import CheckpointType
from backtrail.conversations.models import AttachmentType, Role, ToolStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    Schema = dict[str, Any]

LIMIT: Final = 20
LIMIT_MAX: Final = 200
MESSAGES: Final = 10
CHARS: Final = 20_000
CHARS_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool for a model. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any] = field(hash=False)

    def openai(self) -> dict[str, Any]:
        """Return the tool in the form of OpenAI's chat completions, which many servers take."""
        function = {"name": self.name, "description": self.description, "parameters": deepcopy(self.schema)}
        return {"type": "function", "function": {**function, "strict": False}}  # most arguments are optional

    def anthropic(self) -> dict[str, Any]:
        """Return the tool in the form of Anthropic's messages API."""
        return {"name": self.name, "description": self.description, "input_schema": deepcopy(self.schema)}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _one_of(kind: type[StrEnum], description: str, default: str | None = None) -> Schema:
    schema = _text(description) | {"enum": [str(member) for member in kind]}
    return schema if default is None else schema | {"default": default}


def _number(description: str, least: int, most: int | None = None, default: int | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most, "default": default}
    present = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", "description": description, **present}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _texts(description: str) -> Schema:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _mapping(description: str, values: str | None = None) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": {"type": values} if values else True}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_AGENT: Final = _text("The agent's id.")
_CONVERSATION: Final = _text("The conversation's id.")
_CHECKPOINT: Final = _text("The checkpoint's id, from checkpoint_list or checkpoint_create.")
_PAGE: Final = {
    "limit": _number("At most this many entries.", 1, LIMIT_MAX, LIMIT),
    "cursor": _text("The next_cursor of the previous page; omit it for the first page."),
}
_PART: Final = {
    "max_chars": _number("With path: at most this many characters of the value.", 1, CHARS_MAX, CHARS),
    "offset": _number("With path: the first character to return; next_offset of the previous part.", 0, None, 0),
}
_TOOL_CALL: Final = _object(
    ("name",),
    id=_text("The id of the call; omit it for a new id."),
    name=_text("The tool's name."),
    arguments=_mapping("The tool's arguments."),
    result=_text("The result of the call."),
    status=_one_of(ToolStatus, "The status of the call.", "pending"),
)
_ATTACHMENT: Final = _object(
    ("attachment_type", "name", "mime_type"),
    id=_text("The id of the attachment; omit it for a new id."),
    attachment_type=_one_of(AttachmentType, "The type of the attachment."),
    name=_text("Its name."),
    mime_type=_text("Its MIME type, such as image/png."),
    content=_text("Its content; base64 for binary content."),
    url=_text("Its URL, instead of content."),
    size=_number("Its size in bytes.", 0),
)
_MESSAGE: Final = _object(
    ("role", "content"),
    id=_text("The message's id; omit it for a new id."),
    role=_one_of(Role, "The author's role."),
    content=_text("The text."),
    timestamp=_text("Its time in ISO 8601, such as 2026-01-31T12:00:00Z; omit it for now."),
    tokens=_number("The number of tokens.", 0),
    parent_id=_text("The id of the message that this one answers."),
    tool_calls={"type": "array", "items": _TOOL_CALL, "description": "The tool calls of the message."},
    attachments={"type": "array", "items": _ATTACHMENT, "description": "The attachments of the message."},
    metadata=_mapping("Any other data about the message."),
)
_MESSAGES: Final = {
    "type": "array",
    "items": _MESSAGE,
    "description": "New messages, oldest first. They are added to the end.",
    "examples": [[{"role": "user", "content": "Hello"}]],
}

_LISTED: Final = (
    Builtin(
        "agent_save",
        "Save an agent's state to persistent storage.",
        _object(
            ("agent_id",),
            agent_id=_AGENT,
            name=_text("The agent's name; required for a new agent."),
            agent_type=_text("The model that the agent uses; required for a new agent."),
            system_prompt=_text("The agent's system prompt."),
            capabilities=_texts("The agent's capabilities."),
            config=_mapping("Settings. Other keys stay unchanged."),
            custom_state=_mapping("The agent's memory. Other keys stay unchanged."),
            metadata=_mapping("Texts by key. Other keys stay unchanged.", "string"),
            replace=_flag("Replace the whole state with these fields. Requires name and agent_type."),
        ),
    ),
    Builtin(
        "agent_load",
        "Load an agent's state from persistent storage.",
        _object(
            ("agent_id",),
            agent_id=_AGENT,
            path=_text("Return one whole value, such as custom_state.plan, instead of an overview."),
            **_PART,
        ),
    ),
    Builtin("agent_delete", "Delete an agent and all associated data.", _object(("agent_id",), agent_id=_AGENT)),
    Builtin("agent_list", "List all persisted agents.", _object(**_PAGE)),
    Builtin(
        "conversation_save",
        "Save a conversation to persistent storage.",
        _object(
            ("agent_id",),
            agent_id=_text("The id of the agent that owns the conversation."),
            conversation_id=_text("The id of a conversation to change; omit it for a new conversation."),
            title=_text("Its title. A new conversation without one takes it from the first user message."),
            tags=_texts("The complete list of tags."),
            metadata=_mapping("Texts by key. Other keys stay unchanged.", "string"),
            archived=_flag("Whether the conversation is archived."),
            messages=_MESSAGES,
        ),
    ),
    Builtin(
        "conversation_load",
        "Load a conversation from persistent storage.",
        _object(
            ("conversation_id",),
            conversation_id=_CONVERSATION,
            messages=_number("Return previews of the last messages, this many.", 0, LIMIT_MAX, MESSAGES),
            before=_number("Return messages before this index: next_before of the previous page.", 0),
            path=_text("Return one whole value, such as messages[3].content, instead of an overview."),
            **_PART,
        ),
    ),
    Builtin(
        "conversation_delete",
        "Delete a conversation.",
        _object(("conversation_id",), conversation_id=_CONVERSATION),
    ),
    Builtin(
        "conversation_list",
        "List an agent's conversations.",
        _object(
            ("agent_id",),
            agent_id=_AGENT,
            archived=_flag("Only archived (true) or not archived (false) conversations; omit it for all."),
            tag=_text("Only conversations with this tag."),
            **_PAGE,
        ),
    ),
    Builtin(
        "conversation_search",
        "Search conversations by content.",
        _object(
            ("query",),
            query=_text("The text to find in messages; case is ignored."),
            agent_id=_text("Search only this agent's conversations."),
            **_PAGE,
        ),
    ),
    Builtin(
        "checkpoint_create",
        "Create a checkpoint of an agent for recovery.",
        _object(
            ("agent_id", "name"),
            agent_id=_AGENT,
            name=_text("A name, such as: before the booking."),
            description=_text("The purpose of the checkpoint."),
            kind=_one_of(CheckpointType, "The occasion of the checkpoint.", "manual"),
        ),
    ),
    Builtin(
        "checkpoint_restore",
        "Restore an agent from a checkpoint.",
        _object(
            ("checkpoint_id",),
            checkpoint_id=_CHECKPOINT,
            agent_id=_text("The agent that must own the checkpoint; otherwise the call fails."),
        ),
    ),
    Builtin("checkpoint_list", "List an agent's checkpoints.", _object(("agent_id",), agent_id=_AGENT, **_PAGE)),
    Builtin("checkpoint_delete", "Delete a checkpoint.", _object(("checkpoint_id",), checkpoint_id=_CHECKPOINT)),
    Builtin("persistence_stats", "Get storage statistics.", _object()),
)

TOOLS: Final[Mapping[str, Builtin]] = MappingProxyType({tool.name: tool for tool in _LISTED})
"""The builtins by name."""
