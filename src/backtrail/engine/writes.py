"""Writing: every change of a thread is one batch of rows that the backend takes whole or refuses.

A write is prepared on how the thread is known to stand and committed on the condition that it still stands so.
If somebody else was first, the thread is read again and the write prepared anew: an append then lands behind theirs;
a save that was derived from a state that is no longer the head is a `Conflict`.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from backtrail.backends.port import Batch, MissingChunks, NewThread, Row, Stale, ThreadRecord, Vanished
from backtrail.engine import log, pace, payload, retention, rows, wire
from backtrail.engine.heads import Chain, Heads, Standing
from backtrail.engine.nodes import SPINE
from backtrail.engine.pins import CONVERSATION, SPACE
from backtrail.engine.refs import require_head
from backtrail.engine.squeeze import squeeze
from backtrail.engine.tree import Tree
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.engine.nodes import Node
    from backtrail.engine.rows import Meta
    from backtrail.engine.tree import Op

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds for which a write that needs no expectation tries again while others are first."""
_FRESH_MAX: Final = 24
_AT_ONCE: Final = 2
"""How often a write is tried again without a pause."""

ANY: Final = -1
"""The expectation of a write that may land on whatever is there."""
NOTHING: Final = 0
"""The expectation that there is no head."""


class Key(NamedTuple):
    """Which thread is meant."""

    space: str
    name: str
    agent: str | None = None


class Expect(NamedTuple):
    """Which checkpoint a write is to stand on: the seq of the head, and its op_id where that is known.

    A seq alone may name another checkpoint than was meant: one that a dropped transaction had, and lost.
    """

    head: int
    op_id: bytes | None = None
    label: str | None = None
    """The head's label, if that is what is known of it."""


LABELLED: Final = -2
"""The expectation of a head that has a certain label."""
ANYTHING: Final = Expect(ANY)


class Proposal(NamedTuple):
    """The state to be: as a tree, and as ops on the state it comes from (None: a base is to be written)."""

    tree: Tree
    ops: list[Op] | None


class Propose(Protocol):
    """Derives the next state from how the thread stands (with its head's tree), or from nothing."""

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return what is to be written."""


class Unchanged(Exception):  # noqa: N818 - it is no error
    """What a proposal raises that has nothing to write, with how the thread stands."""

    def __init__(self, standing: Standing | None) -> None:
        super().__init__()
        self.standing = standing


class Writes:
    """Writes to threads through a backend."""

    def __init__(self, heads: Heads, after_write: Callable[[ThreadRecord], None] | None = None) -> None:
        self._heads = heads
        self._backend = heads.backend
        self._after_write = after_write

    # -- checkpoints ----------------------------------------------------------------------------

    def save(
        self,
        key: Key,
        propose: Propose,
        meta: Meta,
        *,
        expect: Expect = ANYTHING,
        known: Standing | None = None,
        onto: Callable[[Standing], Row] | None = None,
    ) -> Standing:
        """Append a checkpoint and return how the thread stands then; `onto` finds what it is to stand on, if told."""

        def attempt(standing: Standing | None) -> Standing:
            self._require(standing, expect, key)
            if onto is not None:
                standing = self._turned(standing, onto, key)
            if standing is not None and standing.head is not None:
                try:
                    standing = self._heads.with_chain(standing)
                except NotFound:  # it is the head no more
                    raise Stale from None
            try:
                return self._save_on(standing, propose(standing), key, meta)
            except Vanished:  # what it was to stand on
                raise Stale from None

        after = self._retrying(key, attempt, known)
        if self._after_write:
            self._after_write(after.record)
        return after

    def _turned(self, standing: Standing | None, find: Callable[[Standing], Row], key: Key) -> Standing:
        """Return how a thread stands once another checkpoint is its head: by a row that is yet to be written."""
        if standing is None:
            raise NotFound(f"there is no thread {key.name!r}", code="not_found.thread")
        target = find(standing)
        if target.seq == standing.newest.head:
            return standing
        ranges = self._heads.path(standing.record, target)
        undo = standing.newest.seq if standing.newest.head else 0
        row = rows.move(standing, log.REWIND, target, ranges, undo=undo, redo=0, at=self._heads.clock())
        return Standing(standing.record, log.checked(row, standing.record.uid), target, None, standing.newest)

    def _save_on(self, standing: Standing | None, proposal: Proposal, key: Key, meta: Meta) -> Standing:
        chain = standing.chain if standing else None
        stored = self._pack(proposal, chain)
        row = rows.checkpoint(standing, proposal.tree, stored, meta, created_at=self._heads.clock())
        hide = retention.retired(self._heads, standing, row) if standing else ()
        after = self._commit_checkpoint(standing, row, stored, key, tags=meta.tags, hide=hide)
        return Standing(after.record, after.newest, after.head, _extended(chain, proposal.tree, stored))

    def fork(
        self,
        key: Key,
        source: Standing,
        at: Row,
        tags: tuple[str, ...],
        edit: Callable[[Tree], Tree] | None = None,
    ) -> Standing:
        """Begin a thread with a checkpoint of another one, or with what `edit` makes of its state."""
        tree = self._heads.chain(source.record, at).tree
        if edit is not None:
            tree = edit(tree)
        stored = payload.base(tree, frozenset(), compress=self._heads.options.compression)
        metadata, _, _ = log.unpack_extra(at)
        meta = rows.Meta(at.kind, at.label, tags, metadata)
        origin = log.checkpoint_id(source.record.uid, at.seq)

        def attempt(standing: Standing | None) -> Standing:
            if standing is not None and standing.head is not None:
                raise exists(key, standing)
            if standing is not None:
                self._refuse_claimed(standing.record, key)
            row = rows.checkpoint(standing, tree, stored, meta, created_at=self._heads.clock())
            row = rows.forked(row, at, origin, meta)
            source_row = ((source.record.no, at.seq),)
            after = self._commit_checkpoint(standing, row, stored, key, tags=tags, origin=origin, visible=source_row)
            return after._replace(chain=_extended(None, tree, stored))

        try:
            return self._retrying(key, attempt, None)
        except Vanished:
            raise NotFound(f"checkpoint {origin} was deleted meanwhile", code="not_found.checkpoint") from None

    def _pack(self, proposal: Proposal, chain: Chain | None) -> payload.Stored:
        tree, compress = proposal.tree, self._heads.options.compression
        deep = chain is None or chain.depth + 1 >= payload.DEPTH_MAX or chain.weight > payload.CHAIN_MAX
        if proposal.ops is not None and not deep and not tree.sealed:
            data = payload.packed(proposal.ops)
            if len(data) <= payload.DELTA_MAX and not _says_all(data, tree):
                return payload.delta(proposal.ops, data, tree.nodes, compress=compress)
        return payload.base(tree, chain.settled if chain else frozenset(), compress=compress)

    def _commit_checkpoint(
        self,
        standing: Standing | None,
        row: Row,
        stored: payload.Stored,
        key: Key,
        *,
        tags: tuple[str, ...],
        hide: tuple[int, ...] = (),
        origin: str | None = None,
        visible: tuple[tuple[int, int], ...] = (),
    ) -> Standing:
        moved = standing is not None and standing.before is not None
        if standing is not None and moved and standing.head is not None:
            visible = (*visible, (standing.record.no, standing.head.seq))
        if standing is not None and standing.newest.head and not (stored.chunks or tags or hide or visible):
            record = standing.record  # what most saves are: one more row
            row = log.checked(row, record.uid)
            self._backend.commit(Batch(rows=((record.no, row),)))
            return Standing(record, row, row)
        renewed = standing is not None and not standing.newest.head
        agent = key.agent
        if standing is not None and agent is None and key.space == CONVERSATION:
            agent = standing.record.agent  # it stays its agent's
        created = NewThread(key.space, key.name, os.urandom(log.UID_BYTES), agent, row.created_at, origin)
        no, uid = (standing.record.no, standing.record.uid) if standing else (-1, created.uid)
        batch = Batch(
            threads=() if standing else (created,),
            renew=((no, created),) if renewed else (),
            visible=visible,
            hide=tuple((no, seq) for seq in hide),
            tag=tuple((no, row.seq, tag) for tag in tags),
            rows=((no, standing.newest),) if standing is not None and moved else (),
        )
        row, numbers = self._commit_chunks(batch, row, stored.chunks, no=no, uid=uid)
        record = standing.record if standing else ThreadRecord(numbers[0], *created)
        if renewed:
            record = record._replace(agent=created.agent, created_at=created.created_at, origin=origin)
        return Standing(record, row, row)

    def _commit_chunks(
        self, batch: Batch, row: Row, nodes: dict[bytes, Node], *, no: int, uid: bytes
    ) -> tuple[Row, tuple[int, ...]]:
        """Commit a checkpoint with the chunks it needs; those that seemed to be there and are not are sent again."""
        compress = self._heads.options.compression
        present = self._backend.present(list(nodes)) if nodes else set()
        while True:
            chunks = tuple(
                (digest, squeeze(node.kind + node.data, enabled=compress))
                for digest, node in nodes.items()
                if digest not in present
            )
            added = len(row.payload or b"") + sum(len(data) for _, data in chunks)
            row = log.checked(row._replace(stored=added), uid)
            try:
                numbers = self._backend.commit(
                    batch._replace(rows=(*batch.rows, (no, row)), chunks=chunks, touch=tuple(sorted(present)))
                )
            except MissingChunks as error:
                present = present - error.digests
            else:
                return row, numbers

    # -- moves ------------------------------------------------------------------------------------

    def rewind(self, key: Key, find: Callable[[Standing], Row]) -> Standing:
        """Make an older checkpoint the head again; `find` says which, given how the thread stands."""

        def attempt(standing: Standing) -> Standing:
            target = find(standing)
            return self._move(standing, log.REWIND, target, undo=standing.newest.seq, redo=0)

        return self._moving(key, attempt)

    def undo(self, key: Key) -> Standing:
        """Take the last change back."""

        def attempt(standing: Standing) -> Standing:
            newest = standing.newest
            to = self._undo_target(standing, head=newest.head, start=newest.undo)
            if to is None:
                require_head(standing)
                raise Invalid(f"thread {key.name!r} has nothing left to undo", code="invalid.undo")
            return self._move(standing, log.UNDO, self._head_of(standing, to), undo=to.undo, redo=newest.seq)

        return self._moving(key, attempt)

    def before(self, standing: Standing) -> str | None:
        """Return the id of the checkpoint that an undo would make the head; None if there is nothing to undo."""
        newest = standing.newest
        to = self._undo_target(standing, head=newest.head, start=newest.undo)
        return None if to is None else log.checkpoint_id(standing.record.uid, to.head)

    def redo(self, key: Key) -> Standing:
        """Take the last undo back."""

        def attempt(standing: Standing) -> Standing:
            newest = standing.newest
            to = self._redo_target(standing, head=newest.head, start=newest.redo)
            if to is None:
                require_head(standing)
                raise Invalid(f"thread {key.name!r} has nothing to redo", code="invalid.redo")
            return self._move(standing, log.REDO, self._head_of(standing, to), undo=newest.seq, redo=to.redo)

        return self._moving(key, attempt)

    def _head_of(self, standing: Standing, row: Row) -> Row:
        head = row if row.head == row.seq else self._heads.sound_row(standing.record, row.head)
        if head is None:
            raise Stale
        return head

    def _undo_target(self, standing: Standing, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return what an undo goes back to; `gone` is a checkpoint that is about to be hidden."""
        record = standing.record

        def nearest(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.nearest(record, seq), gone)

        def read(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.sound_row(record, seq), gone)

        return log.undo_target(nearest, read, head=head, start=start)

    def _as_seen(self, standing: Standing, row: Row | None, gone: int) -> Row | None:
        """Return a row, hidden if it is about to be or if its time has run out."""
        if row is None or row.op not in log.CHECKPOINTS:
            return row
        over = row.seq == gone or bool(self._heads.expired(standing.record, [row], standing.newest.head))
        return row._replace(hidden=row.hidden or over)

    def _redo_target(self, standing: Standing, *, head: int, start: int, gone: int = 0) -> Row | None:
        """Return what a redo goes forward to; `gone` as for an undo."""

        def read(seq: int) -> Row | None:
            return self._as_seen(standing, self._heads.sound_row(standing.record, seq), gone)

        return log.redo_target(read, head=head, start=start)

    def bring_back(self, key: Key, row: Row, was: int) -> Standing:
        """Make a checkpoint the head again, even if it was deleted; `was` is the seq of the head that it replaces."""

        def attempt(standing: Standing) -> Standing:
            record = self._replacing(standing, was)
            ranges = self._heads.path(record, row)
            undo = standing.newest.seq if was else 0
            move = rows.move(standing, log.REWIND, row, ranges, undo=undo, redo=0, at=self._heads.clock())
            move = log.checked(move, record.uid)
            begun = self._heads.view(standing)
            same = bool(begun) and begun[0][0] == ranges[0][0]
            again = () if same else ((record.no, self._as_it_was(record, ranges)),)
            try:
                self._backend.commit(Batch(rows=((record.no, move),), show=((record.no, row.seq),), renew=again))
            except Vanished as error:  # whoever chose the row has to choose again: to try once more would not help
                text = f"a checkpoint of thread {record.name!r} was removed meanwhile"
                raise Conflict(text, code="conflict.transaction") from error
            return Standing(record, move, row)

        return self._moving(key, attempt)

    def _as_it_was(self, record: ThreadRecord, ranges: log.Ranges) -> NewThread:
        """Return what a thread was before another one began under its name, as far as its first row is still there."""
        root = self._heads.sound_row(record, ranges[0][0])
        if root is None:
            return NewThread(*record[1:])
        return NewThread(*record[1:5], root.created_at, log.unpack_extra(root)[2])

    def leave(self, key: Key, was: int) -> Standing:
        """Take a thread out of view, without hiding anything; `was` is the seq of its head."""

        def attempt(standing: Standing) -> Standing:
            record = self._replacing(standing, was)
            move = rows.move(standing, log.LEAVE, None, (), undo=0, redo=0, at=self._heads.clock())
            move = log.checked(move, record.uid)
            self._backend.commit(Batch(rows=((record.no, move),)))
            return Standing(record, move, None)

        return self._moving(key, attempt)

    def _replacing(self, standing: Standing, was: int) -> ThreadRecord:
        if standing.newest.head != was:
            raise Conflict(f"thread {standing.record.name!r} moved on meanwhile", code="conflict.transaction")
        return standing.record

    def _move(self, standing: Standing, op: int, head: Row, *, undo: int, redo: int) -> Standing:
        record = standing.record
        ranges = self._heads.path(record, head)
        row = rows.move(standing, op, head, ranges, undo=undo, redo=redo, at=self._heads.clock())
        row = log.checked(row, record.uid)
        self._backend.commit(Batch(rows=((record.no, row),), visible=((record.no, head.seq),)))
        return Standing(record, row, head)

    # -- deleting ---------------------------------------------------------------------------------

    def delete_checkpoint(self, key: Key, find: Callable[[Standing], Row | None]) -> tuple[bool, Standing | None]:
        """Hide a checkpoint; if it is the head, its nearest surviving ancestor becomes the head."""

        def attempt(standing: Standing) -> tuple[bool, Standing | None]:
            target = find(standing)
            if target is None:
                return False, standing
            record, newest = standing.record, standing.newest
            hide = ((record.no, target.seq),)
            if target.seq != newest.head:
                self._backend.commit(Batch(newest=((record.no, newest.seq),), hide=hide))
                return True, None
            above = log.clip(self._heads.view(standing), 1, target.seq - 1)
            survivors = self._heads.visible(standing, above, newest_first=True, limit=1) if above else []
            head = survivors[0] if survivors else None
            ranges = self._heads.path(record, head) if head else ()
            # from the newest row on, which stands on what goes: so both pass over what would change nothing
            onto, gone = head.seq if head else 0, target.seq
            undo = self._undo_target(standing, head=onto, start=newest.seq, gone=gone)
            redo = self._redo_target(standing, head=onto, start=newest.seq, gone=gone)
            back, forth = undo.seq if undo else 0, redo.seq if redo else 0
            row = rows.move(standing, log.DROP, head, ranges, undo=back, redo=forth, at=self._heads.clock())
            row = log.checked(row, record.uid)
            self._backend.commit(Batch(rows=((record.no, row),), hide=hide))
            return True, Standing(record, row, head)

        nothing: tuple[bool, Standing | None] = (False, None)
        return self._existing(key, attempt, nothing)

    def delete_thread(self, key: Key) -> tuple[bool, Standing | None]:
        """Hide all of a thread; its log goes on, so that nobody who still holds it can bring it back by accident."""

        def attempt(standing: Standing) -> tuple[bool, Standing | None]:
            record = standing.record
            shown = [r for r in self._backend.rows(record.no, [(1, standing.newest.seq)]) if not r.hidden]
            if standing.head is None and not any(r.root for r in shown):
                return False, standing
            row = rows.move(standing, log.CLEAR, None, (), undo=0, redo=0, at=self._heads.clock())
            row = log.checked(row, record.uid)
            self._backend.commit(Batch(rows=((record.no, row),), hide=tuple((record.no, r.seq) for r in shown)))
            return True, Standing(record, row, None)

        nothing: tuple[bool, Standing | None] = (False, None)
        return self._existing(key, attempt, nothing)

    def hide(self, key: Key, choose: Callable[[Standing], Iterable[int]]) -> list[int]:
        """Hide the checkpoints that `choose` names (never the head), and return which.

        Many are hidden a slice at a time. If somebody else writes meanwhile, `choose` is asked again about the rest.
        """
        hidden: list[int] = []
        paced = pace.Upkeep()

        def attempt(standing: Standing) -> list[int]:
            record, newest = standing.record, standing.newest
            for part in pace.slices([seq for seq in choose(standing) if seq != newest.head]):
                with paced.write():
                    hide = tuple((record.no, seq) for seq in part)
                    self._backend.commit(Batch(newest=((record.no, newest.seq),), hide=hide))
                hidden.extend(part)
            return hidden

        return self._existing(key, attempt, hidden)

    def tag(self, record: ThreadRecord, seq: int, add: Iterable[str], remove: Iterable[str]) -> None:
        """Put tags on a checkpoint, take others off."""
        no = record.no
        batch = Batch(
            visible=((no, seq),),
            tag=tuple((no, seq, tag) for tag in add),
            untag=tuple((no, seq, tag) for tag in remove),
        )
        try:
            self._backend.commit(batch)
        except Vanished:
            name = log.checkpoint_id(record.uid, seq)
            raise NotFound(f"checkpoint {name} was deleted", code="not_found.checkpoint") from None

    # -- trying -------------------------------------------------------------------------------------

    def _require(self, standing: Standing | None, expect: Expect, key: Key) -> None:
        """Raise `Conflict` unless the head is the expected one, or the thread is another agent's."""
        head = standing.newest.head if standing else 0
        if standing and head and key.agent is not None and standing.record.agent != key.agent:
            raise Conflict(
                f"thread {key.name!r} belongs to agent {standing.record.agent!r}, not {key.agent!r}",
                code="conflict.agent",
            )
        if standing and not head:
            self._refuse_claimed(standing.record, key)
        there = standing.head if standing else None
        same = expect.op_id is None or (there is not None and there.op_id == expect.op_id)
        if expect.head == ANY or (expect.head == head and same):
            return
        if expect.label is not None and there is not None and there.label == expect.label:
            return
        if expect.head == NOTHING and standing is not None:
            raise exists(key, standing)
        uid = standing.record.uid if standing else None
        expected = log.checkpoint_id(uid, expect.head) if uid and expect.head > 0 else expect.label
        actual = log.checkpoint_id(uid, head) if uid and head else None
        raise Conflict(
            f"thread {key.name!r} moved on: this was derived from {expected or 'nothing'}, its head is now "
            f"{actual or 'nothing'}; load it again and redo the change, or use update()",
            code="conflict.stale",
            expected=expected,
            actual=actual,
        )

    def _refuse_claimed(self, record: ThreadRecord, key: Key) -> None:
        """Raise `Conflict` if a thread is to begin again as another agent's, and checkpoints may bring it back."""
        owner = record.agent
        if owner is None or key.agent in (None, owner) or record.space != CONVERSATION:
            return
        manifests = self._heads.standing(SPACE, owner)
        if manifests is not None and manifests.head is not None:
            raise Conflict(
                f"{record.space} {key.name!r} was one of agent {owner!r}, whose checkpoints may bring it back: "
                "use another id",
                code="conflict.agent",
            )

    def _retrying(self, key: Key, attempt: Callable[[Standing | None], Standing], known: Standing | None) -> Standing:
        return _patiently(lambda: self._heads.standing(key.space, key.name), attempt, known, key)

    def _moving(self, key: Key, attempt: Callable[[Standing], Standing]) -> Standing:
        def existing(standing: Standing | None) -> Standing:
            if standing is None:
                raise NotFound(f"there is no thread {key.name!r}", code="not_found.thread")
            try:
                return attempt(standing)
            except Vanished:
                raise Stale from None

        return _patiently(lambda: self._heads.standing(key.space, key.name), existing, None, key)

    def _existing(self, key: Key, attempt: Callable[[Standing], T], otherwise: T) -> T:
        def maybe(standing: Standing | None) -> T:
            return otherwise if standing is None else attempt(standing)

        return _patiently(lambda: self._heads.standing(key.space, key.name), maybe, None, key)


def _patiently(
    read: Callable[[], Standing | None], attempt: Callable[[Standing | None], T], known: Standing | None, key: Key
) -> T:
    """Try on what is known, then on what is there, until nobody else was first.

    What is known may be old, so an error that comes of it counts only if it comes again; so does that nothing is to do.
    """
    standing = known if known is not None else read()
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        try:
            return attempt(standing)
        except (Conflict, Corrupt, Invalid, NotFound):
            if standing is not known or known is None:
                raise
            standing = read()
        except Unchanged:
            if standing is not known or known is None:
                raise
            standing = read()
            if standing is not None and standing.newest.op_id == known.newest.op_id:
                raise
        except Stale:
            tries += 1
            if time.monotonic() > until:
                raise Unavailable(
                    f"thread {key.name!r} is written to without pause; gave up after {PATIENCE:.0f} s",
                    code="unavailable.contended",
                ) from None
            if tries > _AT_ONCE:
                time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - only to get out of step
            standing = read()


def _says_all(delta: bytes, tree: Tree) -> bool:
    """Tell whether a delta is no shorter than the state: a base is then read without the rows before it."""
    return len(tree.rep) <= len(delta) and not wire.may_hold_refs(tree.rep)


def exists(key: Key, standing: Standing) -> Conflict:
    """Return the error of a write that wanted to be the first."""
    actual = log.checkpoint_id(standing.record.uid, standing.newest.head)
    return Conflict(f"there is a thread {key.name!r} already", code="conflict.exists", actual=actual)


def _extended(chain: Chain | None, tree: Tree, stored: payload.Stored) -> Chain:
    """Return the chain that the row just written ends: what became a chunk is no longer fresh."""
    nodes = tree.nodes
    if stored.chunks or len(nodes.fresh) > _FRESH_MAX:
        kept = payload.reachable(nodes, payload.refs_of(tree.rep))
        nodes = nodes.with_fresh({digest: node for digest, node in kept.items() if digest not in stored.chunks})
        for digest, node in kept.items():
            if node.kind == SPINE:  # the next write begins with it
                nodes.keep(digest, node)
    slim = Tree(tree.rep, nodes)
    if stored.is_base or chain is None:
        return Chain(slim, 0, 0, stored.inlined)
    return Chain(slim, chain.depth + 1, chain.weight + len(stored.payload), chain.settled)
