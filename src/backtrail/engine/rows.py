"""Makes the next row of a log: a checkpoint, or a move of the head. `log` explains the columns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from blake3 import blake3

from backtrail.backends.port import Row, new_tuple
from backtrail.engine import log
from backtrail.engine.tree.nodes import Rep

if TYPE_CHECKING:
    from backtrail.engine.payload import Stored
    from backtrail.engine.reader import Tip


class Meta(NamedTuple):
    """The label, tags, kind and metadata of a checkpoint."""

    kind: int = 0
    label: str | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes = b""


_NO_EXTRA: Final = log.pack_extra(b"", None, None)


def checkpoint(  # noqa: PLR0917 - by position: every write calls it
    tip: Tip | None, uid: bytes, rep: bytes, stored: Stored, meta: Meta, created_at: int
) -> Row:
    """Return the row of a new checkpoint on top of the head. It states that only its payload is added to the store.

    `uid` is its thread's, for the checksum; b"": the row gets its checksum later.
    """
    kind, label, _, metadata = meta
    data, _, inlined = stored
    if tip is None:
        seq, parent, step, undo, view, base, depth = 1, 0, 1, 0, 0, 1, 0
    else:
        newest, head = tip.newest, tip.head
        base = seq = newest.seq + 1
        view = newest.view if newest.op in log.CHECKPOINTS else seq - 1
        parent, step, undo, depth = (0, 1, 0, 0) if head is None else (head.seq, head.step + 1, seq - 1, 0)
        if head is not None and inlined is None:
            base, depth = head.base, head.depth + 1
    op_id = os.urandom(log.OP_BYTES)
    root, size = blake3(b"V" + rep).digest(), rep.size if type(rep) is Rep else len(rep)  # of the tree, without calls
    extra = log.pack_extra(metadata, None, None) if metadata else _NO_EXTRA
    columns = (
        seq, log.SAVE, parent, step, seq, undo, 0, view, base, depth,  # the head is this row, redo is none
        created_at, kind, label, size, len(data), root, op_id, extra,
    )  # fmt: skip
    check = log.check_of(columns, uid) if uid else b""
    return new_tuple(Row, columns + (check, data, False))  # noqa: RUF005 - in half the time


def forked(row: Row, source: Row, origin: str, meta: Meta) -> Row:
    """Return the first row of a fork, without its checksum, made from the row of a new checkpoint.

    `source` is the forked checkpoint.
    """
    return row._replace(op=log.FORK, step=source.step, extra=log.pack_extra(meta.metadata, None, origin))


def move(tip: Tip, op: int, head: Row | None, ranges: log.Ranges, *, undo: int, redo: int, at: int) -> Row:
    """Return a row that moves the head, without its checksum; `at` is the time in microseconds since 1970."""
    return _move(tip.newest.seq + 1, op, head, ranges, undo=undo, redo=redo, at=at)


def cleared(seq: int, at: int) -> Row:
    """Return the row of a deletion, without its checksum."""
    return _move(seq, log.CLEAR, None, (), undo=0, redo=0, at=at)


def _move(seq: int, op: int, head: Row | None, ranges: log.Ranges, *, undo: int, redo: int, at: int) -> Row:
    return Row(
        seq=seq,
        op=op,
        parent=0,
        step=head.step if head else 0,
        head=head.seq if head else 0,
        undo=undo,
        redo=redo,
        view=seq,
        base=0,
        depth=0,
        created_at=at,
        kind=0,
        label=None,
        size=0,
        stored=0,
        root=b"",
        op_id=os.urandom(log.OP_BYTES),
        extra=log.pack_extra(b"", ranges, None),
        check=b"",
        payload=b"",
        hidden=False,
    )
