"""Operations on threads: the plain ones, and those of agents, conversations and runs, by their `kind`.

`expect` is the id of the head that the caller knows. A change with another head raises `Conflict`.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from backtrail.engine.tree.path import Path, parse
from backtrail.errors import Conflict, Error, Invalid, NotFound
from backtrail.models import MISSING, NEW, ThreadInfo
from backtrail.operations.answers import (
    brief,
    decode_cursor,
    deleted,
    encode_cursor,
    outline,
    page,
    plain,
    whole_number,
)
from backtrail.operations.schema import (
    ANY,
    COUNT,
    FLAG,
    LIMIT,
    PAGE,
    PERIOD,
    TEXT,
    TIME,
    Schema,
    arguments,
    flag,
    listing,
    mapping,
    name,
    names,
    number,
    one_of,
    optional,
    result,
    text,
    texts,
    value,
)
from backtrail.operations.table import Answer, Effect, Operation, operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.models import Change, StatePart
    from backtrail.store import Store
    from backtrail.thread import Thread

KINDS: Final = ("thread", "agent", "conversation", "run")
_ENTRIES: Final = 100
_ENTRIES_MAX: Final = 1_000
_BYTES: Final = 2_000
_BYTES_MAX: Final = 200_000

_THREAD: Final = {
    "thread_id": name("The thread's id."),
    "kind": one_of(KINDS, "What the thread belongs to.", "thread"),
}
_REF: Final = name("A checkpoint: @ (the head), @~3, a step, a label, a tag, or an id.") | {"default": "@"}
_EXPECT: Final = name("The id of the head that you know; if the head is another one, nothing is changed.")
_CHECKPOINT: Final = result(
    checkpoint_id=TEXT,
    thread_id=TEXT,
    kind=one_of(KINDS, "What the thread belongs to."),
    parent_id=optional(TEXT),
    step=COUNT,
    seq=COUNT,
    label=ANY,
    tags=ANY,
    occasion=TEXT,
    metadata=ANY,
    created_at=TIME,
    size_bytes=COUNT,
    root=TEXT,
    damaged=FLAG,
)
_INFO: Final = {
    "thread_id": TEXT,
    "kind": one_of(KINDS, "What the thread belongs to."),
    "agent_id": optional(TEXT),
    "created_at": TIME,
    "updated_at": TIME,
    "step": COUNT,
    "checkpoints": COUNT,
    "head_id": TEXT,
    "forked_from": optional(TEXT),
    "damaged": ANY,
}


def handle(store: Store, kind: str, thread_id: str) -> Thread[Any]:
    """Return a handle of a thread of any kind."""
    if kind == "thread":
        return store.thread(thread_id)
    if kind == "run":
        return store.runs.thread(thread_id)
    return (store.agents if kind == "agent" else store.conversations).thread(thread_id)


# -- reading ----------------------------------------------------------------------------------------------


@operation(
    "GET /threads",
    "List threads, latest activity first.",
    arguments(
        (),
        kind=_THREAD["kind"],
        agent_id=name("Only threads of this agent."),
        prefix=text("Only threads whose id begins with this."),
        **PERIOD,
        **PAGE,
    ),
    listing("threads", result(("damaged",), **_INFO)),
)
def thread_list(
    store: Store,
    *,
    kind: str = "thread",
    agent_id: str | None = None,
    prefix: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List threads without loading states."""
    last, moment = decode_cursor("thread_list", cursor, 2)
    after = None if last is None else _place(kind, last, moment)
    where = {"kind": kind, "agent": agent_id, "prefix": prefix}
    infos = [*store.threads(**where, since=since, until=until, limit=limit + 1, after=after)]
    entries, more = page(map(_info_entry, infos), limit)
    end = entries[-1] if more else None
    return {
        "threads": entries,
        "next_cursor": end and encode_cursor("thread_list", end["thread_id"], end["updated_at"]),
    }


def _place(kind: str, thread_id: str, moment: str) -> ThreadInfo:
    """Return the place of a thread in a listing: where it was then, even if it has changed since."""
    time = _time(moment, "thread_list")
    return ThreadInfo(thread_id, kind, None, time, time, 0, 0, "", None)


def _time(moment: str, operation: str) -> dt.datetime:
    """Return the time in a cursor."""
    try:
        time = dt.datetime.fromisoformat(moment)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None or time.year == dt.MAXYEAR:  # a microsecond is added to it
        raise Invalid(f"cursor is the next_cursor of an earlier {operation}", code="invalid.argument")
    return time


def _info_entry(info: ThreadInfo) -> Answer:
    return {
        "thread_id": info.id,
        "kind": info.kind,
        "agent_id": info.agent,
        "created_at": info.created_at.isoformat(),
        "updated_at": info.updated_at.isoformat(),
        "step": info.step,
        "checkpoints": info.in_view,
        "head_id": info.head_id,
        "forked_from": info.forked_from,
        **({} if info.damaged is None else {"damaged": brief(info.damaged)}),
    }


@operation(
    "GET /threads/{thread_id}",
    "Show a thread: its head, its owner, its forks.",
    arguments(("thread_id",), **_THREAD),
    result(("damaged",), **_INFO, head=optional(_CHECKPOINT), forks={"type": "array", "items": TEXT}),
)
def thread_show(store: Store, *, thread_id: str, kind: str = "thread") -> Answer:
    """Return the info of a thread, its head without the state, and the ids of its newest forks."""
    info = store.info(thread_id, kind=kind)
    if info is None:
        raise NotFound(f"there is no {kind} {thread_id!r:.100}", code="not_found.thread")
    head = None if info.damaged else handle(store, kind, thread_id).latest()
    forks = [each.id for each in store.threads(kind=kind, forked_from=thread_id, limit=LIMIT)]
    return {**_info_entry(info), "head": head and _checkpoint_entry(kind, head), "forks": forks}


@operation(
    "GET /threads/{thread_id}/history",
    "List the checkpoints of a thread that are in view, newest first.",
    arguments(
        ("thread_id",),
        **_THREAD,
        label=name("Only checkpoints with this label."),
        tag=name("Only checkpoints with this tag."),
        **PERIOD,
        **PAGE,
    ),
    listing("checkpoints", _CHECKPOINT),
)
def thread_history(
    store: Store,
    *,
    thread_id: str,
    kind: str = "thread",
    label: str | None = None,
    tag: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List checkpoints from the head to the root, without their states."""
    (before,) = decode_cursor("thread_history", cursor, 1)
    thread = _existing(store, kind, thread_id)
    where: dict[str, Any] = {"label": label, "tag": tag, "since": since, "until": until}
    shown = [*thread.history(newest_first=True, limit=limit + 1, before=before, **where)]
    return _checkpoints("thread_history", shown, lambda each: _checkpoint_entry(kind, each), limit)


@operation(
    "GET /threads/{thread_id}/log",
    "List all checkpoints of a thread, also those out of view, newest first.",
    arguments(("thread_id",), **_THREAD, **PAGE),
    listing("checkpoints", result(**_CHECKPOINT["properties"], in_view=FLAG, head=FLAG)),
)
def thread_log(
    store: Store, *, thread_id: str, kind: str = "thread", limit: int = LIMIT, cursor: str | None = None
) -> Answer:
    """List the nodes of the thread's graph in the order in which they were saved."""
    (before,) = decode_cursor("thread_log", cursor, 1)
    thread = _existing(store, kind, thread_id)
    shown = [*thread.history(everything=True, newest_first=True, limit=limit + 1, before=before)]
    in_view = set()
    for each in thread.history(newest_first=True, before=before) if shown else ():
        if each.seq < shown[-1].seq:
            break
        in_view.add(each.seq)
    info = store.info(thread_id, kind=kind)
    head = info.head_id if info else None
    return _checkpoints(
        "thread_log",
        shown,
        lambda each: {**_checkpoint_entry(kind, each), "in_view": each.seq in in_view, "head": each.id == head},
        limit,
    )


def _checkpoints(
    operation: str, shown: list[Checkpoint[Any]], entry: Callable[[Checkpoint[Any]], Answer], limit: int
) -> Answer:
    entries, more = page(map(entry, shown), limit)
    last = encode_cursor(operation, entries[-1]["checkpoint_id"]) if more else None
    return {"checkpoints": entries, "next_cursor": last}


@operation(
    "GET /activity",
    "List what was saved in all threads, agents, conversations and runs, newest first.",
    arguments(
        (),
        kind=one_of(KINDS, "Only threads of this kind."),
        agent_id=name("Only threads of this agent."),
        **PERIOD,
        **PAGE,
    ),
    listing("checkpoints", _CHECKPOINT),
)
def activity(
    store: Store,
    *,
    kind: str | None = None,
    agent_id: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List checkpoints of all threads, also those out of view, without their states."""
    last, moment = decode_cursor("activity", cursor, 2)
    time = None if moment is None else _time(moment, "activity")
    until = until if time is None else time + dt.timedelta(microseconds=1)
    found = store.activity(agent=agent_id, kind=kind, since=since, until=until)
    rest = found if last is None else _after(found, last, time)
    entries, more = page((_checkpoint_entry(each.thread_kind or "thread", each) for each in rest), limit)
    end = entries[-1] if more else None
    return {
        "checkpoints": entries,
        "next_cursor": end and encode_cursor("activity", end["checkpoint_id"], end["created_at"]),
    }


def _after(found: Iterator[Checkpoint[Any]], last: str, time: dt.datetime | None) -> Iterator[Checkpoint[Any]]:
    """Yield the checkpoints after the last one of a page. If that is gone, those that are older than it was."""
    for checkpoint in found:
        if checkpoint.id == last:
            break
        if checkpoint.created_at != time:
            yield checkpoint
            break
    yield from found


def _checkpoint_entry(kind: str, checkpoint: Checkpoint[Any]) -> Answer:
    try:
        metadata = outline(checkpoint.metadata)
    except Error:  # a damaged row still has an id
        metadata = {}
    return {
        "checkpoint_id": checkpoint.id,
        "thread_id": checkpoint.thread_id,
        "kind": kind,
        "parent_id": checkpoint.parent_id,
        "step": checkpoint.step,
        "seq": checkpoint.seq,
        "label": brief(checkpoint.label),
        "tags": [brief(tag) for tag in checkpoint.tags],
        "occasion": checkpoint.kind,
        "metadata": metadata,
        "created_at": checkpoint.created_at.isoformat(),
        "size_bytes": checkpoint.size,
        "root": checkpoint.root,
        "damaged": checkpoint.damaged,
    }


@operation(
    "GET /threads/{thread_id}/checkpoints/{ref}",
    "Show a checkpoint of a thread by a ref.",
    arguments(("thread_id", "ref"), **_THREAD, ref=_REF),
    _CHECKPOINT,
)
def thread_checkpoint(store: Store, *, thread_id: str, ref: str, kind: str = "thread") -> Answer:
    """Return a checkpoint without its state."""
    return _checkpoint_entry(kind, _load(store, kind, thread_id, ref))


@operation(
    "GET /checkpoints/{checkpoint_id}",
    "Show a checkpoint of any thread by its id.",
    arguments(("checkpoint_id",), checkpoint_id=name("The checkpoint's id.")),
    _CHECKPOINT,
)
def checkpoint_show(store: Store, *, checkpoint_id: str) -> Answer:
    """Return a checkpoint without its state."""
    kind, checkpoint = located(store, checkpoint_id)
    return _checkpoint_entry(kind, checkpoint)


def located(store: Store, checkpoint_id: str) -> tuple[str, Checkpoint[Any]]:
    """Return a checkpoint by its id, with the kind of its thread."""
    checkpoint = store.checkpoint(checkpoint_id)
    if checkpoint is None or checkpoint.thread_kind not in KINDS:
        raise NotFound(f"there is no checkpoint {checkpoint_id!r:.100}", code="not_found.checkpoint")
    return checkpoint.thread_kind, checkpoint


_ENTRY: Final[Schema] = result(
    ("value",),
    key=ANY,
    path=optional(TEXT),
    type=TEXT,
    size=COUNT,
    count=optional(COUNT),
    value=ANY,
)


@operation(
    "GET /threads/{thread_id}/state",
    "Return the state of a checkpoint, or the part of it at a path.",
    arguments(
        ("thread_id",),
        **_THREAD,
        ref=_REF,
        path=text("The path of the part, such as messages[3].content; omit it for the whole state."),
        limit=number("At most this many entries of a long list or dict.", 1, _ENTRIES_MAX, _ENTRIES),
        offset=number("The first entry, or the first character of a long text: next_offset.", 0, None, 0),
        max_bytes=number("Values of at most this many bytes are returned whole.", 0, _BYTES_MAX, _BYTES),
    ),
    result(
        ("value", "entries"),
        thread_id=TEXT,
        checkpoint_id=TEXT,
        path=TEXT,
        type=TEXT,
        size=COUNT,
        count=optional(COUNT),
        value=ANY,
        entries={"type": "array", "items": _ENTRY},
        next_offset=optional(COUNT),
    ),
    immutable=("ref",),
)
def thread_state(
    store: Store,
    *,
    thread_id: str,
    kind: str = "thread",
    ref: str = "@",
    path: str = "",
    limit: int = _ENTRIES,
    offset: int = 0,
    max_bytes: int = _BYTES,
) -> Answer:
    """Return a small value whole, and of a large one its entries. Large entries are not read: ask for their paths."""
    checkpoint = _load(store, kind, thread_id, ref)
    place = parse(path)
    found = checkpoint.part(place, start=offset, limit=limit, most=max_bytes)
    answer = {
        "thread_id": thread_id,
        "checkpoint_id": checkpoint.id,
        "path": path,
        "type": found.type,
        "size": found.size,
        "count": found.count,
    }
    if found.value is not MISSING:
        return {**answer, "value": plain(found.value), "next_offset": None}
    if found.type in ("text", "bytes", "number", "other"):
        whole = plain(checkpoint.get(place))
        whole = whole if isinstance(whole, str) else json.dumps(whole)
        end = offset + max(max_bytes, 1)
        return {**answer, "value": whole[offset:end], "next_offset": end if end < len(whole) else None}
    entries, _ = page((_state_entry(place, key, part) for key, part in found.entries), limit, bytes_each=_BYTES)
    end = offset + len(entries)
    return {**answer, "entries": entries, "next_offset": end if entries and end < (found.count or 0) else None}


def _state_entry(place: Path, key: Any, part: StatePart) -> Answer:
    try:
        named = str(place.child(key))
        path = named if parse(named) == (*place, key) else None
    except Invalid:
        path = None
    whole = {} if part.value is MISSING else {"value": plain(part.value)}
    return {"key": brief(key), "path": path, "type": part.type, "size": part.size, "count": part.count, **whole}


@operation(
    "GET /threads/{thread_id}/diff",
    "List what changed from one checkpoint to another.",
    arguments(
        ("thread_id",),
        **_THREAD,
        a=_REF | {"description": "The older checkpoint, a ref or an id.", "default": "@-"},
        b=_REF | {"description": "The newer checkpoint, a ref or an id."},
        **PAGE,
    ),
    result(
        a=TEXT,
        b=TEXT,
        count=COUNT,
        changes={"type": "array", "items": result(("old", "new"), op=TEXT, path=TEXT, old=ANY, new=ANY)},
        next_cursor=optional(TEXT),
    ),
    immutable=("a", "b"),
)
def thread_diff(
    store: Store,
    *,
    thread_id: str,
    kind: str = "thread",
    a: str = "@-",
    b: str = "@",
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """Compare two checkpoints. A cursor keeps the two: later pages continue the same comparison."""
    old_id, new_id, start = decode_cursor("thread_diff", cursor, 3)
    thread = _existing(store, kind, thread_id)
    old, new = thread.load(old_id or _ref(a)), thread.load(new_id or _ref(b))
    changes = thread.diff(old, new).changes
    first = whole_number(start) or 0
    entries, more = page(map(_change_entry, changes[first:]), limit)
    last = encode_cursor("thread_diff", old.id, new.id, str(first + len(entries))) if more else None
    return {"a": old.id, "b": new.id, "count": len(changes), "changes": entries, "next_cursor": last}


def _change_entry(change: Change) -> Answer:
    sides = {"old": change.old, "new": change.new}
    shown = {name: brief(side) for name, side in sides.items() if side is not MISSING}
    return {"op": change.op, "path": str(change.path), **shown}


# -- changing ---------------------------------------------------------------------------------------------


@operation(
    "PUT /threads/{thread_id}/state",
    "Save a state as a new checkpoint of a plain thread.",
    arguments(
        ("thread_id", "state"),
        thread_id=_THREAD["thread_id"],
        state=value("The whole state."),
        agent_id=name("The owner of a new thread."),
        label=name("A name for the checkpoint."),
        tags=texts("Tags of the checkpoint."),
        metadata=mapping("Data about the checkpoint, at most 4 KB."),
        expect=_EXPECT,
        new=flag("The thread must not exist yet."),
    ),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_save(
    store: Store,
    *,
    thread_id: str,
    state: Any,
    agent_id: str | None = None,
    label: str | None = None,
    tags: list[str] | None = None,
    metadata: dict[str, Any] | None = None,
    expect: str | None = None,
    new: bool = False,
) -> Answer:
    """Save a state on top of the head, whatever it is, unless `expect` or `new` is given."""
    thread = store.thread(thread_id, agent=agent_id)
    head = NEW if new else expect
    saved = thread.save(state, label=label, tags=tags or (), metadata=metadata, expect=head)
    return _checkpoint_entry("thread", saved)


@operation(
    "POST /threads/{thread_id}/fork",
    "Start a new thread at a checkpoint of a thread.",
    arguments(("thread_id", "new_id"), **_THREAD, new_id=name("The id of the new thread."), ref=_REF),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_fork(store: Store, *, thread_id: str, new_id: str, kind: str = "thread", ref: str = "@") -> Answer:
    """Fork a thread, a conversation or a run; return the head of the fork."""
    if kind == "agent":
        raise Invalid("an agent cannot be forked: fork its conversations", code="invalid.argument", path="kind")
    checkpoint = _load(store, kind, thread_id, ref)
    return _checkpoint_entry(kind, handle(store, kind, thread_id).fork(new_id, checkpoint).load())


@operation(
    "POST /threads/{thread_id}/rewind",
    "Make an older checkpoint the head again.",
    arguments(("thread_id", "ref"), **_THREAD, ref=_REF, expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_rewind(store: Store, *, thread_id: str, ref: str, kind: str = "thread", expect: str | None = None) -> Answer:
    """Rewind a thread. Later checkpoints go out of view; undo brings them back."""
    return _checkpoint_entry(kind, _existing(store, kind, thread_id).rewind(_ref(ref), expect=expect))


@operation(
    "POST /threads/{thread_id}/undo",
    "Undo the last save, rewind, restore or redo of a thread.",
    arguments(("thread_id",), **_THREAD, expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_undo(store: Store, *, thread_id: str, kind: str = "thread", expect: str | None = None) -> Answer:
    """Move the head back; redo moves it forward again."""
    return _checkpoint_entry(kind, _existing(store, kind, thread_id).undo(expect=expect))


@operation(
    "POST /threads/{thread_id}/redo",
    "Redo the last undo of a thread.",
    arguments(("thread_id",), **_THREAD, expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_redo(store: Store, *, thread_id: str, kind: str = "thread", expect: str | None = None) -> Answer:
    """Move the head to where it was before the last undo."""
    return _checkpoint_entry(kind, _existing(store, kind, thread_id).redo(expect=expect))


@operation(
    "POST /threads/{thread_id}/tag",
    "Add tags to a checkpoint.",
    arguments(("thread_id", "tags"), **_THREAD, ref=_REF, tags=names("The tags."), expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_tag(
    store: Store, *, thread_id: str, tags: list[str], kind: str = "thread", ref: str = "@", expect: str | None = None
) -> Answer:
    """Add tags; tags that the checkpoint has stay."""
    thread = _existing(store, kind, thread_id)
    at = thread.load(_ref(ref))
    _require_head(thread, expect)
    return _checkpoint_entry(kind, thread.tag(at, *tags))


@operation(
    "POST /threads/{thread_id}/untag",
    "Remove tags from a checkpoint.",
    arguments(("thread_id", "tags"), **_THREAD, ref=_REF, tags=names("The tags."), expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_untag(
    store: Store, *, thread_id: str, tags: list[str], kind: str = "thread", ref: str = "@", expect: str | None = None
) -> Answer:
    """Remove tags; tags that the checkpoint does not have are ignored."""
    thread = _existing(store, kind, thread_id)
    at = thread.load(_ref(ref))
    _require_head(thread, expect)
    return _checkpoint_entry(kind, thread.untag(at, *tags))


@operation(
    "POST /threads/{thread_id}/label",
    "Save the head of a thread again, with a label.",
    arguments(("thread_id", "label"), **_THREAD, label=name("The label."), expect=_EXPECT),
    _CHECKPOINT,
    effect=Effect.WRITE,
)
def thread_label(
    store: Store, *, thread_id: str, label: str, kind: str = "thread", expect: str | None = None
) -> Answer:
    """Add a checkpoint with the same state and a label: a checkpoint itself never changes."""
    thread = _existing(store, kind, thread_id)
    head = thread.load()
    _require_head(thread, expect)
    return _checkpoint_entry(kind, thread.save(head.state, label=label, expect=head))


@operation(
    "DELETE /threads/{thread_id}",
    "Delete a plain thread.",
    arguments(("thread_id",), thread_id=_THREAD["thread_id"]),
    result(("undo",), thread_id=TEXT, deleted=FLAG, message=TEXT, undo=TEXT),
    effect=Effect.DESTROY,
)
def thread_delete(store: Store, *, thread_id: str) -> Answer:
    """Delete a thread with all its checkpoints."""
    return deleted(
        {"thread_id": thread_id},
        f"thread {thread_id!r}",
        existed=store.thread(thread_id).delete(),
        verb=" is",
        undo="It cannot be undone.",
    )


def _require_head(thread: Thread[Any], expect: str | None) -> None:
    """Raise `Conflict` if the caller expects another head."""
    head = thread.latest()
    actual = None if head is None else head.id
    if expect is not None and actual != expect:
        raise Conflict(
            f"the head of thread {thread.id!r} is another checkpoint: read it, then decide",
            code="conflict.stale",
            expected=expect,
            actual=actual,
        )


def _existing(store: Store, kind: str, thread_id: str) -> Thread[Any]:
    if store.info(thread_id, kind=kind) is None:
        raise _no_thread(kind, thread_id)
    return handle(store, kind, thread_id)


def _load(store: Store, kind: str, thread_id: str, ref: str) -> Checkpoint[Any]:
    try:
        return handle(store, kind, thread_id).load(_ref(ref))
    except NotFound as error:
        if error.code == "not_found.thread":
            raise _no_thread(kind, thread_id) from None
        raise


def _no_thread(kind: str, thread_id: str) -> NotFound:
    return NotFound(f"there is no {kind} {thread_id!r:.100}", code="not_found.thread")


def _ref(ref: str) -> str | int:
    """Return a ref: digits are the number of a step."""
    return int(ref) if ref.isdecimal() and ref.isascii() and len(ref) < 10 else ref  # noqa: PLR2004 - ids are longer


OPERATIONS: Final[tuple[Operation, ...]] = (
    thread_list,
    thread_show,
    thread_history,
    thread_log,
    activity,
    thread_checkpoint,
    checkpoint_show,
    thread_state,
    thread_diff,
    thread_save,
    thread_fork,
    thread_rewind,
    thread_undo,
    thread_redo,
    thread_tag,
    thread_untag,
    thread_label,
    thread_delete,
)
