"""Export: write a store, or a part of it, to one file, from one snapshot.

Everything is read and checked before it is written. If a checkpoint cannot be read, the export raises an error that
names it, and makes no file. The file has all rows, hidden rows included, and every chunk that they refer to. A hidden
row that cannot be read is left out if no other state needs it: gc would remove it, too.

An export that continues an earlier export has only the newer rows and chunks, and changes of hidden flags, tags and
thread records. The importing store may have collected chunks that only hidden rows refer to. So the export writes such
a chunk again if a new row refers to it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.archive.envelope import sealing
from backtrail.archive.format import ID_BYTES, ArchiveWriter, Header, KnownThread, ThreadEntry
from backtrail.archive.reader import Archive, id_of
from backtrail.atomic_file import opened, path_of, placed
from backtrail.backends.port import Copyable, NewThread, pin_tag
from backtrail.engine import journal, log, manifests, payload
from backtrail.engine.reader import StoreReader
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.maintenance import gc
from backtrail.maintenance.readable import Reading, read_below
from backtrail.models import ExportReport
from backtrail.validation import check_id, check_ids, check_kind_of_ids, check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail.archive.envelope import Secret
    from backtrail.archive.format import Totals
    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.transaction import Engine

_PAGE: Final = 200
NAMED: Final = {
    "thread": ("thread", "aside"),
    manifests.CONVERSATION: (manifests.CONVERSATION,),
    "run": ("run", journal.SPACE),
}
"""The values of kind=, each with its name spaces: a run is exported with its journal."""


class ExportScope(NamedTuple):
    """The threads to export: all, those of an agent, or those with given ids and kinds."""

    agent: str | None = None
    threads: tuple[str, ...] | None = None
    kinds: tuple[str, ...] = tuple(NAMED)

    def has(self, record: ThreadRecord) -> bool:
        """Tell whether a thread is to be exported."""
        if self.agent is not None:
            own = record.name == self.agent and record.space in (manifests.AGENT, manifests.SPACE)
            return own or record.agent == self.agent
        if self.threads is None:
            return True
        return record.name in self.threads and any(record.space in NAMED[kind] for kind in self.kinds)

    def require(self, records: list[ThreadRecord]) -> None:
        """Raise `NotFound` if the named agent or one of the named threads is not among the records."""
        if self.agent is not None and not records:
            raise NotFound(f"there is no agent {self.agent!r} in this store", code="not_found.agent")
        missing = [name for name in self.threads or () if not any(record.name == name for record in records)]
        if missing:
            what = self.kinds[0] if len(self.kinds) == 1 else "thread"
            raise NotFound(f"there is no {what} {missing[0]!r}", code="not_found.thread")

    def header_field(self) -> list[Any] | None:
        """Return the scope for the header of the file: None for everything, or [agent, names] as bytes."""
        if self.agent is None and self.threads is None:
            return None
        names = None if self.threads is None else [name.encode("utf-8", "surrogatepass") for name in self.threads]
        return [None if self.agent is None else self.agent.encode("utf-8", "surrogatepass"), names]


def export(
    engine: Engine,
    path: Any,
    *,
    threads: Any = None,
    kind: Any = None,
    agent: Any = None,
    since: Any = None,
    secret: Secret | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> ExportReport:
    """Write a store, or a part of it, to a new file, which `secret` encrypts."""
    check_progress(progress)
    if threads is not None and agent is not None:
        raise Invalid("pass threads= or agent=, not both", code="invalid.argument")
    scope = ExportScope(
        None if agent is None else check_id(agent, "an agent's id"),
        None if threads is None else check_ids(threads),
        check_kind_of_ids(kind, threads, tuple(NAMED)),
    )
    target = path_of(path)
    reader = engine.outside()
    access = reader.backend.access() if isinstance(reader.backend, Copyable) else None
    with _open_earlier(since, target, secret) as earlier, placed(target) as part, reader.backend.snapshot() as view:
        snapshot = StoreReader(view, reader.types, reader.options, reader.clock)
        header = Header(os.urandom(ID_BYTES), reader.clock(), earlier.header.id if earlier else None)
        with ExitStack() as stack:
            file = stack.enter_context(opened(part, access))
            frames = stack.enter_context(sealing(file, secret, header.id)) if secret else file
            writer = ArchiveWriter(frames, header, scope.header_field())
            totals = _Export(snapshot, writer, earlier).write(scope, progress)
        size = part.stat().st_size
    return ExportReport(header.id.hex(), str(target), earlier.id if earlier else None, *totals, size)


def _open_earlier(since: Any, path: Path, secret: Secret | None) -> AbstractContextManager[Archive | None]:
    """Open the earlier export: `since` is its path, or its id if its file is in the directory of the new file."""
    if since is None:
        return nullcontext()
    earlier = path_of(since)
    if not earlier.exists() and isinstance(since, str) and len(since) == 2 * ID_BYTES:
        neighbours = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
        earlier = next((each for each in neighbours if each.is_file() and id_of(each) == since), earlier)
    return Archive(earlier, secret=secret)


class _Export:
    """Writes one export from a snapshot of a store."""

    def __init__(self, reader: StoreReader, writer: ArchiveWriter, earlier: Archive | None) -> None:
        self._reader = reader
        self._writer = writer
        self._earlier = earlier
        self._known = dict(earlier.known) if earlier else {}
        self._written_chunks = dict.fromkeys(earlier.digests() if earlier else ())
        """Digests of chunks that need not be written: this file or the importing store has them."""
        self._lasting_chunks = set(self._written_chunks)
        """Digests of chunks that later exports may rely on. `write` computes them again if `_shrunk`."""
        self._earlier_visible = {entry.uid: entry.visible for entry in earlier.entries} if earlier else {}
        self._shrunk = False
        """Whether a row of the earlier export has been hidden since."""
        self._visible_chunks: set[bytes] = set()
        """Digests of sound chunks below visible rows."""
        self._pinned_chunks: set[bytes] = set()
        """Digests of sound chunks below hidden, pinned rows. The importing store may lack the pin and collect them."""

    def write(self, scope: ExportScope, progress: Callable[[str, int], None] | None) -> Totals:
        """Write the threads of the scope and end the file; return the totals."""
        everything = list(gc.threads(self._reader))
        records = [record for record in everything if scope.has(record)]
        scope.require(records)
        if not self._known.keys() <= {record.uid for record in everything}:  # a store never removes a thread record
            raise Conflict(
                "this store lacks threads of the earlier export, which may be of another store: export without since=",
                code="conflict.export",
            )
        holders = {record.uid for record in records if record.space == manifests.SPACE}
        for count, record in enumerate(records, 1):
            self._thread(record, holders)
            if progress:
                progress("threads", count)
        if self._shrunk:
            self._lasting_chunks = self._below_heads(records)
        kept = self._lasting_chunks | self._visible_chunks
        self._writer.end(self._known, [digest for digest in self._written_chunks if digest in kept])
        return self._writer.totals

    def _below_heads(self, records: list[ThreadRecord]) -> set[bytes]:
        """Return the digests of the chunks below the heads of the exported threads. Later rows mostly share them.

        Other threads are ignored: the importing store may have other chunks for them.
        """
        below: set[bytes] = set()
        for record in records:
            known = self._known.get(record.uid)
            newest = self._reader.row(record, known.newest) if known else None
            head = self._reader.row(record, newest.head) if newest and newest.head else None
            if head is not None and not head.hidden:
                with suppress(Corrupt, NotFound):  # do not rely on chunks of unreadable states
                    below |= read_below(self._reader, self._reader.chain(record, head).tree, below)
        return below

    def _thread(self, record: ThreadRecord, holders: set[bytes]) -> None:
        rows = self._reader.backend.rows(record.no, [(1, log.MAX_SEQ)])
        if not rows:
            return
        for row in rows:
            self._reader.require_sound(record, row)
        known = self._known.get(record.uid)
        start = self._start_of(record, rows, known)
        near = next((row for row in reversed(rows) if row.seq <= start), None)
        entry = ThreadEntry(
            thread=NewThread(*record[1:]),
            start=start,
            start_op=known.op_id if known else b"",
            newest=rows[-1].seq,
            newest_op=rows[-1].op_id,
            visible=_ranges(row.seq for row in rows if not row.hidden),
            tags=self._tags(record, holders),
            near=near.seq if near else 0,
            near_op=near.op_id if near else b"",
        )
        base = next((row.base for row in rows if row.seq == rows[-1].head > start), known.base if known else 0)
        now = KnownThread(entry.newest, entry.newest_op, entry.marks(), base)
        if known is not None and now[:3] == known[:3]:
            return
        self._shrunk = self._shrunk or (known is not None and not self._only_grew(entry, known))
        if record.space == manifests.SPACE:
            self._require_pointees(record)
        self._writer.thread(entry)
        self._rows(record, [*_rebased(rows, known), *(row.seq for row in rows if row.seq > start)])
        self._known[record.uid] = now

    def _tags(self, record: ThreadRecord, holders: set[bytes]) -> dict[int, tuple[str, ...]]:
        """Return the tags of a thread's rows, and the pins of exported agent checkpoints as tags."""
        tags = self._reader.backend.tags(record.no)
        for seq, pins in self._reader.backend.pins(record.no).items():
            exported = tuple(pin_tag(holder) for holder in pins if holder in holders)
            if exported:
                tags[seq] = (*tags.get(seq, ()), *exported)
        return dict(sorted(tags.items()))

    def _start_of(self, record: ThreadRecord, rows: list[Row], known: KnownThread | None) -> int:
        """Return the newest seq of a thread in the earlier export, or 0; `Conflict` if the logs differ."""
        if known is None:
            return 0
        here = {row.seq: row.op_id for row in rows if row.seq <= known.newest}
        same = rows[-1].seq >= known.newest and here.get(known.newest, known.op_id) == known.op_id
        if same and known.newest not in here:  # gc removed that row: compare other rows of the earlier export
            same = all(here.get(seq, op_id) == op_id for seq, op_id in self._earlier_rows(record))
        if not same:
            raise Conflict(
                f"thread {record.name!r} does not continue the thread in the earlier export: export without since=",
                code="conflict.export",
            )
        return known.newest

    def _only_grew(self, entry: ThreadEntry, known: KnownThread) -> bool:
        """Tell whether the rows of the earlier export are as visible as then; False if that is unknown."""
        visible = tuple((low, min(high, known.newest)) for low, high in entry.visible if low <= known.newest)
        if entry.uid in self._earlier_visible:
            return visible == self._earlier_visible[entry.uid]
        tags = {seq: words for seq, words in entry.tags.items() if seq <= known.newest}
        return entry._replace(visible=visible, tags=tags).marks() == known.marks

    def _earlier_rows(self, record: ThreadRecord) -> Iterator[tuple[int, bytes]]:
        """Yield (seq, op_id) of each row of a thread in the file of the earlier export."""
        if self._earlier is not None:
            for entry in self._earlier.entries:
                if entry.uid == record.uid:
                    yield from ((row.seq, row.op_id) for row in self._earlier.rows(entry, 1, entry.newest))

    def _require_pointees(self, record: ThreadRecord) -> None:
        """Raise `Corrupt` if a row is missing that an agent's checkpoints point at: an import requires it."""
        for (space, name), needs in manifests.needs_of(self._reader, record)[1].items():
            thread = self._reader.backend.find_thread(space, name)
            ranges = _ranges(sorted(needs))
            rows = self._reader.backend.rows(thread.no, ranges) if thread else []
            if {row.seq: row.root for row in rows} != needs:
                erased = log.last_erasure(self._reader.backend.rows(thread.no, [(1, log.MAX_SEQ)])) if thread else 0
                if all(seq < erased for seq in needs.keys() - {row.seq for row in rows if row.root == needs[row.seq]}):
                    continue  # a restore skips what was erased
                raise Corrupt(
                    f"{space} {name!r} is damaged: it lacks rows that checkpoints of agent {record.name!r} need. "
                    "Nothing was exported; verify() lists all damage",
                    code="corrupt.row",
                )

    def _rows(self, record: ThreadRecord, seqs: list[int]) -> None:
        reading = Reading(self._reader, record)
        needed: set[int] = set()
        for at in range(0, len(seqs), _PAGE):
            ranges = _ranges(seqs[at : at + _PAGE])
            for row in self._reader.backend.rows(record.no, ranges, payload=True):
                try:
                    self._row(record, row, reading)
                except Corrupt as error:
                    if not row.hidden or row.seq in reading.pinned:
                        raise
                    needed = needed or self._needed(record, reading.pinned)
                    if row.seq in needed:
                        reason = (
                            f"{error}: this checkpoint is deleted, but others are stored as deltas on it: run gc first"
                        )
                        raise self._reader.damaged(record, row.seq, reason, error.code) from error

    def _needed(self, record: ThreadRecord, pinned: set[int]) -> set[int]:
        """Return the seqs of the newest row and of all rows that visible or pinned states need."""
        rows = self._reader.backend.rows(record.no, [(1, log.MAX_SEQ)])
        return {rows[-1].seq} | gc.needed_by(rows, {row.seq for row in rows if not row.hidden} | pinned)

    def _row(self, record: ThreadRecord, row: Row, reading: Reading) -> None:
        if row.op not in log.CHECKPOINTS:
            self._writer.row(row, b"")
            return
        reason = reading.reason(row, self._pinned_chunks if row.hidden else self._visible_chunks)
        if reason is not None:
            raise self._reader.damaged(record, row.seq, f"{reason}; nothing was exported")
        nodes = self._reader.nodes()
        try:
            plain = payload.plain(row.payload or b"", nodes)
            below = gc.chunks_below(nodes, row, self._written_chunks)
        except Corrupt as error:
            raise self._reader.damaged(record, row.seq, f"{error}; nothing was exported", error.code) from error
        for digest, node in below.items():
            self._writer.chunk(node.kind + node.data)
            self._written_chunks[digest] = None
        self._writer.row(row, plain)


def _rebased(rows: list[Row], known: KnownThread | None) -> list[int]:
    """Return the seqs of base rows to export again: new deltas need them, and they may have been deltas before."""
    if known is None:
        return []
    bases = [row.base for row in rows if row.seq > known.newest and 0 < row.base <= known.newest]
    lowest = min((base for base in bases if base != known.base), default=log.MAX_SEQ)
    return [row.seq for row in rows if lowest <= row.seq <= known.newest and row.base == row.seq]


def _ranges(seqs: Iterable[int]) -> log.Ranges:
    """Return ascending seqs as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    return tuple(found)
