"""The base of the suite: a store, a clock that tests set, and a counter of chunk reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backtrail import Store, Thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backtrail import Checkpoint
    from backtrail.backends.port import Batch

Opener = Callable[..., Store]
"""Opens the store under test, with the options of `backtrail.open`: the same store each time."""

SECOND = 1_000_000
"""In microseconds, as clocks count."""


class Suite:
    """A part of the conformance suite. A subclass opens the store."""

    @pytest.fixture
    def opener(self) -> Opener:
        """Return a function that opens the same store each time."""
        raise NotImplementedError("a conformance test needs a fixture `opener`")

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        with opener() as store:
            yield store

    @pytest.fixture
    def thread(self, store: Store) -> Thread[Any]:
        return store.thread("t")


class Clock:
    """A store's clock, which changes only when a test sets it."""

    def __init__(self, store: Store, now: int = 1_700_000_000 * SECOND) -> None:
        self.now = now
        store._engine.session.reader.clock = self

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


def storage(store: Store) -> Any:
    """Return the backend that keeps a store's bytes: in an encrypted store, the one below the encryption.

    There, the digest of a chunk is what `chunk_page` of the store says: its address.
    """
    return getattr(store._backend, "below", store._backend)


@contextmanager
def chunks_read(store: Store) -> Iterator[list[bytes]]:
    """Count chunk reads: yield a list of the digests of all chunks that are read in the block."""
    asked: list[bytes] = []
    backend = store._backend
    read = backend.chunks

    def counting(digests: Sequence[bytes]) -> dict[bytes, bytes]:
        asked.extend(digests)
        return read(digests)

    with mock.patch.object(backend, "chunks", counting):
        yield asked


@contextmanager
def rows_read(store: Store) -> Iterator[list[int]]:
    """Count rows: gives a list of how many the backend returned, call by call, in the block."""
    counts: list[int] = []
    backend = store._backend
    read = backend.rows

    def counting(*args: Any, **options: Any) -> list[Any]:
        found = read(*args, **options)
        counts.append(len(found))
        return found

    with mock.patch.object(backend, "rows", counting):
        yield counts


@contextmanager
def before_hiding(store: Store, action: Callable[[], Any]) -> Iterator[None]:
    """Do something in the block when the store has chosen what to hide, and not hidden it yet: once."""
    backend = store._backend
    commit, todo = backend.commit, [action]

    def committing(batch: Batch) -> tuple[int, ...]:
        if batch.hide and todo:
            todo.pop()()
        return commit(batch)

    with mock.patch.object(backend, "commit", committing):
        yield
    assert not todo


def ids(checkpoints: Iterable[Checkpoint[Any]]) -> list[str]:
    """Return their ids."""
    return [checkpoint.id for checkpoint in checkpoints]


def steps(checkpoints: Iterable[Checkpoint[Any]]) -> list[int]:
    """Return their steps."""
    return [checkpoint.step for checkpoint in checkpoints]


def states(checkpoints: Iterable[Checkpoint[Any]]) -> list[Any]:
    """Return their states."""
    return [checkpoint.state for checkpoint in checkpoints]


def head(thread: Thread[Any]) -> Checkpoint[Any]:
    """Return the head of a thread that exists."""
    latest = thread.latest()
    assert latest is not None
    return latest


def fill(thread: Thread[Any], count: int) -> list[Checkpoint[Any]]:
    """Save the states {"n": 1}, {"n": 2} ... and return their checkpoints."""
    return [thread.save({"n": n}) for n in range(1, count + 1)]


def messages(count: int, *, size: int = 200, start: int = 0) -> list[dict[str, Any]]:
    """Return messages that are all different."""
    return [
        {"role": "user", "content": f"{n} " + f"{n * 7919 % 9973:05d} " * (size // 6)}
        for n in range(start, start + count)
    ]


def changing(store: Store) -> tuple[list[str], Callable[[str, int], None]]:
    """Fill a store; return a progress callback that changes much of it, once, and the words that it gets."""
    fill(store.thread("a"), 5)
    fill(store.thread("b"), 5)
    store.thread("c").save({"messages": messages(300)})
    done: list[str] = []

    def meanwhile(what: str, _: int) -> None:
        if not done:
            done.append(what)
            with store.transaction():
                store.thread("a").save({"n": 6})
                store.thread("b").save({"n": 6})
            store.thread("b").prune(keep_last=1)
            store.thread("c").delete()
            # It is long so that no table ends with free pages: PostgreSQL's VACUUM would wait 5 s to return them.
            store.thread("d").save({"messages": messages(300, start=1000)})
            store.gc()

    return done, meanwhile
