"""`store.keys`: the state of a store's keys, and their rotation.

Rotating the caller's key wraps the store's key again and touches no data. Rotating the data is a long job: the store
and each thread get new keys, all rows and chunks are sealed with them, and then the old keys are destroyed. Other
processes can read and write meanwhile. They notice new keys within `FRESH` seconds, and the job waits for that. It can
be interrupted at any moment: both old and new keys are in use until the last step, and the next call continues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from backtrail.archive.backup import backup_keyring
from backtrail.backends.port import SEALED, Batch
from backtrail.engine import log
from backtrail.engine.compression import squeeze, stands_beside
from backtrail.errors import Corrupt, Invalid, Unavailable
from backtrail.maintenance import gc
from backtrail.models import KeyReport, KeyStatus
from backtrail.sealed import keyring as keyrings
from backtrail.sealed.backend import SealedBackend
from backtrail.sealed.keys import check_key
from backtrail.validation import check_progress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import StoreReader
    from backtrail.sealed.keys import Key
    from backtrail.transaction import Engine

    Progress = Callable[[str, int], None] | None

_PAGE: Final = 200
_TRIES: Final = 5


def sealed_backend(reader: StoreReader) -> SealedBackend:
    """Return the backend of an encrypted store; `Unavailable` if the store is not encrypted, or has a scope."""
    backend = reader.backend
    if isinstance(backend, SealedBackend):
        return backend
    if backend.present([SEALED]):
        raise Unavailable("keys need the whole store: use a store without a scope", code="unavailable.scope")
    raise Unavailable("this store is not encrypted: it has no keys", code="unavailable.not_encrypted")


class Keys:
    """The keys of an encrypted store. See docs/encryption.md."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def status(self) -> KeyStatus:
        """Return which key wraps the store's keys, and how many keys there are."""
        backend = sealed_backend(self._engine.outside())
        return backend.keyring.status(lambda uid: backend.thread_with_uid(uid) is not None)

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the keyring to a new store, while others write; return its size in bytes.

        A keyring in files becomes a new directory; any other becomes an SQLite file. `keyring=` of `open` takes it.
        """
        return backup_keyring(sealed_backend(self._engine.outside()).keyring.backend, path)

    def rotate(
        self, key: Key | None = None, *, data: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> KeyReport:
        """Replace the caller's key, the keys of the data, or both.

        `key` is the new key of the caller: it opens the store from now on, and the data does not change. Without `key`
        and `data`, the key that opened the store replaces the keys in its `previous`. With `data`, the store and all
        threads get new keys, backtrail seals all data again, and it destroys the old keys. Other processes can write
        meanwhile. If a rotation is interrupted, the next call continues it.
        """
        backend = sealed_backend(self._engine.outside())
        check_progress(progress)
        if key is None and not data and backend.keyring.is_current():
            raise Invalid("pass the new key, or data=True to seal the data with new keys", code="invalid.argument")
        if backend.read_only:
            raise Unavailable("this store is open for reading only", code="unavailable.read_only")
        if key is not None or not data:
            backend.keyring.rewrap(None if key is None else check_key(key))
        return _Rotation(self._engine.outside(), backend, progress).run() if data else KeyReport(0, 0, 0)


def destroy_keys(backend: SealedBackend, threads: Sequence[ThreadRecord]) -> int:
    """Destroy the keys of erased threads; return how many keys. A repeated call returns the same number.

    First the rows that are no checkpoints, and all rows after the erasure, get a new key. So the ids can be used again.
    Everything else that the old keys sealed is unreadable from then on, in every copy. If a thread is in use again,
    this takes 10 seconds.
    """
    uids = [record.uid for record in threads]
    erasures = {record.uid: log.last_erasure(backend.rows(record.no, [(1, log.MAX_SEQ)])) for record in threads}
    backend.keyring.add_generation(uids, erasures)
    backend.forget_keys()
    _seal_rest(backend, threads)
    newest = backend.newest_of([record.no for record in threads])
    if any(row.head for row in newest.values()):  # a thread is in use again: its users must know the new key
        backend.keyring.announce()
        time.sleep(2 * keyrings.FRESH)
        _seal_rest(backend, threads)
    backend.keyring.destroy(uids, keep_newest=True, erased=True)
    return backend.keyring.settle(erasures)


def unfinished_erasures(backend: SealedBackend, threads: Iterable[ThreadRecord]) -> list[ThreadRecord]:
    """Return the erased threads whose keys still exist, because a process was killed before it destroyed them."""
    erased: dict[bytes, tuple[ThreadRecord, int]] = {}
    for record in threads:
        seq = log.last_erasure(backend.rows(record.no, [(1, log.MAX_SEQ)]))
        if seq:
            erased[record.uid] = (record, seq)
    unsettled = backend.keyring.unsettled({uid: seq for uid, (_, seq) in erased.items()})
    return [erased[uid][0] for uid in unsettled]


def _seal_rest(backend: SealedBackend, threads: Sequence[ThreadRecord]) -> None:
    for record in threads:
        rows = backend.rows(record.no, [(1, log.MAX_SEQ)], payload=True)
        erasure = log.last_erasure(rows)
        rest = [row for row in rows if row.op not in log.CHECKPOINTS or row.seq > erasure]
        backend.rewrite(record.no, [row for row in rest if log.is_sound(row, record.uid)])


class _Rotation:
    """Seals all data with new keys."""

    def __init__(self, reader: StoreReader, backend: SealedBackend, progress: Progress) -> None:
        self._reader = reader.uncached()
        self._backend = backend
        self._keyring = backend.keyring
        self._progress = progress
        self._known: set[bytes] = set()
        self._rows = self._chunks = 0

    def run(self) -> KeyReport:
        """Rotate, or continue an interrupted rotation."""
        keyring = self._keyring
        keyring.refresh(now=True)
        if len(keyring.store.secrets) == 1:
            keyring.add_store_generation()
        keyring.add_generation(keyring.behind())
        keyring.announce()
        self._backend.forget_keys()
        time.sleep(2 * keyrings.FRESH)  # from then on, no process uses the old keys for what it writes
        for _ in range(_TRIES):
            if not self._seal():
                break
        else:
            raise Unavailable(
                "other processes keep writing with old keys: stop them, and rotate again", code="unavailable.contended"
            )
        self._backend.clear_index()  # its words are tokens of the old key
        uids = keyring.uids()
        keyring.rewrap_threads(uids)
        destroyed = keyring.destroy(uids, keep_newest=True)
        self._backend.forget_keys()
        with self._backend.without_old_chunks():
            gc.collect(self._reader, self._progress)
        keyring.destroy_store_generations()
        return KeyReport(self._rows, self._chunks, destroyed)

    def _seal(self) -> int:
        """Seal everything that has an old key; return how many rows and chunks."""
        before = self._rows + self._chunks
        for record in gc.threads(self._reader):
            low = 1
            while stored := self._backend.below.rows(record.no, [(low, log.MAX_SEQ)], payload=True, limit=_PAGE):
                self._seal_rows(record, stored)
                low = stored[-1].seq + 1
        return self._rows + self._chunks - before

    def _seal_rows(self, record: ThreadRecord, stored: list[Row]) -> None:
        # a row that does not fit to the record of its thread is sealed again, too: it may be put right
        opened = {row.seq: row for row in self._backend.open_rows(record.no, stored, compare=False)}
        for row in opened.values():
            if row.op in log.CHECKPOINTS and log.is_sound(row, record.uid):
                self._put_chunks(row)
        old = [
            opened[row.seq]
            for row in stored
            if not self._backend.is_current(record.no, row) and log.is_sound(opened[row.seq], record.uid)
        ]
        if old:
            self._rows += self._backend.rewrite(record.no, old)
            if self._progress:
                self._progress("rows", self._rows)

    def _put_chunks(self, row: Row) -> None:
        nodes = self._reader.nodes()
        try:
            below = gc.chunks_below(nodes, row, self._known)
            below |= nodes.load([d for d in stands_beside(row.payload or b"") if d not in self._known])
        except Corrupt:
            return  # it cannot be read with the old keys either
        present = self._backend.present(list(below))
        compress = self._reader.options.compression
        for digest, node in below.items():
            if digest not in present:
                stored = squeeze(node.kind + node.data, enabled=compress)
                self._backend.commit(Batch(chunks=((digest, stored),)))
                self._chunks += 1
        self._known.update(below)
