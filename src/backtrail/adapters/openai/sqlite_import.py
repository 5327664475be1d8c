"""Import of a database of the SDK's own SQLiteSession. A `BacktrailSession` then returns the items that it returned.

Items that the SDK added in one second become one checkpoint with that time. Of an AdvancedSQLiteSession, the branch
`main` is imported; the report names the others.
"""

from __future__ import annotations

import datetime as dt
import json
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

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
from backtrail.adapters.openai.items import message_of
from backtrail.conversations.items import FORMAT
from backtrail.conversations.models import Conversation
from backtrail.errors import Invalid
from backtrail.validation import check_id, to_data

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from backtrail import Store
    from backtrail.adapters.imports import SqliteSnapshot
    from backtrail.conversations.models import Message

AGENT: Final = "openai-agents"
_WHAT: Final = "a database of the OpenAI Agents SDK's SQLiteSession"
_SESSIONS: Final = "agent_sessions"
_MESSAGES: Final = "agent_messages"
_MAIN: Final = "main"


def import_database(
    path: str | os.PathLike[str],
    store: Store,
    *,
    agent: str = AGENT,
    sessions_table: str = _SESSIONS,
    messages_table: str = _MESSAGES,
    progress: Callable[[str, int], None] | None = None,
) -> SessionsReport:
    """Import all sessions of a database of the SDK's SQLiteSession. A second import adds only what is new.

    `agent` owns the conversations. The tables are those that the session was made with. The report lists what was left
    out: encrypted sessions, items that are damaged, branches, and sessions that have new items on both sides.
    """
    check_id(agent, "an agent's id")
    with _opened(path, sessions_table, messages_table) as database:
        each = ((name, partial(_add, store, agent, database, name)) for name in list(database.sessions()))
        return import_sessions(each, progress)


def check_database(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a file is a readable database of the SDK's SQLiteSession."""
    with _opened(path, _SESSIONS, _MESSAGES) as database:
        for _ in database.sessions():
            pass


# -- the file --------------------------------------------------------------------------------------------------


class _SessionDatabase:
    """A snapshot of a SQLiteSession's database."""

    def __init__(self, snapshot: SqliteSnapshot, sessions: str, messages: str) -> None:
        self._select = snapshot.select
        self._sessions, self._messages = _quoted(sessions), _quoted(messages)
        self._has_branches = bool(snapshot.columns("message_structure"))

    def sessions(self) -> Iterator[str]:
        """Give the ids of the sessions, the oldest first."""
        statement = f"SELECT session_id FROM {self._sessions} ORDER BY created_at, rowid"  # noqa: S608 - a quoted name
        for (name,) in self._select(statement):
            yield text_of(name)

    def created_at(self, session_id: str) -> dt.datetime | None:
        """Return the time at which a session was created."""
        statement = f"SELECT created_at FROM {self._sessions} WHERE session_id = ?"  # noqa: S608 - as above
        return next((_time(time) for (time,) in self._select(statement, session_id)), None)

    def items(self, session_id: str) -> list[tuple[Any, Any, Any]]:
        """Return the number, the JSON and the time of each item, oldest first."""
        columns = "m.id, m.message_data, m.created_at"
        if self._has_branches and list(self._select(_ANY_STRUCTURE, session_id)):
            statement = _STRUCTURED.format(columns=columns, messages=self._messages)
            return list(self._select(statement, session_id, _MAIN))
        statement = f"SELECT {columns} FROM {self._messages} m WHERE m.session_id = ? ORDER BY m.id"  # noqa: S608
        return list(self._select(statement, session_id))

    def branches(self, session_id: str) -> list[str]:
        """Return the names of the branches of a session beside the main one."""
        if not self._has_branches:
            return []
        return [text_of(name) for (name,) in self._select(_BRANCHES, session_id, _MAIN)]


_ANY_STRUCTURE: Final = "SELECT 1 FROM message_structure WHERE session_id = ? LIMIT 1"
_STRUCTURED: Final = """
    SELECT {columns} FROM message_structure s JOIN {messages} m ON m.id = s.message_id
    WHERE s.session_id = ? AND s.branch_id = ? ORDER BY s.sequence_number"""
_BRANCHES: Final = "SELECT DISTINCT branch_id FROM message_structure WHERE session_id = ? AND branch_id <> ? ORDER BY 1"


@contextmanager
def _opened(path: str | os.PathLike[str], sessions: str, messages: str) -> Iterator[_SessionDatabase]:
    """Open a snapshot of a file."""
    needed = {sessions: {"session_id", "created_at"}, messages: {"id", "session_id", "message_data", "created_at"}}
    with sqlite_snapshot(path, _WHAT, needed) as snapshot:
        yield _SessionDatabase(snapshot, sessions, messages)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _time(text: Any) -> dt.datetime | None:
    """Return a time of SQLite, which is in UTC; None if it is none."""
    try:
        time = dt.datetime.fromisoformat(text)
        return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)
    except (TypeError, ValueError):
        return None


# -- the store -------------------------------------------------------------------------------------------------


def _add(store: Store, agent: str, database: _SessionDatabase, session_id: str, left_out: list[Skipped]) -> int:
    """Add the items of a session that the store lacks, all or nothing, and return their number."""
    messages = _messages(database, session_id, left_out)
    left_out += [
        Skipped(session_id, f"branch {name!r} of it is not imported") for name in database.branches(session_id)
    ]
    thread = store.conversations.thread(session_id, agent_id=agent)
    with dated_writes(store) as set_time:
        head = thread.latest()
        stored = [] if head is None else [each for each in head.get("messages") if each.get("raw_format") == FORMAT]
        in_store = [each["raw"] for each in stored]
        new = new_ones([message.raw for message in messages], in_store, f"session {session_id!r}")
        messages = messages[len(messages) - len(new) :]
        if head is None:
            created = database.created_at(session_id)
            set_time(created)
            first: dict[str, Any] = {} if created is None else {"created_at": created}
            value = replace(Conversation(agent, id=session_id, messages=messages, **first).auto_title(), messages=())
            thread.save(to_data(value))
        for time, group in groupby(messages, key=lambda message: message.timestamp):
            set_time(time)
            thread.append("messages", *map(to_data, group))
    return len(messages)


def _messages(database: _SessionDatabase, session_id: str, left_out: list[Skipped]) -> list[Message]:
    check_id(session_id, "a session's id")
    messages: list[Message] = []
    for number, data, time in database.items(session_id):
        try:
            item = json.loads(data)
            message = message_of(item, f"item {number}")
        except (TypeError, ValueError, RecursionError, Invalid) as error:
            left_out.append(Skipped(session_id, f"item {number} is damaged and left out: {error}"))
            continue
        if item.get("__enc__") == 1:
            raise Undecodable("it is encrypted: read it with EncryptedSession, and add the items to a BacktrailSession")
        at = _time(time)
        messages.append(message if at is None else replace(message, timestamp=at))
    return messages
