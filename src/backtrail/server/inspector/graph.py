"""The graph of a thread in windows: 100 checkpoints, newest first, in the lanes of `backtrail log --graph`.

A window ends with a cursor: the last checkpoint, and the open lanes below it. So the next window needs no look at
the checkpoints above it. A window around a checkpoint reads the ids from the newest one down to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.conversations.transcript import read_message
from backtrail.engine.graph import GraphNode, Lanes
from backtrail.errors import Error, Invalid, NotFound
from backtrail.operations.answers import brief, plain
from backtrail.operations.threads import handle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.transcript import TranscriptMessage
    from backtrail.engine.graph import GraphRow
    from backtrail.store import Store
    from backtrail.thread import Thread

WINDOW: Final = 100
_ABOVE: Final = 30
"""Rows above the checkpoint of a window around it."""
_LANES: Final = 12
"""Lanes that are drawn; further ones are drawn on top of the last."""
_WIDTH: Final = 14
_HEIGHT: Final = 30
_NONE: Final = "-"
_WORDS: Final = 120
_PATHS: Final = 3


class GraphPage(NamedTuple):
    """Rows of a graph."""

    rows: list[dict[str, Any]]
    width: int
    """The width of the drawing."""
    before: str | None
    """The checkpoint above the first row."""
    newer: tuple[str, int] | None
    """The first checkpoint of this window, and the number of checkpoints above it; None if there are none."""
    older: dict[str, str] | None
    """The cursor of the next window, None if there is none."""


def newest(store: Store, kind: str, thread_id: str) -> GraphPage:
    """Return the newest window."""
    thread = handle(store, kind, thread_id)
    return _window(store, kind, thread, _lanes(thread))


def around(store: Store, kind: str, thread_id: str, checkpoint_id: str) -> GraphPage:
    """Return the window around a checkpoint. All checkpoints above it are read."""
    return _above(store, kind, handle(store, kind, thread_id), checkpoint_id, _ABOVE)


def above(store: Store, kind: str, thread_id: str, until: str) -> GraphPage:
    """Return the window that ends above a checkpoint."""
    found = _above(store, kind, handle(store, kind, thread_id), until, WINDOW)
    end = next((at for at, row in enumerate(found.rows) if row["id"] == until), len(found.rows))
    return found._replace(rows=found.rows[:end], older=None)


def below(store: Store, kind: str, thread_id: str, before: str, lanes: str) -> GraphPage:
    """Return the window after a cursor."""
    begun, _, waiting = lanes.partition(".")
    if begun not in ("0", "1"):
        raise Invalid("lanes is from the link of an earlier window", code="invalid.argument")
    lane_ids = [None if each == _NONE else each for each in waiting.split(".")]
    thread = handle(store, kind, thread_id)
    return _window(store, kind, thread, Lanes(None, lane_ids, begun=begun == "1"), before=before)


def _above(store: Store, kind: str, thread: Thread[Any], checkpoint: str, rows: int) -> GraphPage:
    """Return the window that begins some rows above a checkpoint; the newest window if it is not in this thread."""
    newer: list[tuple[str, str | None]] = []
    for each in thread.history(everything=True, newest_first=True):
        here = each.id
        if here == checkpoint:
            break
        newer.append((here, each.parent_id))
    else:
        newer.clear()
    start = max(len(newer) - rows, 0)
    lanes = _lanes(thread)
    for _ in lanes.rows(_nodes(thread, newer[:start], None)):
        pass
    return _window(store, kind, thread, lanes, before=newer[start - 1][0] if start else None, over=start)


def _window(
    store: Store, kind: str, thread: Thread[Any], lanes: Lanes, *, before: str | None = None, over: int = 0
) -> GraphPage:
    found = [*thread.history(everything=True, newest_first=True, before=before, limit=WINDOW + 1)]
    found, more = found[:WINDOW], len(found) > WINDOW
    forks = _forks(store, kind, thread.id)
    ids = [(each.id, each.parent_id) for each in found]
    drawn = zip([*lanes.rows(_nodes(thread, ids, before))], found, strict=True)
    rows = [_row(row, checkpoint, forks.get(checkpoint.id, [])) for row, checkpoint in drawn]
    width = max((row["width"] for row in rows), default=0)
    older = {"before": rows[-1]["id"], "lanes": _text(lanes)} if more else None
    return GraphPage(rows, width, before, (rows[0]["id"], over) if rows and over else None, older)


def _text(lanes: Lanes) -> str:
    return f"{int(lanes.begun)}.{'.'.join(_NONE if each is None else each for each in lanes.waiting)}"


def _lanes(thread: Thread[Any]) -> Lanes:
    head = thread.latest()
    return Lanes(None if head is None else head.id)


def _nodes(thread: Thread[Any], ids: list[tuple[str, str | None]], before: str | None) -> Iterator[GraphNode]:
    """Give the nodes of checkpoints below `before`, given their ids and those of their parents.

    The next checkpoint in view replaces a pruned parent.
    """
    here = {checkpoint_id for checkpoint_id, _ in ids}
    head = thread.latest()
    expected = _in_view(thread, before)
    for checkpoint_id, parent_id in ids:
        parent, in_view = parent_id, checkpoint_id == expected
        if in_view:
            parent = expected = parent if parent in here else _in_view(thread, checkpoint_id)
        yield GraphNode(checkpoint_id, parent, in_view, head is not None and checkpoint_id == head.id)


def _in_view(thread: Thread[Any], before: str | None) -> str | None:
    """Return the first checkpoint in view below another one."""
    return next((each.id for each in thread.history(newest_first=True, before=before, limit=1)), None)


def _forks(store: Store, kind: str, thread_id: str) -> dict[str, list[str]]:
    """Return the ids of the newest forks of a thread, by the checkpoint that they begin at."""
    forks: dict[str, list[str]] = {}
    for info in store.threads(kind=kind, forked_from=thread_id, limit=WINDOW):
        forks.setdefault(info.forked_from or "", []).append(info.id)
    return forks


def words(store: Store, kind: str, thread_id: str, before: str | None, count: int) -> list[tuple[str, str]]:
    """Return a few words about each of the checkpoints below another: the last message, or what changed."""
    thread = handle(store, kind, thread_id)
    found = thread.history(everything=True, newest_first=True, before=before, limit=min(count, WINDOW))
    return [(each.id, _words(thread, each)) for each in found]


def _words(thread: Thread[Any], checkpoint: Checkpoint[Any]) -> str:
    try:
        shown = _last_message(checkpoint)
        if shown is not None:
            calls = ", ".join(call.name for call in shown.calls)
            return f"{shown.role}: {shown.text or calls or shown.content}"[:_WORDS]
        if checkpoint.parent_id is None:
            return ""
        changes = thread.diff(checkpoint.parent_id, checkpoint).changes
        paths = ", ".join(f"{change.op}{change.path}" for change in changes[:_PATHS])
        return paths[:_WORDS] + (f" and {len(changes) - _PATHS:,} more" if len(changes) > _PATHS else "")
    except Error:  # damaged, or its parent is gone
        return ""


def _last_message(checkpoint: Checkpoint[Any]) -> TranscriptMessage | None:
    try:
        last = checkpoint.tail("messages", 1)
    except (Invalid, NotFound):  # no list of messages
        return None
    return read_message(plain(last[0])) if last else None


# -- drawing ----------------------------------------------------------------------------------------------


def _row(row: GraphRow, checkpoint: Checkpoint[Any], forks: list[str]) -> dict[str, Any]:
    node = row.node
    return {
        "id": node.id,
        "step": checkpoint.step,
        "label": brief(checkpoint.label),
        "tags": [brief(tag) for tag in checkpoint.tags],
        "occasion": checkpoint.kind,
        "created_at": checkpoint.created_at.isoformat(),
        "stored": checkpoint.stored,
        "damaged": checkpoint.damaged,
        "in_view": node.in_view,
        "head": node.is_head,
        "forks": forks,
        **_drawing(row),
    }


def _drawing(row: GraphRow) -> dict[str, Any]:
    """Return the lines of a row as paths of SVG: through it, to its checkpoint, and from it."""
    middle = _HEIGHT // 2
    at = _x(row.lane)
    main: list[str] = []
    side = [f"M{_x(lane)} 0C{_x(lane)} {middle} {_x(lane)} {middle} {at} {middle}" for lane in row.joined]
    for lane, line in enumerate(row.lines):
        if line and lane != row.lane and lane not in row.joined:
            (side if lane else main).append(f"M{_x(lane)} 0V{_HEIGHT}")
    own = main if row.lane == 0 else side
    if row.lane < len(row.lines) and row.lines[row.lane]:
        own.append(f"M{at} 0V{middle}")
    if row.node.parent is not None:
        own.append(f"M{at} {middle}V{_HEIGHT}")
    lanes = max(len(row.lines), row.lane + 1)
    return {
        "main": "".join(main),
        "side": "".join(side),
        "x": at,
        "y": middle,
        "width": _x(min(lanes, _LANES) - 1) + _WIDTH // 2 + 2,
        "height": _HEIGHT,
    }


def _x(lane: int) -> int:
    return _WIDTH // 2 + 2 + _WIDTH * min(lane, _LANES - 1)
