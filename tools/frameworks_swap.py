"""A pytest plugin for `make test-frameworks`: puts our classes in the place of a framework's own.

LangGraph's tests make their stores by `from_conn_string`, call `setup`, and await the methods of the asynchronous
class. The classes here translate that, and nothing else: all answers come from `BacktrailStore`.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import langgraph.store.postgres.aio as postgres_aio
import langgraph.store.sqlite.aio as sqlite_aio
import psycopg
from langgraph.store import postgres, sqlite

from backtrail.adapters.langgraph import BacktrailStore
from backtrail.adapters.langgraph.store_items import StoredItem
from backtrail.validation import now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Swapped(BacktrailStore):
    """`BacktrailStore` with the constructor of LangGraph's synchronous stores."""

    MIGRATIONS: list[Any] = []  # noqa: RUF012 - the tests of PostgreSQL edit theirs

    @classmethod
    @contextmanager
    def from_conn_string(cls, text: str, *, index: Any = None, ttl: Any = None, **_: Any) -> Iterator[Swapped]:
        """Open a store for a connection string of theirs."""
        with cls(_url(text), index=index, ttl=ttl) as store:
            yield store

    def setup(self) -> None:
        """Do nothing: there is nothing to set up."""

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        yield Cursor(self)


class AsyncSwapped(BacktrailStore):
    """The same for the asynchronous stores."""

    MIGRATIONS: list[Any] = []  # noqa: RUF012

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, text: str, *, index: Any = None, ttl: Any = None, **_: Any
    ) -> AsyncIterator[AsyncSwapped]:
        """Open a store for a connection string of theirs."""
        async with cls(_url(text), index=index, ttl=ttl) as store:
            yield store

    async def setup(self) -> None:
        """Do nothing: there is nothing to set up."""

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[AsyncCursor]:
        yield AsyncCursor(self)

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        """Delete expired items."""
        return await self.asweep_ttl()

    async def start_ttl_sweeper(self, *given: Any) -> Any:  # type: ignore[override]
        """Start the sweeper."""
        return super().start_ttl_sweeper(*given)

    async def stop_ttl_sweeper(self, *given: Any) -> bool:  # type: ignore[override]
        """Stop the sweeper."""
        return super().stop_ttl_sweeper(*given)


class Cursor:
    """The SQL by which the tests of PostgreSQL look at an item, and set the time at which it expires."""

    def __init__(self, store: BacktrailStore) -> None:
        self._store = store
        self._row: dict[str, Any] | None = None

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> None:
        """Do what a statement says; statements about tables do nothing."""
        if not statement.startswith(("UPDATE", "SELECT")):
            return
        namespace, key = tuple(parameters[-2].split(".")), parameters[-1]
        thread = self._store.thread(namespace)
        head = thread.latest()
        data = None if head is None else head.get(("items", key))
        if "updated_at" in statement:
            thread.set(("items", key, "updated_at"), now() - dt.timedelta(seconds=parameters[0]))
        elif statement.startswith("UPDATE"):
            thread.set(("items", key, "expires"), now() - dt.timedelta(minutes=1))
        elif "COUNT" in statement:
            self._row = {"n": int(data is not None)}
        else:
            stored = StoredItem(namespace, key, data or {})
            self._row = {"expires_at": self._store._expiries([stored])[0]}  # noqa: SLF001 - as theirs look inside

    def fetchone(self) -> dict[str, Any] | None:
        """Return the row of the last SELECT."""
        return self._row


class AsyncCursor:
    """The same for asynchronous tests."""

    def __init__(self, store: BacktrailStore) -> None:
        self._cursor = Cursor(store)

    async def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> None:
        """Do what a statement says."""
        self._cursor.execute(statement, parameters)

    async def fetchone(self) -> dict[str, Any] | None:
        """Return the row of the last SELECT."""
        return self._cursor.fetchone()


_places: dict[str, str] = {}


def _url(text: str) -> str:
    """Return the URL of our store for a connection string: the same string, the same store."""
    if text == ":memory:":
        return "memory://"
    name = _places.setdefault(text, str(Path(tempfile.mkdtemp()) / "store.db"))
    return f"sqlite:///{name}"


class NoConnection:
    """In the place of a connection to PostgreSQL by which the tests create their databases."""

    def __class_getitem__(cls, _: object) -> type:
        return cls

    @classmethod
    def connect(cls, *_: Any, **__: Any) -> NoConnection:
        """Connect to nothing."""
        return cls()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, *_: Any) -> None:
        """Do nothing."""


class NoAsyncConnection:
    """The same for asynchronous tests."""

    def __class_getitem__(cls, _: object) -> type:
        return cls

    @classmethod
    async def connect(cls, *_: Any, **__: Any) -> NoAsyncConnection:
        """Connect to nothing."""
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def execute(self, *_: Any) -> None:
        """Do nothing."""


if os.environ.get("BACKTRAIL_SWAP") != "no":
    sqlite.SqliteStore = Swapped  # type: ignore[misc, assignment]
    sqlite.AsyncSqliteStore = sqlite_aio.AsyncSqliteStore = AsyncSwapped  # type: ignore[misc, assignment]
    postgres.PostgresStore = Swapped  # type: ignore[misc, assignment]
    postgres.AsyncPostgresStore = postgres_aio.AsyncPostgresStore = AsyncSwapped  # type: ignore[misc, assignment]
    psycopg.Connection = NoConnection  # type: ignore[misc, assignment]
    psycopg.AsyncConnection = NoAsyncConnection  # type: ignore[misc, assignment]
