"""Handles: what every way to hold a thread has, whatever it lets users do with it.

A handle knows which thread it names, how that stood after the last write, and what each caller has last read or
written through it: that is what the caller's next save is expected to stand on. It turns rows into checkpoints.
"""

from __future__ import annotations

import random
import time
import weakref
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from backtrail import transaction
from backtrail.checkpoint import Checkpoint
from backtrail.engine import asides, lineage, log, namespaces, pins, refs, retention
from backtrail.engine.retention import Sorted
from backtrail.engine.rows import Meta
from backtrail.engine.tree import diff, edits, unpacker
from backtrail.engine.tree.codec import Decoder, Encoder
from backtrail.engine.tree.editor import Editing, Editor
from backtrail.engine.tree.path import parse
from backtrail.engine.writer import ANY, ANYTHING, LABELLED, NOTHING, Expect, Key, Unchanged
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.loading import loading
from backtrail.models import MISSING, NEW, Change, Diff, Reordered, Sentinel
from backtrail.validation import (
    check_count,
    check_id,
    check_kind,
    check_label,
    check_metadata,
    check_several,
    check_tags,
    check_text,
    check_timeout,
    plain,
)
from backtrail.watch import OneThread, Watch

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.moves import Tagged
    from backtrail.engine.namespaces import Above
    from backtrail.engine.pins import Pointer
    from backtrail.engine.reader import Heads, Standing
    from backtrail.engine.retention import Rules
    from backtrail.engine.tree.diff import Edit
    from backtrail.engine.tree.tree import Tree
    from backtrail.engine.writer import Propose
    from backtrail.maintenance.retention import Account, Policy
    from backtrail.models import PruneReport
    from backtrail.transaction import Desk, Engine


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
        me, pending = transaction.current(), self._engine.pending
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
        me, overlay = transaction.current(), self._engine.desk.overlay
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


_PAGE: Final = 200
_FEW: Final = 16


class Thread(Handle[S]):
    """An append-only log of checkpoints; docs/threads.md is the guide."""

    def __repr__(self) -> str:
        return f"<Thread {self.id!r}>"

    # -- saving -------------------------------------------------------------------------------------

    def save(
        self,
        state: S,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
        changed: Collection[Any] | None = None,
        onto: Ref | None = None,
    ) -> Checkpoint[S]:
        """Save a state as a new checkpoint, even if nothing changed.

        It goes on top of what this handle last read or wrote in the calling thread or task, else it is a `Conflict`; a
        first write goes on top of whatever is there. `expect` says so instead: a checkpoint, its id or label, or `NEW`.
        `changed` names the keys of the state, a dict, that may have other values than before: the others are not looked
        at. `onto` makes another checkpoint the head first, in the same write: what was the head is then out of view.
        """
        meta = self._meta(label, tags, metadata, kind)
        if self._types.convert_root(state, self._type) is not state:
            name = getattr(self._type, "__name__", str(self._type))
            raise Invalid(f"this thread holds {name}, not {type(state).__name__}", code="invalid.value", path="state")
        changed = None if changed is None else check_several(changed, "changed")
        if changed is not None and type(state) is not dict:
            name = type(state).__name__
            raise Invalid(f"changed= names keys of a state that is a dict, not {name}", code="invalid.argument")
        change = edits.Replace(state, self._engine.desk.heads.nodes(), self._types, changed)
        return self._write(change, meta, expect, default=self._expectation(), onto=onto)

    def append(
        self,
        path: str | tuple[Any, ...],
        *items: Any,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Append items to the list at a path (or strings to a str). Never conflicts, unless `expect` is given."""
        meta = self._meta(label, tags, metadata, kind)
        if not items:
            raise Invalid("append needs at least one item", code="invalid.argument")
        change = edits.Append(parse(path), items, self._types, self.id)
        return self._write(change, meta, expect, default=ANYTHING)

    def set(
        self,
        path: str | tuple[Any, ...],
        value: Any,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Put a value at a path: a key of a dict, there or new, or an index of a list."""
        meta = self._meta(label, tags, metadata, kind)
        change = edits.Put(parse(path), value, self._types, self.id)
        return self._write(change, meta, expect, default=self._expectation())

    def delete_at(
        self,
        path: str | tuple[Any, ...],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Take a key out of a dict, or an item out of a list."""
        meta = self._meta(label, tags, metadata, kind)
        change = edits.Cut(parse(path), self._types, self.id)
        return self._write(change, meta, expect, default=self._expectation())

    @contextmanager
    def step(
        self,
        label: str | None = None,
        *,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Iterator[S]:
        """Give the state to be changed in place, and save what changed when the block ends.

        An exception drops all of it. The block gets plain data of its own: changing it after the block has no effect.
        """
        meta = self._meta(label, tags, metadata, kind)
        state, head = self._head_to_change()
        yield state
        change = edits.Replace(state, self._engine.desk.heads.nodes(), self._types)
        self._write(change, meta, None, default=head)

    def edit(
        self,
        fn: Callable[[Editor], object],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Checkpoint[S]:
        """Call `fn` with an `Editor` of the head, and save the changes that it names as one checkpoint.

        Never conflicts: `fn` is called again when somebody else saved meanwhile, so it should do nothing but edit. If
        it changes nothing, nothing is written, and the head is returned.
        """
        meta = self._meta(label, tags, metadata, kind)
        change = Editing(fn, self._engine.desk.heads.nodes(), self._types, self.id)
        try:
            return self._write(change, meta, None, default=ANYTHING)
        except Unchanged as none:
            standing = none.standing
        if standing is None or standing.head is None:
            raise Invalid("edit(fn): there was no state, and fn set none", code="invalid.argument")
        return self._checkpoint(standing, standing.head)

    def update(self, fn: Callable[[Any], S | None], *, retries: int = 10) -> Checkpoint[S]:
        """Load the state (None if there is none), call `fn` with it, and save what it returns, else what it changed.

        Begins again when somebody else saved meanwhile, up to `retries` times.
        """
        for attempt in range(check_count(retries, "retries") + 1):
            head = self.latest()
            state = head.state if head else None
            result = fn(state)
            if result is None and state is None:
                raise Invalid("update(fn): there was no state, and fn returned none", code="invalid.argument")
            try:
                return self.save(state if result is None else result, expect=head or NEW)  # type: ignore[arg-type]
            except Conflict:
                if attempt == retries:
                    raise
                time.sleep(random.random() * min(0.002 * 2**attempt, 0.25))  # noqa: S311 - only to get out of step
        raise AssertionError

    # -- reading ------------------------------------------------------------------------------------

    def latest(self) -> Checkpoint[S] | None:
        """Return the head, or None if the thread does not exist."""
        standing = self._standing()
        self._expect(standing)
        return self._checkpoint(standing, standing.head) if standing and standing.head else None

    def _latest_after(self) -> tuple[Checkpoint[S] | None, frozenset[str]]:
        """Return the head, and the runs that had gone on from it before it was made the head again: see `asides`."""
        standing = self._standing()
        self._expect(standing)
        head = standing.head if standing else None
        if standing is None or head is None:
            return None, frozenset()
        moved = standing.newest.seq != head.seq
        gone = asides.used(self._engine.desk.heads, standing, head) if moved else frozenset()
        return self._checkpoint(standing, head), gone

    def _latest_within(self, outer: str, above: Above | None) -> tuple[Checkpoint[S] | None, frozenset[str], bool]:
        """Return the checkpoint of this namespace that counts for an outer thread: see `namespaces`.

        With it: the runs that had gone on from it, and whether it is the head.
        """
        heads = self._engine.desk.heads
        standing, over = self._standing(), heads.standing(self._key.space, outer)
        head = standing.head if standing else None
        if standing is not None and head is not None and over is not None and namespaces.has_branches(heads, over):
            if above is not None:
                row = namespaces.Outer(heads, over, above).newest(standing)
            else:
                row = None if over.head is None else namespaces.Outer.at(heads, over, over.head).newest(standing)
            if row is None or row.seq != head.seq:
                gone = frozenset() if row is None else asides.used(heads, standing, row)
                return None if row is None else self._checkpoint(standing, row), gone, False
        return *self._latest_after(), True

    def load(self, ref: Ref = "@") -> Checkpoint[S]:
        """Return the checkpoint that a ref means, in this thread or in what it was forked from, or `NotFound`."""
        standing = self._require_readable()
        there, row = self._locate(standing, ref)
        if there is standing and row.seq == standing.newest.head and standing.lost is None:
            self._expect(standing)
        return self._checkpoint(there, row)

    def history(
        self,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        before: Ref | None = None,
        label: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        everything: bool = False,
        ancestors: bool = False,
    ) -> Iterator[Checkpoint[S]]:
        """Give the checkpoints from the root to the head, without loading their states.

        `before` leaves out a checkpoint and all that follow it; the others keep those that match. `everything` gives
        those that are out of view, too, all in the order in which they were saved. `ancestors` goes on into what the
        thread was forked from, and that from, as long as it is there: the first checkpoint then has a `parent_id` only
        if something is gone.
        """
        if limit is not None:
            check_count(limit, "limit")
        if kind is not None:
            check_kind(kind)
        label, tag, wanted = check_text(label, "label"), check_text(tag, "tag"), check_metadata(metadata)
        standing = self._readable()
        if standing is None or (standing.head is None and not everything):
            return iter(())
        heads = self._engine.desk.heads
        view = ((1, standing.newest.seq),) if everything else heads.view(standing)
        parts = [lineage.Part(standing, view), *(lineage.parts(heads, standing) if ancestors else ())]
        if before is not None:
            there, row = self._locate(standing, before) if ancestors else (standing, self._resolve(standing, before))
            while parts[0].standing.record.no != there.record.no:
                parts.pop(0)
            parts[0] = parts[0]._replace(ranges=log.clip(parts[0].ranges, 1, row.seq - 1))

        def matches(checkpoint: Checkpoint[S]) -> bool:
            return (
                (label is None or checkpoint.label == label)
                and (tag is None or tag in checkpoint.tags)
                and (kind is None or checkpoint.kind == kind)
                and (not wanted or _holds(checkpoint.metadata, wanted))
            )

        ordered = parts if newest_first else parts[::-1]
        found = (self._pages(part, matches, limit, newest_first=newest_first) for part in ordered)
        return islice(chain.from_iterable(found), limit)

    def _pages(
        self,
        part: lineage.Part,
        matches: Callable[[Checkpoint[S]], bool],
        limit: int | None,
        *,
        newest_first: bool,
    ) -> Iterator[Checkpoint[S]]:
        standing, ranges = part
        given = 0
        page = min(_PAGE, max(limit or 0, _FEW))  # whoever asks for all may still stop after a few
        while ranges and (limit is None or given < limit):
            rows = self._engine.desk.heads.visible(standing, ranges, newest_first=newest_first, limit=page)
            for checkpoint in self._checkpoints(standing, rows):
                if (limit is None or given < limit) and matches(checkpoint):
                    given += 1
                    yield checkpoint
            if len(rows) < page:
                return
            page = min(_PAGE, 2 * page)
            last = rows[-1].seq
            ranges = log.clip(ranges, 1, last - 1) if newest_first else log.clip(ranges, last + 1, log.MAX_SEQ)

    def find(self, *, label: str | Collection[str] | None = None, tag: str | None = None) -> list[Checkpoint[S]]:
        """Return the checkpoints in view with this label, or one of these, and this tag, oldest first."""
        if label is None and tag is None:
            raise Invalid("find needs a label or a tag", code="invalid.argument")
        one = isinstance(label, str) or not hasattr(label, "__iter__")
        given = [check_text(each, "label") for each in ([label] if one else label or ())]
        labels = {each for each in given if each is not None}
        tag = check_text(tag, "tag")
        standing = self._readable()
        if standing is None or standing.head is None:
            return []
        heads = self._engine.desk.heads
        no, view = standing.record.no, heads.view(standing)
        seqs = None if label is None else {seq for each in labels for seq in heads.backend.labelled(no, each)}
        if tag is not None:
            tagged = set(heads.backend.tagged(no, tag))
            seqs = tagged if seqs is None else seqs & tagged
        ranges = tuple((seq, seq) for seq in sorted(seqs or ()) if log.contains(view, seq))
        if not ranges:
            return []
        # those with a label are few, and looked for to be loaded
        return self._checkpoints(standing, heads.visible(standing, ranges, payload=label is not None))

    @property
    def current_step(self) -> int:
        """The head's step; 0 if the thread does not exist."""
        standing = self._standing()
        return standing.newest.step if standing else 0

    def __len__(self) -> int:
        standing = self._readable()
        if standing is None or standing.head is None:
            return 0
        return self._engine.desk.heads.count(standing)

    def __bool__(self) -> bool:
        return True  # a handle is not empty because its thread is

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed from one checkpoint to another."""
        old, new = self._tree_at(a), self._tree_at(b)
        unpack = unpacker.Unpacker(self._types)
        return Diff(tuple(self._change(edit, old, new, unpack) for edit in diff.edits(old, new, unpack)))

    def _change(self, edit: Edit, old: Tree, new: Tree, unpack: unpacker.Unpacker) -> Change:
        if edit.reordered is not None:
            return Reordered(
                "~", edit.path, [unpack(k) for k in edit.reordered[0]], [unpack(k) for k in edit.reordered[1]]
            )
        before = MISSING if edit.old is None else Decoder(old.nodes, self._types).value(edit.old)
        after = MISSING if edit.new is None else Decoder(new.nodes, self._types).value(edit.new)
        return Change("+" if edit.old is None else "-" if edit.new is None else "~", edit.path, before, after)

    # -- watching -------------------------------------------------------------------------------------

    def watch(self, *, after: Ref | None = None, timeout: dt.timedelta | float | None = None) -> Watch[Checkpoint[S]]:
        """Give the checkpoints that become the head from now on, as they come, whoever makes them.

        `after` begins behind a checkpoint instead. Ends when `timeout` passes without news; None: never. Reading them
        says nothing about what the next save is to stand on.
        """
        return Watch(self._watcher(after, timeout))

    def _watcher(self, after: Ref | None, timeout: dt.timedelta | float | None) -> OneThread[Checkpoint[S]]:
        name = (self._key.space, self._key.name)
        return OneThread(self._engine, name, after, check_timeout(timeout), self._checkpoints)

    # -- time travel ----------------------------------------------------------------------------------

    def fork(self, new_id: str, at: Ref = "@") -> Thread[S]:
        """Begin a new thread at a checkpoint of this one; `Conflict` if there is a thread of that id."""
        standing, row = self._locate(self._require_readable(), at)
        made: Thread[S] = Thread(self._engine, self._key.space, new_id, self._type, self._key.agent)
        heads = self._engine.desk.heads
        if asides.left(heads, standing, row) or self._namespaces(heads, standing, row, new_id):
            made._remember(self._engine.atomic(lambda desk: self._fork(desk, made, at, notes=True)))
        else:
            made._remember(self._fork(self._engine.desk, made, at, notes=False))
        return made

    def _fork(self, desk: Desk, made: Thread[S], at: Ref, *, notes: bool) -> Standing:
        """Begin a thread with a checkpoint of this one, and with the notes on it that stand aside."""
        standing, row = self._locate(self._require_readable(), at)
        tags = pins.shown(desk.heads.backend.tags(standing.record.no, [row.seq]).get(row.seq, ()))
        after = desk.writes.fork(made._key._replace(agent=standing.record.agent), standing, row, tags)
        left = set(asides.left(desk.heads, standing, row)) if notes else set()
        if left:
            aside: Thread[Any] = Thread(self._engine, asides.ASIDE, standing.record.name)
            other: Thread[Any] = Thread(self._engine, asides.ASIDE, made.id)
            for note in aside.find(label=row.label):
                if note._row.seq in left:  # noqa: SLF001 - a handle made it
                    other.save(note.state, label=note.label, metadata=note.metadata)
        for inner, its, name in self._namespaces(desk.heads, standing, row, made.id) if notes else ():
            source: Thread[Any] = Thread(self._engine, inner.record.space, inner.record.name)
            target: Thread[Any] = Thread(self._engine, inner.record.space, name)
            source._fork(desk, target, log.checkpoint_id(inner.record.uid, its.seq), notes=True)
        return after

    def _namespaces(self, heads: Heads, standing: Standing, row: Row, new_id: str) -> list[tuple[Standing, Row, str]]:
        """Return what a fork of the thread of a graph takes along: namespaces, a row of each, and their new names."""
        if self._key.space != asides.THREAD:
            return []
        return namespaces.taken_along(heads, standing, row, new_id)

    def rewind(self, ref: Ref) -> Checkpoint[S]:
        """Make an older checkpoint the head again. What came after is out of view, not gone."""
        return self._moved(self._engine.desk.moves.rewind(self._key, lambda standing: self._resolve(standing, ref)))

    def undo(self) -> Checkpoint[S]:
        """Take back the last save, rewind, restore or redo."""
        return self._moved(self._engine.desk.moves.undo(self._key))

    def redo(self) -> Checkpoint[S]:
        """Take back the last undo."""
        return self._moved(self._engine.desk.moves.redo(self._key))

    def _moved(self, standing: Standing) -> Checkpoint[S]:
        self._remember(standing)
        if standing.head is None:
            raise Corrupt(f"thread {self.id!r} has lost its head", code="corrupt.row")
        return self._written(standing, standing.head)

    def _written(self, standing: Standing, row: Row) -> Checkpoint[S]:
        """Return a checkpoint of which something was written: who is not given it must not think that nothing was."""
        try:
            return self._checkpoint(standing, row)
        except Unavailable as error:
            raise CommitUnknown(
                f"it was written, and then could not be read ({error}): read again before you repeat it",
                code="commit_unknown.read",
            ) from error

    # -- keeping order ----------------------------------------------------------------------------------

    def tag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Put tags on a checkpoint."""
        return self._tag(ref, add=check_tags(tags), remove=())

    def untag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Take tags off a checkpoint."""
        return self._tag(ref, add=(), remove=check_tags(tags))

    def _tag(self, ref: Ref, *, add: tuple[str, ...], remove: tuple[str, ...]) -> Checkpoint[S]:
        if not add and not remove:
            raise Invalid("name at least one tag", code="invalid.argument")
        standing = self._require_standing()
        row = self._resolve(standing, ref)
        self._engine.desk.moves.tag(standing.record, row.seq, add, remove)
        return self._written(standing, row)

    def prune(
        self,
        policy: Policy | None = None,
        *,
        keep_last: int | None = None,
        older_than: dt.timedelta | float | None = None,
        keep_tagged: bool | Collection[str] = True,
        keep: Collection[Ref] | Ref = (),
        until: Ref | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Hide the checkpoints that a `Policy` does not keep; the report says which, and why the others stay.

        Without one: those behind the newest `keep_last` and older than `older_than` (each if given), but not labelled
        and tagged ones unless `keep_tagged` is False; if it is names, what has one of these tags counts as tagged. The
        head stays, and so do those that `keep` names, all that were saved after `until`, and what a checkpoint of an
        agent holds.
        What was rewound away is counted apart: the newest `keep_last` of it stay too. Nothing that stays is harmed.
        """
        with loading:
            from backtrail.maintenance.retention import Account, rules_for_one  # noqa: PLC0415 - not every program prunes

        heads = self._engine.desk.heads
        rules = rules_for_one(policy, keep_last, older_than, keep_tagged, heads.clock())
        refs = (keep,) if isinstance(keep, str | int | Checkpoint) else check_several(keep, "keep")
        holders = pins.Holders(heads)
        found = Sorted({}, [])

        def choose(standing: Standing) -> Tagged:
            nonlocal found
            named = {self._resolve(standing, ref).seq for ref in refs}
            last = log.MAX_SEQ if until is None else self._resolve(standing, until).seq
            found = retention.sort_out(heads, standing, rules, holders, named=named, until=last)
            return found.gone

        standing = self._standing()
        account = Account(rules, dry_run=dry_run)
        if standing is not None and rules.idle is not None:
            standing = self._remove_idle(standing, rules, account, dry_run=dry_run)
        if standing is not None and dry_run:
            choose(standing)
        elif standing is not None:
            hidden = self._engine.desk.moves.hide(self._key, choose)
            found = found._replace(gone=dict(sorted(hidden.items())))
        if standing is not None:
            account.add(standing.record, found)
        return account.report()

    def _remove_idle(self, standing: Standing, rules: Rules, account: Account, *, dry_run: bool) -> Standing | None:
        """Remove the thread if it is idle; return how it stands if its checkpoints are still to be pruned."""
        from backtrail.maintenance import idle  # noqa: PLC0415 - not every program prunes

        holders = pins.Holders(self._engine.desk.heads, of_heads=False)
        found = idle.remove(self._engine, standing.record, rules, holders, dry_run=dry_run)
        account.settle(standing.record, found, alone=not rules.prunes)
        now = self._standing()
        if found.seqs is not None and not dry_run and now is not None:
            self._remember(now)
        return now if found.why and rules.prunes else None

    def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint and say whether there was one. If it was the head, its nearest ancestor left is now."""
        before = self._expectation()
        found: list[int] = []

        def find(standing: Standing) -> Row | None:
            try:
                row = self._resolve(standing, ref)
            except NotFound:
                return None
            found[:] = [row.seq]
            return row

        done, standing = self._engine.desk.moves.delete_checkpoint(self._key, find)
        if done and standing is not None and before.head in (ANY, *found):  # else there is a head it has not read
            self._remember(standing)
        return done

    def delete(self) -> bool:
        """Delete the thread, and what stands aside of it, and say whether there was one. It starts again at step 1."""
        done, standing = self._engine.desk.moves.delete_thread(self._key)
        if done and standing is not None:
            self._remember(standing)
        return done


def _holds(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in wanted.items())
