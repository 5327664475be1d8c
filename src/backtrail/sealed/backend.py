"""`SealedBackend`: the port on top of any backend, with everything sealed that users wrote.

Sealed are states, metadata, roots, chunks, and the words and texts of the index. Plain are ids, names, agents, labels,
tags, times, sizes and the shape of histories: the backend below works with them. See `cipher` for the bytes.

Always true:
- nothing that users wrote reaches the backend below in plain;
- the key of a thread is durable in the keyring before the thread is;
- what does not authenticate becomes a row or a chunk that the engine finds damaged;
- the newest row of a thread has the hash of the thread's record. If it has another one, someone has changed the table
  of threads, and all rows with another hash count as damaged.
"""

# ruff: noqa: D102 - the port documents its methods

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import ERASED, SEALED, Batch, MissingChunks, Phrase, ThreadTip, is_one_row
from backtrail.errors import Corrupt, Unavailable
from backtrail.sealed import keyring as keyrings
from backtrail.sealed.cipher import BOUND, CHUNK_OVERHEAD, ROW_OVERHEAD, ThreadCipher, bound_of
from backtrail.sealed.keys import SECRET_BYTES
from backtrail.sealed.replica import replicate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail.atomic_file import FileAccess
    from backtrail.backends.port import (
        Backend,
        Copyable,
        IndexEntry,
        IndexHit,
        IndexState,
        NewThread,
        Row,
        Splice,
        ThreadRecord,
        Usage,
    )
    from backtrail.sealed.cipher import StoreCipher
    from backtrail.sealed.keyring import Keyring

_KEPT: Final = 20_000
"""The most threads whose ciphers are kept by number."""


class _Known(NamedTuple):
    """What is kept of a thread."""

    cipher: ThreadCipher
    bound: bytes
    """The hash of its record; see `cipher.bound_of`."""


class _Calling(threading.local):
    """The state of the calling thread."""

    known: dict[int, _Known] | None = None
    """The threads by number that its open group has found: if it is dropped, others may get the numbers."""
    renewed: dict[int, ThreadCipher] | None = None
    """The threads that its open group has started again, with the keys that it used."""


class SealedBackend:
    """A backend whose contents are sealed by the keys of a keyring."""

    shows_texts = False

    def __init__(self, below: Backend, keyring: Keyring) -> None:
        self.below = below
        self.keyring = keyring
        self.read_only = below.read_only
        self.undoes_groups = below.undoes_groups
        self._threads: dict[int, _Known] = {}
        self._version = keyring.store.seq
        """The version of the keyring that the ciphers are from."""
        self._last: ThreadRecord | None = None
        """The thread that was found last: its rows are read next."""
        self._drops_old_chunks = False
        self._calling = _Calling()
        self._nobody = _Known(ThreadCipher({1: os.urandom(SECRET_BYTES)}, 1), bytes(BOUND))
        """Seals rows of threads that do not exist, which the backend below refuses."""

    # -- keys -----------------------------------------------------------------------------------------

    @property
    def _store_cipher(self) -> StoreCipher:
        return self.keyring.ciphers[0]

    def _fresh(self) -> None:
        """Forget keys that another process has replaced."""
        self.keyring.refresh()
        if self._version != self.keyring.store.seq:
            self.forget_keys()

    def _has_new_keys(self, version: int) -> bool:
        """Tell whether keys have been replaced since a version of the keyring was read. It reads the keyring."""
        self.keyring.refresh(now=True)
        return self.keyring.store.seq != version

    def _known(self) -> dict[int, _Known]:
        group = self._calling.known
        return self._threads if group is None else group

    def _thread(self, no: int) -> _Known:
        """Return the cipher of the thread with this number, and the hash of its record."""
        self._fresh()
        known = self._known()  # before the keyring is read: if keys change meanwhile, this dict is dropped
        found = known.get(no) or self._threads.get(no)
        if found is not None:
            return found
        last = self._last
        record = last if last is not None and last.no == no and self._calling.known is None else self.below.thread(no)
        if record is None:
            return self._nobody
        return _keep(known, no, self.keyring.thread(record.uid) or ThreadCipher({}, 0), bound_of(record))

    def _sealing(self, no: int) -> _Known:
        """Return a cipher that can seal rows of a thread; a thread that lost its key gets a new one."""
        found = self._thread(no)
        if found.cipher.can_seal:
            return found
        known, record = self._known(), self.below.thread(no)
        if record is None:
            return self._nobody
        return _keep(known, no, self.keyring.ensure([record.uid])[record.uid], bound_of(record))

    def _note(self, record: ThreadRecord | None) -> ThreadRecord | None:
        """Compare the rows of a known thread with this record from now on; return the record."""
        if record is not None:
            known = self._known()
            found = known.get(record.no) or self._threads.get(record.no)
            if found is not None and found.bound != (bound := bound_of(record)):
                cipher = self.keyring.thread(record.uid)  # after a failover, another thread may have the number
                _keep(known, record.no, cipher or ThreadCipher({}, 0), bound)
                self._forget_last(record.no)
        return record

    def _forget_last(self, no: int) -> None:
        """Do not use the record that was found last: it has changed."""
        if self._last is not None and self._last.no == no:
            self._last = None

    def _open(self, no: int, row: Row) -> Row:
        return self.open_rows(no, (row,))[0]

    def _again(self, no: int) -> _Known:
        """Read the key of a thread again: another process has made a new one."""
        record = self.below.thread(no)
        if record is None:
            return self._nobody
        self.keyring.refresh(now=True)
        self._fresh()
        known = self._known()
        found = self.keyring.threads([record.uid], again=True).get(record.uid)
        return _keep(known, no, found or ThreadCipher({}, 0), bound_of(record))

    def forget_keys(self) -> None:
        """Read all keys again before they are used: they have changed."""
        self._version = self.keyring.store.seq
        self._threads = {}
        self._calling.known = None if self._calling.known is None else {}

    def open_rows(self, no: int, rows: Sequence[Row], *, compare: bool = True) -> list[Row]:
        """Return stored rows of a thread with their contents. `compare` the newest row with the thread's record."""
        if not rows:
            return []
        cipher, bound = self._thread(no)
        if any(cipher.is_behind(row.root or row.extra) for row in rows):
            cipher, bound = self._again(no)
        opened = [cipher.open(row) for row in rows]
        if compare and any(each not in (bound, b"") for _, each in opened):
            return self._compared(no, opened)
        return [row for row, _ in opened]

    def _compared(self, no: int, opened: list[tuple[Row, bytes]]) -> list[Row]:
        """Return rows, of which some have another hash than their thread's record.

        Another process has started the thread again, the rows are older than its present record, or someone has changed
        the record. The newest row tells: if it does not fit to the record, rows with another hash count as damaged.
        """
        record, newest = self._note(self.below.thread(no)), self.below.newest(no)
        bound = None if record is None else bound_of(record)
        row, last = self._thread(no).cipher.open(newest) if newest is not None else (None, bound)
        if row is not None and row.check and last in (b"", bound):
            return [each for each, _ in opened]
        return [each if was in (b"", bound) else each._replace(check=b"") for each, was in opened]

    def is_current(self, no: int, row: Row) -> bool:
        """Tell whether a stored row is sealed with the newest key of its thread."""
        return self._thread(no).cipher.is_current(row)

    def _load(self, records: Iterable[ThreadRecord]) -> None:
        """Read the keys of many threads at once."""
        known = self._known()
        unknown: dict[bytes, ThreadRecord] = {}
        for record in records:
            if record.no in known or record.no in self._threads:
                self._note(record)
            else:
                unknown[record.uid] = record
        if len(unknown) > 1:
            for uid, cipher in self.keyring.threads(unknown).items():
                _keep(known, unknown[uid].no, cipher, bound_of(unknown[uid]))

    # -- threads --------------------------------------------------------------------------------------

    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        found = self.below.find_thread(space, name)
        if found != self._last:
            self._note(found)
        if self._calling.known is None:
            self._last = found
        return found

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        return self._note(self.below.thread_with_uid(uid))

    def thread(self, no: int) -> ThreadRecord | None:
        return self._note(self.below.thread(no))

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        return self.below.thread_numbers(after, limit)

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        listed = self.below.threads(space=space, agent=agent, prefix=prefix, origin=origin, after=after, limit=limit)
        self._load(record for record, _ in listed)
        return [(record, self._open(record.no, row)) for record, row in listed]

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        tips = self.below.tips(agent, touched=touched)
        self._load(tip.record for tip in tips)
        return [
            ThreadTip(record, self._open(record.no, newest), head and self._open(record.no, head))
            for record, newest, head in tips
        ]

    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        found = self.below.threads_named(space, names)
        self._load(found.values())
        return found

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        return {no: self._open(no, row) for no, row in self.below.newest_of(threads).items()}

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        found = self.below.rows_of(spans, payload=payload)
        return {(no, seq): self._open(no, row) for (no, seq), row in found.items()}

    # -- rows, tags and chunks ------------------------------------------------------------------------

    def newest(self, thread: int) -> Row | None:
        row = self.below.newest(thread)
        return row and self._open(thread, row)

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        found = self.below.rows(
            thread, ranges, payload=payload, visible=visible, newest_first=newest_first, limit=limit
        )
        return self.open_rows(thread, found)

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        return self.below.count(thread, ranges)

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        return self.below.labelled(thread, labels)

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        return self.below.tags(thread, seqs)

    def tagged(self, thread: int, tag: str) -> list[int]:
        return self.below.tagged(thread, tag)

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        return self.below.pins(thread, seqs)

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        opened: dict[bytes, bytes] = {}
        for cipher in self.keyring.ciphers:  # more than one during a rotation
            addresses = {cipher.address(digest): digest for digest in digests if digest not in opened}
            if addresses:
                found = self.below.chunks(list(addresses))
                opened |= {addresses[each]: cipher.open(addresses[each], each, found[each]) for each in found}
        return opened

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        addresses = self._addresses(digests)
        found = {addresses[each] for each in self.below.present(list(addresses))}
        return found | {SEALED} if SEALED in digests else found  # how callers know an encrypted store

    def _addresses(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the digests of chunks by the addresses at which they are put now."""
        cipher = self._store_cipher
        return {cipher.address(digest): digest for digest in digests}

    def now(self) -> int:
        return self.below.now()

    # -- writing --------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> tuple[int, ...]:
        self._fresh()
        version = self._version
        if is_one_row(batch):
            ((no, row),) = batch.rows
            cipher, bound = self._sealing(no)
            numbers = self.below.commit(batch._replace(rows=((no, cipher.seal(_whole(row), bound)),)))
        else:
            numbers = self._commit(batch)
        if self.keyring.is_stale() and self._has_new_keys(version):
            self._seal_again(batch, numbers)
        return numbers

    def _seal_again(self, batch: Batch, numbers: tuple[int, ...]) -> None:
        """Seal a batch with new keys, which were made while it waited to be written: its own may be destroyed soon."""
        rows: dict[int, list[Row]] = {}
        for no, row in batch.rows:
            rows.setdefault(numbers[-no - 1] if no < 0 else no, []).append(row)
        for no, each in rows.items():
            self.rewrite(no, each, batch.chunks)

    def _commit(self, batch: Batch) -> tuple[int, ...]:
        renewed = {no: self._again(no).cipher for no, _ in batch.renew if no >= 0}  # the old keys may be destroyed
        known = self._known()
        created = self.keyring.ensure([new.uid for new in batch.threads]) if batch.threads else {}
        bounds = self._new_bounds(batch)
        new = {
            -at: _Known(created[each.uid], bounds.get(-at) or bound_of(each))
            for at, each in enumerate(batch.threads, 1)
        }
        touched = self._addresses(batch.touch) if batch.touch else {}

        def seal(no: int, row: Row) -> Row:
            cipher, bound = new.get(no) or self._sealing(no)
            return cipher.seal(_whole(row), bounds.get(no, bound))

        sealed = batch._replace(
            rows=tuple([(no, seal(no, row)) for no, row in batch.rows]),
            chunks=self._sealed_chunks(batch.chunks),
            touch=tuple(touched),
        )
        alone = {no: bound for no, bound in bounds.items() if no >= 0 and no not in {each for each, _ in batch.rows}}
        try:
            with self.below.group() if alone and self._calling.known is None else nullcontext():
                numbers = self.below.commit(sealed)
                for no, bound in alone.items():
                    self._bind_newest(no, bound)
        except MissingChunks as error:
            raise MissingChunks(frozenset(touched[each] for each in error.digests)) from error
        for at, no in enumerate(numbers, 1):
            _keep(known, no, *new[-at])
        for no, bound in bounds.items():
            if no >= 0:
                _keep(known, no, self._thread(no).cipher, bound)
                self._forget_last(no)
        if self._calling.renewed is None:
            self._check_renewed(renewed)
        else:
            self._calling.renewed |= renewed
        return numbers

    def _new_bounds(self, batch: Batch) -> dict[int, bytes]:
        """Return the hashes of the records that a batch changes, by the numbers of their threads."""
        before: dict[int, ThreadRecord | NewThread | None] = {-at: new for at, new in enumerate(batch.threads, 1)}
        after: dict[int, ThreadRecord | NewThread] = {}
        for no, new in batch.renew:
            record = before[no] if no in before else self.below.thread(no) if no >= 0 else None
            before[no] = record
            if record is not None:
                after[no] = record._replace(agent=new.agent, created_at=new.created_at, origin=new.origin)
        return {no: bound_of(record) for no, record in after.items() if record != before[no]}

    def _bind_newest(self, no: int, bound: bytes) -> None:
        """Seal the newest row of a thread again, for a record that has changed without a new row."""
        stored = self.below.newest(no)
        rows = [] if stored is None else self.below.rows(no, [(stored.seq, stored.seq)], payload=True)
        cipher = self._sealing(no).cipher
        opened = [cipher.open(row) for row in rows]
        self.below.rewrite(no, [cipher.seal(row, bound) for row, was in opened if was])

    def _check_renewed(self, renewed: dict[int, ThreadCipher]) -> None:
        """Seal the rows of threads that were started again with new keys, if they have got new ones meanwhile.

        An erasure gives a thread a new key, seals what is left of it, and destroys the old key. It does not wait for
        other processes. So a process that starts an erased thread again checks the key before and after.
        """
        for no, used in renewed.items():
            if self._again(no).cipher.last == used.last:
                continue
            stored = self.below.rows(no, [(1, MAX_SEQ)], payload=True)
            rows = [used.open(row)[0] for row in stored if not self.is_current(no, row)]
            self.rewrite(no, [row for row in rows if row.check not in (b"", ERASED)])

    def _sealed_chunks(self, chunks: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
        if not chunks:
            return ()
        cipher = self._store_cipher
        addressed = [(cipher.address(digest), digest, stored) for digest, stored in chunks]
        return tuple([(address, cipher.seal(digest, address, stored)) for address, digest, stored in addressed])

    @contextmanager
    def group(self) -> Iterator[None]:
        self._fresh()
        with self.below.group():
            version, begun, known = self._version, time.monotonic(), self._threads
            self._calling.known, self._calling.renewed = {}, {}
            try:
                yield
            finally:
                found, self._calling.known = self._calling.known, None
                renewed, self._calling.renewed = self._calling.renewed, None
            if time.monotonic() - begun > keyrings.FRESH and self._has_new_keys(version):
                raise Unavailable(
                    "the keys of the store were rotated during a long write: nothing of it was written; repeat it",
                    code="unavailable.rotated",
                )
        known.update(found)
        self._check_renewed(renewed)

    # -- search ---------------------------------------------------------------------------------------

    def unindexed(self, after: int, limit: int) -> list[int]:
        return self.below.unindexed(after, limit)

    def indexed(self, thread: int) -> IndexState:
        return self.below.indexed(thread)

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        self._fresh()
        cipher, token = self._sealing(thread).cipher, self._store_cipher.token

        def seal(entry: IndexEntry) -> IndexEntry:
            words = " ".join([token(word) for word in entry.words.split(" ")]) if entry.words else ""
            return entry._replace(words=words, text=cipher.seal_text(entry.text, _bound(entry)))

        sealed = [
            splice._replace(entries=tuple([entry and seal(entry) for entry in splice.entries])) for splice in splices
        ]
        return self.below.index(thread, was, now, sealed)

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[IndexHit]:
        """Find entries by the tokens of whole words. Parts of words are not sought: the engine checks the entries."""
        ciphers = self.keyring.ciphers
        token = ciphers[0].token
        if len(ciphers) > 1:
            phrases = ()  # during a rotation, entries have tokens of several keys: all of them are candidates
        whole = [phrase.words[phrase.open_left : len(phrase.words) - phrase.open_right] for phrase in phrases]
        sought = [Phrase(tuple(map(token, words))) for words in whole if words]
        hits: list[IndexHit] = []
        while len(hits) < limit:
            page = self.below.find(
                sought, space=space, agent=agent, threads=threads, without=without, after=after, limit=limit
            )
            self._load(hit.record for hit in page)
            newest = self.newest_of({hit.record.no for hit in page})
            sound = {no for no, row in newest.items() if row.check}  # the others may have the record of another thread
            kept = [hit for hit in page if hit.record.no in sound]
            hits += [opened for hit in kept if (opened := self._opened(hit)) is not None]
            if len(page) < limit:
                break
            after = (page[-1].entry.time, page[-1].no)
        return hits[:limit]

    def _opened(self, hit: IndexHit) -> IndexHit | None:
        """Return a hit with its text; None if the key of its thread was destroyed."""
        cipher = self._thread(hit.record.no).cipher
        if cipher.is_behind(hit.entry.text):
            cipher = self._again(hit.record.no).cipher
        text = cipher.open_text(hit.entry.text, _bound(hit.entry))
        if text is None and cipher.is_erased(hit.entry.text):
            return None
        if text is None:
            raise Corrupt("the search index is damaged: `reindex` rebuilds it", code="corrupt.index")
        return hit._replace(entry=hit.entry._replace(text=text))

    def clear_index(self) -> None:
        self.below.clear_index()

    # -- changes --------------------------------------------------------------------------------------

    def listen(self, wake: Callable[[Collection[int]], None]) -> AbstractContextManager[float]:
        return self.below.listen(wake)

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        return self.below.changed_since(mark, notified, others)

    # -- maintenance ----------------------------------------------------------------------------------

    def next_epoch(self) -> int:
        return self.below.next_epoch()

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        page = self.below.chunk_page(after, limit + 1)  # the mark may be among them
        return [each for each in page if each[0] != SEALED][:limit]

    def addresses(self, digests: Collection[bytes]) -> Collection[bytes]:
        ciphers = self.keyring.ciphers[: 1 if self._drops_old_chunks else None]
        return {
            cipher.address(digest): None for cipher in ciphers for digest in digests
        }  # in order, and fast to search

    @contextmanager
    def without_old_chunks(self) -> Iterator[None]:
        """Let a collection in the block remove all chunks that have older keys: every row can do without them."""
        self._drops_old_chunks = True
        try:
            yield
        finally:
            self._drops_old_chunks = False

    def damaged_chunks(self, addresses: Sequence[bytes], is_sound: Callable[[bytes, bytes], bool]) -> list[bytes]:
        del is_sound  # it needs the digests, which only rows know
        ciphers = self.keyring.ciphers
        stored = self.below.chunks(addresses)
        return [each for each in stored if not any(cipher.is_sound(each, stored[each]) for cipher in ciphers)]

    def remove_chunks(self, addresses: Sequence[bytes], before_epoch: int) -> int:
        addresses = [each for each in addresses if each != SEALED]
        before = self.below.present(addresses)
        size = self.below.remove_chunks(addresses, before_epoch)
        return size - CHUNK_OVERHEAD * len(before - self.below.present(addresses))

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        return self.below.remove_rows(thread, seqs)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        self._fresh()
        version, (cipher, bound) = self._version, self._sealing(thread)
        bounds = self._bounds(thread, [row.seq for row in rows])
        sealed = [cipher.seal(row, bounds.get(row.seq) or bound) for row in rows]
        count = self.below.rewrite(thread, sealed, self._sealed_chunks(chunks))
        if self.keyring.is_stale() and self._has_new_keys(version):
            return self.rewrite(thread, rows, chunks)  # as in `commit`
        return count

    def _bounds(self, no: int, seqs: Sequence[int]) -> dict[int, bytes]:
        """Return the hashes that stored rows have, by seq: a rewritten row keeps its own."""
        cipher = self._thread(no).cipher
        return {row.seq: cipher.open(row)[1] for row in self.below.rows(no, [(seq, seq) for seq in sorted(seqs)])}

    def reclaim(self, *, erase: bool = False) -> None:
        self.below.reclaim(erase=erase)

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        return self.below.check(progress)

    def repair(self) -> None:
        self.below.repair()

    def last_seq(self, thread: int) -> int:
        return self.below.last_seq(thread)

    def copy_to(self, target: Backend, progress: Callable[[str, int], None] | None) -> None:
        """Copy a snapshot of the sealed bytes into an empty backend. The copy needs the same keys."""
        with self.below.snapshot() as view:
            replicate(view, target, progress)

    def usage(self) -> Usage:
        """Return the counts and sizes. `payload_bytes` are the bytes inside the seals."""
        usage = self.below.usage()
        chunks = usage.chunks - 1
        sealing = usage.rows * ROW_OVERHEAD + chunks * CHUNK_OVERHEAD + len(self.keyring.store.id)
        return usage._replace(chunks=chunks, payload_bytes=usage.payload_bytes - sealing)

    # -- the end --------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        with self.below.snapshot() as view:
            yield type(self)(view, self.keyring)

    def close(self) -> None:
        self.below.close()
        self.keyring.close()


class CopyableSealedBackend(SealedBackend):
    """A sealed backend on top of one that can copy its store. The copy is sealed, and has no keys."""

    below: Any

    @property
    def beside(self) -> tuple[str, ...]:
        suffixes: tuple[str, ...] = self._copyable.beside
        return suffixes

    @property
    def _copyable(self) -> Copyable:
        copyable: Copyable = self.below
        return copyable

    def access(self) -> FileAccess | None:
        return self._copyable.access()

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        return self._copyable.backup(path, progress)


def _keep(known: dict[int, _Known], no: int, cipher: ThreadCipher, bound: bytes) -> _Known:
    if len(known) >= _KEPT:
        known.clear()
    known[no] = found = _Known(cipher, bound)
    return found


def _whole(row: Row) -> Row:
    return row if row.payload is not None else row._replace(payload=b"")


def _bound(entry: IndexEntry) -> bytes:
    """Return the plain fields of an index entry as associated data."""
    return repr((entry.time, entry.message_id, entry.role)).encode("ascii", "backslashreplace")
