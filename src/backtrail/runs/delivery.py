"""Messages of a run on their way to its conversation: each once, by its id, in the commit that writes it to the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from backtrail.conversations.repository import Conversations
from backtrail.entities import Message, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backtrail.transaction import Engine


class Owed(NamedTuple):
    """A message of a run that its conversation may not have."""

    data: dict[str, Any]
    behind: str | None = None
    """The id of the message whose tool call it answers, if opening the run has put it there."""


class Delivery:
    """Brings messages to one conversation; begins it, if it is not there and the agent is known."""

    def __init__(self, engine: Engine, name: str, agent: str | None) -> None:
        self._conversations = Conversations(engine)
        self._name = name
        self._agent = agent

    def __call__(self, messages: Iterable[dict[str, Any]], owed: Sequence[Owed] = ()) -> None:
        """Add messages; before them `owed`, those that the conversation may have already, unless it has them."""
        new = [Message.from_data(each) for each in messages]
        there = self._conversations.get(self._name) if owed else None
        old = [] if there is None else [*there.messages]
        merged = _merged(old, owed)
        if there is not None and merged[: len(old)] != old:  # an answer stands behind its call
            self._conversations.save(replace(there, messages=[*merged, *new]))
        elif merged[len(old) :] or new:
            self._conversations.append(self._name, *merged[len(old) :], *new, agent_id=self._agent)


def owed_of(messages: Iterable[dict[str, Any]]) -> list[Owed]:
    """Return messages of a run, as data, as those that its conversation may not have."""
    found: list[Owed] = []
    call = None
    for data in messages:
        call = call if data["role"] == Role.TOOL else data["id"]
        found.append(Owed(data, call if "repaired" in (data.get("metadata") or {}) else None))
    return found


def _merged(messages: list[Message], owed: Sequence[Owed]) -> list[Message]:
    """Return messages with those of `owed` that are missing: at the end, or, if repaired, behind their call."""
    found = list(messages)
    ids = {each.id for each in found}
    for data, behind in owed:
        if data["id"] not in ids:
            message = Message.from_data(data)
            at = len(found) if behind is None else _place(found, behind, message.metadata.get("tool_call_id"))
            if at is not None:
                found.insert(at, message)
    return found


def _place(messages: list[Message], behind: str, call_id: Any) -> int | None:
    """Return where the answer to a tool call of a message belongs; None if that is not there, or has an answer."""
    at = next((at for at, each in enumerate(messages, 1) if each.id == behind), None)
    while at is not None and at < len(messages) and messages[at].role == Role.TOOL:
        if messages[at].metadata.get("tool_call_id") == call_id:
            return None
        at += 1
    return at
