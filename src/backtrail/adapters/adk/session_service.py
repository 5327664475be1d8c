"""`BacktrailSessionService`: the sessions of ADK in a store.

A session is a conversation; the agent that owns it has the name of the app. Each event is a message, and the session's
own state is beside the messages, under `@adk`. The states of a user and of an app are threads of their own; an event
that changes them is written together with that change, all or nothing.

Each append makes a new revision of the session. A `Session` knows the revision that it was read at or that it made: an
append to another revision raises `StaleSessionError`. No clock is compared, and events stay in the order of the store.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.state import State

from backtrail.adapters.adapter_store import AdapterStore, RecentThreads
from backtrail.adapters.adk.events import Deltas, SessionKey, event_data, event_of, events_among, json_state
from backtrail.adapters.thread_ids import joined_id
from backtrail.conversations.models import Conversation, Message
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.validation import check_id, to_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.adk.events import Event

    from backtrail import Checkpoint, Editor, Store, Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

OWN: Final = "@adk"
"""The key of what a session has beside its messages."""
_MESSAGES: Final = "messages"
_STATE: Final = "state"
_MARK: Final = "_storage_update_marker"
_SCHEME: Final = "backtrail:"
_TRIES: Final = 20
_TITLE: Final = 50


class BacktrailSessionService(BaseSessionService):  # type: ignore[misc]
    """A session service of ADK: `Runner(..., session_service=BacktrailSessionService("sqlite:///agents.db"))`.

    `source` is a synchronous or asynchronous store, or a URL: `close` closes the store of a URL. `uri` is the same for
    `services.yaml`: `backtrail:` and a URL. Other arguments of ADK's command line are not needed.
    """

    def __init__(self, source: StoreSource | None = None, *, uri: str | None = None, **_: Any) -> None:
        if (source is None) == (uri is None):
            raise Invalid("give either a store (or its URL) or uri=", code="invalid.argument")
        self._adapter_store = AdapterStore(uri.removeprefix(_SCHEME) if uri is not None else source)  # type: ignore[arg-type]
        sync = self._adapter_store.sync
        self._threads = RecentThreads(lambda name, agent: sync.conversations.thread(name, agent_id=agent))
        self._states = RecentThreads(lambda name, agent: sync.thread(name, agent=agent))

    # -- the framework's interface ----------------------------------------------------------------------

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session; `AlreadyExistsError` if the id is taken."""
        given = (session_id or "").strip() or str(uuid.uuid4())
        key = SessionKey.read(app_name, user_id, given)
        plain = json_state(state or {}, "state")
        return await self._adapter_store.write(partial(self._create, key, plain), [plain], surely=True)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or those that `config` asks for; None if there is none."""
        key = SessionKey.read(app_name, user_id, session_id)
        return await self._adapter_store.read(partial(self._get, key, config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without events, the ones that changed last at the end."""
        check_id(app_name, "app_name")
        if user_id is not None:
            check_id(user_id, "user_id")
        return ListSessionsResponse(sessions=await self._adapter_store.read(partial(self._list, app_name, user_id)))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session. The states of its user and its app stay."""
        key = SessionKey.read(app_name, user_id, session_id)
        await self._adapter_store.write(partial(self._store.conversations.delete, key.conversation_id), [], surely=True)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without the prefix `user:`."""
        check_id(app_name, "app_name")
        thread = self._state_thread(joined_id("adk-user", app_name, check_id(user_id, "user_id")), app_name)
        return await self._adapter_store.read(partial(_state_of, thread))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event, durable on return. An event that the session has already is not added again."""
        if getattr(event, "partial", False):
            return event
        key = SessionKey.read(session.app_name, session.user_id, session.id)
        message = event_data(event)
        append = EventAppend(key, message, getattr(session, _MARK))
        work = partial(self._append, key, append)
        await self._adapter_store.write(work, [message["raw"]], surely=True)
        if not append.is_known:
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            self._commit_event_to_session(session, event)
            session.last_update_time = event.timestamp
        setattr(session, _MARK, append.revision)
        return event

    # -- the user's API -----------------------------------------------------------------------------------

    async def fork(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        new_session_id: str | None = None,
        at: str | None = None,
    ) -> Session:
        """Start a new session with the events of another one, up to the event with the id `at`, or with all.

        The session's state is that after the last event that it takes along. States of users and apps are shared.
        """
        key = SessionKey.read(app_name, user_id, session_id)
        new = SessionKey.read(app_name, user_id, (new_session_id or "").strip() or str(uuid.uuid4()))
        return await self._adapter_store.write(partial(self._fork, key, new, at), [], surely=True)

    @property
    def store(self) -> aio.Store:
        """The store: `await sessions.store.search("ferry")`."""
        return self._adapter_store.aio

    @staticmethod
    def conversation_id(*, app_name: str, user_id: str, session_id: str) -> str:
        """Return the id of the conversation of a session."""
        return SessionKey.read(app_name, user_id, session_id).conversation_id

    def thread(self, *, app_name: str, user_id: str, session_id: str) -> aio.Thread[Any]:
        """Return a handle of the session's thread: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        key = SessionKey.read(app_name, user_id, session_id)
        return self.store.conversations.thread(key.conversation_id)

    async def close(self) -> None:
        """Wait for calls in progress, then close the store if it was opened from a URL. A second call does nothing."""
        await self._adapter_store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- reading ------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        return self._adapter_store.sync

    def _thread(self, key: SessionKey) -> Thread[Any]:
        return self._threads(key.conversation_id, key.app_name)

    def _state_thread(self, thread_id: str, app_name: str) -> Thread[Any]:
        return self._states(thread_id, app_name)

    def _get(self, key: SessionKey, config: GetSessionConfig | None) -> Session | None:
        head = self._thread(key).latest()
        if head is None:
            return None
        recent = None if config is None else config.num_recent_events
        if recent == 0:
            messages = []
        else:
            messages = events_among(head.get(_MESSAGES) if recent is None else head.tail(_MESSAGES, recent))
            if recent is not None and len(messages) < recent:  # some were not events
                messages = events_among(head.get(_MESSAGES))[-recent:]
        events = [event_of(message) for message in messages]
        if config is not None and config.after_timestamp is not None:
            start = len(events)
            while start and events[start - 1].timestamp >= config.after_timestamp:
                start -= 1
            events = events[start:]
        return self._session(head, events)

    def _list(self, app_name: str, user_id: str | None) -> list[Session]:
        prefix = joined_id("adk", app_name) + "/"
        sessions = []
        for start in (prefix, "adk~"):
            for info in self._store.conversations.list(app_name, prefix=start):
                head = self._threads(info.id, app_name).latest()
                session = None if head is None else self._session(head, [])
                if session is not None and session.app_name == app_name and user_id in (None, session.user_id):
                    sessions.append(session)
        return sorted(sessions, key=lambda each: (each.last_update_time, each.user_id, each.id))

    def _session(self, head: Checkpoint[Any], events: list[Event]) -> Session:
        own = head.get(OWN)
        if not isinstance(own, dict):
            raise Corrupt(f"conversation {head.thread_id!r} is not a session of ADK", code="corrupt.state")
        key = SessionKey(*own["key"])
        app = _state_of(self._state_thread(key.app_thread, key.app_name))
        user = _state_of(self._state_thread(key.user_thread, key.app_name))
        state = dict(own[_STATE])
        state |= {State.APP_PREFIX + name: value for name, value in app.items()}
        state |= {State.USER_PREFIX + name: value for name, value in user.items()}
        session = Session(
            id=key.session_id,
            app_name=key.app_name,
            user_id=key.user_id,
            state=state,
            events=events,
            last_update_time=own["updated"],
        )
        setattr(session, _MARK, own["revision"])
        return session

    # -- writing ------------------------------------------------------------------------------------------

    def _create(self, key: SessionKey, state: dict[str, Any]) -> Session:
        deltas = Deltas.of(state)
        value = Conversation(key.app_name, id=key.conversation_id, metadata=key._asdict())

        def create(editor: Editor) -> None:
            if editor.exists:
                raise AlreadyExistsError(f"Session with id {key.session_id} already exists.")
            own = own_data(key, deltas.session, time.time())
            editor.set((), {**to_data(value), OWN: own})

        self._together(key, deltas, create)
        session = self._get(key, None)
        if session is None:
            raise SessionNotFoundError(f"Session {key.session_id} not found.")  # deleted at once
        return session

    def _append(self, key: SessionKey, append: EventAppend) -> None:
        self._together(key, append.deltas, append, lambda: append.is_known)

    def _together(
        self,
        key: SessionKey,
        deltas: Deltas,
        edit: Callable[[Editor], None],
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Edit a session, and the states of its user and app with it, all or nothing."""
        shared = [(key.app_thread, deltas.app), (key.user_thread, deltas.user)]
        if not any(delta for _, delta in shared):
            self._thread(key).edit(edit)
            return
        for attempt in range(_TRIES):
            try:
                with self._store.transaction():
                    self._thread(key).edit(edit)
                    for thread_id, delta in shared:
                        if delta and not is_done():
                            self._state_thread(thread_id, key.app_name).edit(partial(_update_state, delta))
            except Conflict:  # another process wrote to one of them
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def _fork(self, key: SessionKey, new: SessionKey, at: str | None) -> Session:
        head = self._thread(key).latest()
        if head is None:
            raise SessionNotFoundError(f"Session {key.session_id} not found.")
        messages = events_among(head.get(_MESSAGES))
        ids = [message["id"] for message in messages]
        if at is not None and at not in ids:
            raise NotFound(f"session {key.session_id!r} has no event {at!r:.100}", code="not_found.message")
        messages = messages if at is None else messages[: ids.index(at) + 1]
        own = head.get(OWN)
        state = dict(own["initial"])
        for message in messages:
            state |= Deltas.of(message["raw"]["actions"]["state_delta"]).session
        value = Conversation(
            new.app_name,
            id=new.conversation_id,
            title=head.get("title"),
            messages=[Message.from_data(message) for message in messages],
            metadata=new._asdict(),
            forked_from=key.conversation_id,
            forked_at=messages[-1]["id"] if messages else None,
        )
        updated = messages[-1]["raw"]["timestamp"] if messages else time.time()

        def create(editor: Editor) -> None:
            if editor.exists:
                raise AlreadyExistsError(f"Session with id {new.session_id} already exists.")
            data = own_data(new, state, updated)
            data["initial"] = own["initial"]
            data["ids"] = {message["id"]: number for number, message in enumerate(messages)}
            editor.set((), {**to_data(value), OWN: data})

        self._thread(new).edit(create)
        session = self._get(new, None)
        if session is None:
            raise SessionNotFoundError(f"Session {new.session_id} not found.")
        return session


class EventAppend:
    """An edit that appends an event to a session. Each call decides again."""

    def __init__(self, key: SessionKey, message: dict[str, Any], expected: str | None) -> None:
        self._key = key
        self._message = message
        self._expected = expected
        self.deltas = Deltas.of(message["raw"]["actions"]["state_delta"])
        self.revision = expected
        self.is_known = False
        """Whether the session has the event already: its reply was lost, and it was sent again."""

    def __call__(self, editor: Editor) -> None:
        """Append the event, unless the session has it already; `StaleSessionError` if it is at another revision."""
        own = (OWN, "revision")
        stored = editor.get(own)
        if not editor.exists or stored is None:
            raise SessionNotFoundError(f"Session {self._key.session_id} not found.")
        self.is_known = self._has(editor)
        if self.is_known:
            self.revision = self._expected if self._expected is None else stored
            return
        if self._expected is not None and stored != self._expected:
            raise StaleSessionError(
                f"session {self._key.session_id!r} has newer events than this Session object: get the session again"
            )
        self.revision = str(uuid.uuid4())
        editor.set((OWN, "ids", self._message["id"]), editor.count(_MESSAGES))
        editor.append(_MESSAGES, self._message)
        editor.set(own, self.revision)
        editor.set((OWN, "updated"), self._message["raw"]["timestamp"])
        if self.deltas.session:
            editor.update((OWN, _STATE), self.deltas.session)
        text = self._message["content"]
        if self._message["role"] == "user" and text and editor.get("title") is None:
            editor.set("title", text if len(text) <= _TITLE else text[: _TITLE - 3] + "...")

    def _has(self, editor: Editor) -> bool:
        at = editor.get((OWN, "ids", self._message["id"]))
        raw = None if at is None else editor.get((_MESSAGES, at, "raw"))
        return raw is not None and raw == self._message["raw"]


def own_data(key: SessionKey, state: dict[str, Any], updated: float) -> dict[str, Any]:
    """Return what a session has beside its messages."""
    return {
        "key": list(key),
        "initial": state,
        _STATE: state,
        "updated": updated,
        "revision": str(uuid.uuid4()),
        "ids": {},
    }


def _state_of(thread: Thread[Any]) -> dict[str, Any]:
    head = thread.latest()
    state = None if head is None else head.get(_STATE)
    return state if isinstance(state, dict) else {}


def _update_state(delta: dict[str, Any], editor: Editor) -> None:
    if not editor.exists:
        editor.set((), {_STATE: {}})
    editor.update(_STATE, delta)
