"""Makes the next row of a log: a checkpoint, or a move of the head. `log` explains the columns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from backtrail.backends.port import Row
from backtrail.engine import log

if TYPE_CHECKING:
    from backtrail.engine.payload import Stored
    from backtrail.engine.reader import Tip
    from backtrail.engine.tree.tree import Tree


class Meta(NamedTuple):
    """The label, tags, kind and metadata of a checkpoint."""

    kind: int = 0
    label: str | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes = b""


def checkpoint(tip: Tip | None, tree: Tree, stored: Stored, meta: Meta, *, created_at: int) -> Row:
    """Return the row of a new checkpoint on top of the head, without its checksum."""
    head = tip.head if tip else None
    newest = tip.newest if tip else None
    seq = newest.seq + 1 if newest else 1
    alone = stored.is_base or head is None
    return Row(  # by position: half the time of keywords
        seq,
        log.SAVE,
        head.seq if head else 0,  # parent
        head.step + 1 if head else 1,
        seq,  # head
        newest.seq if newest and head else 0,  # undo
        0,  # redo
        log.view_for(newest) if newest else 0,
        seq if alone or head is None else head.base,
        0 if alone or head is None else head.depth + 1,
        created_at,
        meta.kind,
        meta.label,
        tree.size,
        len(stored.payload),
        tree.root,
        os.urandom(log.OP_BYTES),  # op_id
        log.pack_extra(meta.metadata, None, None),
        b"",  # check
        stored.payload,
        False,  # noqa: FBT003 - hidden
    )


def forked(row: Row, source: Row, origin: str, meta: Meta) -> Row:
    """Return the first row of a fork, made from the row of a new checkpoint. `source` is the forked checkpoint."""
    return row._replace(op=log.FORK, step=source.step, extra=log.pack_extra(meta.metadata, None, origin))


def move(tip: Tip, op: int, head: Row | None, ranges: log.Ranges, *, undo: int, redo: int, at: int) -> Row:
    """Return a row that moves the head, without its checksum; `at` is the time in microseconds since 1970."""
    seq = tip.newest.seq + 1
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
