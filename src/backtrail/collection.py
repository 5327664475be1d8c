"""The base of the collections `store.agents` and `store.conversations`, which store values in threads.

A value that was loaded or saved knows its head. Saving it again raises `Conflict` if the thread has another head now.
Saving a new value raises `Conflict` if its id exists. A collection caches the handles that it used last, so that a
write need not read the thread again.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from backtrail.agents.checkpoints import Manifests, manifests_of
from backtrail.engine import log
from backtrail.engine.manifests import AGENT
from backtrail.engine.search.extract import listed
from backtrail.engine.tree import chunked as spines
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder, Unpacker
from backtrail.engine.tree.tree import value_of
from backtrail.engine.writer import ANYTHING, NOTHING, Expect
from backtrail.errors import Conflict, Corrupt, Error, Invalid, NotFound
from backtrail.listing import before
from backtrail.loading import loading
from backtrail.models import ALWAYS, AgentCheckpoint
from backtrail.thread import Thread
from backtrail.validation import check_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.tree.tree import Tree
    from backtrail.models import ErasureReport, Period, Saved
    from backtrail.transaction import Engine

T = TypeVar("T")
_KEPT: Final = 256
_PAGE: Final = 200
_CURSOR: Final = re.compile(r"(-?[0-9]{1,18}):([0-9]{1,18})")


class ObjectCache(Generic[T]):
    """A cache of the 256 most recently used objects, by name. Safe to share between Python threads."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make
        self._objects: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> T:
        """Return the object with this name; make it if it is not in the cache."""
        with self._lock:
            cached = self._objects.pop(name, None)
            self._objects[name] = cached = self._make(name) if cached is None else cached
            if len(self._objects) > _KEPT:
                self._objects.popitem(last=False)
        return cached


class Collection:
    """The values of one name space."""

    _space: str
    _what: str
    """The kind of the values with its article, for error messages: "an agent"."""
    _missing: str
    """The error code for an id that does not exist."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads: ObjectCache[Thread[Any]] = ObjectCache(
            lambda name: Thread(engine, self._space, name, None, self._owner(name))
        )

    def _owner(self, name: str) -> str | None:
        """Return the agent that owns a thread: an agent's thread has the agent's id as its name. None for others."""
        return name if self._space == AGENT else None

    def _thread(self, id: str, agent: str | None = None) -> Thread[Any]:  # noqa: A002 - the name users know
        """Return the cached handle of a thread, or a new handle if `agent` is given."""
        handle = self._threads(check_id(id, f"the id of {self._what}"))
        return handle if agent is None else Thread(self._engine, self._space, id, None, agent)

    # -- values -----------------------------------------------------------------------------------------

    def _put(
        self,
        id: str,  # noqa: A002
        agent: str,
        data: dict[str, Any],
        saved: Saved,
        *,
        replace: bool,
        metadata: dict[str, Any] | None = None,
    ) -> Checkpoint[Any]:
        """Save the data of a value. If its thread has another head than the value knows, raise `Conflict`.

        With `replace`, save on top of any head.
        """
        thread = self._thread(id, agent)
        data = thread._redacted(data)  # noqa: SLF001 - our own handle
        change = edits.Replace(data, self._engine.session.reader.nodes(), thread._types)  # noqa: SLF001 - our own handle
        expect = ANYTHING if replace else self._expected(id, saved)
        try:
            checkpoint = thread._write(change, thread._meta(None, (), metadata, "manual"), None, default=expect)  # noqa: SLF001
        except Conflict as error:
            raise self._reworded(error, id) from None
        self._set_head(saved, checkpoint)
        return checkpoint

    def _reworded(self, error: Conflict, id: str) -> Conflict:  # noqa: A002
        """Return a `Conflict` whose text names the agent or conversation, not its thread."""
        one = self._what.partition(" ")[2]
        if error.code == "conflict.exists":
            text = f"{one} {id!r} exists already; load it and change that value, or save with replace=True"
        elif error.code == "conflict.stale" and error.actual is None:
            text = f"{one} {id!r} was deleted since this value was loaded; save with replace=True to start it again"
        elif error.code == "conflict.stale":
            text = f"{one} {id!r} has changed since this value was loaded; load it again and repeat the change"
        else:
            return error
        return Conflict(text, code=error.code, expected=error.expected, actual=error.actual)

    def _expected(self, id: str, saved: Saved) -> Expect:  # noqa: A002
        head = saved.head
        parsed = log.parse_id(head[: log.ID_LENGTH]) if head else None
        if head is None or parsed is None:
            return Expect(NOTHING)
        record = self._engine.session.reader.backend.find_thread(self._space, id)
        if record is None or record.uid != parsed[0]:  # the value is from another store
            return Expect(NOTHING)
        return Expect(parsed[1], bytes.fromhex(head[log.ID_LENGTH :]))

    def _set_head(self, saved: Saved, checkpoint: Checkpoint[Any]) -> None:
        """Set the head of a value to the checkpoint that it was loaded from or saved as."""
        uid = bytes.fromhex(checkpoint.id[-2 * log.UID_BYTES :])
        self._engine.remember(saved, f"{checkpoint.id}{checkpoint.op_id.hex()}", uid)

    def _load(self, id: str, at: Any) -> Checkpoint[Any]:  # noqa: A002
        """Return a checkpoint of a thread. `at` is a ref ("@" for the head), or an agent checkpoint or its id."""
        thread = self._thread(id)
        agent_checkpoint = None
        if isinstance(at, AgentCheckpoint) or (isinstance(at, str) and log.parse_id(at)):
            agent_checkpoint = manifests_of(self._engine, at)
        if agent_checkpoint is not None:
            manifests = Manifests(self._engine, agent_checkpoint[0])
            try:
                return thread._held(manifests.pointer(agent_checkpoint[1], self._space, id))  # noqa: SLF001 - our own handle
            except Corrupt:
                manifests.checkpoint(agent_checkpoint[1])  # not damage if the checkpoint was deleted: raises NotFound
                raise
        checkpoint = thread.latest()
        if checkpoint is None:
            raise self._unknown(id)
        return checkpoint if at == "@" else thread.load(at)

    def _unknown(self, id: str) -> NotFound:  # noqa: A002
        return NotFound(f"there is no {self._what.partition(' ')[2]} {id!r}", code=self._missing)

    def _erase(self, ids: Any, **options: Any) -> ErasureReport:
        """Erase values; the handles of this collection forget their heads."""
        with loading:
            from backtrail.maintenance.erase import erase_all  # noqa: PLC0415 - few programs do it

        report = erase_all(self._engine, self._space, ids, **options)
        for each in report.threads:
            if each.kind == self._space:
                self._threads(each.id)._erased()  # noqa: SLF001 - our own handle
        return report

    # -- listing ------------------------------------------------------------------------------------------

    def _listed(
        self, agent: str | None, cursor: str | None = None, prefix: str | None = None, period: Period = ALWAYS
    ) -> Iterator[tuple[ThreadRecord, Row]]:
        """Yield the threads that have a head, with their newest rows, latest activity first, after a cursor."""
        after = before(period.until, None if cursor is None else _place_of(cursor))
        while True:
            backend = self._engine.session.reader.backend
            page = backend.threads(space=self._space, agent=agent, prefix=prefix, after=after, limit=_PAGE)
            for record, newest in page:
                if period.since is not None and newest.created_at < period.since:
                    return
                yield record, newest
            if len(page) < _PAGE:
                return
            after = (page[-1][1].created_at, page[-1][0].no)

    def _headers(
        self,
        agent: str | None,
        cursor: str | None,
        selects: Callable[[ThreadRecord], bool] = lambda _: True,
        *,
        prefix: str | None = None,
        period: Period = ALWAYS,
    ) -> Iterator[tuple[ThreadRecord, Row, dict[str, Any] | str]]:
        """Yield each selected thread with its newest row and its `_header`. Deleted threads are skipped."""
        for record, newest in self._listed(agent, cursor, prefix, period):
            if selects(record):
                with suppress(NotFound):
                    yield record, newest, self._header(record)

    def _header(self, record: ThreadRecord) -> dict[str, Any] | str:
        """Return the fields of a thread's state that a listing shows, or the reason why it cannot be read.

        The messages are replaced by their number and the last message.
        """
        reader = self._engine.session.reader
        try:
            tip = reader.tip_of(record)
            if tip is None or tip.head is None:
                raise self._unknown(record.name)
            return _header(reader.chain(record, tip.head).tree, self._engine)
        except NotFound:
            raise
        except Error as error:  # list an unreadable thread, too
            return str(error)


def is_field(key: Any) -> bool:
    """Tell whether a key of a state is a field of its value: keys that begin with @ belong to adapters."""
    return not (isinstance(key, str) and key.startswith("@"))


def cursor_of(record: ThreadRecord, newest: Row) -> str:
    """Return the cursor with which a listing continues after a thread, even if the thread is deleted meanwhile."""
    return f"{newest.created_at}:{record.no}"


def _place_of(cursor: str) -> tuple[int, int]:
    match = _CURSOR.fullmatch(str(cursor))
    if match is None:
        raise Invalid(
            f"after= must be the cursor of an entry of this listing, not {cursor!r:.60}", code="invalid.argument"
        )
    return int(match[1]), int(match[2])


def _header(tree: Tree, engine: Engine) -> dict[str, Any]:
    top = spines.open_rep(tree.rep, tree.nodes)
    if top is None or not top.is_mapping:
        raise Corrupt("its state is not a dict", code="corrupt.state")
    decoder, unpack = Decoder(tree.nodes, engine.types), Unpacker(engine.types)
    fields: dict[str, Any] = {}
    for entry in spines.entries(tree.nodes, top):
        key = unpack(spines.key_of(entry))
        if key != "messages" and is_field(key):
            fields[key] = decoder.value(value_of(entry))
    spine = listed(tree)
    if spine is not None:
        fields["count"] = spine.length
        last = spines.entries(tree.nodes, spine, spine.length - 1) if spine.length else []
        fields["last"] = decoder.values(last)[0] if last else None
    return fields
