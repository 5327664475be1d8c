"""`BacktrailSessionRepository`: the sessions of Strands in a store.

A session is a thread, which also has the states of its graphs and swarms. Each agent of a session is a conversation:
its messages, and beside them, under `@strands`, the agent's own state. Each call is one write.

Numbers of messages are given by the framework. Of two writers that add a message with the same number, one gets an
error. Messages are listed by their numbers, as the framework's own repositories list them.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from strands.session.session_repository import SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

from backtrail.adapters.adapter_store import AdapterStore, RecentThreads
from backtrail.adapters.plain_values import plain_data
from backtrail.adapters.strands.messages import FORMAT, message_data, number_of, own_messages, session_message
from backtrail.adapters.thread_ids import joined, joined_id
from backtrail.conversations.models import Conversation
from backtrail.errors import Conflict, Corrupt, Invalid
from backtrail.validation import check_count, check_id, to_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from strands.multiagent import MultiAgentBase

    from backtrail import Checkpoint, Editor, Store, Thread
    from backtrail.adapters.adapter_store import StoreSource

T = TypeVar("T")
AGENT: Final = "strands"
"""The agent that owns sessions if none is named."""
_KIND: Final = "strands"
_SESSION: Final = "session"
_MULTI_AGENTS: Final = "multi_agents"
_OWN: Final = "@strands"
_AGENT: Final = (_OWN, "agent")
_MESSAGES: Final = "messages"
_TRIES: Final = 20
_TITLE: Final = 50


class BacktrailSessionRepository(SessionRepository):  # type: ignore[misc]
    """A session repository: `RepositorySessionManager("trip", BacktrailSessionRepository("sqlite:///agents.db"))`.

    `source` is a synchronous or asynchronous store, or a URL: `close` closes the store of a URL. `agent` is the agent
    of the store that owns the sessions.
    """

    def __init__(self, source: StoreSource, *, agent: str = AGENT) -> None:
        self.agent = check_id(agent, "an agent's id")
        self._adapter_store = AdapterStore(source)
        sync = self._adapter_store.sync
        self._sessions = RecentThreads(partial(sync.thread, agent=self.agent))
        self._conversations = RecentThreads(partial(sync.conversations.thread, agent_id=self.agent))

    # -- the framework's interface: sessions ------------------------------------------------------------

    def create_session(self, session: Session, **_: Any) -> Session:
        """Create a session; `SessionException` if the id is taken."""
        if not isinstance(session, Session):
            raise Invalid(f"create_session takes a Session, not {type(session).__name__}", code="invalid.argument")
        data = {**_data_of(session), "session_type": SessionType(session.session_type).value}

        def create(editor: Editor) -> None:
            if editor.exists:
                raise SessionException(f"Session {session.session_id} already exists")
            editor.set((), {_SESSION: data, _MULTI_AGENTS: {}})

        self._session(session.session_id).edit(create)
        return session

    def read_session(self, session_id: str, **_: Any) -> Session | None:
        """Return a session, or None."""
        head = self._session(session_id).latest()
        data = None if head is None else head.get(_SESSION)
        if data is None:
            return None
        return _made(Session, {**data, "session_type": SessionType(data["session_type"])})

    def delete_session(self, session_id: str, **_: Any) -> None:
        """Delete a session with all its agents; `SessionException` if there is none."""
        thread = self._session(session_id)

        def delete() -> None:
            if not thread.delete():
                raise SessionException(f"Session {session_id} does not exist")
            for name in self._agents(session_id).values():
                self._store.conversations.delete(name)

        self._atomic(delete)

    # -- agents -------------------------------------------------------------------------------------------

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Add an agent to a session; `SessionException` if it has one of this id."""
        agent_id, data = _agent_data(session_agent)
        name = self.conversation_id(session_id, agent_id)
        metadata = {"session_id": session_id, "agent_id": agent_id}
        value = Conversation(self.agent, id=name, metadata=metadata)

        def create(editor: Editor) -> None:
            if editor.exists:
                raise SessionException(f"Agent {agent_id} already exists in session {session_id}")
            editor.set((), {**to_data(value), _OWN: {"agent": data}})

        if self.read_session(session_id) is None:
            raise SessionException(f"Session {session_id} does not exist")
        self._conversations(name).edit(create)

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> SessionAgent | None:
        """Return an agent of a session, or None."""
        head = self._conversation(session_id, agent_id).latest()
        data = None if head is None else head.get(_AGENT, None)
        return None if data is None else _made(SessionAgent, data)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Replace the state of an agent; its `created_at` stays."""
        agent_id, data = _agent_data(session_agent)

        def update(editor: Editor) -> None:
            before = self._agent_in(editor, session_id, agent_id)
            data["created_at"] = before["created_at"]
            for key, value in data.items():
                if key not in before or before[key] != value or repr(before[key]) != repr(value):
                    editor.set((*_AGENT, key), value)

        self._conversation(session_id, agent_id).edit(update)

    # -- messages -----------------------------------------------------------------------------------------

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Add a message, durable on return; `SessionException` if the agent has a message with its number."""
        message = message_data(session_message)
        number = session_message.message_id

        def create(editor: Editor) -> None:
            self._agent_in(editor, session_id, agent_id)
            last = editor.count(_MESSAGES) - 1
            path = (_MESSAGES, last)
            is_next = last < 0 or (
                editor.get((*path, "raw_format")) == FORMAT
                and editor.get((*path, "raw", "message_id"), number) < number
            )
            if is_next:
                editor.append(_MESSAGES, message)
            else:
                self._insert(editor, message, session_id, agent_id)
            text = message["content"]
            if message["role"] == "user" and text and editor.get("title") is None:
                editor.set("title", text if len(text) <= _TITLE else text[: _TITLE - 3] + "...")

        self._conversation(session_id, agent_id).edit(create)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **_: Any) -> SessionMessage | None:
        """Return a message of an agent, or None."""
        check_count(message_id, "message_id")
        head = self._conversation(session_id, agent_id).latest()
        if head is None:
            return None
        at = _place(lambda path: head.get(path, None), message_id)
        return None if at is None else session_message(head.get((_MESSAGES, at)))

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Replace a message, such as by a redacted one; its `created_at` stays."""
        message = message_data(session_message)

        def update(editor: Editor) -> None:
            self._agent_in(editor, session_id, agent_id)
            at = _place(editor.get, session_message.message_id)
            if at is None:
                raise SessionException(f"Message {session_message.message_id} does not exist in session {session_id}")
            before = editor.get((_MESSAGES, at))
            message["timestamp"] = before["timestamp"]
            message["raw"]["created_at"] = before["raw"]["created_at"]
            editor.set((_MESSAGES, at), message)

        self._conversation(session_id, agent_id).edit(update)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[SessionMessage]:
        """Return the messages of an agent by their numbers, without the first `offset`; at most `limit`."""
        check_count(offset, "offset")
        end = None if limit is None else offset + check_count(limit, "limit")
        head = self._conversation(session_id, agent_id).latest()
        if head is None or head.get(_OWN, None) is None:
            raise SessionException(f"Agent {agent_id} does not exist in session {session_id}")
        return [session_message(message) for message in own_messages(head.get(_MESSAGES))[offset:end]]

    # -- graphs and swarms --------------------------------------------------------------------------------

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Keep the state of a graph or swarm."""
        self._put_multi_agent(session_id, multi_agent, is_new=True)

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **_: Any) -> dict[str, Any] | None:
        """Return the state of a graph or swarm, or None."""
        check_id(multi_agent_id, "a multi-agent's id")
        head = self._session(session_id).latest()
        return None if head is None else head.get((_MULTI_AGENTS, multi_agent_id), None)

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **_: Any) -> None:
        """Replace the state of a graph or swarm; `SessionException` if there is none."""
        self._put_multi_agent(session_id, multi_agent, is_new=False)

    # -- the user's API -----------------------------------------------------------------------------------

    def fork(
        self, session_id: str, new_session_id: str, *, agent_id: str | None = None, at: int | None = None
    ) -> Session:
        """Start a new session with the agents of another one, all or nothing.

        `at` is the number of the last message that the agent `agent_id` takes along; its state is then the last
        one before the next message. Other agents take everything along.
        """
        if (agent_id is None) != (at is None):
            raise Invalid("fork takes agent_id and at together, or neither", code="invalid.argument")
        session = self.read_session(session_id)
        if session is None:
            raise SessionException(f"Session {session_id} does not exist")
        agents = self._agents(session_id)
        if agent_id is not None and agent_id not in agents:
            raise SessionException(f"Agent {agent_id} does not exist in session {session_id}")
        forked = Session(session_id=new_session_id, session_type=session.session_type)

        def fork() -> None:
            self.create_session(forked)
            for each, name in agents.items():
                self._fork_agent(name, new_session_id, each, at if each == agent_id else None)

        self._atomic(fork)
        return forked

    @property
    def store(self) -> Store:
        """The store: `repository.store.search("ferry")`."""
        return self._adapter_store.sync

    def conversation_id(self, session_id: str, agent_id: str = "default") -> str:
        """Return the id of the conversation of an agent of a session."""
        return joined_id(_KIND, check_id(session_id, "a session's id"), check_id(agent_id, "an agent's id"))

    def thread(self, session_id: str, agent_id: str = "default") -> Thread[Any]:
        """Return a handle of the thread of an agent of a session: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self._store.conversations.thread(self.conversation_id(session_id, agent_id))

    def close(self) -> None:
        """Close the store if it was opened from a URL. A second call does nothing."""
        self._adapter_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- parts --------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return self._adapter_store.sync

    def _session(self, session_id: str) -> Thread[Any]:
        return self._sessions(joined_id(_KIND, check_id(session_id, "a session's id")))

    def _conversation(self, session_id: str, agent_id: str) -> Thread[Any]:
        return self._conversations(self.conversation_id(session_id, agent_id))

    def _agents(self, session_id: str) -> dict[str, str]:
        """Return the conversations of a session's agents, by the ids of the agents."""
        agents = {}
        for prefix in (f"{_KIND}:{joined(session_id)}/", f"{_KIND}~"):
            for info in self._store.conversations.list(self.agent, prefix=prefix):
                if info.metadata.get("session_id") == session_id:
                    agents[info.metadata["agent_id"]] = info.id
        return agents

    def _agent_in(self, editor: Editor, session_id: str, agent_id: str) -> dict[str, Any]:
        data = editor.get(_AGENT) if editor.exists else None
        if not isinstance(data, dict):
            raise SessionException(f"Agent {agent_id} does not exist in session {session_id}")
        return data

    def _insert(self, editor: Editor, message: dict[str, Any], session_id: str, agent_id: str) -> None:
        """Put a message that is not the last one in its place."""
        messages = editor.get(_MESSAGES)
        numbers = [number_of(each) for each in messages]
        number = message["raw"]["message_id"]
        if number in numbers:
            raise SessionException(
                f"Message {number} already exists in agent {agent_id} in session {session_id}: another writer was first"
            )
        later = [at for at, each in enumerate(numbers) if each is not None and each > number]
        messages.insert(later[0] if later else len(messages), message)
        editor.set(_MESSAGES, messages)

    def _put_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, *, is_new: bool) -> None:
        name = check_id(multi_agent.id, "a multi-agent's id")
        state = plain_data(multi_agent.serialize_state())

        def put(editor: Editor) -> None:
            if not editor.exists:
                raise SessionException(f"Session {session_id} does not exist")
            if not is_new and editor.get((_MULTI_AGENTS, name)) is None:
                raise SessionException(f"MultiAgent {name} does not exist in session {session_id}")
            editor.set((_MULTI_AGENTS, name), state)

        self._session(session_id).edit(put)

    def _fork_agent(self, name: str, new_session_id: str, agent_id: str, at: int | None) -> None:
        new = self.conversation_id(new_session_id, agent_id)
        agent = None
        if at is not None:
            history = self._store.conversations.thread(name).history(newest_first=True)
            agent = next((each.get(_AGENT) for each in history if _last_number(each) == at), None)
            if agent is None:
                raise SessionException(f"Message {at} does not exist in agent {agent_id}")
        self._store.conversations.fork(name, at=None if at is None else str(at), new_id=new)

        def describe(editor: Editor) -> None:
            editor.set(("metadata", "session_id"), new_session_id)
            if agent is not None:
                editor.set(_AGENT, agent)

        self._conversations(new).edit(describe)

    def _atomic(self, work: Callable[[], None]) -> None:
        for attempt in range(_TRIES):
            try:
                with self._store.transaction():
                    work()
            except Conflict as error:  # another process wrote to one of them
                if error.code == "conflict.exists" or attempt == _TRIES - 1:
                    raise
            else:
                return


def _agent_data(given: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(given, SessionAgent):
        raise Invalid(
            f"an agent of a session must be a SessionAgent, not {type(given).__name__}", code="invalid.argument"
        )
    return given.agent_id, _data_of(given)


def _data_of(value: Session | SessionAgent) -> dict[str, Any]:
    """Return the fields of a value of the framework as data."""
    try:
        data: dict[str, Any] = plain_data(dataclasses.asdict(value))
    except (TypeError, RecursionError) as error:  # what cannot be copied cannot be kept either
        name = type(value).__name__
        raise Invalid(f"a {name} cannot be kept: {error}", code="invalid.value", path=name) from error
    return data


def _made(cls: Callable[..., T], data: dict[str, Any]) -> T:
    """Return a value of the framework from stored data. Fields that its class does not have are left out."""
    try:
        names = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in data.items() if name in names})
    except (TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"a session of Strands cannot be read: {error}", code="corrupt.state") from error


def _place(get: Callable[[tuple[Any, ...]], Any], number: int) -> int | None:
    """Return the position of the message with a number. It is usually the number itself."""
    path = (_MESSAGES, number)
    if get((*path, "raw_format")) == FORMAT and get((*path, "raw", "message_id")) == number:
        return number
    numbers = [number_of(message) for message in get((_MESSAGES,)) or ()]
    return numbers.index(number) if number in numbers else None


def _last_number(checkpoint: Checkpoint[Any]) -> int | None:
    numbers = [number_of(message) for message in checkpoint.tail(_MESSAGES, 1)]
    return numbers[0] if numbers else None
