"""Turns of a session: a user message, and all messages up to the next user message.

Turns are computed from the messages and not stored. The usage of a run is stored in the first message of its turn, so
a fork takes it along, and a rewind takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.models import Message, Role

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

USAGE: Final = "usage"
"""The key in the metadata of a turn's first message."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: a user message and the messages that follow."""

    number: int
    """The first turn is 1."""
    content: str
    """The text of the user message."""
    message_id: str
    """The id of the user message."""
    last_id: str
    """The id of the last message of the turn."""
    items: int
    """The number of messages."""
    tools: tuple[str, ...]
    """The names of the called tools, in order."""
    created_at: dt.datetime
    usage: dict[str, int] | None = field(default=None, hash=False)
    """The usage that `store_run_usage` recorded."""


def turns_of(messages: Iterable[Message]) -> list[Turn]:
    """Return the turns of a conversation. Messages before the first user message belong to no turn."""
    turns: list[list[Message]] = []
    for message in messages:
        if message.role is Role.USER:
            turns.append([message])
        elif turns:
            turns[-1].append(message)
    return [_turn(number, turn) for number, turn in enumerate(turns, 1)]


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
    """Return the usage of a run."""
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
    """Return the sum of the usage of all turns; empty if none was recorded."""
    sums: dict[str, int] = {}
    for turn in turns:
        for name, number in (turn.usage or {}).items():
            sums[name] = sums.get(name, 0) + number
    return sums
