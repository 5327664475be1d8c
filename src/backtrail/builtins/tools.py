"""What the builtins are: the name, the description and the arguments of each, as a model is told of them.

Arguments are described by JSON Schema. The defaults it names are those of the functions in `calls`; a test holds them
against each other.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backtrail.entities import AttachmentType, CheckpointType, Role, ToolStatus

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
    """A tool that a model can call: `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any] = field(hash=False)

    def openai(self) -> dict[str, Any]:
        """Return the tool as OpenAI's chat completions take it, and many other servers."""
        told = {"name": self.name, "description": self.description, "parameters": deepcopy(self.schema)}
        return {"type": "function", "function": {**told, "strict": False}}  # not all of the arguments are required

    def anthropic(self) -> dict[str, Any]:
        """Return the tool as Anthropic's messages take it."""
        return {"name": self.name, "description": self.description, "input_schema": deepcopy(self.schema)}


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _one_of(kind: type[StrEnum], description: str, default: str | None = None) -> Schema:
    told = _text(description) | {"enum": [str(member) for member in kind]}
    return told if default is None else told | {"default": default}


def _number(description: str, least: int, most: int | None = None, default: int | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most, "default": default}
    known = {name: value for name, value in bounds.items() if value is not None}
    return {"type": "integer", "description": description, **known}


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
_CHECKPOINT: Final = _text("The checkpoint's id, as checkpoint_list and checkpoint_create give it.")
_PAGE: Final = {
    "limit": _number("At most this many entries.", 1, LIMIT_MAX, LIMIT),
    "cursor": _text("The next_cursor of the page before; leave it out for the first page."),
}
_PART: Final = {
    "max_chars": _number("With path: at most this many characters of what is there.", 1, CHARS_MAX, CHARS),
    "offset": _number("With path: the character to begin with; next_offset of the part before.", 0, None, 0),
}
_TOOL_CALL: Final = _object(
    ("name",),
    id=_text("The id of the call; a new one if left out."),
    name=_text("The tool's name."),
    arguments=_mapping("The tool's arguments."),
    result=_text("What came of it."),
    status=_one_of(ToolStatus, "How far it has got.", "pending"),
)
_ATTACHMENT: Final = _object(
    ("attachment_type", "name", "mime_type"),
    id=_text("The id of the attachment; a new one if left out."),
    attachment_type=_one_of(AttachmentType, "What it is."),
    name=_text("Its name."),
    mime_type=_text("Its MIME type, such as image/png."),
    content=_text("Its content; base64 if it is binary."),
    url=_text("Where it is, if it is not here."),
    size=_number("Its size in bytes.", 0),
)
_MESSAGE: Final = _object(
    ("role", "content"),
    id=_text("The message's id; a new one if left out."),
    role=_one_of(Role, "Who says it."),
    content=_text("What it says."),
    timestamp=_text("When it was said, in ISO 8601, such as 2026-01-31T12:00:00Z; now if left out."),
    tokens=_number("How many tokens it has.", 0),
    parent_id=_text("The id of the message that it answers."),
    tool_calls={"type": "array", "items": _TOOL_CALL, "description": "The tools that it asks for."},
    attachments={"type": "array", "items": _ATTACHMENT, "description": "What is attached to it."},
    metadata=_mapping("Anything else that is to be kept with it."),
)
_MESSAGES: Final = {
    "type": "array",
    "items": _MESSAGE,
    "description": "Messages, oldest first; they go behind those that are there.",
    "examples": [[{"role": "user", "content": "Hello"}]],
}

_LISTED: Final = (
    Builtin(
        "agent_save",
        "Save an agent's state to persistent storage.",
        _object(
            ("agent_id",),
            agent_id=_AGENT,
            name=_text("The agent's name; needed for a new agent."),
            agent_type=_text("The model that the agent uses; needed for a new agent."),
            system_prompt=_text("The agent's system prompt."),
            capabilities=_texts("What the agent can do."),
            config=_mapping("Settings. Keys that are not given stay as they are."),
            custom_state=_mapping("What the agent is to remember. Keys that are not given stay as they are."),
            metadata=_mapping("Texts by key. Keys that are not given stay as they are.", "string"),
            replace=_flag("Begin anew: what is not given here is gone from the state. Needs name and agent_type."),
        ),
    ),
    Builtin(
        "agent_load",
        "Load an agent's state from persistent storage.",
        _object(
            ("agent_id",),
            agent_id=_AGENT,
            path=_text("Show the whole of one part, such as custom_state.plan, instead of an overview."),
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
            agent_id=_text("The id of the agent that it belongs to."),
            conversation_id=_text("The conversation's id, to add to it or change it; a new one if left out."),
            title=_text("Its title; that of a new one is made from the first user message if left out."),
            tags=_texts("All its tags."),
            metadata=_mapping("Texts by key. Keys that are not given stay as they are.", "string"),
            archived=_flag("Whether it is archived."),
            messages=_MESSAGES,
        ),
    ),
    Builtin(
        "conversation_load",
        "Load a conversation from persistent storage.",
        _object(
            ("conversation_id",),
            conversation_id=_CONVERSATION,
            messages=_number("Show previews of this many messages, the last ones.", 0, LIMIT_MAX, MESSAGES),
            before=_number("Show those before this index instead: next_before of the page before.", 0),
            path=_text("Show the whole of one part, such as messages[3].content, instead of an overview."),
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
            archived=_flag("Only those that are archived, or that are not; all if left out."),
            tag=_text("Only those that have this tag."),
            **_PAGE,
        ),
    ),
    Builtin(
        "conversation_search",
        "Search conversations by content.",
        _object(
            ("query",),
            query=_text("What to look for in messages; upper and lower case do not count."),
            agent_id=_text("Only in the conversations of this agent."),
            **_PAGE,
        ),
    ),
    Builtin(
        "checkpoint_create",
        "Create a checkpoint of an agent for recovery.",
        _object(
            ("agent_id", "name"),
            agent_id=_AGENT,
            name=_text("What to call it, such as: before the booking."),
            description=_text("What it is for."),
            kind=_one_of(CheckpointType, "Why it is made.", "manual"),
        ),
    ),
    Builtin(
        "checkpoint_restore",
        "Restore an agent from a checkpoint.",
        _object(
            ("checkpoint_id",),
            checkpoint_id=_CHECKPOINT,
            agent_id=_text("The agent that it has to belong to; another one's is refused."),
        ),
    ),
    Builtin("checkpoint_list", "List an agent's checkpoints.", _object(("agent_id",), agent_id=_AGENT, **_PAGE)),
    Builtin("checkpoint_delete", "Delete a checkpoint.", _object(("checkpoint_id",), checkpoint_id=_CHECKPOINT)),
    Builtin("persistence_stats", "Get storage statistics.", _object()),
)

TOOLS: Final[Mapping[str, Builtin]] = MappingProxyType({tool.name: tool for tool in _LISTED})
"""The builtins by name."""
