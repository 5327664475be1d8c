"""Import of an SQLite database of ADK's DatabaseSessionService or SqliteSessionService.

A `BacktrailSessionService` then has their sessions, with the states of their users and apps. Each event is a checkpoint
with the time of the event. Events are in the order in which they were stored: ADK's services order them by their
times, which can be equal.
"""

from __future__ import annotations

import datetime as dt
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.adk.events import Event

from backtrail.adapters.adk.events import Deltas, SessionKey, event_data, events_among
from backtrail.adapters.adk.session_service import OWN, EventAppend, own_data
from backtrail.adapters.imports import (
    SessionsReport,
    Skipped,
    Undecodable,
    dated_writes,
    import_sessions,
    new_ones,
    sqlite_snapshot,
    text_of,
)
from backtrail.adapters.thread_ids import joined_id
from backtrail.conversations.models import Conversation
from backtrail.errors import Invalid
from backtrail.validation import to_data

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from backtrail import Editor, Store, Thread
    from backtrail.adapters.imports import SqliteSnapshot

_WHAT: Final = "a database of ADK's DatabaseSessionService"
_KEY: Final = {"app_name", "user_id", "id"}
_TABLES: Final = {"sessions": _KEY | {"state", "create_time", "update_time"}, "events": {"session_id", "id"}}
_SESSIONS: Final = "SELECT app_name, user_id, id, state, create_time, update_time FROM sessions ORDER BY rowid"
_EVENTS: Final = """
    SELECT id, event_data FROM events WHERE app_name = ? AND user_id = ? AND session_id = ? ORDER BY rowid"""
_APPS: Final = "SELECT app_name, state, update_time FROM app_states ORDER BY rowid"
_USERS: Final = "SELECT app_name, user_id, state, update_time FROM user_states ORDER BY rowid"


def import_database(
    path: str | os.PathLike[str], store: Store, *, progress: Callable[[str, int], None] | None = None
) -> SessionsReport:
    """Import all sessions of an SQLite database of ADK. A second import adds only what is new.

    The report lists what was left out: sessions that are damaged or have new events on both sides, and states of users
    and apps that the store has already with other values.
    """
    with sqlite_snapshot(path, _WHAT, _TABLES) as snapshot:
        _refuse_pickles(snapshot)
        report = import_sessions(_sessions(snapshot, store), progress)
        left_out = list(_add_states(snapshot, store))
    return SessionsReport(report.sessions, report.messages, (*report.skipped, *left_out))


def check_database(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a file is a readable SQLite database of ADK's sessions."""
    with sqlite_snapshot(path, _WHAT, _TABLES) as snapshot:
        _refuse_pickles(snapshot)
        for _ in snapshot.select(_SESSIONS):
            pass


def _refuse_pickles(snapshot: SqliteSnapshot) -> None:
    if "event_data" not in snapshot.columns("events"):
        text = "the database has ADK's old format, which holds pickles: run `adk migrate session` on it first"
        raise Invalid(text, code="invalid.store")


# -- sessions --------------------------------------------------------------------------------------------------


def _sessions(snapshot: SqliteSnapshot, store: Store) -> Iterator[tuple[str, Callable[[list[Skipped]], int]]]:
    for app, user, name, state, created, updated in list(snapshot.select(_SESSIONS)):
        times = _seconds(created), _seconds(updated)
        session = _Session(snapshot, store, (app, user, name), state, times)
        yield session.id, session.add


class _Session:
    """The import of one session."""

    def __init__(
        self,
        snapshot: SqliteSnapshot,
        store: Store,
        key: tuple[Any, Any, Any],
        state: Any,
        times: tuple[float | None, float | None],
    ) -> None:
        self._snapshot = snapshot
        self._store = store
        self._given = key
        self._state = state
        self._created, self._updated = times
        self.id = "/".join(map(str, key))

    def add(self, left_out: list[Skipped]) -> int:
        """Add the events that the store lacks, all or nothing, and return their number."""
        del left_out  # a session comes completely or not at all
        key = SessionKey.read(*map(text_of, self._given))
        state = _state(self._state)
        messages = [self._message(*row) for row in self._snapshot.select(_EVENTS, *key)]
        thread = self._store.conversations.thread(key.conversation_id, agent_id=key.app_name)
        with dated_writes(self._store) as set_time:
            head = thread.latest()
            stored = [] if head is None else events_among(head.get("messages"))
            in_store = [message["raw"] for message in stored]
            new = new_ones([message["raw"] for message in messages], in_store, f"session {self.id!r}")
            added = messages[len(messages) - len(new) :]
            if head is None:
                set_time(_time(self._created))
                self._create(thread, key, state, messages)
            for message in added:
                set_time(message["timestamp"])
                thread.edit(EventAppend(key, message, None))
            if head is None or added:
                set_time(_time(self._updated))
                thread.edit(partial(_settle, state, self._updated))
        return len(added)

    def _message(self, name: Any, data: Any) -> dict[str, Any]:
        try:
            event = Event.model_validate({**json.loads(data), "id": name})
        except (TypeError, ValueError, RecursionError) as error:
            raise Undecodable(f"event {name!r:.100} is damaged: {error}") from error
        return event_data(event)

    def _create(self, thread: Thread[Any], key: SessionKey, state: dict[str, Any], messages: list[Any]) -> None:
        changed = {name for message in messages for name in Deltas.of(_delta(message)).session}
        first = {name: value for name, value in state.items() if name not in changed}
        created = _time(self._created)
        times: dict[str, Any] = {} if created is None else {"created_at": created}
        value = Conversation(key.app_name, id=key.conversation_id, metadata=key._asdict(), **times)
        own = own_data(key, first, self._created or 0.0)
        thread.edit(lambda editor: editor.set((), {**to_data(value), OWN: own}))


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    delta: dict[str, Any] = message["raw"]["actions"]["state_delta"]
    return delta


def _settle(state: dict[str, Any], updated: float | None, editor: Editor) -> None:
    """Set the state and the time of a session to those of the file, if the events led to others."""
    if editor.get((OWN, "state")) != state:
        editor.set((OWN, "state"), state)
    if updated is not None and editor.get((OWN, "updated")) != updated:
        editor.set((OWN, "updated"), updated)


# -- states of users and apps ----------------------------------------------------------------------------------


def _add_states(snapshot: SqliteSnapshot, store: Store) -> Iterator[Skipped]:
    """Add the states of users and apps; give those that the store has with other values."""
    rows: list[tuple[tuple[Any, ...], Any, Any, Any]]
    rows = [(("adk-app", app), app, state, time) for app, state, time in snapshot.select(_APPS)]
    rows += [(("adk-user", app, user), app, state, time) for app, user, state, time in snapshot.select(_USERS)]
    for names, app, text, time in rows:
        what = "the state of " + " and ".join(map(str, names[1:]))
        try:
            state = _state(text)
            thread_id = joined_id(names[0], *map(text_of, names[1:]))
        except Undecodable as error:
            yield Skipped(what, str(error))
            continue
        thread = store.thread(thread_id, agent=app)
        head = thread.latest()
        if head is not None and head.get("state") != state:
            yield Skipped(what, "the store has another one, which stays")
        elif head is None and state:
            with dated_writes(store) as set_time:
                set_time(_time(_seconds(time)))
                thread.save({"state": state})


def _state(text: Any) -> dict[str, Any]:
    try:
        state = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Undecodable(f"its state is damaged: {error}") from error
    if not isinstance(state, dict):
        raise Undecodable("its state is damaged: it is not an object")
    return state


def _seconds(value: Any) -> float | None:
    """Return seconds since 1970 of a time, which is a number or a text in UTC; None if it is neither."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return dt.datetime.fromisoformat(value).replace(tzinfo=dt.UTC).timestamp()
    except (TypeError, ValueError):
        return None


def _time(seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC)
