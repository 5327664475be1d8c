"""The two threads of a run, as its worker holds them: what it goes on from, and its checkpoints.

Each remembers how its thread stood after the last write, so that nothing needs to be read again; the first of them
writes on top of that and nothing else, which is what keeps a worker out that was taken over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from blake3 import blake3

from backtrail.backends.port import Batch
from backtrail.engine import journal, log
from backtrail.engine.schema.registry import Member, Record, Types
from backtrail.engine.tree import edits as changes
from backtrail.engine.tree import unpacker
from backtrail.engine.tree.codec import Decoder, Encoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import NOTHING, Expect
from backtrail.entities import Message
from backtrail.errors import Conflict, Corrupt, Error, Invalid
from backtrail.maintenance import gc
from backtrail.models import MISSING, when
from backtrail.runs.calls import copied
from backtrail.runs.points import LISTS, forked, rewound
from backtrail.runs.strategies import RunState
from backtrail.thread import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import Standing
    from backtrail.engine.writer import Proposal, Propose
    from backtrail.transaction import Desk, Engine

SPACE: Final = journal.RUN
JOURNAL: Final = journal.SPACE
INTERRUPTED: Final = (str(RunState.HALTED), "interrupted")
"""The status of a run that Ctrl-C or a cancellation has left."""
MOVES: Final = (log.REWIND, log.UNDO, log.REDO)
_TRIM_EVERY: Final = 32
_PLAIN: Final = Types()


class Work(Handle[Any]):
    """The thread that a run goes on from: written only by who has the lease."""

    def __init__(self, engine: Engine, session_id: str, agent: str | None, named: Sequence[Any] = ()) -> None:
        super().__init__(engine, JOURNAL, session_id, None, agent)
        self._types, self._exact = registries(engine, named)
        self.standing: Standing | None = None
        self.stored: dict[str, Any] | None = None
        """What was last read, wherever the run was moved to."""
        self.status: list[Any] = [str(RunState.IN_PROGRESS), None]
        """How the run stands by what was last read or written."""
        self._ended = 0

    def belongs_to(self, agent: str) -> None:
        """Take note of whose run it is, if that turns out when it is opened."""
        self._key = self._key._replace(agent=agent)

    def read(self, desk: Desk) -> dict[str, Any] | None:
        """Look at how it stands."""
        standing = desk.heads.standing(JOURNAL, self.id)
        if standing is None or standing.head is None:
            self.standing = standing
            return None
        self.standing = desk.heads.with_chain(standing)
        tree = self.standing.chain.tree if self.standing.chain else None
        found = None if tree is None else Decoder(tree.nodes, self._types).value(tree.rep)
        if not isinstance(found, dict) or not journal.is_point(found):
            raise Corrupt(f"the journal of run {self.id!r} is damaged", code="corrupt.state")
        self.status = found["status"]
        self.stored = found
        return found

    def point(self, desk: Desk) -> tuple[dict[str, Any] | None, bool]:
        """Return what the run goes on from, and whether that is another of its checkpoints than it was at.

        Whoever moves the head of its checkpoints, moves the run; what it had done since is not gone on with then.
        """
        data = self.read(desk)
        standing = desk.heads.standing(SPACE, self.id)
        if data is None or standing is None or standing.head is None:
            return data, False
        at, newest, head = data.get("at", 0), standing.newest, standing.head
        if newest.op not in MOVES or newest.seq <= max(at, data.get("upto", 0)):
            return data, False
        if head.seq == at and newest.op != log.REWIND:  # an undo or a redo of what moved it away
            return data, False
        tree = desk.heads.chain(standing.record, head).tree
        seen = Decoder(tree.nodes, self._types).value(tree.rep)
        if not journal.is_seen(seen):  # somebody's own
            return data, False
        return {**rewound(seen, data), "at": head.seq, "upto": newest.seq}, True

    def settle_move(self, desk: Desk) -> None:
        """Write down where the run goes on, if somebody has moved it: its checkpoints are not needed for that, then."""
        data, moved = self.point(desk)
        if data is not None and moved:
            self.put(desk, self.whole(desk, data), data["status"])

    def began_with(self, desk: Desk) -> Any:
        """Return the state with which the iteration began that is being run."""
        standing = None if self.standing is None else desk.heads.with_chain(self.standing)
        if standing is None or standing.chain is None:
            raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
        tree = standing.chain.tree
        return Decoder(tree.nodes, self._types).value(locate(tree, Path(("state",)), self._types)[0])

    def put(self, desk: Desk, propose: Propose, status: list[Any] | None = None) -> None:
        """Write on top of what was last read or written, and nothing else; `status` if that changes with it."""
        head = self.standing.head if self.standing else None
        expect = Expect(head.seq, head.op_id) if head else Expect(NOTHING)
        known = self.standing if head else None
        self.status = self.status if status is None else status
        meta = self._meta(None, (), _noted(*self.status), "automatic")
        self.standing = desk.writes.save(self._key, propose, meta, expect=expect, known=known)

    def settle(self, desk: Desk) -> None:
        """Look up a standing that was made in the transaction which made the thread: its number was not known."""
        if self.standing is not None and self.standing.record.no < 0:
            found = desk.heads.standing(JOURNAL, self.id)
            if found is None:
                raise Corrupt(f"the journal of run {self.id!r} is gone", code="corrupt.state")
            self.standing = found._replace(chain=self.standing.chain)

    def begin_anew(self, desk: Desk) -> None:
        """Hide all but the newest row: nothing of an iteration that is over is needed to go on."""
        if self.standing is not None and self.standing.record.no > 0:
            no, newest = self.standing.record.no, self.standing.newest.seq
            shown = desk.heads.backend.rows(no, [(1, newest - 1)], visible=True)
            desk.heads.backend.commit(Batch(hide=tuple((no, row.seq) for row in shown)))

    def trim(self) -> None:
        """Now and then remove what was hidden. The run goes on, whatever goes wrong here."""
        self._ended += 1
        if self._ended % _TRIM_EVERY == 0 and self.standing is not None:
            with suppress(Error):
                gc.collect_rows(self._engine.direct.heads, self.standing.record)

    # -- what is put there ----------------------------------------------------------------------------------

    def whole(self, desk: Desk, data: dict[str, Any]) -> changes.Replace:
        """Return the change that writes all of it."""
        return changes.Replace(data, desk.heads.nodes(), self._types)

    def edits(self, given: dict[str, Any]) -> list[changes.Put | changes.Cut]:
        """Return edits that put values at paths of one step."""
        return [changes.Put(Path((name,)), value, self._types, self.id) for name, value in given.items()]

    def added(self, name: str, items: Sequence[Any]) -> changes.Edit:
        """Return the edit that adds items to one of its lists."""
        return changes.Append(Path((name,)), tuple(items), self._types, self.id)

    def matched(self, name: str, value: Any) -> changes.Edit:
        """Return the edit that writes what is different of a value."""
        return changes.Match(Path((name,)), value, self._exact, self.id)

    def hash(self, value: Any, what: str = "state") -> str:
        """Return the hash of a value; `Invalid` if it would not come back as it is."""
        return _hashed(Encoder(self._engine.direct.heads.nodes(), self._exact, what=what).rep(value))

    def copied(self, value: Any, what: str) -> tuple[str, Any]:
        """Return the hash of a value, and its copy from the store; `Invalid` if it would not come back as it is."""
        nodes = self._engine.direct.heads.nodes()
        rep = bytes(Encoder(nodes, self._exact, what=what).rep(value))
        kept = copied(value)
        return _hashed(rep), Decoder(nodes, self._exact).value(rep) if kept is MISSING else kept

    def as_kept(self, value: Any, what: str) -> Any:
        """Return the copy of a value that the store gives back; `Invalid` if it would not come back as it is."""
        kept = copied(value)
        return self.copied(value, what)[1] if kept is MISSING else kept

    def as_data(self, value: Any, what: str) -> Any:
        """Return the copy of a value with instances of classes that were not named as data; `Invalid` without one."""
        nodes = self._engine.direct.heads.nodes()
        return Decoder(nodes, self._types).value(bytes(Encoder(nodes, self._types, what=what).rep(value)))


def _noted(name: str, reason: str | None) -> dict[str, Any] | None:
    """Return what a row says of how the run stands, so that a listing need not read the run; None while it goes on."""
    if name == RunState.IN_PROGRESS:
        return None
    return {"status": name, "interrupted": True} if (name, reason) == INTERRUPTED else {"status": name}


def noted(record: ThreadRecord, row: Row) -> dict[str, Any]:
    """Return what the newest row of a journal says of how the run stands; nothing if the run has to be read."""
    with suppress(Error):  # to read the run will tell that the row is damaged
        packed = log.unpack_extra(log.checked(row, record.uid))[0]
        found = unpacker.Unpacker(_PLAIN)(packed) if packed else None
        if isinstance(found, dict):
            return found
    return {}


def _hashed(rep: Any) -> str:
    return blake3(bytes(rep)).hexdigest(length=12)


class Shown(Handle[Any]):
    """The thread of a run's checkpoints."""

    def __init__(self, engine: Engine, session_id: str, agent: str | None, named: Sequence[Any] = ()) -> None:
        super().__init__(engine, SPACE, session_id, None, agent)
        self._types, self._exact = registries(engine, named)
        self.standing: Standing | None = None
        self._last: dict[str, Any] | None = None
        """What the last checkpoint shows; of its lists, only how long they are."""

    def put(
        self,
        desk: Desk,
        state: dict[str, Any],
        label: str | None,
        kind: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> Checkpoint[Any]:
        """Write a checkpoint of the run: what was added since the last one, if that was made here and is the head."""
        whole = changes.Replace(state, desk.heads.nodes(), self._types)
        last = self.standing.head if self.standing else None
        added = None if last is None or self._last is None else changes.Several([*self._edits(state, self._last)])

        def change(standing: Standing | None) -> Proposal:  # others may have rewound or deleted it
            head = standing.head if standing else None
            same = head is not None and last is not None and (head.seq, head.op_id) == (last.seq, last.op_id)
            if added is not None and same:
                return added(standing)
            Encoder(desk.heads.nodes(), self._exact).rep(state["state"])  # refuses what would not come back as it is
            return whole(standing)

        meta = self._meta(label, (), metadata, kind)
        self.standing = desk.writes.save(self._key, change, meta, known=self.standing)
        if self.standing.head is None:
            raise Corrupt(f"run {self.id!r} has lost its head", code="corrupt.row")
        self._last = _shape(state)
        return self._make(self.standing, self.standing.head, (), written=True)

    def _edits(self, state: dict[str, Any], last: dict[str, Any]) -> Iterator[changes.Edit]:
        now = _shape(state)
        for name, value in state.items():
            if name in LISTS:
                yield from self._added(Path((name,)), value, last[name])
            elif name == "journal":
                again = now["began"] is not None and now["began"] == last["began"]
                yield from self._journaled(value, last, again=again)
            elif name == "state":
                yield changes.Match(Path((name,)), value, self._exact, self.id)
            elif now[name] != last[name]:
                yield self._put((name,), value)

    def _journaled(self, kept: dict[str, Any], last: dict[str, Any], *, again: bool) -> Iterator[changes.Edit]:
        """Give what changed in the journal; `again` if it is of the same iteration."""
        yield from self._added(Path(("journal", "past")), kept["past"], last["past"])
        yield from self._added(Path(("journal", "zero")), kept["zero"], last["zero"])
        if again:
            yield from self._added(Path(("journal", "calls")), kept["calls"], last["calls"])
            return
        if kept["calls"] or last["calls"]:
            yield self._put(("journal", "calls"), kept["calls"])
        begun = kept["begun"]
        if begun is None or last["began"] is None:
            yield self._put(("journal", "begun"), begun)
            return
        for name in LISTS:
            yield self._put(("journal", "begun", name), begun[name])
        yield changes.Match(Path(("journal", "begun", "state")), begun["state"], self._types, self.id)

    def _put(self, steps: tuple[str, ...], value: Any) -> changes.Edit:
        return changes.Assign(Path(steps), value, self._types, self.id)

    def _added(self, path: Path, items: list[Any], count: int) -> Iterator[changes.Edit]:
        if len(items) > count:
            yield changes.Append(path, tuple(items[count:]), self._types, self.id)

    def newest(self, desk: Desk) -> int:
        """Return the seq of the newest row, of whatever kind; 0 if there is none."""
        standing = desk.heads.standing(SPACE, self.id)
        return 0 if standing is None else standing.newest.seq

    def forget(self) -> None:
        """Write the next checkpoint whole: what the last one had is not known."""
        self._last = None

    def settle(self) -> None:
        """Forget a standing that was made in a transaction which made the thread, too: its number was not known."""
        if self.standing is not None and self.standing.record.no < 0:
            self.standing = self._last = None


def _shape(seen: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint shows, as far as it takes to tell whether the next one shows more."""
    kept = seen["journal"]
    lists = {name: len(seen[name]) for name in LISTS}
    entries = {name: len(kept[name]) for name in ("zero", "calls", "past")}
    began = None if kept["begun"] is None else seen["iteration"]
    return {**seen, **lists, **entries, "began": began, "journal": None, "state": None}


class Exact(Types):
    """The classes that a run names. Instances of others, and what is stored of such, are refused."""

    __slots__ = ()

    def dump(self, obj: object) -> Record | Member | None:
        """Return the fields of an instance of a class that was named."""
        dumped = super().dump(obj)
        if dumped is not None and dumped.schema not in self._entries:
            cls = type(obj)
            raise _unnamed(dumped.schema if cls in (Record, Member) else f"{cls.__module__}.{cls.__qualname__}")
        return dumped

    def load(self, value: Record | Member) -> object:
        """Return an instance of a class that was named."""
        if value.schema not in self._entries:
            raise _unnamed(value.schema)
        return super().load(value)


def _unnamed(name: str) -> Invalid:
    return Invalid(
        f"{name} is not among the classes that were named, and would come back as plain data: add "
        f"types=[{name.rpartition('.')[2]}] to store.run(...) or backtrail.open(...)",
        code="invalid.value",
    )


class Registries(NamedTuple):
    """The classes of a run, twice."""

    open: Types
    """Keeps instances of other classes as data: for what the journal and the checkpoints hold already."""
    exact: Exact
    """Refuses them: for what code hands in and gets back."""


_registries: WeakKeyDictionary[Types, dict[tuple[Any, ...], Registries]] = WeakKeyDictionary()


def registries(engine: Engine, named: Sequence[Any] = ()) -> Registries:
    """Return the classes of the store, those that are named, and messages, with the classes of their annotations."""
    known = _registries.setdefault(engine.types, {})
    key = tuple(named)
    found = known.get(key)
    if found is None:
        classes = [*engine.types.closed((Message, *key))]
        found = known[key] = Registries(Types(classes), Exact(classes))
    return found


def forked_from(seen: Any) -> dict[str, Any]:
    """Return the point at which a fork of a checkpoint begins, or `Invalid` if that is not one of a run."""
    if not journal.is_seen(seen):
        raise Invalid(f"{seen!r:.100} is no checkpoint of a run", code="invalid.run")
    return forked(seen)


def leased(session_id: str, held: list[Any]) -> Conflict:
    """Return the error of one who wants a run that somebody else has."""
    until = when(held[2])
    return Conflict(
        f"run {session_id!r} is being worked on by {held[0]}, until {until:%Y-%m-%d %H:%M:%S} UTC at least; wait, or "
        "take it over with takeover=True if that worker is gone",
        code="conflict.lease",
        owner=held[0],
        until=until,
    )
