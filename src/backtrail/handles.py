"""Handles: what every way to hold a thread has, whatever it lets users do with it.

A handle knows which thread it names, how that stood after the last write, and what each caller has last read or
written through it: that is what the caller's next save is expected to stand on. It turns rows into checkpoints.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from backtrail.arguments import check_id, check_kind, check_label, check_metadata, check_tags
from backtrail.checkpoints import Checkpoint
from backtrail.engine import lineage, log, owner, pins, refs
from backtrail.engine.codec import Encoder
from backtrail.engine.rows import Meta
from backtrail.engine.trying import ANY, ANYTHING, LABELLED, NOTHING, Expect, Key
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.fields import plain
from backtrail.values import NEW, Sentinel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.engine import Engine
    from backtrail.engine.heads import Standing
    from backtrail.engine.pins import Pointer
    from backtrail.engine.tree import Tree
    from backtrail.engine.writes import Propose

S = TypeVar("S")
Ref = Any
"""A checkpoint, a step, or a string: see `backtrail.engine.refs`."""
_NO_META: Final = Meta()


class Handle(Generic[S]):
    """Names a thread, and remembers what its users need not read again."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        id: str,  # noqa: A002 - the name users know
        type: type[S] | None = None,  # noqa: A002
        agent: str | None = None,
        *,
        types: Iterable[Any] | None = None,
    ) -> None:
        self.id = check_id(id, "a thread's id")
        self._engine = engine
        self._key = Key(space, self.id, None if agent is None else check_id(agent, "an agent's id"))
        self._type = type
        self._types = engine.types_with(types).for_state(type)
        self._shared = engine.known(space, self.id)
        self._expected: weakref.WeakKeyDictionary[object, Expect] = weakref.WeakKeyDictionary()

    def _standing(self) -> Standing | None:
        return self._engine.desk.heads.standing(self._key.space, self._key.name)

    def _readable(self) -> Standing | None:
        """Return how the thread stands, or what can be read of it if its head is lost."""
        heads = self._engine.desk.heads
        record = heads.backend.find_thread(self._key.space, self._key.name)
        return heads.readable(record) if record else None

    def _require_standing(self) -> Standing:
        return self._required(self._standing())

    def _require_readable(self) -> Standing:
        return self._required(self._readable())

    def _required(self, standing: Standing | None) -> Standing:
        if standing is None:
            raise NotFound(f"there is no thread {self.id!r}", code="not_found.thread")
        return standing

    def _resolve(self, standing: Standing, ref: Ref) -> Row:
        heads = self._engine.desk.heads
        try:
            return refs.resolve(heads, standing, ref)
        except NotFound as error:
            there, row = lineage.resolve(heads, standing, ref)
            name = there.record.name
            raise NotFound(
                f"checkpoint {log.checkpoint_id(there.record.uid, row.seq)} is one of {name!r}, which {self.id!r} was "
                f"forked from: it can be read and forked here; to change it, use {name!r}",
                code="not_found.checkpoint",
            ) from error

    def _locate(self, standing: Standing, ref: Ref) -> tuple[Standing, Row]:
        """Return what a ref means, in this thread or in what it was forked from, to be read."""
        return lineage.resolve(self._engine.desk.heads, standing, ref)

    def _stand_on(self, standing: Standing, ref: Ref) -> Row:
        """Return what a ref means, without looking for it if it is the label of the head."""
        head = standing.head
        if head is not None and type(ref) is str and head.label == ref and log.parse_id(ref) is None:
            return head
        return self._resolve(standing, ref)

    def _tree_at(self, ref: Ref) -> Tree:
        if isinstance(ref, Checkpoint):
            return ref._opened()  # noqa: SLF001 - a checkpoint of any thread may be compared
        standing = self._require_readable()
        standing, row = self._locate(standing, ref)
        return self._engine.desk.heads.chain(standing.record, row).tree

    def _expectation(self) -> Expect:
        """Return what this caller's next save is to stand on."""
        overlay = self._engine.desk.overlay
        if overlay is not None and self in overlay.expected:
            expected: Expect = overlay.expected[self]
            return expected
        me, pending = owner.current(), self._engine.pending
        expected = self._expected.get(me, ANYTHING)
        return expected if pending is None else pending.get((self, me), expected)

    def _set_expected(self, me: object, expect: Expect) -> None:
        pending = self._engine.pending
        if pending is None:
            self._expected[me] = expect
        else:
            pending.keep((self, me), expect, lambda last: self._expected.__setitem__(me, last))

    def _expect(self, standing: Standing | None) -> None:
        """Keep the head that this caller has read or written.

        What a transaction has written counts outside of it only once it has been; what was read in it counts at once.
        """
        me, overlay = owner.current(), self._engine.desk.overlay
        head = standing.head if standing else None
        expect = Expect(head.seq, head.op_id) if head else Expect(NOTHING)
        if overlay is None or standing is None or not overlay.wrote(standing.record.no):
            self._set_expected(me, expect)
        else:
            overlay.after_commit.append(lambda: self._set_expected(me, expect))
        if overlay is not None:
            overlay.expected[self] = expect

    def _remember(self, standing: Standing) -> None:
        """Keep what was just written: the next write by this handle begins there."""
        self._keep(standing)
        self._expect(standing)

    def _keep(self, standing: Standing) -> None:
        if self._engine.desk.overlay is None:  # what stands in a transaction is not yet what stands in the store
            self._known = standing

    @property
    def _known(self) -> Standing | None:
        """How the thread stood after the last write that is known of; whatever is remembered of one is kept like this.

        In a group it is only for that group, until it has ended.
        """
        pending, shared = self._engine.pending, self._shared
        known: Standing | None = shared.standing if pending is None else pending.get(shared, shared.standing)
        return known

    @_known.setter
    def _known(self, standing: Standing | None) -> None:
        pending, shared = self._engine.pending, self._shared
        if pending is None:
            shared.standing = standing
        else:
            pending.keep(shared, standing, lambda last: setattr(shared, "standing", last))

    def _write(
        self,
        propose: Propose,
        meta: Meta,
        expect: Checkpoint[Any] | str | Sentinel | None,
        *,
        default: Expect,
        onto: Ref | None = None,
    ) -> Checkpoint[S]:
        desk = self._engine.desk
        expected = default if expect is None else self._explicit(expect)
        known = self._known if desk.overlay is None else None
        before = self._expectation()
        find = None if onto is None else lambda there: self._stand_on(there, onto)
        standing = desk.writes.save(self._key, propose, meta, expect=expected, known=known, onto=find)
        head = standing.head
        if head is None:
            raise Corrupt(f"thread {self.id!r} has lost its head", code="corrupt.row")
        if before.head in (ANY, head.parent) or expected.head != ANY:
            self._remember(standing)
        else:  # an append that landed on what this caller has not read: its next save must still find that out
            self._keep(standing)
        return self._make(standing, head, meta.tags, written=True)

    def _explicit(self, expect: Checkpoint[Any] | str | Sentinel) -> Expect:
        if expect is NEW:
            return Expect(NOTHING)
        text = expect.id if isinstance(expect, Checkpoint) else plain(expect) if isinstance(expect, str) else expect
        parsed = log.parse_id(text) if isinstance(text, str) else None
        if parsed is None and isinstance(text, str) and text and not text.startswith("@"):
            return Expect(LABELLED, label=text)
        if parsed is None:
            raise Invalid(
                f"expect is a checkpoint, its id or label, or backtrail.NEW, not {expect!r}", code="invalid.argument"
            )
        record: ThreadRecord | None = self._engine.desk.heads.backend.find_thread(self._key.space, self._key.name)
        if parsed[1] == NOTHING or (record is not None and record.uid != parsed[0]):
            raise Invalid(f"expect={text!r} is not a checkpoint of this thread", code="invalid.argument")
        return Expect(parsed[1], expect.op_id if isinstance(expect, Checkpoint) else None)

    def _meta(
        self, label: str | None, tags: tuple[str, ...] | list[str], metadata: Mapping[str, Any] | None, kind: str
    ) -> Meta:
        if kind == "manual" and label is None and tags == () and metadata is None:
            return _NO_META
        return Meta(check_kind(kind), check_label(label), check_tags(tags), self._metadata(metadata))

    def _metadata(self, metadata: Mapping[str, Any] | None) -> bytes:
        wanted = check_metadata(metadata)
        if not wanted:
            return b""
        nodes = self._engine.desk.heads.nodes()
        rep = Encoder(nodes, self._types, what="metadata").rep(wanted)
        if nodes.fresh:
            raise Invalid(
                "metadata is for small things: at most 4 KB; keep the rest in the state", code="invalid.argument"
            )
        return bytes(rep)

    def _checkpoint(self, standing: Standing, row: Row, *, tags: tuple[str, ...] | None = None) -> Checkpoint[S]:
        if tags is not None:
            return self._make(standing, row, tags, written=True)
        return self._checkpoints(standing, [row])[0]

    def _checkpoints(self, standing: Standing, rows: list[Row]) -> list[Checkpoint[S]]:
        if not rows:
            return []
        tags = self._engine.desk.heads.backend.tags(standing.record.no, [row.seq for row in rows])
        return [self._make(standing, row, pins.shown(tags.get(row.seq, ()))) for row in rows]

    def _make(self, standing: Standing, row: Row, tags: tuple[str, ...], *, written: bool = False) -> Checkpoint[S]:
        engine, record = self._engine, standing.record
        damaged = None
        if not written and not log.is_sound(row, record.uid):
            damaged = engine.desk.heads.damaged(record, row.seq, "its row is damaged")

        def load() -> Tree:
            latest = self._known  # what was just written need not be read, but a checkpoint does not hold on to it
            if latest is not None and latest.chain and latest.head and latest.head.op_id == row.op_id:
                return latest.chain.tree
            heads = engine.desk.heads
            known = record if record.no > 0 else heads.backend.thread_with_uid(record.uid)  # made in a transaction
            if known is None:
                raise NotFound(
                    f"there is no thread {record.name!r}: its transaction was dropped", code="not_found.thread"
                )
            # what was written here may have been dropped since: then only what is stored counts
            at_hand = None if written or damaged else heads.at_hand(row)
            return (at_hand or heads.chain(known, row)).tree

        return Checkpoint(
            row,
            thread_id=record.name,
            uid=record.uid,
            tags=tags,
            types=self._types,
            type=self._type,
            load=load,
            damaged=damaged,
        )

    def _held(self, pointer: Pointer) -> Checkpoint[S]:
        """Return a checkpoint that an agent's checkpoint holds, deleted or not."""
        heads, standing = self._engine.desk.heads, self._require_readable()
        row = heads.sound_row(standing.record, pointer.seq)
        if row is None or row.root != pointer.root:
            raise heads.damaged(standing.record, pointer.seq, "what an agent's checkpoint points at is missing")
        return self._checkpoints(standing, [row])[0]

    # -- steps ----------------------------------------------------------------------------------------

    def _head_to_change(self) -> tuple[S, Expect]:
        """Return the state of the head, decoded for this caller alone, and what a change of it is to stand on."""
        standing = self._require_standing()
        row = self._resolve(standing, "@")
        self._expect(standing)
        return self._checkpoint(standing, row, tags=()).state, Expect(row.seq, row.op_id)
