"""Delivery of a run's messages to its conversation.

The commit that writes a message to the run also adds it to the conversation. Ids of messages keep it from adding a
message twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from backtrail.conversations.models import Message, Role
from backtrail.conversations.repository import Conversations
from backtrail.engine import journal
from backtrail.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backtrail.transaction import Engine


class Owed(NamedTuple):
    """A message of a run that its conversation may lack."""

    data: dict[str, Any]
    behind: str | None = None
    """For an answer that a repair inserted: the id of the message with the tool call. Otherwise None."""


class Delivery:
    """The sender of a run's messages to its conversation. Without a conversation, it does nothing."""

    def __init__(self, engine: Engine, session_id: str, conversation: str | None) -> None:
        self._conversations = Conversations(engine)
        self._session_id = session_id
        self.conversation = conversation
        """The conversation that the caller named; after the run is opened, the conversation of the run."""
        self.is_active = False
        """Whether the run has a conversation to send messages to."""
        self._agent: str | None = None
        self._missing: str | None = None
        """The conversation of the run, if it was deleted and the run has no agent to start it again for."""
        self._joining: str | None = None
        """The conversation that the next write sets in the journal. A run that is only read joins no conversation."""
        self._owed: list[Owed] = []
        """Messages that the conversation may lack. The next write adds the missing messages."""
        self._sending = 0

    def join(self, data: dict[str, Any], *, resumed: bool) -> dict[str, Any]:
        """Find the conversation of a run that is being opened; return the fields of a new run's journal for it.

        Raise `Conflict` if the run has another conversation than the caller named.
        """
        self._joining = self._missing = None
        known = data.get("conversation")
        name = self.conversation = self.conversation or known
        if name is None:
            return {}
        if known not in (None, name):
            text = f"the messages of run {self._session_id!r} go to conversation {known!r}, not {name!r}"
            raise Conflict(text, code="conflict.conversation")
        self._agent = data["agent"]
        if self._agent is None:
            try:
                self._agent = self._conversations.info(name).agent_id
            except NotFound:  # without an agent, the conversation cannot be started again
                if known is None:
                    raise
                self._missing = name
                return {}
        self.is_active = True
        messages: list[dict[str, Any]] = data["messages"]
        if not resumed:
            self._owed = _owed(messages)
            self.send(())
            self._owed, self._sending = [], 0
            return {"conversation": name}
        if known is None:
            entries = (data["calls"] if data["iteration"] else data["zero"])[data.get("free", 0) :]
            self._owed = _owed([*messages, *(each[2] for each in entries if each[0] == journal.MESSAGE)])
            self._joining = name
        else:
            self._owed = [each for each in _owed(messages) if each.behind is not None]
        return {}

    def settle(self, data: dict[str, Any]) -> None:
        """Set the conversation of an opened run: that of its point `data`, or else the one that the run joins."""
        self.conversation = data.get("conversation", self._joining)

    def leave(self) -> None:
        """Forget the conversation that the run was about to join, because the caller only reads the run."""
        self.conversation = None if self._joining else self.conversation

    def check(self) -> None:
        """Raise `NotFound` if the conversation was deleted and cannot be started again."""
        if self._missing is not None:
            raise NotFound(
                f"run {self._session_id!r} writes to conversation {self._missing!r}, which was deleted. The run has no "
                f"agent, so it cannot start the conversation again: save Conversation(agent_id, id={self._missing!r}), "
                "and open the run again",
                code="not_found.conversation",
            )

    def owe(self, message: dict[str, Any]) -> None:
        """Add a message to the conversation with the next write, unless the conversation has it."""
        self._owed.append(Owed(message))

    def fields(self) -> dict[str, Any]:
        """Return the journal fields of the next write: the conversation that the run joins, if any."""
        return {} if self._joining is None else {"conversation": self._joining}

    def is_due(self, entries: Sequence[Any]) -> bool:
        """Tell whether the write of these entries adds messages to the conversation."""
        return self.is_active and (bool(self._owed) or any(entry[0] == journal.MESSAGE for entry in entries))

    def send(self, entries: Sequence[Any]) -> None:
        """Add owed messages, then the messages among `entries`, to the conversation.

        Runs in the transaction that writes the entries.
        """
        messages = [Message.from_data(entry[2]) for entry in entries if entry[0] == journal.MESSAGE]
        self._sending = len(self._owed)
        owed = self._owed[: self._sending]
        if not self.is_active or self.conversation is None or not (messages or owed):
            return
        stored = self._conversations.get(self.conversation) if owed else None
        before = [] if stored is None else [*stored.messages]
        merged = _merged(before, owed)
        if stored is not None and merged[: len(before)] != before:  # an inserted answer: an append cannot do that
            self._conversations.save(replace(stored, messages=[*merged, *messages]))
        elif merged[len(before) :] or messages:
            self._conversations.append(self.conversation, *merged[len(before) :], *messages, agent_id=self._agent)

    def sent(self) -> None:
        """Record that the last `send` was committed."""
        del self._owed[: self._sending]
        self._sending, self._joining = 0, None


def _owed(messages: Iterable[dict[str, Any]]) -> list[Owed]:
    """Return the messages of a run as `Owed`. A repair gets the id of the message that it answers."""
    owed: list[Owed] = []
    call = None
    for data in messages:
        call = call if data["role"] == Role.TOOL else data["id"]
        owed.append(Owed(data, call if "repaired" in (data.get("metadata") or {}) else None))
    return owed


def _merged(messages: list[Message], owed: Sequence[Owed]) -> list[Message]:
    """Add the missing owed messages: repairs after their call, others at the end. Return all messages."""
    merged = list(messages)
    ids = {each.id for each in merged}
    for data, behind in owed:
        if data["id"] not in ids:
            message = Message.from_data(data)
            at = len(merged) if behind is None else _place(merged, behind, message.metadata.get("tool_call_id"))
            if at is not None:
                merged.insert(at, message)
    return merged


def _place(messages: list[Message], behind: str, call_id: Any) -> int | None:
    """Return the position for the answer to a tool call; None if the call's message is missing or has an answer."""
    at = next((at for at, each in enumerate(messages, 1) if each.id == behind), None)
    while at is not None and at < len(messages) and messages[at].role == Role.TOOL:
        if messages[at].metadata.get("tool_call_id") == call_id:
            return None
        at += 1
    return at
