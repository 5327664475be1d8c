"""The classes of Agent Framework that checkpoints hold, as data. No class is found by its name: nothing is imported.

Messages and responses are stored as the framework's own dicts. Their `raw_representation`, an object of a model's
client, is left out, as in these dicts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
    WorkflowEvent,
    WorkflowEventSource,
    WorkflowMessage,
)
from agent_framework._workflows._agent_executor import AgentExecutorRequest, AgentExecutorResponse

from backtrail.engine.schema.registry import Type
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable

_AS_DICTS: Final = (Content, Message, ChatResponse, ChatResponseUpdate, AgentResponse, AgentResponseUpdate)
_DATACLASSES: Final = (WorkflowMessage, AgentExecutorRequest, AgentExecutorResponse)
_PLAIN: Final = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset, type(None))
_PREFIX: Final = "agent_framework."
_ORIGIN: Final = "origin"


def all_types(own: Iterable[Any]) -> list[Any]:
    """Return the types of a storage: the framework's, and those that its caller names."""
    given = list(own)
    classes = [each.cls if isinstance(each, Type) else each for each in given]
    known = {_name(cls): cls for cls in (*_PLAIN, *_AS_DICTS, *_DATACLASSES, *classes)}
    as_dicts = [
        Type(cls, _PREFIX + cls.__name__, dump=cls.to_dict, load=cls.from_dict)
        for cls in _AS_DICTS
        if cls not in classes
    ]
    dump, load = partial(_dump_event, known), partial(_load_event, known)
    event = Type(WorkflowEvent, _PREFIX + "WorkflowEvent", dump=dump, load=load)
    return [*as_dicts, event, *(cls for cls in _DATACLASSES if cls not in classes), *given]


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _dump_event(known: dict[str, Any], event: Any) -> dict[str, Any]:
    if event.type != "request_info":
        raise Invalid(f"a checkpoint keeps request_info events, not {event.type}", code="invalid.value")
    found: dict[str, Any] = event.to_dict()
    for cls in (event.request_type, event.response_type):
        if known.get(_name(cls)) is not cls:
            raise Invalid(
                f"a request of the workflow is about {cls!r}, which is not known: pass it in types=[...]",
                code="invalid.type",
            )
    return found | {_ORIGIN: event.origin.value}


def _load_event(known: dict[str, Any], found: dict[str, Any]) -> Any:
    missing = [found.get(field) for field in ("request_type", "response_type") if found.get(field) not in known]
    if missing:
        raise Invalid(
            f"a request of the workflow is about {missing[0]!r}, which is not known: pass the class in types=[...]",
            code="invalid.type",
        )
    event = WorkflowEvent.from_dict(found, allowed_types=known)
    event.origin = WorkflowEventSource(found[_ORIGIN])
    return event
