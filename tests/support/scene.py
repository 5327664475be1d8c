"""Agents and conversations to test with, and all that can be seen of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail import AgentState, Conversation, Message

if TYPE_CHECKING:
    from backtrail import Store
    from backtrail.backends.port import Usage
    from backtrail.models import AgentCheckpoint


def agent(agent_id: str = "a", **fields: Any) -> AgentState:
    """Return an agent."""
    return AgentState(agent_id, "Ada", "a-model", **fields)


def conversation(id: str, *texts: str, agent_id: str = "a", **fields: Any) -> Conversation:  # noqa: A002 - as users say
    """Return a conversation in which the user says these texts; the ids of its messages are c0, c1 ..."""
    said = [Message.user(text, id=f"{id[:9]}{at}") for at, text in enumerate(texts)]
    return Conversation(agent_id, id=id, messages=said, **fields)


def contents(store: Store, id: str) -> list[str]:  # noqa: A002
    """Return the contents of a stored conversation's messages."""
    return [message.content for message in store.conversations.load(id).messages]


def note(store: Store, agent_id: str, key: str, value: Any) -> AgentState:
    """Let a stored agent remember something."""
    return store.agents.save(store.agents.load(agent_id).set_state(key, value))


def view(store: Store, agent_id: str) -> tuple[AgentState | None, dict[str, Conversation]]:
    """Return all that can be seen of an agent, as values: its state, and its conversations by id."""
    listed = sorted(info.id for info in store.conversations.list(agent_id))
    loaded = [store.conversations.load(name) for name in listed]
    return store.agents.get(agent_id), {said.id: said for said in loaded}


def names(checkpoints: list[AgentCheckpoint]) -> list[str]:
    """Return their names."""
    return [checkpoint.name for checkpoint in checkpoints]


def usage(store: Store) -> Usage:
    """Return the counts of the backend."""
    return store._backend.usage()
