"""Labels of adapters: a framework's checkpoint has a label because the framework names it, not because a user keeps it.

LangGraph's adapter leaves a mark in the metadata of each row that it writes, and keeps pending writes in a thread
beside, of the same name. Namespaces of one of LangGraph's threads are threads whose names go on behind a `|`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import log
from backtrail.engine.tree import unpacker
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from backtrail.backends.port import Row
    from backtrail.engine.schema.registry import Types

_MARK: Final = "__langgraph__"
_DELTAS: Final = "held"
"""There if the checkpoint has channels that are made from the checkpoints before it."""

_UNDER: Final = "under"
"""In a namespace: the label of the outer checkpoint, the run of the outer graph, and the runs it was not shown."""
_PARENTS: Final = "parents"


def has_deltas(row: Row, types: Types) -> bool:
    """Tell whether an adapter says that a checkpoint may be made from those before it."""
    return _DELTAS in (mark_of(row, types) or ())


def mark_of(row: Row, types: Types) -> dict[str, Any] | None:
    """Return what an adapter left in the metadata of a row; None if none did."""
    mark = _metadata(row, types).get(_MARK)
    return mark if isinstance(mark, dict) else None


def _metadata(row: Row, types: Types) -> dict[str, Any]:
    """Return the metadata of a row; nothing if no adapter wrote it."""
    try:
        metadata = log.unpack_extra(row)[0]
        found = unpacker.Unpacker(types)(metadata) if _MARK.encode() in metadata else None
    except Corrupt:
        return {}
    return found if isinstance(found, dict) else {}


class Under(NamedTuple):
    """The outer checkpoint that a row of a namespace was saved on, and by which run of the outer graph."""

    label: str
    run: str | None
    """None if that is not recorded."""
    without: tuple[str, ...]
    """The runs that this one had not been shown."""


def under(row: Row, types: Types) -> Under | None:
    """Return what a row of a namespace says about the thread of its outermost graph; None if it says nothing."""
    metadata = _metadata(row, types)
    mark, parents = metadata.get(_MARK), metadata.get(_PARENTS)
    found = mark.get(_UNDER) if isinstance(mark, dict) else None
    if not isinstance(found, list):
        found = [parents.get("")] if isinstance(parents, dict) else []
    if not found or not all(isinstance(each, str) for each in found):
        return None
    return Under(found[0], found[1] if len(found) > 1 else None, tuple(found[2:]))


def outermost(name: str) -> str:
    """Return the name of the thread of which one with an adapter's mark is a namespace; it may be its own."""
    at = 0
    while at < len(name) and name[at] != "|":
        at += 2 if name[at] == "\\" else 1
    return name[:at]
