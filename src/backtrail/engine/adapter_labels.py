"""The mark that the LangGraph adapter leaves in the metadata of each row that it writes.

The adapter labels each checkpoint with LangGraph's own id. Such a label does not mean that a user wants to keep the
checkpoint. The mark distinguishes labels of the adapter from labels of users.

A *namespace* is the thread of a subgraph. Its name is the thread name of the outermost graph, `|`, and a path. Pending
writes are in the aside thread of the same name (see `asides`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import log
from backtrail.engine.tree import decode as unpacker
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from backtrail.backends.port import Row
    from backtrail.engine.schema.registry import Types

MARK: Final = "__langgraph__"
"""The metadata key of what LangGraph's adapter adds to a checkpoint."""
_DELTAS: Final = "held"
"""A key of the mark: the checkpoint has delta channels, whose values are rebuilt from earlier checkpoints."""

_UNDER: Final = "under"
"""A key of the mark, in a namespace: a list of the fields of `Under`."""
_PARENTS: Final = "parents"


def has_deltas(row: Row, types: Types) -> bool:
    """Tell whether a checkpoint has delta channels, so that reading it needs earlier checkpoints of its thread."""
    return _DELTAS in (mark_of(row, types) or ())


def mark_of(row: Row, types: Types) -> dict[str, Any] | None:
    """Return the adapter's mark in a row's metadata; None if no adapter wrote the row."""
    mark = _metadata(row, types).get(MARK)
    return mark if isinstance(mark, dict) else None


def _metadata(row: Row, types: Types) -> dict[str, Any]:
    """Return the metadata of a row; an empty dict if no adapter wrote the row, or if it cannot be read."""
    try:
        metadata = log.unpack_extra(row)[0]
        decoded = unpacker.Unpacker(types)(metadata) if MARK.encode() in metadata else None
    except Corrupt:
        return {}
    return decoded if isinstance(decoded, dict) else {}


class Under(NamedTuple):
    """The outer checkpoint on which a row of a namespace was saved, and the graph run that saved the row."""

    label: str
    run: str | None
    """The run of the outer graph; None if it is not recorded."""
    without: tuple[str, ...]
    """The skipped runs: they had continued from that outer checkpoint, and a rewind took them back before `run`."""


def under(row: Row, types: Types) -> Under | None:
    """Return the outer checkpoint and run that a row of a namespace names; None if the row names no checkpoint."""
    metadata = _metadata(row, types)
    mark, parents = metadata.get(MARK), metadata.get(_PARENTS)
    fields = mark.get(_UNDER) if isinstance(mark, dict) else None
    if not isinstance(fields, list):
        fields = [parents.get("")] if isinstance(parents, dict) else []
    if not fields or not all(isinstance(each, str) for each in fields):
        return None
    return Under(fields[0], fields[1] if len(fields) > 1 else None, tuple(fields[2:]))


def outermost(name: str) -> str:
    """Return the thread name of the outermost graph: the part of a thread name before the first unescaped `|`."""
    at = 0
    while at < len(name) and name[at] != "|":
        at += 2 if name[at] == "\\" else 1
    return name[:at]
