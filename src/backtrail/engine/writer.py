"""Writing checkpoints: expectations, and the optimistic retry loop.

A write is prepared on a known tip of the thread. The commit succeeds only if that tip is still the newest row. If
another writer was first, the thread is read again and the write is prepared on the new tip.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from backtrail.backends.port import (
    Batch,
    MissingChunks,
    NewThread,
    Row,
    Stale,
    ThreadRecord,
    Vanished,
    new_tuple,
    one_row,
)
from backtrail.engine import log, manifests, payload, retention, rows
from backtrail.engine.compression import squeeze
from backtrail.engine.manifests import AGENT, CONVERSATION
from backtrail.engine.reader import Chain, LogReader, Tip
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.tree import Tree
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backtrail.engine.reader import LogReader
    from backtrail.engine.rows import Meta
    from backtrail.engine.tree.nodes import Node
    from backtrail.engine.tree.tree import Op


T = TypeVar("T")

PATIENCE: Final = 60.0
"""The seconds for which a write is retried while other writers keep committing first."""
_AT_ONCE: Final = 2
"""The number of retries without a pause."""

ANY: Final = -1
"""The expectation of a write that goes on top of any head."""
NOTHING: Final = 0
"""The expectation that there is no head."""


class ThreadKey(NamedTuple):
    """The name space and name of a thread, and the agent that owns it; None: any agent."""

    space: str
    name: str
    agent: str | None = None


class Expect(NamedTuple):
    """The head that a write expects: its seq, and its op_id if the caller knows it.

    A seq alone is ambiguous: a dropped transaction may have used it for another checkpoint.
    """

    head: int
    op_id: bytes | None = None
    label: str | None = None
    """The head's label, if the caller knows the head by it."""


LABELLED: Final = -2
"""The expectation of a head that has a certain label."""
ANYTHING: Final = Expect(ANY)


class Decided(Exception):  # noqa: N818 - it wraps an error
    """Wraps an exception of the caller's function. The function decided on the state that it was given."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Unchanged(Exception):  # noqa: N818 - it is no error
    """A proposal raises it to write nothing. It carries the tip that the proposal saw."""

    def __init__(self, tip: Tip | None) -> None:
        super().__init__()
        self.tip = tip


def exists(key: ThreadKey, tip: Tip) -> Conflict:
    """Return the error for a write that expected no thread."""
    actual = log.checkpoint_id(tip.record.uid, tip.newest.head)
    return Conflict(
        f"thread {key.name!r} exists already; choose another id, or delete that thread first",
        code="conflict.exists",
        actual=actual,
    )


def with_retries(reader: LogReader, key: ThreadKey, attempt: Callable[[Tip | None], T], known: Tip | None = None) -> T:
    """Call `attempt` with the known tip, then with the current tip, until it does not raise `Stale`.

    The known tip may be old. If an attempt on it raises an error (some errors mean "nothing to do"), the error is
    raised only if the tip is still current; otherwise the attempt is repeated on the current tip. `Unavailable` and
    `CommitUnknown` are raised at once: a second write might be a duplicate.
    """
    tip = known if known is not None else reader.tip(key.space, key.name)
    until = 0.0
    tries = 0
    while True:
        try:
            return attempt(tip)
        except (CommitUnknown, Unavailable):
            raise
        except Stale:
            tries += 1
            until = until or time.monotonic() + PATIENCE
            if time.monotonic() > until:
                raise Unavailable(
                    f"other writers were first in thread {key.name!r} for {PATIENCE:.0f} s; try again later",
                    code="unavailable.contended",
                ) from None
            if tries > _AT_ONCE:
                time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - jitter
            tip = reader.tip(key.space, key.name)
            continue
        except Exception as raised:  # noqa: BLE001 - any exception of the caller's function
            error = raised.error if isinstance(raised, Decided) else raised
        try:
            if known is None or tip is not known:
                raise error
            tip = reader.tip(key.space, key.name)
            same = tip is not None and tip.newest.op_id == known.newest.op_id
            if same and not isinstance(error, Corrupt):  # data that is damaged in memory may be sound in the store
                raise error
        finally:
            del error  # its traceback refers to this frame: break the cycle


_FRESH_MAX: Final = 24


Proposal = tuple[Tree, "list[Op] | None"]
"""The next state: as a tree, and as ops on the state before it (None: write a base)."""


class Propose(Protocol):
    """Derives the next state from a tip (with its head's tree), or from nothing."""

    def __call__(self, tip: Tip | None) -> Proposal:
        """Return the next state."""


class Fork(NamedTuple):
    """The checkpoint that a new thread starts with: its thread's number, its row and its id."""

    thread: int
    row: Row
    origin: str


class LogWriter:
    """Writes to threads through a backend."""

    def __init__(
        self,
        reader: LogReader,
        after_write: Callable[[ThreadRecord], None] | None = None,
        *,
        spare: Callable[[Mapping[bytes, Callable[[], bytes]]], None] | None = None,
        relied_on: Callable[[int, Row], None] | None = None,
    ) -> None:
        self._reader = reader
        self._backend = reader.backend
        self._compress = reader.options.compression
        self._retires = reader.options.retires
        self._after_write = after_write
        self._spare = spare
        """Gets, for each chunk that the backend already had, a function that makes its bytes.

        A transaction needs them if gc removes the chunk before the transaction is written.
        """
        self._relied_on = relied_on
        """Gets the number and the newest row of a thread whose state made a proposal raise an error."""

    # -- checkpoints ----------------------------------------------------------------------------

    def save(  # noqa: PLR0917 - by position: every write calls it
        self,
        key: ThreadKey,
        propose: Propose,
        meta: Meta,
        expect: Expect = ANYTHING,
        known: Tip | None = None,
        onto: Callable[[Tip], Row] | None = None,
    ) -> Tip:
        """Append a checkpoint and return the new tip. `onto` returns the parent, if that is not to be the head."""

        def attempt(tip: Tip | None) -> Tip:
            if not (tip and tip.chain and expect is ANYTHING and key.agent is None and onto is None):
                tip = self._ready(tip, expect, onto, key)
            try:
                tree, ops = propose(tip)
            except Stale:
                raise
            except Exception as error:  # noqa: BLE001 - raised again
                if self._relied_on is not None and tip is not None:
                    self._relied_on(tip.record.no, tip.before or tip.newest)
                raise Decided(error) from None
            try:
                return self._save_on(tip, tree, ops, key, meta)
            except Vanished:  # its parent was deleted
                raise Stale from None

        after = with_retries(self._reader, key, attempt, known)
        if self._after_write:
            self._after_write(after.record)
        return after

    def _ready(self, tip: Tip | None, expect: Expect, onto: Callable[[Tip], Row] | None, key: ThreadKey) -> Tip | None:
        """Return the tip to write on, with its chain; `Conflict` if its head is not the expected one."""
        self._require(tip, expect, key)
        if onto is not None:
            tip = self._turned(tip, onto, key)
        try:
            return self._reader.with_chain(tip) if tip is not None else None
        except NotFound:  # the head was deleted meanwhile
            raise Stale from None

    def _turned(self, tip: Tip | None, find: Callable[[Tip], Row], key: ThreadKey) -> Tip:
        """Return the tip with another checkpoint as its head. Its newest row is a rewind that is not written yet."""
        if tip is None:
            raise NotFound(f"there is no thread {key.name!r}", code="not_found.thread")
        target = find(tip)
        if target.seq == tip.newest.head:
            return tip
        ranges = self._reader.path(tip.record, target)
        undo = tip.newest.seq if tip.newest.head else 0
        row = rows.move(tip, log.REWIND, target, ranges, undo=undo, redo=0, at=self._reader.clock())
        return Tip(tip.record, log.checked(row, tip.record.uid), target, None, tip.newest)

    def _save_on(self, tip: Tip | None, tree: Tree, ops: list[Op] | None, key: ThreadKey, meta: Meta) -> Tip:
        chain = tip.chain if tip else None
        stored = self._pack(tree, ops, chain)
        at = self._reader.clock()
        if tip is not None and tip.before is None and not (stored[1] or meta.tags or self._retires) and tip.head:
            record = tip.record  # the case of most saves: the batch is one row
            row = rows.checkpoint(tip, record.uid, tree.rep, stored, meta, at)
            self._backend.commit(one_row(record.no, row, tip.newest.op_id))
        else:
            record, row = self._commit_checkpoint(tip, tree, stored, key, meta, at=at)
        return new_tuple(Tip, (record, row, row, _extended(chain, tree, stored), None, None))

    def fork(
        self,
        key: ThreadKey,
        source: Tip,
        at: Row,
        tags: tuple[str, ...],
        edit: Callable[[Tree], Tree] | None = None,
    ) -> Tip:
        """Start a thread with the checkpoint `at` of the thread `source`, changed by `edit` if given. Return the tip.

        `Conflict` if the thread exists, `NotFound` if the checkpoint was deleted meanwhile.
        """
        if key.space == AGENT:
            raise Invalid(
                "an agent cannot be forked; fork its conversations, runs or threads",
                code="invalid.argument",
            )
        tree = self._reader.chain(source.record, at).tree
        if edit is not None:
            tree = edit(tree)
        stored = payload.base(tree, frozenset(), compress=self._compress)
        metadata, _, _ = log.unpack_extra(at)
        meta = rows.Meta(at.kind, at.label, tags, metadata)
        origin = log.checkpoint_id(source.record.uid, at.seq)

        def attempt(tip: Tip | None) -> Tip:
            if tip is not None and tip.head is not None:
                raise exists(key, tip)
            if tip is not None:
                manifests.refuse_other_agent(self._reader, tip.record, key.agent)
            fork, now = Fork(source.record.no, at, origin), self._reader.clock()
            record, row = self._commit_checkpoint(tip, tree, stored, key, meta, at=now, fork=fork)
            return Tip(record, row, row, _extended(None, tree, stored))

        try:
            return with_retries(self._reader, key, attempt)
        except Vanished:
            raise NotFound(f"checkpoint {origin} was deleted meanwhile", code="not_found.checkpoint") from None

    def _pack(self, tree: Tree, ops: list[Op] | None, chain: Chain | None) -> payload.Stored:
        """Return the payload of the next checkpoint: a delta if possible and short enough, else a base."""
        compress = self._compress
        if chain is None:
            return payload.base(tree, frozenset(), compress=compress)
        full = chain.depth + 1 >= payload.DEPTH_MAX or chain.weight > payload.CHAIN_MAX
        if ops is not None and not full and not tree.sealed:
            data, rep = payload.packed(ops), tree.rep
            # A state without nodes that is no longer than the delta is better stored whole.
            if len(data) <= payload.DELTA_MAX and (len(rep) > len(data) or msgpack.may_hold_refs(rep)):
                return payload.delta(ops, data, tree.nodes, compress=compress)
        return payload.base(tree, chain.settled, compress=compress)

    def _commit_checkpoint(
        self,
        tip: Tip | None,
        tree: Tree,
        stored: payload.Stored,
        key: ThreadKey,
        meta: Meta,
        *,
        at: int,
        fork: Fork | None = None,
    ) -> tuple[ThreadRecord, Row]:
        """Commit a checkpoint that is more than one row; return its thread and its row."""
        renewed = tip is not None and not tip.newest.head
        agent = key.agent
        if tip is not None and agent is None and key.space == CONVERSATION:
            agent = tip.record.agent
        if agent is None and key.space == CONVERSATION and (tip is None or renewed):
            raise Invalid(
                f"conversation {key.name!r} does not exist, and a new one needs its agent: "
                "conversations.thread(id, agent_id=...)",
                code="invalid.argument",
            )
        row = rows.checkpoint(tip, b"", tree.rep, stored, meta, at)  # it gets its checksum with its chunks
        if fork is not None:
            row = rows.forked(row, fork.row, fork.origin, meta)
        origin = None if fork is None else fork.origin
        uid = tip.record.uid if tip else os.urandom(log.UID_BYTES)
        created = NewThread(key.space, key.name, uid, agent, at, origin)
        no = tip.record.no if tip else -1
        moved = tip if tip is not None and tip.before is not None else None  # the head is moved first
        visible = ((no, moved.head.seq),) if moved and moved.head else ()
        hide, examined = retention.retired(self._reader, tip, row) if tip and not fork else retention.Retired()
        batch = Batch(
            threads=() if tip else (created,),
            rows=((no, moved.newest),) if moved and moved.head else (),
            renew=((no, created),) if renewed else (),
            visible=visible if fork is None else ((fork.thread, fork.row.seq), *visible),
            hide=tuple([(no, seq) for seq in hide]),
            tags=tuple([(no, seq, ()) for seq in hide]),  # if another writer adds a tag meanwhile, the commit fails
            tag=tuple([(no, row.seq, tag) for tag in meta.tags]),
            after=((no, (tip.before or tip.newest).op_id),) if tip else (),
        )
        row, numbers = self._commit_chunks(batch, row, stored[1], no=no, uid=uid)
        record = tip.record if tip else ThreadRecord(numbers[0], *created)
        if renewed:
            record = record._replace(agent=created.agent, created_at=created.created_at, origin=origin)
        if examined is not None:
            self._reader.examined[record.no] = examined
        return record, row

    def _commit_chunks(
        self, batch: Batch, row: Row, nodes: dict[bytes, Node], *, no: int, uid: bytes
    ) -> tuple[Row, tuple[int, ...]]:
        """Commit a checkpoint with its chunks; return its row and the numbers of new threads.

        Chunks that the backend has are not sent. If gc removed one of them meanwhile, the commit is repeated with it.
        """
        compress = self._compress
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

    # -- expectations -------------------------------------------------------------------------------------

    def _require(self, tip: Tip | None, expect: Expect, key: ThreadKey) -> None:
        """Raise `Conflict` if the head is not the expected one, or the thread belongs to another agent."""
        head = tip.newest.head if tip else 0
        if tip and head and key.agent is not None and tip.record.agent != key.agent:
            raise Conflict(
                f"thread {key.name!r} belongs to agent {tip.record.agent!r}, not {key.agent!r}",
                code="conflict.agent",
            )
        if tip and not head:
            manifests.refuse_other_agent(self._reader, tip.record, key.agent)
        there = tip.head if tip else None
        same = expect.op_id is None or (there is not None and there.op_id == expect.op_id)
        if expect.head == ANY or (expect.head == head and same):
            return
        if expect.label is not None and there is not None and there.label == expect.label:
            return
        if expect.head == NOTHING and tip is not None:
            raise exists(key, tip)
        if expect.label is not None:
            self._require_label(tip, expect.label, key)
        uid = tip.record.uid if tip else None
        expected = log.checkpoint_id(uid, expect.head) if uid and expect.head > 0 else expect.label
        actual = log.checkpoint_id(uid, head) if uid and head else None
        raise Conflict(
            f"thread {key.name!r} has changed: this state was derived from {expected or 'nothing'}, the head is now "
            f"{actual or 'nothing'}; load it again and repeat the change, or use update()",
            code="conflict.stale",
            expected=expected,
            actual=actual,
        )

    def _require_label(self, tip: Tip | None, label: str, key: ThreadKey) -> None:
        """Raise `Conflict` if no checkpoint has the label: it is misspelt, or its checkpoint was deleted."""
        head = tip.head if tip else None
        if tip is None or head is None:
            text = f"there is no thread {key.name!r}, so no head with the label {label!r}"
            raise Conflict(text, code="conflict.stale", expected=label)
        if not self._backend.labelled(tip.record.no, [label]):
            raise Conflict(
                f"thread {key.name!r} has no checkpoint with the label {label!r}; its head has "
                f"{'no label' if head.label is None else f'the label {head.label!r}'}. "
                "expect= takes a checkpoint, its whole id, or its label",
                code="conflict.stale",
                expected=label,
                actual=log.checkpoint_id(tip.record.uid, head.seq),
            )


def _stored(node: Node, compress: bool) -> bytes:  # noqa: FBT001 - private
    return squeeze(node.kind + node.data, enabled=compress)


def _extended(chain: Chain | None, tree: Tree, stored: payload.Stored) -> Chain:
    """Return the chain with the row just written at its end. Nodes that became chunks are no longer fresh."""
    data, chunks, inlined = stored
    nodes = tree.nodes
    if chunks or len(nodes.fresh) > _FRESH_MAX:
        kept = payload.reachable(nodes, payload.refs_of(tree.rep))
        nodes = nodes.with_fresh({digest: node for digest, node in kept.items() if digest not in chunks})
        for digest, node in kept.items():  # the next change often begins with them
            nodes.keep(digest, node)
        tree = tree._replace(nodes=nodes)
    if inlined is not None or chain is None:
        return Chain(tree, 0, 0, inlined or frozenset())
    _, depth, weight, settled = chain
    return new_tuple(Chain, (tree, depth + 1, weight + len(data), settled))
