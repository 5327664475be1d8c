"""`Thread`, and the `Handle` below it that agents and runs use, too.

A handle names a thread. It knows the tip after the last write. It also knows the head that each caller last read or
wrote through it: the caller's next save expects that head. It turns rows into checkpoints.
"""

from __future__ import annotations

import random
import time
import weakref
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from backtrail import transaction
from backtrail.checkpoint import Checkpoint
from backtrail.engine import asides, lineage, log, manifests, namespaces, refs, retention
from backtrail.engine.retention import Sorted
from backtrail.engine.rows import Meta
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.tree import diff, edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.edits import Editor, FunctionEdit
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.path import parse
from backtrail.engine.writer import ANY, ANYTHING, LABELLED, NOTHING, Expect, ThreadKey, Unchanged
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.loading import loading
from backtrail.models import MISSING, NEW, Change, Diff, Reordered, Sentinel
from backtrail.validation import (
    check_count,
    check_id,
    check_kind,
    check_label,
    check_metadata,
    check_period,
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
    from backtrail.engine.head import HeadMover, Tagged
    from backtrail.engine.manifests import Pointer
    from backtrail.engine.namespaces import Above
    from backtrail.engine.reader import Chain, LogReader, Tip
    from backtrail.engine.retention import Rules
    from backtrail.engine.tree.diff import Difference
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.tree import Tree
    from backtrail.engine.writer import Propose
    from backtrail.maintenance.retention import Account, Policy
    from backtrail.models import ErasureReport, PruneReport
    from backtrail.transaction import Engine, Session


S = TypeVar("S")
Ref = Any
"""A checkpoint, a step, or a string: see `backtrail.engine.refs`."""
_NO_META: Final = Meta()


class Handle(Generic[S]):
    """A reference to a thread by its id, with the heads that its callers (threads and tasks) last read or wrote."""

    _redacts = True
    """Whether the store's `redact=` is applied to labels, tags and metadata."""

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
        """The id that the caller gave the thread."""
        self._engine = engine
        self._key = ThreadKey(space, self.id, None if agent is None else check_id(agent, "an agent's id"))
        self._type = type
        self._types = engine.types_with(types).for_state(type)
        self._shared = engine.known(space, self.id)
        self._redact = engine.options.redact
        self._expected: weakref.WeakKeyDictionary[object, list[Expect | tuple[int, bytes]]] = (
            weakref.WeakKeyDictionary()
        )
        """The expected head of each caller, or the head and op_id of its row, in a list of one item."""

    def _tip(self, newest: Row | None = None) -> Tip | None:
        """Return the tip of the thread; None if there is no thread. One read, if this process wrote the newest row.

        No read, if the caller has just read that row.
        """
        session = self._engine.session
        return self._current_tip(session, newest) or session.reader.tip(self._key.space, self._key.name)

    def _current_tip(self, session: Session, newest: Row | None = None) -> Tip | None:
        """Return the known tip of the thread, if it is still the tip; otherwise None. One read."""
        known = self._engine.known_tip(self._shared)
        return known if known is not None and session.reader.is_current(known, newest) else None

    def _readable(self) -> Tip | None:
        """Return the tip of the thread, or a readable older tip if its head is lost; None if there is no thread."""
        reader = self._engine.session.reader
        record = reader.backend.find_thread(self._key.space, self._key.name)
        return reader.readable(record) if record else None

    def _require_tip(self) -> Tip:
        return self._required(self._tip())

    def _require_readable(self) -> Tip:
        return self._required(self._readable())

    def _erased(self) -> None:
        """Let the caller's next save expect what is there after an erasure."""
        tip = self._tip()
        if tip is not None:
            self._remember(tip)

    def _required(self, tip: Tip | None) -> Tip:
        if tip is None:
            raise NotFound(f"there is no thread {self.id!r}{self._namesake()}", code="not_found.thread")
        return tip

    def _namesake(self) -> str:
        """Return a hint for an error, if the missing thread's id is that of a conversation, a run or an agent."""
        if self._key.space != asides.THREAD:
            return ""
        backend = self._engine.session.reader.backend
        for kind, what in (("conversation", "a conversation"), ("run", "a run"), ("agent", "an agent")):
            if backend.find_thread(kind, self.id) is not None:
                return f"; this is the id of {what}: use store.{kind}s.thread({self.id!r})"
        return ""

    def _resolve(self, tip: Tip, ref: Ref) -> Row:
        reader = self._engine.session.reader
        try:
            return refs.resolve(reader, tip, ref)
        except NotFound as error:
            there, row = lineage.resolve(reader, tip, ref)
            name = there.record.name
            raise NotFound(
                f"checkpoint {log.checkpoint_id(there.record.uid, row.seq)} belongs to thread {name!r}, "
                f"which {self.id!r} was forked from; it can be read and forked here; to change it, use {name!r}",
                code="not_found.checkpoint",
            ) from error

    def _locate(self, tip: Tip, ref: Ref) -> tuple[Tip, Row]:
        """Return the row of a ref and the tip of its thread: this thread, or one that it was forked from."""
        return lineage.resolve(self._engine.session.reader, tip, ref)

    def _stand_on(self, tip: Tip, ref: Ref) -> Row:
        """Return the row of a ref in this thread. A ref that is the head's label needs no search."""
        head = tip.head
        if head is not None and type(ref) is str and head.label == ref and log.parse_id(ref) is None:
            return head
        return self._resolve(tip, ref)

    def _tree_at(self, ref: Ref) -> Tree:
        if isinstance(ref, Checkpoint):
            return ref._opened()  # noqa: SLF001 - checkpoints of any thread can be compared
        tip = self._require_readable()
        tip, row = self._locate(tip, ref)
        return self._engine.session.reader.chain(tip.record, row).tree

    def _expectation(self) -> Expect:
        """Return the head that the current caller's next save expects."""
        expected = self._expectation_of(transaction.current())[0]
        return expected if type(expected) is Expect else Expect(*expected)

    def _expectation_of(self, caller: object) -> list[Expect | tuple[int, bytes]]:
        return self._expected.get(caller) or self._expected.setdefault(caller, [ANYTHING])

    def _expect(self, tip: Tip | None) -> None:
        """Set the head that the current caller's next save expects. It is reset if its transaction is dropped."""
        undo = self._engine.undo_log(tip.record.uid) if tip else None
        _set_expectation(self._expectation_of(transaction.current()), tip.head if tip else None, undo)

    def _remember(self, tip: Tip) -> None:
        """Keep the tip after a write: the next write of this handle starts from it, and the caller expects its head."""
        self._engine.keep_tip(self._shared, tip)
        self._expect(tip)

    def _write(
        self,
        propose: Propose,
        meta: Meta,
        expect: Checkpoint[Any] | str | Sentinel | None,
        *,
        default: Expect,
        onto: Ref | None = None,
    ) -> Checkpoint[S]:
        engine, shared = self._engine, self._shared
        expected = default if expect is None else self._explicit(expect)
        find = None if onto is None else partial(self._stand_on, ref=onto)
        session, group = engine.session, engine.open_group
        overlay = session.overlay
        expectation = self._expectation_of(transaction.current())
        before = expectation[0][0]
        if overlay is not None:
            known = overlay.known_tips.get(shared) or self._current_tip(session)
            tip = session.writer.save(self._key, propose, meta, expected, known, find)
            overlay.known_tips[shared] = tip
            undo = overlay.after_drop
        elif group is not None:
            tip = session.writer.save(self._key, propose, meta, expected, group.tips.get(shared, shared.tip), find)
            group.tips[shared] = tip
            undo = group.undo
        else:
            shared.tip = tip = session.writer.save(self._key, propose, meta, expected, shared.tip, find)
            undo = None
        head = tip.head
        if head is None:
            raise Corrupt(f"thread {self.id!r} has lost its head", code="corrupt.row")
        # After an append to a head that this caller has not read, the caller's next save must still conflict.
        if expected.head != ANY or before in (ANY, head.parent):
            _set_expectation(expectation, head, undo)
        if overlay is not None:
            engine.wrote(session)
        return Checkpoint(head, tip.record, meta.tags, self._types, self._type, self._load_written)

    def _explicit(self, expect: Checkpoint[Any] | str | Sentinel) -> Expect:
        if expect is NEW:
            return Expect(NOTHING)
        text = expect.id if isinstance(expect, Checkpoint) else plain(expect) if isinstance(expect, str) else expect
        parsed = log.parse_id(text) if isinstance(text, str) else None
        if parsed is None and isinstance(text, str) and text and not text.startswith("@"):
            return Expect(LABELLED, label=text)
        if parsed is None:
            raise Invalid(
                f"expect= takes a checkpoint, its id or label, or backtrail.NEW, not {expect!r}",
                code="invalid.argument",
            )
        record: ThreadRecord | None = self._engine.session.reader.backend.find_thread(self._key.space, self._key.name)
        if parsed[1] == NOTHING or (record is not None and record.uid != parsed[0]):
            raise Invalid(f"expect={text!r} is not a checkpoint of this thread", code="invalid.argument")
        return Expect(parsed[1], expect.op_id if isinstance(expect, Checkpoint) else None)

    def _meta(
        self, label: str | None, tags: tuple[str, ...] | list[str], metadata: Mapping[str, Any] | None, kind: str
    ) -> Meta:
        if kind == "manual" and label is None and tags == () and metadata is None:
            return _NO_META
        if self._redacts and self._redact is not None:
            label, tags = self._redacted(check_label(label)), self._redacted(check_tags(tags))
            metadata = self._redacted(check_metadata(metadata))
        return Meta(check_kind(kind), check_label(label), check_tags(tags), self._metadata(metadata))

    def _redacted(self, value: Any) -> Any:
        """Return a value as it may be written: see `redact=` of `open`."""
        return value if self._redact is None else self._redact(value, self._types)

    def _nodes(self) -> Nodes:
        """Return a source of nodes for a new state."""
        return self._engine.session.reader.nodes()

    def _metadata(self, metadata: Mapping[str, Any] | None) -> bytes:
        wanted = check_metadata(metadata)
        if not wanted:
            return b""
        nodes = self._nodes()
        rep = Encoder(nodes, self._types, what="metadata").rep(wanted)
        if nodes.fresh:
            raise Invalid("metadata is larger than 4 KB; keep large data in the state", code="invalid.argument")
        return bytes(rep)

    def _checkpoint(self, tip: Tip, row: Row, *, tags: tuple[str, ...] | None = None) -> Checkpoint[S]:
        if tags is not None:
            return self._make(tip, row, tags, written=True)
        return self._checkpoints(tip, [row])[0]

    def _checkpoints(self, tip: Tip, rows: list[Row]) -> list[Checkpoint[S]]:
        if not rows:
            return []
        tags = self._engine.session.reader.backend.tags(tip.record.no, [row.seq for row in rows])
        return [self._make(tip, row, tags.get(row.seq, ())) for row in rows]

    def _make(self, tip: Tip, row: Row, tags: tuple[str, ...], *, written: bool = False) -> Checkpoint[S]:
        record = tip.record
        damaged = None
        if not written and not log.is_sound(row, record.uid):
            damaged = self._engine.session.reader.damaged(record, row.seq, "its row is damaged")
        load = self._load_written if written or damaged else self._load
        return Checkpoint(row, record, tags, self._types, self._type, load, damaged)

    def _load(self, record: ThreadRecord, row: Row) -> Tree:
        """Return the tree of a row that was read, which may be a base with its payload."""
        return self._known_tree(row) or self._read(record, row, self._engine.session.reader.at_hand(row))

    def _load_written(self, record: ThreadRecord, row: Row) -> Tree:
        """Return the tree of a row that this handle wrote: read it again, because its transaction may be dropped."""
        return self._known_tree(row) or self._read(record, row, None)

    def _known_tree(self, row: Row) -> Tree | None:
        """Return the tree of a row if it is the last write, so that checkpoints need not hold references to trees."""
        latest = self._engine.known_tip(self._shared)
        if latest is not None and latest.chain and latest.head and latest.head.op_id == row.op_id:
            return latest.chain.tree
        return None

    def _read(self, record: ThreadRecord, row: Row, at_hand: Chain | None) -> Tree:
        record = self._numbered(record)
        return (at_hand or self._engine.session.reader.chain(record, row)).tree

    def _numbered(self, record: ThreadRecord) -> ThreadRecord:
        """Return the record with the thread's stored number. In its transaction, a new thread has another number."""
        if record.no > 0:
            return record
        known = self._engine.session.reader.backend.thread_with_uid(record.uid)
        if known is None:
            raise NotFound(f"there is no thread {record.name!r}: its transaction was dropped", code="not_found.thread")
        return known

    def _held(self, pointer: Pointer) -> Checkpoint[S]:
        """Return the checkpoint that a manifest's pointer names, even if it is hidden; `Corrupt` if it is missing."""
        reader, tip = self._engine.session.reader, self._require_readable()
        row = reader.sound_row(tip.record, pointer.seq)
        if row is None or row.root != pointer.root:
            raise reader.damaged(tip.record, pointer.seq, "an agent's checkpoint points at it, and it is missing")
        return self._checkpoints(tip, [row])[0]

    # -- steps ----------------------------------------------------------------------------------------

    def _head_to_change(self) -> tuple[S, Expect]:
        """Return a copy of the head's state, and the expectation for saving it."""
        tip = self._require_tip()
        row = self._resolve(tip, "@")
        self._expect(tip)
        return self._checkpoint(tip, row, tags=()).state, Expect(row.seq, row.op_id)


def _set_expectation(
    expected: list[Expect | tuple[int, bytes]], head: Row | None, undo: list[Callable[[], None]] | None
) -> None:
    """Set the head that a caller expects; `undo` gets an action that resets it."""
    if undo is not None:
        undo.append(partial(expected.__setitem__, 0, expected[0]))
    expected[0] = _NO_HEAD if head is None else (head.head, head.op_id)


_NO_HEAD: Final = Expect(NOTHING)
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

        The head must be the one that this handle last read or wrote in the calling thread or task, else `Conflict`; the
        first write goes on top of any head. `expect` names another head: a checkpoint, its id or label, or `NEW`.
        `changed` names the keys of a dict state that may differ from the head: the other keys are not compared. `onto`
        makes another checkpoint the head first, in the same write; the old head is then out of view.
        """
        meta = self._meta(label, tags, metadata, kind)
        if self._types.convert_root(state, self._type) is not state:
            name = getattr(self._type, "__name__", str(self._type))
            raise Invalid(f"this thread holds {name}, not {type(state).__name__}", code="invalid.value", path="state")
        changed = None if changed is None else check_several(changed, "changed")
        if changed is not None and type(state) is not dict:
            name = type(state).__name__
            raise Invalid(f"changed= names keys of a state that is a dict, not {name}", code="invalid.argument")
        change = edits.Replace(self._redacted(state), self._nodes(), self._types, changed)
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
        if self._redact is not None:
            items = self._redact(items, self._types)
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
        """Put a value at a path: a key of a dict, existing or new, or an index of a list."""
        meta = self._meta(label, tags, metadata, kind)
        change = edits.Put(parse(path), self._redacted(value), self._types, self.id)
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
        """Remove a key from a dict, or an item from a list."""
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
        """Give a copy of the state to change in place, and save it when the block ends.

        An exception drops the changes. Changing the copy after the block has no effect.
        """
        meta = self._meta(label, tags, metadata, kind)
        state, head = self._head_to_change()
        yield state
        change = edits.Replace(self._redacted(state), self._nodes(), self._types)
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

        Never conflicts: `fn` is called again if another writer saved meanwhile, so it should only edit. If `fn` changes
        nothing, nothing is written, and the head is returned.
        """
        meta = self._meta(label, tags, metadata, kind)
        change = FunctionEdit(fn, self._nodes(), self._types, self.id, self._redacted)
        try:
            return self._write(change, meta, None, default=ANYTHING)
        except Unchanged as none:
            tip = none.tip
        if tip is None or tip.head is None:
            raise Invalid("edit(fn): the thread has no state, and fn set none", code="invalid.argument")
        return self._checkpoint(tip, tip.head)

    def update(self, fn: Callable[[Any], S | None], *, retries: int = 10) -> Checkpoint[S]:
        """Call `fn` with the state (None if there is none), and save the state that it returns.

        If `fn` returns None, the given state is saved, with the changes that `fn` made in it. If another writer saves
        first, `fn` is called again with the new state, up to `retries` times; then `Conflict` is raised.
        """
        for attempt in range(check_count(retries, "retries") + 1):
            head = self.latest()
            state = head.state if head else None
            result = fn(state)
            if result is None and state is None:
                raise Invalid("update(fn): the thread has no state, and fn returned None", code="invalid.argument")
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
        tip = self._tip()
        self._expect(tip)
        return self._checkpoint(tip, tip.head) if tip and tip.head else None

    def _latest_after(self) -> tuple[Checkpoint[S] | None, frozenset[str]]:
        """Return the head and, after a rewind to it, the ids of the graph runs that had saved checkpoints on top of it.

        A reader ignores the notes of these runs: see `asides`. The head has no tags here. This read does not change
        the head that the next save expects.
        """
        tip = self._tip()
        head = tip.head if tip else None
        if tip is None or head is None:
            return None, frozenset()
        moved = tip.newest.seq != head.seq
        gone = asides.used(self._engine.session.reader, tip, head) if moved else frozenset()
        return self._checkpoint(tip, head, tags=()), gone

    def _latest_within(self, outer: str, above: Above | None) -> tuple[Checkpoint[S] | None, frozenset[str], bool]:
        """Return the checkpoint of this namespace that is valid in the thread `outer`: see `namespaces`.

        Also return the ids of the graph runs that had saved checkpoints on top of it, and whether it is the head.
        """
        reader = self._engine.session.reader
        tip, over = self._tip(), reader.tip(self._key.space, outer)
        head = tip.head if tip else None
        if tip is not None and head is not None and over is not None and namespaces.has_branches(reader, over):
            if above is not None:
                row = namespaces.Outer(reader, over, above).newest(tip)
            else:
                row = None if over.head is None else namespaces.Outer.at(reader, over, over.head).newest(tip)
            if row is None or row.seq != head.seq:
                gone = frozenset() if row is None else asides.used(reader, tip, row)
                return None if row is None else self._checkpoint(tip, row), gone, False
        return *self._latest_after(), True

    def load(self, ref: Ref = "@") -> Checkpoint[S]:
        """Return the checkpoint of a ref, in this thread or in the threads it was forked from, or raise `NotFound`."""
        tip = self._require_readable()
        there, row = self._locate(tip, ref)
        if there is tip and row.seq == tip.newest.head and tip.lost is None:
            self._expect(tip)
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
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        everything: bool = False,
        ancestors: bool = False,
    ) -> Iterator[Checkpoint[S]]:
        """Give the checkpoints from the root to the head, without loading their states.

        `before` leaves out a checkpoint and all later ones. `label`, `tag`, `kind` and `metadata` keep the checkpoints
        that match; `since` and `until` keep those that were saved in that time, by the writers' clocks. `everything`
        includes checkpoints that are out of view, in the order in which they were saved. `ancestors` includes the
        history of the threads that this thread was forked from, as far as they exist: the oldest checkpoint then has a
        `parent_id` only if an older thread was deleted.
        """
        if limit is not None:
            check_count(limit, "limit")
        if kind is not None:
            check_kind(kind)
        label, tag, wanted = check_text(label, "label"), check_text(tag, "tag"), check_metadata(metadata)
        check_period(since, until)
        tip = self._readable()
        if tip is None or (tip.head is None and not everything):
            return iter(())
        reader = self._engine.session.reader
        view = ((1, tip.newest.seq),) if everything else reader.view(tip)
        parts = [lineage.Part(tip, view), *(lineage.parts(reader, tip) if ancestors else ())]
        if before is not None:
            there, row = self._locate(tip, before) if ancestors else (tip, self._resolve(tip, before))
            while parts[0].tip.record.no != there.record.no:
                parts.pop(0)
            parts[0] = parts[0]._replace(ranges=log.clip(parts[0].ranges, 1, row.seq - 1))

        def matches(checkpoint: Checkpoint[S]) -> bool:
            return (
                (label is None or checkpoint.label == label)
                and (tag is None or tag in checkpoint.tags)
                and (kind is None or checkpoint.kind == kind)
                and (not wanted or _holds(checkpoint.metadata, wanted))
                and (since is None or checkpoint.created_at >= since)
                and (until is None or checkpoint.created_at < until)
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
        tip, ranges = part
        given = 0
        page = min(_PAGE, max(limit or 0, _FEW))  # small pages first: the caller may stop after a few checkpoints
        while ranges and (limit is None or given < limit):
            tip = tip._replace(record=self._numbered(tip.record))
            rows = self._engine.session.reader.visible(tip, ranges, newest_first=newest_first, limit=page)
            for checkpoint in self._checkpoints(tip, rows):
                if (limit is None or given < limit) and matches(checkpoint):
                    given += 1
                    yield checkpoint
            if len(rows) < page:
                return
            page = min(_PAGE, 2 * page)
            last = rows[-1].seq
            ranges = log.clip(ranges, 1, last - 1) if newest_first else log.clip(ranges, last + 1, log.MAX_SEQ)

    def find(self, *, label: str | Collection[str] | None = None, tag: str | None = None) -> list[Checkpoint[S]]:
        """Return the checkpoints in view with a label (or one of several labels) and a tag, oldest first."""
        if label is None and tag is None:
            raise Invalid("find needs a label or a tag", code="invalid.argument")
        one = isinstance(label, str) or not hasattr(label, "__iter__")
        given = [check_text(each, "label") for each in ([label] if one else label or ())]
        labels = {each for each in given if each is not None}
        tag = check_text(tag, "tag")
        session = self._engine.session
        reader, known = session.reader, self._engine.known_tip(self._shared)
        record = known.record if known else reader.backend.find_thread(self._key.space, self._key.name)
        if record is None:
            return []
        seqs = None if label is None else set(reader.backend.labelled(record.no, labels))
        if tag is not None:
            tagged = set(reader.backend.tagged(record.no, tag))
            seqs = tagged if seqs is None else seqs & tagged
        tip = self._readable() if seqs else None
        if tip is None or tip.head is None:
            return []
        view = reader.view(tip)
        ranges = tuple((seq, seq) for seq in sorted(seqs or ()) if log.contains(view, seq))
        if not ranges:
            return []
        # read the payloads at once: labelled checkpoints are few, and callers usually load their states
        return self._checkpoints(tip, reader.visible(tip, ranges, payload=label is not None))

    @property
    def current_step(self) -> int:
        """The head's step; 0 if the thread does not exist."""
        tip = self._tip()
        return tip.newest.step if tip else 0

    def __len__(self) -> int:
        tip = self._readable()
        if tip is None or tip.head is None:
            return 0
        return self._engine.session.reader.count(tip)

    def __bool__(self) -> bool:
        return True  # also if the thread is empty

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed from one checkpoint to another."""
        old, new = self._tree_at(a), self._tree_at(b)
        unpack = unpacker.Unpacker(self._types)
        return Diff(tuple(self._change(edit, old, new, unpack) for edit in diff.differences(old, new, unpack)))

    def _change(self, edit: Difference, old: Tree, new: Tree, unpack: unpacker.Unpacker) -> Change:
        if edit.reordered is not None:
            return Reordered(
                "~", edit.path, [unpack(k) for k in edit.reordered[0]], [unpack(k) for k in edit.reordered[1]]
            )
        before = MISSING if edit.old is None else Decoder(old.nodes, self._types).value(edit.old)
        after = MISSING if edit.new is None else Decoder(new.nodes, self._types).value(edit.new)
        return Change("+" if edit.old is None else "-" if edit.new is None else "~", edit.path, before, after)

    # -- watching -------------------------------------------------------------------------------------

    def watch(self, *, after: Ref | None = None, timeout: dt.timedelta | float | None = None) -> Watch[Checkpoint[S]]:
        """Give each new head as it is made, by any process.

        `after` starts after a checkpoint instead of now. Ends if there is no news for `timeout` seconds; None: never. A
        watched checkpoint does not change the head that the next save expects.
        """
        return Watch(self._watcher(after, timeout))

    def _watcher(self, after: Ref | None, timeout: dt.timedelta | float | None) -> OneThread[Checkpoint[S]]:
        name = (self._key.space, self._key.name)
        return OneThread(self._engine, name, after, check_timeout(timeout), self._checkpoints)

    # -- time travel ----------------------------------------------------------------------------------

    def fork(self, new_id: str, at: Ref = "@") -> Thread[S]:
        """Start a new thread at a checkpoint of this one; `Conflict` if the id is taken."""
        tip, row = self._locate(self._require_readable(), at)
        made: Thread[S] = Thread(self._engine, self._key.space, new_id, self._type, self._key.agent)
        reader = self._engine.session.reader
        if asides.left(reader, tip, row) or self._namespaces(reader, tip, row, new_id):
            made._remember(self._engine.atomic(lambda session: self._fork(session, made, at, notes=True)))
        else:
            made._remember(self._fork(self._engine.session, made, at, notes=False))
        return made

    def _fork(self, session: Session, made: Thread[S], at: Ref, *, notes: bool) -> Tip:
        """Start the thread `made` at a checkpoint of this thread. `notes`: copy its unused notes and namespaces."""
        tip, row = self._locate(self._require_readable(), at)
        tags = session.reader.backend.tags(tip.record.no, [row.seq]).get(row.seq, ())
        after = session.writer.fork(made._key._replace(agent=tip.record.agent), tip, row, tags)
        left = set(asides.left(session.reader, tip, row)) if notes else set()
        if left:
            aside: Thread[Any] = Thread(self._engine, asides.ASIDE, tip.record.name)
            other: Thread[Any] = Thread(self._engine, asides.ASIDE, made.id)
            for note in aside.find(label=row.label):
                if note._row.seq in left:  # noqa: SLF001 - a handle made it
                    other.save(note.state, label=note.label, metadata=note.metadata)
        for inner, its, name in self._namespaces(session.reader, tip, row, made.id) if notes else ():
            source: Thread[Any] = Thread(self._engine, inner.record.space, inner.record.name)
            target: Thread[Any] = Thread(self._engine, inner.record.space, name)
            source._fork(session, target, log.checkpoint_id(inner.record.uid, its.seq), notes=True)
        return after

    def _namespaces(self, reader: LogReader, tip: Tip, row: Row, new_id: str) -> list[tuple[Tip, Row, str]]:
        """Return the namespaces that a fork of a graph's thread copies: the tip, the row and the new name of each."""
        if self._key.space != asides.THREAD:
            return []
        return namespaces.taken_along(reader, tip, row, new_id)

    def rewind(self, ref: Ref, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Make an older checkpoint the head again. Later checkpoints are out of view, not deleted.

        `expect` is the head that the caller knows, or its id: `Conflict` if another checkpoint is the head.
        """
        return self._move(lambda mover: mover.rewind(self._key, lambda tip: self._resolve(tip, ref)), expect)

    def undo(self, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Undo the last save, rewind, restore or redo. `expect` is as for `rewind`."""
        return self._move(lambda mover: mover.undo(self._key), expect)

    def redo(self, *, expect: Checkpoint[Any] | str | None = None) -> Checkpoint[S]:
        """Redo the last undo. `expect` is as for `rewind`."""
        return self._move(lambda mover: mover.redo(self._key), expect)

    def _move(self, move: Callable[[HeadMover], Tip], expect: Checkpoint[Any] | str | None) -> Checkpoint[S]:
        if expect is None:
            return self._moved(move(self._engine.session.mover))
        expected = expect.id if isinstance(expect, Checkpoint) else plain(expect)

        def work(session: Session) -> Tip:
            tip = self._required(session.reader.tip(self._key.space, self._key.name))
            actual = log.checkpoint_id(tip.record.uid, tip.newest.head) if tip.newest.head else None
            if actual != expected:
                raise Conflict(
                    f"the head of thread {self.id!r} is another checkpoint: read it, then decide",
                    code="conflict.stale",
                    expected=expected,
                    actual=actual,
                )
            if session.overlay is not None:
                session.overlay.rely_on(tip.record.no, tip.newest)
            return move(session.mover)

        return self._moved(self._engine.atomic(work))

    def _moved(self, tip: Tip) -> Checkpoint[S]:
        self._remember(tip)
        if tip.head is None:
            raise Corrupt(f"thread {self.id!r} has lost its head", code="corrupt.row")
        return self._written(tip, tip.head)

    def _written(self, tip: Tip, row: Row) -> Checkpoint[S]:
        """Return a checkpoint after a write; `CommitUnknown` if reading fails, because the write has succeeded."""
        try:
            return self._checkpoint(tip, row)
        except Unavailable as error:
            raise CommitUnknown(
                f"the write succeeded, but reading its checkpoint failed ({error}); load it before you repeat it",
                code="commit_unknown.read",
            ) from error

    # -- tags, retention, deletion ----------------------------------------------------------------------------------

    def tag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Add tags to a checkpoint."""
        return self._tag(ref, add=self._redacted(check_tags(tags)), remove=())

    def untag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Remove tags from a checkpoint."""
        return self._tag(ref, add=(), remove=check_tags(tags))

    def _tag(self, ref: Ref, *, add: tuple[str, ...], remove: tuple[str, ...]) -> Checkpoint[S]:
        if not add and not remove:
            raise Invalid("name at least one tag", code="invalid.argument")
        tip = self._require_tip()
        row = self._resolve(tip, ref)
        self._engine.session.mover.tag(tip.record, row.seq, add, remove)
        return self._written(tip, row)

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

        Without a policy: hide checkpoints before the newest `keep_last` and older than `older_than` (each if given).
        Labelled and tagged checkpoints stay unless `keep_tagged` is False; if it is a list of tags, only those tags
        count. The head always stays, and so do checkpoints in `keep`, checkpoints saved after `until`, and checkpoints
        that an agent checkpoint pins. Checkpoints out of view are counted separately: their newest `keep_last` stay.
        """
        with loading:
            from backtrail.maintenance.retention import Account, rules_for_one  # noqa: PLC0415 - not every program prunes

        reader = self._engine.session.reader
        rules = rules_for_one(policy, keep_last, older_than, keep_tagged, reader.clock())
        refs = (keep,) if isinstance(keep, str | int | Checkpoint) else check_several(keep, "keep")
        holders = manifests.PinIndex(reader)
        found = Sorted({}, [])

        def choose(tip: Tip) -> Tagged:
            nonlocal found
            named = {self._resolve(tip, ref).seq for ref in refs}
            last = log.MAX_SEQ if until is None else self._resolve(tip, until).seq
            found = retention.sort_out(reader, tip, rules, holders, named=named, until=last)
            return found.gone

        tip = self._tip()
        account = Account(rules, dry_run=dry_run)
        if tip is not None and rules.idle is not None:
            tip = self._remove_idle(tip, rules, account, dry_run=dry_run)
        if tip is not None and dry_run:
            choose(tip)
        elif tip is not None:
            hidden = self._engine.session.mover.hide(self._key, choose)
            found = found._replace(gone=dict(sorted(hidden.items())))
        if tip is not None:
            account.add(tip.record, found)
        return account.report()

    def _remove_idle(self, tip: Tip, rules: Rules, account: Account, *, dry_run: bool) -> Tip | None:
        """Remove the thread if it is idle; return its tip if its checkpoints must still be pruned."""
        from backtrail.maintenance.retention import remove_idle  # noqa: PLC0415 - not every program prunes

        holders = manifests.PinIndex(self._engine.session.reader, of_heads=False)
        found = remove_idle(self._engine, tip.record, rules, holders, dry_run=dry_run)
        account.settle(tip.record, found, alone=not rules.prunes)
        now = self._tip()
        if found.seqs is not None and not dry_run and now is not None:
            self._remember(now)
        return now if found.why and rules.prunes else None

    def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint; return whether it existed. If it was the head, its nearest ancestor becomes the head."""
        before = self._expectation()
        found: list[int] = []

        def find(tip: Tip) -> Row | None:
            try:
                row = self._resolve(tip, ref)
            except NotFound:
                return None
            found[:] = [row.seq]
            return row

        done, tip = self._engine.session.mover.delete_checkpoint(self._key, find)
        if done and tip is not None and before.head in (ANY, *found):  # otherwise this caller has not read the head
            self._remember(tip)
        return done

    def erase(
        self, *, forks: bool = True, force: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> ErasureReport:
        """Erase the thread with every byte of it, also where agent checkpoints and forks have it.

        Unlike `delete`, nothing can bring it back. Its forks are erased as well, unless `forks=False`. A run with a
        worker is a `Conflict`, unless `force` is set. The id can be used again. See docs/erasure.md.
        """
        if self._key.space == manifests.AGENT:
            raise Invalid("an agent is erased with all its threads: store.agents.erase(id)", code="invalid.argument")
        with loading:
            from backtrail.maintenance.erase import erase_all  # noqa: PLC0415 - few programs do it

        report = erase_all(self._engine, self._key.space, self.id, forks=forks, force=force, progress=progress)
        self._erased()
        return report

    def delete(self) -> bool:
        """Delete the thread and return whether it existed. A new thread of this id starts at step 1."""
        done, tip = self._engine.session.mover.delete_thread(self._key)
        if done and tip is not None:
            self._remember(tip)
        return done


def _holds(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in wanted.items())
