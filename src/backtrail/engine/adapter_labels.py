"""Labels of adapters: a framework's checkpoint has a label because the framework names it, not because a user keeps it.

LangGraph's adapter leaves a mark in the metadata of each row that it writes, and keeps pending writes in a thread
beside, of the same name. Namespaces of one of LangGraph's threads are threads whose names go on behind a `|`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import log
from backtrail.engine.tree import unpacker
from backtrail.errors import Corrupt

if TYPE_CHECKING:
    from backtrail.backends.port import Row
    from backtrail.engine.schema.registry import Types

_MARK: Final = "__langgraph__"
_DELTAS: Final = "held"
"""There if the checkpoint has channels that are made from the checkpoints before it."""


def has_deltas(row: Row, types: Types) -> bool:
    """Tell whether an adapter says that a checkpoint may be made from those before it."""
    return _DELTAS in (mark_of(row, types) or ())


def mark_of(row: Row, types: Types) -> dict[str, Any] | None:
    """Return what an adapter left in the metadata of a row; None if none did."""
    try:
        metadata = log.unpack_extra(row)[0]
        found = unpacker.Unpacker(types)(metadata) if _MARK.encode() in metadata else None
    except Corrupt:
        return None
    mark = found.get(_MARK) if isinstance(found, dict) else None
    return mark if isinstance(mark, dict) else None


def outermost(name: str) -> str:
    """Return the name of the thread of which one with an adapter's mark is a namespace; it may be its own."""
    at = 0
    while at < len(name) and name[at] != "|":
        at += 2 if name[at] == "\\" else 1
    return name[:at]
