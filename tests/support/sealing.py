"""Encrypted stores for tests."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import backtrail
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.sealed.opening import sealed
from backtrail.urls import backend_at
from tests.support.schemas import swept
from tests.support.servers import server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = backtrail.Key(bytes(range(32)))


def unsealed_exports(store: backtrail.Store) -> backtrail.Store:
    """Return a store whose exports are plain, so that the suites can read them."""
    export = store.export

    def plain(*args: Any, **options: Any) -> Any:
        return export(*args, plain=True, **options)

    store.export = plain  # type: ignore[method-assign]
    return store


class Borrowed:
    """A backend that stays open when the store that uses it is closed."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        """Do nothing."""


def open_copy(store: backtrail.Store, path: Path, *, read_only: bool = False) -> backtrail.Store:
    """Open a backup of a store, of whatever kind it is; if the store is encrypted, with the store's keyring."""
    keyring = getattr(store._backend, "keyring", None)
    if keyring is None:
        return backtrail.open(path.as_uri() if path.is_dir() else path, read_only=read_only)
    below = (FileBackend if path.is_dir() else SqliteBackend)(path, read_only=read_only)
    return backtrail.Store(sealed(below, KEY, lambda _: Borrowed(keyring.backend)))


@contextmanager
def sealed_in_memory() -> Iterator[Callable[..., backtrail.Store]]:
    """Yield an encrypted memory store that can be closed and opened again; its content lives until the block ends."""
    data, keys = MemoryBackend(), MemoryBackend()

    def opener(**options: Any) -> backtrail.Store:
        data._storage.closed = keys._storage.closed = False
        with mock.patch("backtrail.backends.memory.MemoryBackend", side_effect=[data, keys]):
            return unsealed_exports(backtrail.open("memory://", **{"key": KEY} | options))

    yield opener


@contextmanager
def sealed_in_postgres() -> Iterator[Callable[..., backtrail.Store]]:
    """Yield an encrypted store in PostgreSQL; its keyring is another schema."""
    with swept() as data, swept() as keys:
        schema = keys.keywords["schema"]

        def keyring_at(*_: Any, read_only: bool, must_exist: bool) -> Any:
            del must_exist
            return backend_at(server().url, durability="full", read_only=read_only, schema=schema)

        def opener(**options: Any) -> backtrail.Store:
            with mock.patch("backtrail.store.keyring_at", keyring_at):
                return unsealed_exports(data(**{"key": KEY} | options))

        yield opener


@contextmanager
def sealed_at(kind: str, folder: Path) -> Iterator[Callable[..., backtrail.Store]]:
    """Yield a function that opens the same encrypted store of a kind each time."""
    if kind == "memory":
        with sealed_in_memory() as opener:
            yield opener
    elif kind == "postgres":
        with sealed_in_postgres() as opener:
            yield opener
    else:
        place = folder / "store.db"
        url = place.as_uri() if kind == "file" else place

        def opener(**options: Any) -> backtrail.Store:
            return unsealed_exports(backtrail.open(url, **{"key": KEY, "durability": "relaxed"} | options))

        yield opener


KINDS = ("memory", "file", "sqlite", "postgres")
