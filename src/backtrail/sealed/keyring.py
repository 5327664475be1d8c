"""The keyring: the keys of an encrypted store, in a small store of its own.

The keyring is beside the data and never inside it. So a backup of the data has no keys, and a key that is destroyed
here is gone for every copy of the data.

    the caller's key   wraps   the store's key   wraps   one key for each thread

The keyring is a plain backend. One of its threads is the record of the store: its id, and its keys, wrapped by the
caller's key. Each other thread is named after the uid of a thread of the data and has its keys, wrapped by the store's
key: `[last, keys]`, or `[last, keys, [seq, number, count, is_done]]` if the thread was erased. `seq` is that of its
newest erasure, `number` that of the first key after it, `count` how many keys there were before, and `is_done` tells
whether these are destroyed. The newest row of a thread is all that counts; older rows are removed. To write is to
append a row, so two processes never both make a key: the second one gets `Stale` and reads the key of the first one.

Always true:
- a key is durable here before anything that it seals is written;
- a key is never used again after it was destroyed: its number is lower than `last`, and it is not listed.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack

from backtrail.backends.columns import MAX_SEQ
from backtrail.backends.port import KEYRING, Batch, NewThread, Row, Stale
from backtrail.errors import Conflict, Corrupt, Invalid, Unavailable
from backtrail.models import KeyStatus
from backtrail.sealed.cipher import StoreCipher, ThreadCipher
from backtrail.sealed.keys import NONCE_BYTES, SECRET_BYTES, decrypted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from backtrail.backends.port import Backend, ThreadRecord
    from backtrail.sealed.keys import Key

_STORE: Final = "keyring"
_THREAD: Final = "key"
_NAME: Final = "store"
_ID_BYTES: Final = 16
_MOST: Final = 255
"""The highest number of a key: it is one byte of everything that is sealed."""
_PAGE: Final = 500
_KEPT: Final = 20_000
"""The most threads whose keys are kept in memory."""
FRESH: Final = 5.0
"""Seconds for which a process relies on the keys that it has read."""


class StoreKeys(NamedTuple):
    """The record of a store."""

    id: bytes
    last: int
    """The number of the newest key."""
    secrets: Mapping[int, bytes]
    wrapped_by: frozenset[str]
    """The ids of the caller's keys that wrap the keys."""
    seq: int


class _Record(NamedTuple):
    """A thread of the keyring: its number, and the seq and the content of its newest row."""

    no: int
    seq: int
    content: Any
    older: tuple[int, ...]
    """The seqs of older rows, which a process that was killed did not remove."""


class Keyring:
    """The keys of a store, read from and written to a backend of their own."""

    def __init__(self, backend: Backend, key: Key) -> None:
        self.backend = backend
        self._key = key
        self._store: StoreKeys | None = None
        self._store_ciphers: dict[int, StoreCipher] = {}
        self._threads: dict[bytes, ThreadCipher] = {}
        self._read_at = 0.0

    # -- the store ------------------------------------------------------------------------------------

    def open(self) -> StoreKeys | None:
        """Read the record of the store and unwrap its keys; None if there is no record. Wrong keys are an error."""
        record = self._record(_STORE, _NAME)
        if record is None:
            return None
        self._use(record)
        return self._store

    def create(self) -> StoreKeys:
        """Make the record of a new store; if another process was first, read the record that it made."""
        store, secret = os.urandom(_ID_BYTES), os.urandom(SECRET_BYTES)
        content = {"id": store, "last": 1, "keys": [_wrapped(self._key, store, 1, secret)]}
        new = NewThread(_STORE, _NAME, os.urandom(8), None, _now(), None)
        with suppress(Stale):
            mark = ((KEYRING, store),)
            self.backend.commit(Batch(threads=(new,), rows=((-1, _row(1, content)),), chunks=mark))
        made = self.open()
        if made is None:
            raise Unavailable("the keyring could not be made", code="unavailable.keyring")
        return made

    @property
    def store(self) -> StoreKeys:
        """The record of the store, as it was read."""
        if self._store is None:
            raise Unavailable("the keyring has no record of a store", code="unavailable.keyring")
        return self._store

    def _use(self, record: _Record) -> None:
        self._read_at = time.monotonic()
        if self._store is not None and self._store.seq == record.seq:
            return
        content = record.content
        keys = {self._key.id: self._key, **{each.id: each for each in self._key.previous}}
        store = bytes(content["id"])
        secrets: dict[int, bytes] = {}
        known = self._store.secrets if self._store is not None else {}
        for number, key_id, wrapped in content["keys"]:
            if number in known:  # a process goes on after another one has changed the caller's key
                secrets[number] = known[number]
                continue
            if key_id not in keys:
                raise Unavailable(
                    f"the keys of this store are wrapped by key {key_id!r}, but the given key is {self._key.id!r}: "
                    "open the store with the other key, or name it in previous=",
                    code="unavailable.key",
                )
            secrets[number] = keys[key_id].unwrap(wrapped, _context(store, number))
            if len(secrets[number]) != SECRET_BYTES:
                raise Unavailable(f"key {key_id!r} did not unwrap the keys of this store", code="unavailable.key")
        self._store_ciphers = {number: StoreCipher(number, secret) for number, secret in secrets.items()}
        self._threads = {}
        wrapped_by = frozenset(key_id for _, key_id, _ in content["keys"])
        self._store = StoreKeys(store, content["last"], secrets, wrapped_by, record.seq)

    def refresh(self, *, now: bool = False) -> bool:
        """Read the record again if it was read some seconds ago; tell whether keys have changed."""
        if not now and time.monotonic() - self._read_at < FRESH:
            return False
        before = self.store.seq
        record = self._record(_STORE, _NAME)
        if record is not None:
            self._use(record)
        return self.store.seq != before

    def is_stale(self) -> bool:
        """Tell whether the keys were read so long ago that they may be out of use."""
        return time.monotonic() - self._read_at > 2 * FRESH

    def is_current(self) -> bool:
        """Tell whether the caller's key wraps all keys of the store, and none of its previous keys does."""
        return self.store.wrapped_by == {self._key.id}

    @property
    def ciphers(self) -> list[StoreCipher]:
        """The ciphers of the store's keys, the newest first."""
        return [self._store_ciphers[number] for number in sorted(self._store_ciphers, reverse=True)]

    # -- threads --------------------------------------------------------------------------------------

    def thread(self, uid: bytes) -> ThreadCipher | None:
        """Return the cipher of a thread; None if the thread never had a key."""
        kept = self._threads  # before the rows are read: if keys change meanwhile, this dict is dropped
        found = kept.get(uid)
        if found is not None:
            return found
        record = self._newest(self.backend.thread_with_uid(uid))
        return None if record is None else self._keep(kept, uid, record.content)

    def threads(self, uids: Collection[bytes], *, again: bool = False) -> dict[bytes, ThreadCipher]:
        """Return the ciphers of threads by uid; threads that never had a key are left out."""
        kept = self._threads
        known = {} if again else {uid: each for uid in uids if (each := self._threads.get(uid)) is not None}
        wanted = [uid for uid in dict.fromkeys(uids) if uid not in known]
        if wanted:
            for uid, record in self._records(wanted).items():
                known[uid] = self._keep(kept, uid, record.content)
        return known

    def ensure(self, uids: Collection[bytes]) -> dict[bytes, ThreadCipher]:
        """Return the ciphers of threads by uid. A thread without a key gets one, durably."""
        while True:
            known = self.threads(uids)
            missing = [uid for uid in dict.fromkeys(uids) if uid not in known or not known[uid].can_seal]
            if not missing:
                return known
            self._add(missing, {})

    def add_generation(self, uids: Collection[bytes], erasures: Mapping[bytes, int] | None = None) -> None:
        """Give threads a new key. All later writes use it. Older keys stay until `destroy`.

        `erasures` are the seqs of threads' erasures by uid. A thread gets one key per erasure, even if several ask.
        """
        for start in range(0, len(listed := list(uids)), _PAGE):
            while not self._add(listed[start : start + _PAGE], erasures or {}):
                pass  # another process was first

    def _add(self, uids: Collection[bytes], erasures: Mapping[bytes, int]) -> bool:
        """Give threads a new key; return False if another process was first."""
        records = self._records(uids)
        threads: list[NewThread] = []
        rows: list[tuple[int, Row]] = []
        for uid in uids:
            record = records.get(uid)
            last, keys, *erasure = record.content if record is not None else (0, [])
            seq = erasures.get(uid)
            if seq is not None and erasure and erasure[0][0] == seq:
                continue
            if last >= _MOST:
                raise Unavailable(
                    f"a thread has had {_MOST} keys: copy the store into a new one", code="unavailable.keyring"
                )
            erasure = erasure if seq is None else [[seq, last + 1, len(keys), False]]
            content = [last + 1, [*keys, self._wrapped_for(uid, last + 1, os.urandom(SECRET_BYTES))], *erasure]
            if record is None:
                threads.append(NewThread(_THREAD, uid.hex(), uid, None, _now(), None))
                rows.append((-len(threads), _row(1, content)))
            else:
                rows.append((record.no, _row(record.seq + 1, content)))
        done = self._append(rows, threads, records.values())
        self._forget(uids)
        return done

    def destroy(self, uids: Collection[bytes], *, keep_newest: bool, erased: bool = False) -> int:
        """Destroy the keys of threads, for good; return how many keys. `keep_newest` destroys all but the newest keys.

        `erased` destroys only those from before the threads' erasures. Nothing that a destroyed key sealed can be read
        again, in any copy. The keyring's files are rewritten, so that no trace of the keys is left in them.
        """
        destroyed = 0
        for start in range(0, len(listed := list(uids)), _PAGE):
            page = listed[start : start + _PAGE]
            while True:
                records = self._records(page)
                changed: dict[bytes, tuple[_Record, list[Any]]] = {}
                for uid, each in records.items():
                    last, keys, *erasure = each.content
                    first = erasure[0][1] if erased and erasure else last
                    kept = [key for key in keys if keep_newest and key[0] >= first]
                    if len(kept) < len(keys):
                        changed[uid] = (each, kept)
                rows = [
                    (each.no, _row(each.seq + 1, [each.content[0], kept, *each.content[2:]]))
                    for each, kept in changed.values()
                ]
                if self._append(rows, (), [each for each, _ in changed.values()]):
                    break
            destroyed += sum(len(each.content[1]) - len(kept) for each, kept in changed.values())
            for record in records.values():
                if record.older:  # a process was killed before it removed them
                    self.backend.remove_rows(record.no, record.older)
            self._forget(page)
        self.announce()
        self.backend.reclaim(erase=True)
        return destroyed

    def settle(self, erasures: Mapping[bytes, int]) -> int:
        """Note that all keys from before these erasures are destroyed, and gone from the keyring's files.

        Return how many keys these erasures have destroyed, also if they were settled before.
        """
        destroyed = 0
        for start in range(0, len(listed := list(erasures)), _PAGE):
            while True:
                records = self._records(listed[start : start + _PAGE])
                ours = {each.no: each for uid, each in records.items() if each.content[2][0] == erasures[uid]}
                rows = [
                    (no, _row(each.seq + 1, [*each.content[:2], [*each.content[2][:3], True]]))
                    for no, each in ours.items()
                    if not each.content[2][3]
                ]
                if self._append(rows, (), [ours[no] for no, _ in rows]):
                    break
            destroyed += sum(each.content[2][2] for each in ours.values())
        return destroyed

    def unsettled(self, erasures: Mapping[bytes, int]) -> list[bytes]:
        """Return the uids of the threads whose keys from before these erasures may still be there."""
        listed = list(erasures)
        pages = (self._records(listed[start : start + _PAGE]) for start in range(0, len(listed), _PAGE))
        records = {uid: each.content[2:] for page in pages for uid, each in page.items()}
        return [uid for uid, erasure in records.items() if not erasure or erasure[0][::3] != [erasures[uid], True]]

    def _forget(self, uids: Collection[bytes]) -> None:
        """Read the keys of threads again when they are used next."""
        gone = set(uids)
        if gone.isdisjoint(self._threads):
            return
        self._threads = {uid: each for uid, each in self._threads.copy().items() if uid not in gone}

    def announce(self) -> None:
        """Append to the record of the store, so that other processes read all keys again."""
        self._change(lambda content: content)

    def _wrapped_for(self, uid: bytes, number: int, secret: bytes) -> list[Any]:
        store = self.store
        nonce = os.urandom(NONCE_BYTES)
        context = _context(store.id, number) + uid
        return [number, store.last, nonce + self._store_ciphers[store.last].wrapping.encrypt(nonce, secret, context)]

    def _unwrapped(self, uid: bytes, number: int, by: int, wrapped: bytes) -> bytes:
        cipher = self._store_ciphers.get(by)
        context = _context(self.store.id, number) + uid
        secret = None
        if cipher is not None:
            secret = decrypted(cipher.wrapping, wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        if secret is None:
            raise Corrupt(f"the key of thread {uid.hex()} in the keyring is damaged", code="corrupt.key")
        return secret

    def _keep(self, kept: dict[bytes, ThreadCipher], uid: bytes, content: Any) -> ThreadCipher:
        last, keys, *_ = content
        if any(by not in self._store_ciphers for _, by, _ in keys):
            self.refresh(now=True)  # another process has made a key of the store
        made = ThreadCipher({number: self._unwrapped(uid, number, by, wrapped) for number, by, wrapped in keys}, last)
        if len(kept) >= _KEPT:
            kept.clear()
        kept[uid] = made
        return made

    # -- rotation ---------------------------------------------------------------------------------------

    def rewrap(self, key: Key | None) -> None:
        """Wrap the store's keys by another caller's key; None: by the key that opened it. Nothing else changes."""
        self.refresh(now=True)
        new = self._key if key is None else key
        secrets, store = self.store.secrets, self.store.id
        wrapped = [_wrapped(new, store, number, secret) for number, secret in sorted(secrets.items())]

        def change(content: Any) -> Any:
            self._require_own_key(content)
            if [number for number, *_ in content["keys"]] != sorted(secrets):
                raise Conflict("another process rotates the keys of this store", code="conflict.keys")
            return {**content, "keys": wrapped}

        self._change(change)
        self._key = new
        self.backend.reclaim(erase=True)

    def _require_own_key(self, content: Any) -> None:
        """Raise `Conflict` if another process has made another key the key of this store."""
        own = {self._key.id, *(each.id for each in self._key.previous)}
        others = {key_id for _, key_id, _ in content["keys"]} - own
        if others:
            raise Conflict(
                f"the key of this store is {', '.join(sorted(others))} now: open the store with it, and try again",
                code="conflict.keys",
            )

    def add_store_generation(self) -> int:
        """Give the store a new key, which all later chunks and keys use; return its number."""
        self.refresh(now=True)
        last, secret = self.store.last + 1, os.urandom(SECRET_BYTES)
        if last > _MOST:
            raise Unavailable(f"a store has at most {_MOST} keys: copy it into a new one", code="unavailable.keyring")
        wrapped = _wrapped(self._key, self.store.id, last, secret)

        def change(content: Any) -> Any:
            self._require_own_key(content)
            if content["last"] >= last:
                raise Conflict("another process rotates the keys of this store", code="conflict.keys")
            return {**content, "last": last, "keys": [*content["keys"], wrapped]}

        self._change(change)
        return last

    def rewrap_threads(self, uids: Collection[bytes]) -> None:
        """Wrap the keys of threads by the store's newest key."""
        for start in range(0, len(listed := list(uids)), _PAGE):
            page = listed[start : start + _PAGE]
            while True:
                records = {
                    uid: each
                    for uid, each in self._records(page).items()
                    if any(by != self.store.last for _, by, _ in each.content[1])
                }
                rows = []
                for uid, each in records.items():
                    last, keys, *erasure = each.content
                    again = [self._wrapped_for(uid, key[0], self._unwrapped(uid, *key)) for key in keys]
                    rows.append((each.no, _row(each.seq + 1, [last, again, *erasure])))
                if self._append(rows, (), records.values()):
                    break

    def destroy_store_generations(self) -> None:
        """Destroy all keys of the store but the newest."""
        self._change(lambda content: {**content, "keys": [key for key in content["keys"] if key[0] == content["last"]]})
        self.backend.reclaim(erase=True)

    def behind(self) -> list[bytes]:
        """Return the uids of the threads whose newest key is older than the store's newest key."""
        uids, last = self.uids(), self.store.last
        records = (self._records(uids[start : start + _PAGE]) for start in range(0, len(uids), _PAGE))
        return [
            uid
            for page in records
            for uid, record in page.items()
            if (keys := record.content[1]) and keys[-1][1] != last
        ]

    def uids(self) -> list[bytes]:
        """Return the uids of all threads that have or had a key."""
        found: list[bytes] = []
        after = 0
        while numbers := self.backend.thread_numbers(after, _PAGE):
            records = [self.backend.thread(no) for no in numbers]
            found += [record.uid for record in records if record is not None and record.space == _THREAD]
            after = numbers[-1]
        return found

    def status(self, is_thread: Callable[[bytes], bool]) -> KeyStatus:
        """Count the keys. `is_thread` tells whether the data has a thread with a uid."""
        self.refresh(now=True)
        store = self.store
        threads = older = destroyed = orphans = 0
        uids = self.uids()
        for start in range(0, len(uids), _PAGE):
            for uid, (_, _, (last, keys, *_), _) in self._records(uids[start : start + _PAGE]).items():
                threads += bool(keys)
                older += len(keys) > 1 or any(by != store.last for _, by, _ in keys)
                destroyed += last - len(keys)
                orphans += bool(keys) and not is_thread(uid)
        return KeyStatus(
            store.id.hex(),
            ", ".join(sorted(store.wrapped_by)),
            store.last,
            len(store.secrets),
            threads,
            older,
            destroyed,
            orphans,
        )

    # -- rows -------------------------------------------------------------------------------------------

    def _record(self, space: str, name: str) -> _Record | None:
        return self._newest(self.backend.find_thread(space, name))

    def _newest(self, record: ThreadRecord | None) -> _Record | None:
        rows = self.backend.rows(record.no, [(1, MAX_SEQ)], payload=True) if record else []
        return _as_record(record.no, rows) if record and rows else None

    def _records(self, uids: Collection[bytes]) -> dict[bytes, _Record]:
        records = self.backend.threads_named(_THREAD, [uid.hex() for uid in uids])
        rows = self.backend.rows_of([(record.no, 1, MAX_SEQ) for record in records.values()], payload=True)
        logs: dict[int, list[Row]] = {}
        for (no, _), row in rows.items():
            logs.setdefault(no, []).append(row)
        return {record.uid: _as_record(record.no, logs[record.no]) for record in records.values() if record.no in logs}

    def _append(
        self, rows: Iterable[tuple[int, Row]], threads: Iterable[NewThread], replaced: Iterable[_Record]
    ) -> bool:
        """Append rows, and remove the rows that they replace; return False if another process was first."""
        old = {record.no: [*record.older, record.seq] for record in replaced}
        hide = tuple((no, seq) for no, seqs in old.items() for seq in seqs)
        batch = Batch(threads=tuple(threads), rows=tuple(rows), hide=hide)
        if not batch.rows:
            return True
        try:
            self.backend.commit(batch)
        except Stale:
            return False
        for no, seqs in old.items():
            self.backend.remove_rows(no, seqs)
        return True

    def _change(self, change: Callable[[Any], Any]) -> None:
        """Replace the record of the store."""
        while True:
            record = self._record(_STORE, _NAME)
            if record is None:
                raise Unavailable("the keyring has no record of a store", code="unavailable.keyring")
            if self._append([(record.no, _row(record.seq + 1, change(record.content)))], (), [record]):
                break
        self.refresh(now=True)

    def close(self) -> None:
        """Close the keyring, and forget all keys."""
        self.backend.close()
        self._threads = {}


def _wrapped(key: Key, store: bytes, number: int, secret: bytes) -> list[Any]:
    return [number, key.id, key.wrap(secret, _context(store, number))]


def _context(store: bytes, number: int) -> bytes:
    return b"backtrail sealed 1 " + store + number.to_bytes(2, "big")


def _row(seq: int, content: Any) -> Row:
    payload = ormsgpack.packb(content)
    numbers = (0, seq - 1, seq, 0, 0, 0, 0, seq, 0)
    return Row(seq, *numbers, _now(), 0, None, 0, len(payload), b"", os.urandom(16), b"", b"", payload, hidden=False)


def _as_record(no: int, rows: list[Row]) -> _Record:
    return _Record(no, rows[-1].seq, _content(rows[-1]), tuple(row.seq for row in rows[:-1]))


def _content(row: Row) -> Any:
    content: Any = None
    with suppress(ValueError):
        content = ormsgpack.unpackb(row.payload or b"")
    try:
        is_sound = _is_store(content) if type(content) is dict else _is_thread(*content)
    except (TypeError, ValueError, KeyError):
        is_sound = False
    if not is_sound:
        raise Corrupt("a row of the keyring is damaged: put a copy of the keyring back", code="corrupt.key")
    return content


def _is_store(content: dict[str, Any]) -> bool:
    """Tell whether the record of a store has its shape. Only the wrapped keys in it authenticate."""
    store_id, last = content["id"], content["last"]
    numbers = [number for number, _, _ in content["keys"]]
    kinds = [(type(number), type(key_id), type(wrapped)) for number, key_id, wrapped in content["keys"]]
    return type(store_id) is bytes and set(kinds) == {(int, str, bytes)} and last == max(numbers) and 0 < last <= _MOST


def _is_thread(last: Any, keys: Any, erasure: Any = (0, 0, 0, False)) -> bool:
    """Tell whether the record of a thread has its shape."""
    kinds = {(type(number), type(by), type(wrapped)) for number, by, wrapped in keys}
    is_erasure = [type(each) for each in erasure] == [int, int, int, bool]
    return kinds <= {(int, int, bytes)} and is_erasure and max([0, *(key[0] for key in keys)]) <= last <= _MOST


def _now() -> int:
    return time.time_ns() // 1000


def require_same(keys: StoreKeys, marked: bytes) -> None:
    """Raise `Invalid` if the keyring belongs to another store: `marked` is the id in the data of this store."""
    if keys.id != marked:
        raise Invalid(
            f"this keyring belongs to store {keys.id.hex()}, not to {marked.hex()}: pass the keyring of this store "
            "in keyring=",
            code="invalid.keyring",
        )
