"""Who is calling: the asyncio task, or else the thread. Expectations and transactions belong to one of them.

A thread that does something for a task acts for it: then the task is the one who calls. And whoever calls a coroutine
function is the one who calls, even if another task awaits what it gave, as `wait_for` and `gather` have it done.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import weakref
from collections import ChainMap
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from backtrail.engine.moves import Moves
from backtrail.engine.reader import Heads, Options, Standing
from backtrail.engine.writer import PATIENCE, Writes
from backtrail.errors import Conflict, Corrupt, Error, Invalid, NotFound
from backtrail.maintenance import gc
from backtrail.overlay import Overlay
from backtrail.watch import Hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from backtrail.backends.port import Backend, ThreadRecord
    from backtrail.engine.reader import Examined
    from backtrail.engine.schema.registry import Types
    from backtrail.models import Saved


class _Acting(threading.local):
    """For whom the calling thread acts, if not for itself."""

    who: object | None = None


acting: Final = _Acting()
_asked: Final[ContextVar[tuple[object, Any] | None]] = ContextVar("backtrail asked", default=None)
"""Who asked for what the task beside it does. Tasks that this one makes inherit it: it is not for them."""


def current() -> object:
    """Return the calling task or thread, as an object that a weak dictionary can hold."""
    if acting.who is not None:
        return acting.who
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the cheap way to ask
        task = asyncio.current_task()
        if task is not None:
            asked = _asked.get()
            return task if asked is None or asked[1] is not task else asked[0]
    return threading.current_thread()


@contextmanager
def asked_by(who: object) -> Iterator[None]:
    """Call as somebody else, in the calling task, until the block ends."""
    asyncio = sys.modules["asyncio"]
    before = _asked.set((who, asyncio.current_task()))
    try:
        yield
    finally:
        _asked.reset(before)


@contextmanager
def acting_for(who: object) -> Iterator[None]:
    """Call as somebody else, in the calling thread, until the block ends."""
    before, acting.who = acting.who, who
    try:
        yield
    finally:
        acting.who = before


T = TypeVar("T")

_TRIM_EVERY: Final = 64


class Desk(NamedTuple):
    """Where the caller reads and writes: the store itself, or the transaction that it has open."""

    heads: Heads
    writes: Writes
    moves: Moves
    overlay: Overlay | None = None
    owner: weakref.ref[object] | None = None
    """Whose transaction it is."""


class Pending:
    """What handles remember of writes whose group has not ended.

    Only the group itself sees it: somebody else who built on it would build on what may never be. It is published
    when the group's writes are durable, and forgotten if they did not happen.
    """

    def __init__(self) -> None:
        self._kept: dict[object, tuple[Any, Callable[[Any], None]]] = {}

    def get(self, key: object, default: Any) -> Any:
        """Return what is remembered under a key."""
        found = self._kept.get(key)
        return default if found is None else found[0]

    def keep(self, key: object, value: Any, publish: Callable[[Any], None]) -> None:
        """Remember a value; `publish` is called with the last one of its key."""
        self._kept[key] = (value, publish)

    def publish(self) -> None:
        """Let everybody know."""
        for value, publish in self._kept.values():
            publish(value)


class Known:
    """How a thread stood after a write, for all handles of it: a hint, which is tried before the thread is read."""

    __slots__ = ("__weakref__", "standing")

    def __init__(self) -> None:
        self.standing: Standing | None = None


class _Calling(threading.local):
    """What is known of the calling thread."""

    pending: Pending | None = None
    """What its open group has pending."""
    barred: str | None = None
    """Why it is not to use the store just now."""


class _Work:
    """Whose a transaction of `Engine.atomic` is: nobody who calls for the same task meanwhile is to write into it."""

    __slots__ = ("__weakref__",)


class Transaction:
    """`with store.transaction():`. It belongs to the thread or task that enters it, and is written when the block ends.

    Ctrl-C can arrive just before `__exit__` runs. Then the `with` statement drops the only reference to this object,
    and `__del__` drops the transaction.
    """

    __slots__ = ("_desk", "_engine", "_me")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._me: object = None
        self._desk: Desk | None = None

    def __enter__(self) -> None:
        self._me = me = self._engine.owner()
        self._desk = desk = self._engine.desk_for(me)
        self._engine.opened[me] = desk

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._engine.opened.pop(self._me, None)
        desk, self._desk = self._desk, None
        if desk is not None:
            self._engine.end(desk, commit=error is None)

    def __del__(self) -> None:
        if self._desk is None:
            return
        if self._engine.opened.get(self._me) is self._desk:
            self._engine.opened.pop(self._me, None)
        self._engine.end(self._desk, commit=False)


class Engine:
    """Reads and writes threads in a backend."""

    def __init__(self, backend: Backend, types: Types, options: Options) -> None:
        self.backend = backend
        self.types = types
        self.options = options
        heads = Heads(backend, types, options)
        self._direct = Desk(heads, Writes(heads, self._trim), Moves(heads))
        self._hub = Hub(heads)
        self._written: dict[int, int] = {}
        self._calling = _Calling()
        self._closed: dict[tuple[Any, ...], Types] = {}
        self._named_last: tuple[tuple[Any, ...] | None, Types] = (None, types)
        self._known: weakref.WeakValueDictionary[tuple[str, str], Known] = weakref.WeakValueDictionary()
        self.opened: dict[object, Desk] = {}
        """Who has a transaction open. Whoever opens or closes one puts it in or takes it out in one step: a function
        that does it might be interrupted at its entry, and all that follows would be written to what never ends.
        """
        self._barred = False
        """Whether anybody ever was barred."""

    @property
    def desk(self) -> Desk:
        """Where the calling thread or task reads and writes."""
        if self._barred:
            self._refuse_if_barred()
        desk = self.opened.get(current()) if self.opened else None
        return self._direct if desk is None else desk

    @property
    def direct(self) -> Desk:
        """The store itself, whatever transaction the caller has open."""
        return self._direct

    @property
    def hub(self) -> Hub:
        """Who wakes those that watch: this process's own."""
        if self._hub.pid != os.getpid():
            self._hub = Hub(self._direct.heads)
        return self._hub

    def known(self, space: str, name: str) -> Known:
        """Return what the handles of a thread share, as long as there are any."""
        return self._known.get((space, name)) or self._known.setdefault((space, name), Known())

    def forget(self) -> None:
        """Know nothing any more of how threads stand: after a repair, numbers that were lost are given again."""
        for known in list(self._known.values()):
            known.standing = None
        self._written.clear()
        self._direct.heads.examined.clear()
        self._direct.heads.deltas.clear()

    def types_with(self, named: Iterable[Any] | None) -> Types:
        """Return the store's types; with those that are named for a thread, if any are: then there are no others."""
        if named is None:
            return self.types
        last, types = self._named_last
        if named is last:  # an adapter names the same for each handle, and to compare some dozens takes a while
            return types
        key = self.types.named(named)
        types = self._closed.get(key) or self._closed.setdefault(key, self.types.closed(key))
        if named is key:  # a tuple: it stays as it is
            self._named_last = key, types
        return types

    def _trim(self, record: ThreadRecord) -> None:
        """Now and then remove rows that the store's own options have hidden, so that they do not pile up.

        The write before it is done: whatever goes wrong here must not look as if that had failed.
        """
        if not self.options.retires:
            return
        self._written[record.no] = self._written.get(record.no, 0) + 1
        if self._written[record.no] % _TRIM_EVERY:
            return
        with suppress(Error):
            gc.collect_rows(self._direct.heads, record)

    # -- transactions -----------------------------------------------------------------------------

    def desk_for(self, me: object) -> Desk:
        """Return a desk for a transaction of the caller, who is to put it among those that are open."""
        if self.desk is not self._direct:
            raise Invalid("a transaction is open already in this thread or task", code="invalid.transaction")
        overlay = Overlay(self.backend)
        heads = Heads(overlay, self.types, self.options, self._direct.heads.clock)
        heads.cache = self._direct.heads.cache
        examined: dict[int, Examined | None] = {}  # counts for others when the transaction has been written
        heads.examined = ChainMap(examined, self._direct.heads.examined)
        heads.deltas = ChainMap({}, self._direct.heads.deltas)
        overlay.after_commit.append(
            lambda: self._direct.heads.examined.update({no: each for no, each in examined.items() if no >= 0})
        )
        writes = Writes(heads, spare=overlay.spare, relied_on=overlay.rely_on)
        return Desk(heads, writes, Moves(heads), overlay, weakref.ref(me))

    def end(self, desk: Desk, *, commit: bool) -> None:
        """End a transaction that is not open any more: write all of it, or none."""
        mine = desk.owner is not None and desk.owner() is current()
        if desk.overlay is not None:
            desk.overlay.finish(commit=commit and mine)
        if not mine and commit:
            raise Invalid(
                "a transaction ends in the thread or task that it began in; nothing of it was written",
                code="invalid.transaction",
            )

    def atomic(self, work: Callable[[Desk], T]) -> T:
        """Do work of several writes as one: in the caller's transaction, or in one of its own.

        If somebody else writes to one of its threads meanwhile, the work is done again, on what is there then.
        """
        desk = self.desk
        if desk.overlay is not None:
            with desk.overlay.part():
                return work(desk)
        until = time.monotonic() + PATIENCE
        tries = 0
        while True:
            try:
                return self.at_once(work)
            except Conflict as error:
                if error.code != "conflict.transaction" or time.monotonic() > until:
                    raise
            tries += 1
            time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - only to get out of step

    def owner(self) -> object:
        """Return who is calling: a task, or a thread."""
        return current()

    def at_once(self, work: Callable[[Desk], T]) -> T:
        """Do work of several writes as one, in a transaction of its own; `Conflict` if somebody else was faster."""
        before, me = acting.who, _Work()
        try:
            acting.who = me
            desk = self.desk_for(me)
            try:
                self.opened[me] = desk
                done = work(desk)
            except BaseException as error:
                self.opened.pop(me, None)
                self.end(desk, commit=False)
                if isinstance(error, Corrupt | NotFound) and desk.overlay and desk.overlay.overtaken():
                    raise Conflict("somebody else was first", code="conflict.transaction") from error
                raise
            self.opened.pop(me, None)
            self.end(desk, commit=True)
        finally:
            acting.who = before
        return done

    # -- what values remember -----------------------------------------------------------------------

    def recalled(self, saved: Saved) -> str | None:
        """Return the head that a value came from, as the caller knows it."""
        head: str | None = saved.head if self.pending is None else self.pending.get(saved, saved.head)
        return head

    def remember(self, saved: Saved, head: str, uid: bytes) -> None:
        """Note the head that a value is now, of the thread with this uid.

        What a transaction has written counts at once, for what is derived from it there, and no more if it is dropped.
        In a group it counts when that has ended.
        """
        overlay = self.desk.overlay
        record = None if overlay is None else overlay.thread_with_uid(uid)
        if overlay is None or record is None or not overlay.wrote(record.no):
            self._keep(saved, head, saved.head)
            return
        before = overlay.expected.setdefault(saved, saved.head)
        saved.head = head
        overlay.after_commit.append(lambda: self._keep(saved, head, before))
        overlay.after_drop.append(lambda: setattr(saved, "head", before))

    def _keep(self, saved: Saved, head: str, before: str | None) -> None:
        if self.pending is None:
            saved.head = head
        else:
            saved.head = before
            self.pending.keep(saved, head, lambda last: setattr(saved, "head", last))

    # -- groups -----------------------------------------------------------------------------------

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make the calling thread's writes durable together when the block ends; `Backend.group` says how."""
        pending = Pending()
        with self.backend.group():
            self._calling.pending = pending
            try:
                yield
            finally:
                self._calling.pending = None
        pending.publish()

    @property
    def pending(self) -> Pending | None:
        """What the calling thread's open group has pending; None if it has no group."""
        return self._calling.pending

    @contextmanager
    def barred(self, why: str) -> Iterator[None]:
        """Keep the calling thread from using the store in the block: what it wrote might be taken back."""
        self._barred = True
        self._calling.barred = why
        try:
            yield
        finally:
            self._calling.barred = None

    def _refuse_if_barred(self) -> None:
        if self._calling.barred is not None:
            raise Invalid(self._calling.barred, code="invalid.progress")
