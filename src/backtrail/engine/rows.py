"""Making rows: a checkpoint, or a move of the head, as it follows on how a thread stands. `log` says what rows mean."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from backtrail.backends.port import Row
from backtrail.engine import log

if TYPE_CHECKING:
    from backtrail.engine.payload import Stored
    from backtrail.engine.reader import Standing
    from backtrail.engine.tree.tree import Tree


class Meta(NamedTuple):
    """What a checkpoint carries beside its state."""

    kind: int = 0
    label: str | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes = b""


def checkpoint(standing: Standing | None, tree: Tree, stored: Stored, meta: Meta, *, created_at: int) -> Row:
    """Make the row of a checkpoint on top of the head."""
    head = standing.head if standing else None
    newest = standing.newest if standing else None
    seq = newest.seq + 1 if newest else 1
    alone = stored.is_base or head is None
    return Row(  # by position, which takes half the time
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
    """Make the first row of a fork from that of a first checkpoint."""
    return row._replace(op=log.FORK, step=source.step, extra=log.pack_extra(meta.metadata, None, origin))


def move(standing: Standing, op: int, head: Row | None, ranges: log.Ranges, *, undo: int, redo: int, at: int) -> Row:
    """Make a row that moves the head; `at` is the time."""
    seq = standing.newest.seq + 1
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
