"""Turns of a session: what a user said, and all that follows until a user speaks again.

They are read off the messages, which are numbered as they stand: a turn is no thing of its own that could be out of
step. What a run used is kept with the message that began its turn, so it goes where that goes: into a fork, and out of
view.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from backtrail.entities import Message, Role

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

USAGE: Final = "usage"
"""The key in the metadata of a turn's first message."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the user's message that began it, and what came of it."""

    number: int
    """From 1 on."""
    content: str
    """What the user said."""
    message_id: str
    """The id of the user's message."""
    last_id: str
    """The id of the last message of the turn."""
    items: int
    """How many messages it has."""
    tools: tuple[str, ...]
    """The tools that were called, in their order."""
    created_at: dt.datetime
    usage: dict[str, int] | None = field(default=None, hash=False)
    """What `store_run_usage` has recorded."""


def turns_of(messages: Iterable[Message]) -> list[Turn]:
    """Return the turns of a conversation; what comes before the first user speaks belongs to none."""
    found: list[list[Message]] = []
    for message in messages:
        if message.role is Role.USER:
            found.append([message])
        elif found:
            found[-1].append(message)
    return [_turn(number, turn) for number, turn in enumerate(found, 1)]


def _turn(number: int, messages: list[Message]) -> Turn:
    first = messages[0]
    tools = tuple(call.name for message in messages for call in message.tool_calls)
    usage = first.metadata.get(USAGE)
    return Turn(
        number=number,
        content=first.content,
        message_id=first.id,
        last_id=messages[-1].id,
        items=len(messages),
        tools=tools,
        created_at=first.timestamp,
        usage=usage if isinstance(usage, dict) else None,
    )


def usage_of(result: Any) -> dict[str, int]:
    """Return what a run used, as numbers."""
    usage = result.context_wrapper.usage
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.input_tokens_details.cached_tokens or 0,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens or 0,
        "total_tokens": usage.total_tokens,
    }


def total(turns: Iterable[Turn]) -> dict[str, int]:
    """Return what all turns used together; empty if nothing was recorded."""
    found: dict[str, int] = {}
    for turn in turns:
        for name, number in (turn.usage or {}).items():
            found[name] = found.get(name, 0) + number
    return found
