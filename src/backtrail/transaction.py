"""Transactions, groups, and the engine that a store and its handles share.

A transaction belongs to a *caller*: the running asyncio task, or the thread if no task runs. The heads that saves
expect are also kept by caller. A worker thread that works for a task has that task as its caller. The caller of a
coroutine function stays the caller even if another task awaits the coroutine, as in `wait_for` and `gather`.
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
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from backtrail.engine.head import HeadMover
from backtrail.engine.reader import LogReader, Options, StoreReader, Tip
from backtrail.engine.writer import PATIENCE, LogWriter
from backtrail.errors import Conflict, Corrupt, Error, Invalid, NotFound, Unavailable
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
    """The caller for which a worker thread acts; None if the thread acts for itself."""

    caller: object | None = None


acting: Final = _Acting()
asked: Final[ContextVar[tuple[object, Any] | None]] = ContextVar("backtrail asked", default=None)
"""The caller of a coroutine, and the task that runs it. Tasks made by that task inherit the variable and ignore it."""


def current() -> object:
    """Return the current caller: a task or a thread. It can be the key of a weak dictionary."""
    if acting.caller is not None:
        return acting.caller
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:  # noqa: SLF001 - the cheap way to ask
        task = asyncio.current_task()
        if task is not None:
            caller = asked.get()
            return task if caller is None or caller[1] is not task else caller[0]
    return threading.current_thread()


T = TypeVar("T")

_TRIM_EVERY: Final = 64


class Session(NamedTuple):
    """The reader and the writers of a caller: those of the store, or those of the caller's open transaction."""

    reader: LogReader
    writer: LogWriter
    mover: HeadMover
    overlay: Overlay | None = None
    owner: weakref.ref[object] | None = None
    """The caller that opened the transaction."""


class Known:
    """The tip of a thread after the last write by this process, shared by all handles of the thread.

    It is only a hint. A write is first tried on this tip, without reading the thread. If the tip is old, or its write
    was dropped, the commit raises `Stale`, and the thread is read.
    """

    __slots__ = ("__weakref__", "tip")

    def __init__(self) -> None:
        self.tip: Tip | None = None


def forget(undo: list[Callable[[], None]]) -> None:
    """Run the undo actions of dropped writes, the last action first, so that handles and values forget the writes."""
    for action in reversed(undo):
        action()


class OpenGroup:
    """The tips and undo actions of the writes of a group, until the group ends."""

    def __init__(self) -> None:
        self.tips: dict[Known, Tip] = {}
        """The new tips. Other Python threads must not write on them before they are durable."""
        self.undo: list[Callable[[], None]] = []
        """The actions that make handles and values forget the writes, if the group is dropped."""


class _ThreadState(threading.local):
    """The state of the calling thread."""

    group: OpenGroup | None = None
    barred: str | None = None
    """Why the thread must not use the store now, as the text of an error; None if it may."""


class _Work:
    """The caller of one transaction of `Engine.atomic`. It is not the task, so that the task's other calls stay out."""

    __slots__ = ("__weakref__",)


class Transaction:
    """`with store.transaction():`. It belongs to the thread or task that enters it, and is written when the block ends.

    With `bulk` it is `with store.bulk():`, which is also written whenever it holds many rows.

    Ctrl-C can arrive just before `__exit__` runs. Then the `with` statement drops the only reference to this object,
    and `__del__` drops the transaction.
    """

    __slots__ = ("_bulk", "_desk", "_engine", "_me")

    def __init__(self, engine: Engine, *, bulk: bool = False) -> None:
        self._engine = engine
        self._bulk = bulk
        self._me: object = None
        self._desk: Session | None = None

    def __enter__(self) -> None:
        self._me = me = self._engine.owner()
        self._desk = session = self._engine.session_for(me, bulk=self._bulk)
        self._engine.opened[me] = session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._engine.opened.pop(self._me, None)
        session, self._desk = self._desk, None
        if session is not None:
            self._engine.end(session, commit=error is None)

    def __del__(self) -> None:
        if self._desk is None:
            return
        if self._engine.opened.get(self._me) is self._desk:
            self._engine.opened.pop(self._me, None)
        self._engine.end(self._desk, commit=False)


class Engine:
    """The state that a store and its handles share: the backend, the open transactions, and the known tips."""

    def __init__(self, backend: Backend, types: Types, options: Options) -> None:
        self.backend = backend
        self.types = types
        self.options = options
        self.reader = reader = StoreReader(backend, types, options)
        """The reader of the store itself, even if the caller has a transaction open."""
        self._direct = Session(reader, LogWriter(reader, self._trim if options.retires else None), HeadMover(reader))
        self._hub = Hub(reader)
        self._written: dict[int, int] = {}
        self._calling = _ThreadState()
        self._closed: dict[tuple[Any, ...], Types] = {}
        self._named_last: tuple[tuple[Any, ...] | None, Types] = (None, types)
        self._known: weakref.WeakValueDictionary[tuple[str, str], Known] = weakref.WeakValueDictionary()
        self.opened: dict[object, Session] = {}
        """The open transactions by caller. Callers change this dict directly, in one step: Ctrl-C on entry to a helper
        function could leave a transaction open for good.
        """
        self._barred = False
        """Whether any thread ever was barred."""

    @property
    def session(self) -> Session:
        """The session of the caller: its open transaction, or the store itself."""
        if self._barred:
            self._refuse_if_barred()
        session = self.opened.get(current()) if self.opened else None
        return self._direct if session is None else session

    @property
    def direct(self) -> Session:
        """The session of the store itself, even if the caller has a transaction open."""
        return self._direct

    def outside(self) -> StoreReader:
        """Return the reader of the store itself; `Unavailable` if the caller has a transaction open."""
        if self.session.overlay is not None:
            raise Unavailable("not inside a transaction: do it before or after", code="unavailable.transaction")
        return self.reader

    @property
    def hub(self) -> Hub:
        """The hub that wakes the watchers of this process. A forked child gets its own."""
        if self._hub.pid != os.getpid():
            self._hub = Hub(self.reader)
        return self._hub

    @property
    def open_group(self) -> OpenGroup | None:
        """The open group of the calling thread."""
        return self._calling.group

    def known(self, space: str, name: str) -> Known:
        """Return the `Known` that all handles of a thread share. It lives as long as one of the handles."""
        return self._known.get((space, name)) or self._known.setdefault((space, name), Known())

    def known_tip(self, known: Known) -> Tip | None:
        """Return the known tip of a thread, after writes of the caller's transaction or group, too; None if unknown."""
        overlay = self.session.overlay if self.opened else None
        if overlay is not None and known in overlay.known_tips:
            tip: Tip = overlay.known_tips[known]
            return tip
        group = self._calling.group
        return known.tip if group is None else group.tips.get(known, known.tip)

    def keep_tip(self, known: Known, tip: Tip) -> None:
        """Set the known tip of a thread after a write, for the caller's transaction or group only if it has one."""
        overlay = self.session.overlay
        if overlay is not None:
            overlay.known_tips[known] = tip
        else:
            self._publish(known, tip)

    def _publish(self, known: Known, tip: Tip) -> None:
        group = self._calling.group
        if group is None:
            known.tip = tip
        else:
            group.tips[known] = tip

    def forget(self) -> None:
        """Forget all known tips and checked rows. Needed after a repair, which may free seqs for new rows."""
        for known in list(self._known.values()):
            known.tip = None
        self._written.clear()
        self._direct.reader.examined.clear()
        self._direct.reader.deltas.clear()

    def types_with(self, named: Iterable[Any] | None) -> Types:
        """Return the registry of a thread: the store's, or a closed one with the classes `named` if given."""
        if named is None:
            return self.types
        last, types = self._named_last
        if named is last:  # an adapter passes the same tuple for each handle; comparing dozens of classes takes time
            return types
        key = self.types.named(named)
        types = self._closed.get(key) or self._closed.setdefault(key, self.types.closed(key))
        if named is key:  # a tuple cannot change
            self._named_last = key, types
        return types

    def _trim(self, record: ThreadRecord) -> None:
        """Remove the rows of a thread that the store's options have hidden, after every 64th write to the thread.

        Errors are suppressed: the write has succeeded, and must not look as if it had failed.
        """
        self._written[record.no] = self._written.get(record.no, 0) + 1
        if self._written[record.no] % _TRIM_EVERY:
            return
        with suppress(Error):
            gc.collect_rows(self.reader, record)

    # -- transactions -----------------------------------------------------------------------------

    def session_for(self, me: object, *, bulk: bool = False) -> Session:
        """Return the session of a new transaction; the caller adds it to `opened`."""
        if self.session is not self._direct:
            raise Invalid("a transaction is open already in this thread or task", code="invalid.transaction")
        overlay = Overlay(self.backend, bulk=bulk)
        reader = LogReader(overlay, self.types, self.options, self._direct.reader.clock)
        reader.cache = self._direct.reader.cache
        examined: dict[int, Examined | None] = {}  # published when the transaction is written
        reader.examined = ChainMap(examined, self._direct.reader.examined)
        reader.deltas = ChainMap({}, self._direct.reader.deltas)
        overlay.after_pieces.append(
            lambda: self._direct.reader.examined.update({no: each for no, each in examined.items() if no >= 0})
        )
        writer = LogWriter(reader, spare=overlay.spare, relied_on=overlay.rely_on)
        return Session(reader, writer, HeadMover(reader), overlay, weakref.ref(me))

    def end(self, session: Session, *, commit: bool) -> None:
        """Commit a transaction, or drop it. The caller has removed it from `opened`."""
        mine = session.owner is not None and session.owner() is current()
        if session.overlay is not None:
            undo = session.overlay.after_drop
            for known, tip in session.overlay.finish(commit=commit and mine).items():
                self._publish(known, tip)
            if self._calling.group is not None and commit:
                self._calling.group.undo += undo  # the group may still be dropped
        if not mine and commit:
            raise Invalid(
                "the transaction ended in another thread or task than it began in; nothing was written",
                code="invalid.transaction",
            )

    def wrote(self, session: Session) -> None:
        """Write a piece of the caller's bulk block, if it is large enough; called after each of its writes."""
        if session.overlay is not None and session.overlay.is_full:
            for known, tip in session.overlay.flush().items():
                self._publish(known, tip)

    def atomic(self, work: Callable[[Session], T]) -> T:
        """Call `work` and make its writes atomic: in the caller's open transaction, or in a new one.

        A new transaction is retried if another writer changes one of its threads meanwhile. If `work` fails in the
        caller's transaction, only the writes of `work` are dropped.
        """
        session = self.session
        if session.overlay is not None:
            undo = session.overlay.after_drop
            mark = len(undo)
            try:
                with session.overlay.part():
                    done = work(session)
            except BaseException:
                forget(undo[mark:])
                raise
            self.wrote(session)
            return done
        until = time.monotonic() + PATIENCE
        tries = 0
        while True:
            try:
                return self.at_once(work)
            except Conflict as error:
                if error.code != "conflict.transaction" or time.monotonic() > until:
                    raise
            tries += 1
            time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - jitter

    def owner(self) -> object:
        """Return the current caller: a task or a thread."""
        return current()

    def at_once(self, work: Callable[[Session], T]) -> T:
        """Call `work` in a new transaction, without retries; `Conflict` if another writer was first."""
        before, me = acting.caller, _Work()
        try:
            acting.caller = me
            session = self.session_for(me)
            try:
                self.opened[me] = session
                done = work(session)
            except BaseException as error:
                self.opened.pop(me, None)
                self.end(session, commit=False)
                if isinstance(error, Corrupt | NotFound) and session.overlay and session.overlay.overtaken():
                    raise Conflict("another writer was first", code="conflict.transaction") from error
                raise
            self.opened.pop(me, None)
            self.end(session, commit=True)
        finally:
            acting.caller = before
        return done

    # -- the undo log ------------------------------------------------------------------------------------

    def undo_log(self, uid: bytes | None = None) -> list[Callable[[], None]] | None:
        """Return the list of actions to run if the caller's transaction or group is dropped.

        None if there is no group, and the caller's transaction has not written to the thread with this uid. A head
        that was only read is forgotten with the group only: the group may have written it.
        """
        overlay = self.session.overlay
        record = None if overlay is None or uid is None else overlay.thread_with_uid(uid)
        if overlay is not None and record is not None and overlay.wrote(record.no):
            return overlay.after_drop
        return None if self._calling.group is None else self._calling.group.undo

    def remember(self, saved: Saved, head: str, uid: bytes) -> None:
        """Set the head id of a saved value. It is reset if the transaction or group of the write is dropped.

        `uid` is the uid of the value's thread.
        """
        undo = self.undo_log(uid)
        if undo is not None:
            undo.append(partial(setattr, saved, "head", saved.head))
        saved.head = head

    # -- groups -----------------------------------------------------------------------------------

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make the calling thread's writes durable together when the block ends. See `Writer.group`."""
        group = OpenGroup()
        try:
            with self.backend.group():
                self._calling.group = group
                try:
                    yield
                finally:
                    self._calling.group = None
        except BaseException:
            forget(group.undo)
            raise
        for known, tip in group.tips.items():
            known.tip = tip

    @contextmanager
    def barred(self, why: str) -> Iterator[None]:
        """Make any use of the store by the calling thread raise `Invalid` with the text `why`, inside the block."""
        self._barred = True
        self._calling.barred = why
        try:
            yield
        finally:
            self._calling.barred = None

    def _refuse_if_barred(self) -> None:
        if self._calling.barred is not None:
            raise Invalid(self._calling.barred, code="invalid.progress")
