"""Encode changes as the records of a log, and decode them.

A record is a MessagePack array: the kind of the change, then its fields. Text of users is UTF-8 bytes, lone surrogates
included. A body is not in its record, but among the bodies of the frame; the record has its [offset, length] there.

Each frame repeats the records of the frame before it in short form, in case they get lost: see `echo`. All repeated
records can be applied twice. The echo of a row says only that it existed; that of an index list, to rebuild it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import decoded, encoded
from backtrail.backends.port import IndexEntry, IndexState, Row, ThreadRecord
from backtrail.backends.tables.changes import (
    DropList,
    Hide,
    Listed,
    LoseRow,
    Mark,
    Place,
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

    from backtrail.backends.tables.changes import Body, Change

# The kinds of records. SEAL says that the log continues in the next file, ECHO repeats the frame before.
THREAD, ROW, LOST, UNROW, HIDE, TAGS, CHUNK, STAMP, UNCHUNK, TOUCH, MARK, LIST, UNLIST, META, SEAL, ECHO = range(16)

_LABEL = 12  # the index of the label among the fields of a row
_META = ("epoch", "entry", "verified")  # the last one is of earlier versions
_PLAIN: dict[int, type[Any]] = {
    LOST: LoseRow,
    UNROW: RemoveRows,
    HIDE: Hide,
    STAMP: Stamp,
    UNCHUNK: RemoveChunks,
    TOUCH: Touch,
    MARK: Mark,
    UNLIST: DropList,
}
"""Changes whose fields are numbers, digests, and lists of them."""
_KINDS = {kind: number for number, kind in _PLAIN.items()}


def fields_of(change: Change, put: Callable[[Body], Any]) -> list[Any]:  # noqa: PLR0911 - one for each kind
    """Return the fields of a change's record; `put` stores a body and returns its [offset, length]."""
    match change:
        case PutRow(thread, row, payload, news):
            values = [*row[:_LABEL], encoded(row.label), *row[_LABEL + 1 : -2], row.hidden]
            return [ROW, thread, news, put(payload), *values]
        case PutThread((no, space, name, uid, agent, created_at, origin)):
            return [THREAD, no, space, encoded(name), uid, encoded(agent), created_at, encoded(origin)]
        case PutChunk(digest, epoch, body):
            return [CHUNK, digest, epoch, put(body)]
        case SetTags(thread, seq, tags):
            return [TAGS, thread, seq, [encoded(tag) for tag in tags]]
        case PutList(thread, now, splices):
            spliced = [(at, removed, [_pack_listed(each, put) for each in new]) for at, removed, new in splices]
            return [LIST, thread, list(now), spliced]
        case SetMeta(name, value):
            return [META, _META.index(name), value]
    return [_KINDS[type(change)], *change]


def _pack_listed(listed: Listed | None, put: Callable[[Body], Any]) -> list[Any] | None:
    if listed is None:
        return None
    no, (time, message_id, role, words, _), text, check = listed
    return [no, time, encoded(message_id), encoded(role), encoded(words), put(text), check]


def change_of(fields: list[Any], file: int, start: int) -> Change:  # noqa: PLR0911 - one for each kind
    """Return the change that a record describes. `start` is the offset in the file where its frame's payloads begin.

    The caller has checked the record's checksum. Any exception means that this version cannot decode the record.
    """
    kind = fields[0]
    if kind == ROW:
        _, thread, news, (at, length), *values, hidden = fields
        if values[_LABEL] is not None:
            values[_LABEL] = decoded(values[_LABEL])
        return PutRow(thread, Row._make((*values, None, hidden)), Place(file, start + at, length), news)
    if kind in _PLAIN:
        change: Change = _PLAIN[kind](*(tuple(each) if isinstance(each, list) else each for each in fields[1:]))
        return change
    match fields:
        case [_, no, space, name, uid, agent, created_at, origin] if kind == THREAD:
            name = decoded(name) or ""
            return PutThread(ThreadRecord(no, space, name, uid, decoded(agent), created_at, decoded(origin)))
        case [_, digest, epoch, (at, length)] if kind == CHUNK:
            return PutChunk(digest, epoch, Place(file, start + at, length))
        case [_, thread, seq, tags] if kind == TAGS:
            return SetTags(thread, seq, tuple(decoded(tag) or "" for tag in tags))
        case [_, thread, now, splices] if kind == LIST:
            listed = [(at, gone, tuple(_listed(each, file, start) for each in new)) for at, gone, new in splices]
            return PutList(thread, IndexState(*now), tuple(listed))
        case [_, name, value] if kind == META:
            return SetMeta(_META[name], value)
    raise ValueError(fields)


def _listed(fields: list[Any] | None, file: int, start: int) -> Listed | None:
    if fields is None:
        return None
    no, time, message_id, role, words, (at, length), *check = fields  # older records have no check
    entry = IndexEntry(time, decoded(message_id), decoded(role), decoded(words) or "", b"")
    return Listed(no, entry, Place(file, start + at, length), check[0] if check else None)


def echo(changes: Iterable[Change]) -> list[list[Any]]:
    """Return the fields of the records that repeat changes in short form."""
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
            case PutChunk() | Stamp():  # readers notice a missing chunk; a stamp matters only for a short time
                pass
            case _:
                repeated.append(fields_of(change, lambda _: None))
    return repeated
