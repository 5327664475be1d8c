"""The crash lab: it uses a store, crashes it, and checks the result.

The lab does a sequence of operations ("deeds"); each is acknowledged, or not. A "picture" is all that a user can find
in a store. The store after a crash is right if its picture has all acknowledged deeds, and each unfinished deed as a
whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blake3 import blake3

import backtrail
from backtrail import AgentState, Conversation, Message, aio
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.file.records import fields_of
from backtrail.engine import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Picture = dict[tuple[str, str], Any]
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name"


def picture(store: backtrail.Store, *, exact: bool = True) -> Picture:
    """Return the picture: for each thread its head, its visible checkpoints and their tags.

    `verify` checks the root hashes. Without `exact`, random values and times are left out.
    """
    backend = store._backend
    found: Picture = {}
    for no in backend.thread_numbers(0, 1000):
        record, newest = backend.thread(no), backend.newest(no)
        rows = backend.rows(no, [(1, log.MAX_SEQ)], visible=True)
        tags = backend.tags(no)
        told = exact or record.space == "thread"
        found[record.space, record.name] = (
            newest and (newest.seq, newest.op, newest.head, newest.undo, newest.redo),
            [(row.seq, row.step, row.label, told and row.root, exact and row.op_id) for row in rows],
            {row.seq: tags[row.seq] for row in rows if row.seq in tags and told},
        )
    return found


# -- operations -------------------------------------------------------------------------------------


def _text(seed: int, size: int = 200) -> str:
    return random.Random(seed).randbytes(size).hex()


def _begin(store):
    store.thread("t").save({"messages": [], "n": 0}, label="start")


def _append(store):
    store.thread("t").append("messages", "one more")


def _append_much(store):
    store.thread("t").append("messages", *(_text(at) for at in range(70)), tags=["long"])


def _set(store):
    store.thread("t").set("n", 1, label="set", tags=["a", "b"])


def _fork(store):
    store.thread("t").fork("other", at="@")


def _rewind(store):
    store.thread("t").rewind("start")


def _save(store):
    store.thread("t").save({"messages": [_text(7)], "n": 2})


def _undo(store):
    store.thread("t").undo()


def _both(store):
    with store.transaction():
        store.thread("t").append("messages", "in both")
        store.thread("other").append("messages", "in both", *(_text(at, 40) for at in range(30)))
        store.thread("third").save({"n": 3})


def _step(store):
    with store.thread("other").step("step") as state:
        state["messages"].append("stepped")
        state["n"] = 9


def _hire(store):
    store.agents.save(AgentState("planner", "Planner", "test"))


def _talk(store):
    store.conversations.save(Conversation("planner", id="talk", messages=[Message.user("hello there")]))


def _answer(store):
    store.conversations.append("talk", Message.assistant("an answer"))


def _point(store):
    store.agents.checkpoint("planner", "before")


def _search(store):
    store.search("answer")


def _prune(store):
    store.thread("t").prune(keep_last=2)


def _forget(store):
    store.thread("other").delete_checkpoint("@")


def _gc(store):
    store.gc()


def _delete(store):
    store.thread("third").delete()


def _again(store):
    store.thread("third").save({"n": 4})


DEEDS: tuple[tuple[str, Callable[[backtrail.Store], None]], ...] = tuple(
    (deed.__name__[1:], deed)
    for deed in (
        *(_begin, _append, _append_much, _append, _set, _fork, _rewind, _save, _undo, _both, _step, _hire, _talk),
        _answer,
        *(_point, _search, _prune, _forget, _gc, _append, _delete, _again, _both, _append_much),
    )
)

# -- what was acknowledged --------------------------------------------------------------------------


class Done(NamedTuple):
    """An operation that was acknowledged."""

    name: str
    begun: int
    """How many calls the disk had seen then."""
    done: int
    changes: Picture


class Book:
    """The operations, with the number of disk calls when each began and when it was acknowledged."""

    def __init__(self, count: Callable[[], int]) -> None:
        self.done: list[Done] = []
        self._count = count
        self._seen: Picture = {}

    @contextmanager
    def deed(self, name: str, store: backtrail.Store) -> Iterator[None]:
        begun = self._count()
        yield
        done = self._count()
        self.note(name, begun, done, picture(store))

    def note(self, name: str, begun: int, done: int, now: Picture) -> None:
        changes = {key: seen for key, seen in now.items() if self._seen.get(key) != seen}
        self.done.append(Done(name, begun, done, changes))
        self._seen = now

    def use(self, url: str, **options: Any) -> None:
        """Do all operations, and close and open the store in between."""
        half = len(DEEDS) // 2
        for deeds in (DEEDS[:half], DEEDS[half:]):
            with backtrail.open(url, **options) as store:
                small_wal(store)
                for name, deed in deeds:
                    with self.deed(name, store):
                        deed(store)

    def gather(self, url: str, **options: Any) -> None:
        """Let coroutines save at once, each to its own thread."""
        begun = self._count()
        done: dict[str, int] = {}

        async def one(store, name):
            await store.thread(name).save({"messages": ["together"]})
            done[name] = self._count()

        async def all_of_them():
            async with aio.open(url, **options) as store:
                await asyncio.gather(*(one(store, f"c{at}") for at in range(8)))

        asyncio.run(all_of_them())
        with backtrail.open(url, **options) as store:
            now = picture(store)
        for name, when in sorted(done.items(), key=lambda entry: entry[1]):
            self.done.append(Done("gather", begun, when, {("thread", name): now["thread", name]}))
        self._seen = now


def small_wal(store: backtrail.Store) -> None:
    """Let SQLite copy its WAL into the file often, instead of once in a thousand pages."""
    guard = getattr(getattr(store._backend, "below", store._backend), "_shared", None)
    if guard is not None:
        guard.log._pages = 12


# -- the verdict ------------------------------------------------------------------------------------


def verdict(seen: Picture | Exception, done: list[Done], point: int, durability: str = "full") -> str | None:
    """Return the error of the store after a crash behind this number of calls, or None."""
    if isinstance(seen, Exception):
        return f"broken: {seen!r}"
    acknowledged = [deed for deed in done if deed.done <= point]
    under_way = [deed for deed in done if deed.begun <= point < deed.done]
    expected: Picture = {}
    if durability == "relaxed":  # some of the first, and nothing behind them
        for deed in [*acknowledged, *under_way]:
            if seen == expected:
                return None
            expected = {**expected, **deed.changes}
        return None if seen == expected else "never so"
    for deed in acknowledged:
        expected |= deed.changes
    for deed in under_way:
        if all(seen.get(key) == change for key, change in deed.changes.items()):
            expected |= deed.changes
    if seen == expected:
        return None
    lost = {key for key in expected if seen.get(key) != expected[key]}
    return f"lost or half done: {sorted(lost or seen.keys() - expected.keys())}"


class Looker:
    """Looks at what crashes left. What reads the same, all of it, is checked once, unless `thorough`."""

    def __init__(self, *, thorough: bool = False, exact: bool = True, **options: Any) -> None:
        self._options = options
        """With which stores are opened."""
        self._thorough = thorough
        self._exact = exact
        self._known: dict[bytes, Picture] = {}

    def look(self, url: str) -> Picture | Exception:
        """Open the store, check it, and write to it; return its picture, or the error."""
        try:
            read = _read(url, self._options)
            with backtrail.open(url, durability="relaxed", **self._options) as store:
                content = _content(store)
                if read not in (None, content):
                    return AssertionError("whoever opens it only to read it sees something else")
                if content not in self._known or self._thorough:
                    self._known[content] = _checked(store, exact=self._exact)
                return self._known[content]
        except Exception as error:  # noqa: BLE001 - whatever it is, the store is not as it should be
            return error


def _read(url: str, options: dict[str, Any]) -> bytes | None:
    """Return `_content` of a file store that is opened read-only; None if it does not exist yet.

    A half created or half migrated SQLite store has an older format until it is opened for writing.
    """
    if not url.startswith("file:"):
        return None
    try:
        with backtrail.open(url, read_only=True, **options) as store:
            return _content(store)
    except backtrail.NotFound:
        return None
    except backtrail.Invalid as error:
        if error.code == "invalid.not_encrypted":
            return None  # it has no mark yet
        raise


def _checked(store: backtrail.Store, *, exact: bool) -> Picture:
    """Return the picture of a store that is sound, and can be written to."""
    seen = picture(store, exact=exact)
    if not (report := store.verify()).ok:
        raise AssertionError(report)
    store.thread("probe").save({"n": 1})
    if store.thread("probe").load().state != {"n": 1}:
        raise AssertionError("a save is not there")
    return seen


def _content(store: backtrail.Store) -> bytes:
    """Return a hash of all that is in a store: every table, or all that its files say."""
    backend = getattr(store._backend, "below", store._backend)
    found = blake3()
    if isinstance(backend, FileBackend):
        if faults := backend.check(None):
            raise AssertionError(faults)
        for change in backend._storage.tables.whole():
            found.update(repr(fields_of(change, lambda body: backend._storage.bytes_of([body])[0])).encode())
        return found.digest()
    with backend._shared.use() as connection:
        if connection.pragma("integrity_check") != "ok":
            raise AssertionError("SQLite finds it damaged")
        for (table,) in connection.execute(_TABLES).fetchall():
            found.update(repr(connection.execute(f'SELECT * FROM "{table}"').fetchall()).encode())
    return found.digest()


@contextmanager
def quick_directory(otherwise: Path) -> Iterator[Path]:
    """Give a directory in memory, if there is such a place."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)
