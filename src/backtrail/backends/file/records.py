"""Changes as bytes: the records of a log.

A record is a MessagePack array: a number that says what kind of change it is, then its fields. Text that users choose
is UTF-8 in bytes, lone surrogates included. A body is not in its record: there is where it is.

What follows a frame in the log repeats its records in short, in case they are lost: `echo`. All of it can be done a
second time. Of a row it says only that there was one, of a list that it is to be made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ormsgpack

from backtrail.backends.columns import decoded, encoded
from backtrail.backends.port import Entry, Indexed, Row, ThreadRecord
from backtrail.backends.tables.changes import (
    DropList,
    Hide,
    Listed,
    LoseRow,
    Mark,
    PutChunk,
    PutList,
    PutRow,
    PutThread,
    RemoveChunks,
    RemoveRows,
    SetMeta,
    SetTags,
    Stamp,
    Touch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.backends.tables.changes import Body, Change, Place

# The kinds of records. SEAL says that the log goes on in the next file, ECHO repeats the frame before.
THREAD, ROW, LOST, UNROW, HIDE, TAGS, CHUNK, STAMP, UNCHUNK, TOUCH, MARK, LIST, UNLIST, META, SEAL, ECHO = range(16)

_LABEL = 12  # the place of the label among the fields of a row
_META = ("epoch", "entry", "verified")


def pack(change: Change, put: Callable[[Body], Any]) -> bytes:
    """Return the record of a change; `put` takes its bodies and says what stands for them."""
    return ormsgpack.packb(fields_of(change, put))


def fields_of(change: Change, put: Callable[[Body], Any]) -> list[Any]:  # noqa: C901, PLR0911, PLR0912 - one for each kind
    """Return what is in the record of a change."""
    match change:
        case PutRow(thread, row, payload, news):
            values = [*row[:_LABEL], encoded(row.label), *row[_LABEL + 1 : -2], row.hidden]
            return [ROW, thread, news, put(payload), *values]
        case PutThread(record):
            no, space, name, uid, agent, created_at, origin = record
            return [THREAD, no, space, encoded(name), uid, encoded(agent), created_at, encoded(origin)]
        case PutChunk(digest, epoch, body):
            return [CHUNK, digest, epoch, put(body)]
        case SetTags(thread, seq, tags):
            return [TAGS, thread, seq, [encoded(tag) for tag in tags]]
        case PutList(thread, now, splices):
            made = [(at, removed, [_listed(each, put) for each in new]) for at, removed, new in splices]
            return [LIST, thread, list(now), made]
        case SetMeta(name, value):
            return [META, _META.index(name), value]
        case LoseRow():
            return [LOST, *change]
        case RemoveRows():
            return [UNROW, *change]
        case Hide():
            return [HIDE, *change]
        case Stamp():
            return [STAMP, *change]
        case RemoveChunks():
            return [UNCHUNK, *change]
        case Touch():
            return [TOUCH, *change]
        case Mark():
            return [MARK, *change]
        case DropList():
            return [UNLIST, *change]


def _listed(listed: Listed | None, put: Callable[[Body], Any]) -> list[Any] | None:
    if listed is None:
        return None
    no, (time, message_id, role, words, _), text, check = listed
    return [no, time, encoded(message_id), encoded(role), encoded(words), put(text), check]


def unpack(fields: list[Any], place: Callable[[Any], Place]) -> Change:
    """Return the change of a record; `place` says where the body is that something stands for.

    Whatever is wrong with it is an exception of any kind: nothing but a record that was checked is handed in.
    """
    if fields[0] == ROW:  # most are
        _, thread, news, payload, *values, hidden = fields
        if values[_LABEL] is not None:
            values[_LABEL] = decoded(values[_LABEL])
        return PutRow(thread, Row._make((*values, None, hidden)), place(payload), news)
    kind, *rest = fields
    return _UNPACK[kind](rest, place)


def _unpack_thread(values: list[Any], _: object) -> Change:
    no, space, name, uid, agent, created_at, origin = values
    return PutThread(ThreadRecord(no, space, decoded(name) or "", uid, decoded(agent), created_at, decoded(origin)))


def _unpack_list(values: list[Any], place: Callable[[Any], Place]) -> Change:
    def listed(fields: list[Any] | None) -> Listed | None:
        if fields is None:
            return None
        no, time, message_id, role, words, text, *check = fields  # older ones have none
        entry = Entry(time, decoded(message_id), decoded(role), decoded(words) or "", b"")
        return Listed(no, entry, place(text), check[0] if check else None)

    thread, now, splices = values
    made = tuple((at, removed, tuple(map(listed, new))) for at, removed, new in splices)
    return PutList(thread, Indexed(*now), made)


_UNPACK: dict[int, Callable[[list[Any], Callable[[Any], Place]], Change]] = {
    THREAD: _unpack_thread,
    LOST: lambda values, _: LoseRow(*values),
    UNROW: lambda values, _: RemoveRows(values[0], tuple(values[1])),
    HIDE: lambda values, _: Hide(*values),
    TAGS: lambda values, _: SetTags(values[0], values[1], tuple(decoded(tag) or "" for tag in values[2])),
    CHUNK: lambda values, place: PutChunk(values[0], values[1], place(values[2])),
    STAMP: lambda values, _: Stamp(values[0], tuple(values[1])),
    UNCHUNK: lambda values, _: RemoveChunks(tuple(values[0])),
    TOUCH: lambda values, _: Touch(*values),
    MARK: lambda values, _: Mark(*values),
    LIST: _unpack_list,
    UNLIST: lambda values, _: DropList(*values),
    META: lambda values, _: SetMeta(_META[values[0]], values[1]),
}


def echo(changes: Iterable[Change]) -> list[list[Any]]:
    """Return the fields of what repeats these changes in short."""
    repeated: list[list[Any]] = []
    for change in changes:
        match change:
            case PutRow(thread, row):
                before = repeated[-1] if repeated else []
                if before[:2] == [LOST, thread] and before[-1] == row.seq - 1:
                    before[2:] = [before[2], row.seq]
                else:
                    repeated.append([LOST, thread, row.seq])
            case PutList(thread):
                repeated.append([UNLIST, thread])
            case PutChunk() | Stamp():  # who needs a chunk misses it; a stamp counts while it is new
                pass
            case _:
                repeated.append(fields_of(change, _no_body))
    return repeated


def _no_body(_: Body) -> None:
    return None
