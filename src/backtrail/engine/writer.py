"""What a write is to stand on, and trying until nobody else was first.

A write is prepared on how the thread is known to stand and committed on the condition that it still stands so. If
somebody else was first, the thread is read again and the write prepared anew.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from backtrail.backends.port import Batch, MissingChunks, NewThread, Row, Stale, ThreadRecord, Vanished
from backtrail.engine import log, payload, retention, rows
from backtrail.engine.compression import squeeze
from backtrail.engine.pins import AGENT, CONVERSATION, SPACE
from backtrail.engine.reader import Chain, Heads, Standing
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.nodes import SPINE
from backtrail.engine.tree.tree import Tree
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.engine.reader import Heads
    from backtrail.engine.rows import Meta
    from backtrail.engine.tree.nodes import Node
    from backtrail.engine.tree.tree import Op


T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds for which a write that needs no expectation tries again while others are first."""
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


class Decided(Exception):  # noqa: N818 - it is no error of its own
    """What a proposal raised: a decision of the caller's function, made on the state that it was given."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Unchanged(Exception):  # noqa: N818 - it is no error
    """What a proposal raises that has nothing to write, with how the thread stands."""

    def __init__(self, standing: Standing | None) -> None:
        super().__init__()
        self.standing = standing


def exists(key: Key, standing: Standing) -> Conflict:
    """Return the error of a write that wanted to be the first."""
    actual = log.checkpoint_id(standing.record.uid, standing.newest.head)
    return Conflict(f"there is a thread {key.name!r} already", code="conflict.exists", actual=actual)


def patiently(heads: Heads, key: Key, attempt: Callable[[Standing | None], T], known: Standing | None = None) -> T:
    """Try on what is known, then on what is there, until no other writer was first.

    What is known may be old. So whatever an attempt on it raises, which is how a function says that there is nothing to
    do, counts only if the thread still stands so: else the attempt is made again on what is there. Only that the store
    could not be reached is raised at once; of a write whose outcome is unknown, a second one might be a duplicate.
    """
    standing = known if known is not None else heads.standing(key.space, key.name)
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        try:
            return attempt(standing)
        except (CommitUnknown, Unavailable):  # of the store
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
            standing = heads.standing(key.space, key.name)
            continue
        except Exception as raised:  # noqa: BLE001 - whatever the caller's function raises
            error = raised.error if isinstance(raised, Decided) else raised
        try:
            if known is None or standing is not known:
                raise error
            standing = heads.standing(key.space, key.name)
            same = standing is not None and standing.newest.op_id == known.newest.op_id
            if same and not isinstance(error, Corrupt):  # what is damaged in memory may be sound in the store
                raise error
        finally:
            del error  # its traceback leads here: nothing is to wait for the garbage collector


_FRESH_MAX: Final = 24


class Proposal(NamedTuple):
    """The state to be: as a tree, and as ops on the state it comes from (None: a base is to be written)."""

    tree: Tree
    ops: list[Op] | None


class Propose(Protocol):
    """Derives the next state from how the thread stands (with its head's tree), or from nothing."""

    def __call__(self, standing: Standing | None) -> Proposal:
        """Return what is to be written."""


class Writes:
    """Writes to threads through a backend."""

    def __init__(
        self,
        heads: Heads,
        after_write: Callable[[ThreadRecord], None] | None = None,
        *,
        spare: Callable[[Mapping[bytes, Callable[[], bytes]]], None] | None = None,
        relied_on: Callable[[int, int], None] | None = None,
    ) -> None:
        self._heads = heads
        self._backend = heads.backend
        self._after_write = after_write
        self._spare = spare
        """Takes what makes the chunks that were there: what is committed may count only later."""
        self._relied_on = relied_on
        """Takes the number and newest seq of a thread on which a proposal decided to write nothing."""

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
                proposal = propose(standing)
            except Stale:
                raise
            except Exception as error:  # noqa: BLE001 - handed on
                if self._relied_on is not None and standing is not None:
                    self._relied_on(standing.record.no, (standing.before or standing.newest).seq)
                raise Decided(error) from None
            try:
                return self._save_on(standing, proposal, key, meta)
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
        hide, examined = retention.retired(self._heads, standing, row) if standing else retention.Retired()
        after = self._commit_checkpoint(standing, row, stored, key, tags=meta.tags, hide=hide)
        if examined is not None:
            self._heads.examined[after.record.no] = examined
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
        if key.space == AGENT:
            raise Invalid(
                "an agent is not forked by itself: fork its conversations, its runs or its threads",
                code="invalid.argument",
            )
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
        if agent is None and key.space == CONVERSATION and (standing is None or renewed):
            raise Invalid(
                f"conversation {key.name!r} needs an agent to begin: conversations.thread(id, agent_id=...)",
                code="invalid.argument",
            )
        created = NewThread(key.space, key.name, os.urandom(log.UID_BYTES), agent, row.created_at, origin)
        no, uid = (standing.record.no, standing.record.uid) if standing else (-1, created.uid)
        batch = Batch(
            threads=() if standing else (created,),
            renew=((no, created),) if renewed else (),
            visible=visible,
            hide=tuple((no, seq) for seq in hide),
            tags=tuple((no, seq, ()) for seq in hide),  # whoever tags one meanwhile keeps it
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
            chunks = tuple((digest, _stored(node, compress)) for digest, node in nodes.items() if digest not in present)
            added = len(row.payload or b"") + sum(len(data) for _, data in chunks)
            row = log.checked(row._replace(stored=added), uid)
            try:
                numbers = self._backend.commit(
                    batch._replace(rows=(*batch.rows, (no, row)), chunks=chunks, touch=tuple(sorted(present)))
                )
            except MissingChunks as error:
                present = present - error.digests
            else:
                if self._spare is not None:
                    self._spare({digest: partial(_stored, nodes[digest], compress) for digest in present})
                return row, numbers

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
        if expect.label is not None:
            self._require_label(standing, expect.label, key)
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

    def _require_label(self, standing: Standing | None, label: str, key: Key) -> None:
        """Raise `Conflict` if no checkpoint has a label: it is misspelt, or what had it was deleted."""
        head = standing.head if standing else None
        if standing is None or head is None:
            text = f"there is no thread {key.name!r}, so no head with the label {label!r}"
            raise Conflict(text, code="conflict.stale", expected=label)
        if not self._backend.labelled(standing.record.no, label):
            raise Conflict(
                f"thread {key.name!r} has no checkpoint with the label {label!r}; its head has "
                f"{'no label' if head.label is None else f'the label {head.label!r}'}. "
                "expect= takes a checkpoint, its whole id, or its label",
                code="conflict.stale",
                expected=label,
                actual=log.checkpoint_id(standing.record.uid, head.seq),
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
        return patiently(self._heads, key, attempt, known)


def _stored(node: Node, compress: bool) -> bytes:  # noqa: FBT001 - private
    return squeeze(node.kind + node.data, enabled=compress)


def _says_all(delta: bytes, tree: Tree) -> bool:
    """Tell whether a delta is no shorter than the state: a base is then read without the rows before it."""
    return len(tree.rep) <= len(delta) and not msgpack.may_hold_refs(tree.rep)


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
