"""A backend in one JSON file that every commit writes again: docs/backends.md walks through it.

Processes may share it: a writer holds a lock, a reader loads it again when its version has changed. Not on Windows.
"""

import copy
import fcntl
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import backtrail
from backtrail.atomic_file import sync
from backtrail.backends import defaults
from backtrail.backends.port import Backend, Batch, Row, ThreadRecord, ThreadTip, pins_as_tags, written
from backtrail.errors import Invalid, Unavailable

Data = dict[tuple[Any, ...], Any]
"""("thread", number): record; ("row", number, seq): row; ("tags", number, seq): tags; ("chunk", digest): bytes;
("untouched", number): seq. A dict that readers have seen never changes: a writer changes a copy."""
TEXT: Any = {"encoding": "utf-8", "errors": "surrogatepass"}  # a str may hold half of a surrogate pair


def records(data: Data) -> list[ThreadRecord]:
    """Return all threads, by number."""
    return [ThreadRecord(*value) for key, value in data.items() if key[0] == "thread"]


def log(data: Data, thread: int) -> list[Row]:
    """Return the rows of a thread, by seq."""
    return [Row(*value) for key, value in data.items() if key[:2] == ("row", thread)]


def apply(data: Data, batch: Batch) -> tuple[int, ...]:  # noqa: C901 - one loop for each field
    """Do what a batch says, once `settle` has accepted it; return the numbers of its new threads."""
    last = len(records(data))
    created = tuple(range(last + 1, last + len(batch.threads) + 1))
    batch = pins_as_tags(defaults.resolve(batch, created))
    data |= {("thread", no): (no, *new) for no, new in zip(created, batch.threads, strict=True)}
    for no, new in batch.renew:
        if ("thread", no) in data:
            data["thread", no] = (*data["thread", no][:4], *new[3:])
            data.pop(("untouched", no), None)
    data |= {("row", no, row.seq): tuple(row._replace(payload=row.payload or b"")) for no, row in batch.rows}
    for digest, stored in batch.chunks:
        data.setdefault(("chunk", digest), stored)
    for pairs, hidden in ((batch.hide, True), (batch.show, False)):
        for key in [("row", *pair) for pair in pairs if ("row", *pair) in data]:
            data[key] = (*data[key][:-1], hidden)
    for no, seq, tag in batch.tag:
        if ("row", no, seq) in data:
            data["tags", no, seq] = tuple(dict.fromkeys((*data.get(("tags", no, seq), ()), tag)))
    for no, seq, tag in batch.untag:
        data["tags", no, seq] = tuple(word for word in data.get(("tags", no, seq), ()) if word != tag)
    for no, seq in batch.untouch:
        if [row.seq for row in log(data, no)[-1:]] == [seq]:
            data["untouched", no] = seq
    return created


class Group(threading.local):
    """The calling thread's open group."""

    lock: ExitStack | None = None
    data: Data | None = None  # since the first write
    version: int = 0  # of the data, before the group
    numbers: frozenset[int] = frozenset()  # of the threads that it has written to


class ToyBackend(defaults.SimpleReader, defaults.PollingFeed, defaults.MinimalMaintenance):
    """The port on one file."""

    read_only = undoes_groups = False

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
        self._path.touch()
        self._last: tuple[int, Data] = (0, {})  # the version that was read or written last
        self._group = Group()
        self._closed = False

    # -- the file -----------------------------------------------------------------------------------
    def _data(self) -> Data:
        """Return the data that the calling thread sees."""
        if self._closed:
            raise Unavailable("this store is closed: open it again", code="unavailable.closed")
        return self._stored()[1] if self._group.data is None else self._group.data

    def _stored(self) -> tuple[int, Data]:
        """Return the version of the file and its data. Another thread may set `_last` at any moment."""
        with self._path.open(**TEXT) as file:
            last, version = self._last, int(file.readline() or 0)
            if version != last[0]:
                pairs = json.loads(file.read(), object_hook=lambda value: bytes.fromhex(value["hex"]))
                last = self._last = version, {tuple(key): value for key, value in pairs}
        return last

    def _write(self, version: int, data: Data) -> None:
        """Replace the file: after a crash, it holds the old data or the new."""
        new = self._path.with_suffix(".new")
        pairs = json.dumps(list(data.items()), ensure_ascii=False, default=lambda value: {"hex": value.hex()})
        new.write_text(f"{version}\n{pairs}", **TEXT)
        sync(new)
        new.replace(self._path)
        sync(self._path.parent)
        self._last = version, data

    # -- Writer, groups and snapshots ---------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        if self.read_only:
            raise Unavailable("a snapshot can only be read", code="unavailable.read_only")
        if self._group.lock is None:
            with self.group():
                return self.commit(batch)
        if self._group.data is None:
            file = self._group.lock.enter_context(self._path.with_suffix(".lock").open("w"))
            self._group.lock.callback(fcntl.flock, file, fcntl.LOCK_UN)  # a forked child may have it open, too
            fcntl.flock(file, fcntl.LOCK_EX)
            self._group.version, self._group.data = self._stored()
        numbers = defaults.settle(self, batch)
        if numbers is None:
            data = self._data().copy()
            numbers = apply(data, batch)
            self._group.data = data
        self._group.numbers |= written(batch, numbers)
        return numbers

    @contextmanager
    def group(self) -> Iterator[None]:
        self._refuse_in_group()
        try:
            with ExitStack() as self._group.lock:
                yield
                if self._group.data is not None:
                    self._write(self._group.version + 1, self._group.data)
            numbers = self._group.numbers
        finally:
            vars(self._group).clear()
        self.tell(numbers)

    def _refuse_in_group(self) -> None:
        if self._group.lock is not None:
            raise Invalid("a group is open in this thread: end it first", code="invalid.transaction")

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        self._refuse_in_group()
        view = copy.copy(self)
        view.read_only, view._group = True, Group()  # noqa: SLF001 - its own class
        view._group.data = self._data()  # noqa: SLF001
        yield view

    def close(self) -> None:
        self._refuse_in_group()
        self._closed = True

    # -- Reader -------------------------------------------------------------------------------------
    def thread(self, no: int) -> ThreadRecord | None:
        value = self._data().get(("thread", no))
        return ThreadRecord(*value) if value else None

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        return [record.no for record in records(self._data()) if record.no > after][:limit]

    def threads(self, *, after: tuple[int, int] | None, limit: int, **filters: Any) -> list[tuple[ThreadRecord, Row]]:
        data = self._data()
        logs = [(record, log(data, record.no)) for record in records(data) if defaults.matches(record, **filters)]
        newest = [(record, rows[-1]._replace(payload=None)) for record, rows in logs if rows and rows[-1].head]
        return defaults.page(newest, after, limit)

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        data = self._data()
        tips = []
        for record in [record for record in records(data) if record.agent == agent]:
            rows = [row._replace(payload=None) for row in log(data, record.no)]
            if rows and not (touched and data.get(("untouched", record.no)) == rows[-1].seq):
                tips.append(ThreadTip(record, rows[-1], next((row for row in rows if row.seq == rows[-1].head), None)))
        return tips

    def rows(self, thread: int, ranges: Sequence[tuple[int, int]], **options: Any) -> list[Row]:
        return defaults.select(log(self._data(), thread), ranges, **options)

    def stored_tags(self, thread: int, seqs: Iterable[int] | None) -> dict[int, tuple[str, ...]]:
        data = self._data()
        wanted = [row.seq for row in log(data, thread)] if seqs is None else sorted(set(seqs))
        return {seq: tuple(tags) for seq in wanted if (tags := data.get(("tags", thread, seq)))}

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        data = self._data()
        return {digest: data["chunk", digest] for digest in digests if ("chunk", digest) in data}


if __name__ == "__main__":
    with backtrail.Store(ToyBackend("notes.toy")) as store:
        print(store.thread("trip").save({"city": "Lisbon"}).state)
