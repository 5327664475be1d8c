"""Sealed bytes: rows, chunks and index texts, and the tokens that stand for words.

Rows and texts are sealed by AES-256-GCM-SIV, which stays safe if a nonce repeats. So their nonces are neither stored
nor random: a nonce is the place of the bytes, and bytes that were moved to another place do not authenticate.

- **Rows.** Each thread has a random key. `root`, `check` and `extra` are sealed together, with the plain columns as
  associated data, and with a hash of the thread's record: its id, agent, time and origin. The newest row of a thread
  says what its record must be. `payload` is sealed alone. The sealed columns are in `root` if the row is a checkpoint,
  else in `extra`: so the backend below still sees which rows are checkpoints.
- **Chunks.** The key of a chunk is a hash of the store's key and the chunk's digest. Digests are stored nowhere but in
  sealed rows and chunks. So only a reader of a row can read the chunks that the row refers to. When the keys of all
  these threads are destroyed, nothing leads to the chunk any more. Threads share equal chunks
  as in a plain store. The address is another hash of the digest. Chunks are large, and sealed by AES-256-GCM, which is
  faster; their nonce is a keyed hash of the bytes, so no two texts share one. A check value lets `verify` test a chunk
  to which no row refers.
- **Index.** Each word becomes a token, a short keyed hash. Texts are sealed by the key of their thread.

Sealed bytes begin with the format and the generation of the key. Bytes that do not authenticate, plain bytes among
them, become a row whose checksum is wrong, or a chunk whose digest is wrong: the engine treats them as damage.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack
from blake3 import blake3

from backtrail.backends.port import ERASED, NewThread, Row, ThreadRecord, new_tuple
from backtrail.sealed.keys import NONCE_BYTES, aead, decrypted, fast_aead

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = 1
BINDING: Final = 2
"""The format of the sealed columns of rows. Format 1, which has no hash of the thread's record, is still read."""
TAG: Final = 16
HEADER: Final = 2
ROW_OVERHEAD: Final = HEADER + TAG
"""The bytes that sealing adds to a payload."""
BOUND: Final = 8
"""The bytes of the hash of a thread's record in each of its rows."""
_CHECK: Final = 8
CHUNK_OVERHEAD: Final = HEADER + NONCE_BYTES + TAG + _CHECK
"""The bytes that sealing adds to a chunk."""
DAMAGED: Final = b"\xff"
"""Stands for bytes that do not authenticate: no codec has this number, so the engine finds the damage."""
_BINDING: Final = bytes((BINDING,))
_NO_ROOT: Final = bytes(32)
_META: Final = {1: b"meta", BINDING: b"bind"}
"""The end of the nonce of a row's sealed columns, by their format."""
_DATA: Final = b"data"
_TEXT: Final = b"text" + bytes(8)
_LABEL: Final = Row._fields.index("label")
_ROOT: Final = Row._fields.index("root")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"


def _derived(secret: bytes, purpose: str) -> bytes:
    return blake3(secret, derive_key_context=f"backtrail sealed 1 {purpose}").digest()


def _bound(row: Row) -> bytes:
    """Return the plain columns of a row, except `hidden`, as associated data."""
    label = row.label
    columns = row[:_ROOT] if label is None else (*row[:_LABEL], label.encode("utf-8", "surrogatepass"), *row[13:_ROOT])
    return ormsgpack.packb((*columns, row.op_id))


def bound_of(record: ThreadRecord | NewThread) -> bytes:
    """Return the hash of a thread's record that its rows have. Numbers and uids are bound by the key."""
    fields = [_bin(record.space), _bin(record.name), _bin(record.agent), record.created_at, _bin(record.origin)]
    return blake3(ormsgpack.packb(fields)).digest(length=BOUND)


def _bin(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


class Generation(NamedTuple):
    """One key of a thread."""

    header: bytes
    binding: bytes
    """The header of the sealed columns of rows."""
    cipher: Any


class ThreadCipher:
    """Seals and opens the rows and texts of one thread. New bytes get the newest generation of its key."""

    __slots__ = ("_current", "_generations", "last")

    def __init__(self, secrets: Mapping[int, bytes], last: int) -> None:
        self._generations = {
            number: Generation(bytes((FORMAT, number)), bytes((BINDING, number)), aead(secret))
            for number, secret in secrets.items()
        }
        self._current = self._generations[max(secrets)] if secrets else None
        self.last = last
        """The number of the newest generation that there ever was."""

    @property
    def can_seal(self) -> bool:
        """Whether the thread has a key."""
        return self._current is not None

    def is_behind(self, sealed: bytes) -> bool:
        """Tell whether sealed bytes have a newer key than this object knows: another process has made one."""
        return type(sealed) is bytes and _is_sealed(sealed) and sealed[1] > self.last

    def is_current(self, row: Row) -> bool:
        """Tell whether a stored row is sealed with the newest key; its payload must have been read."""
        header, binding, _ = self._current or (None, None, None)
        return (row.root or row.extra)[:HEADER] == binding and (row.payload or b"")[:HEADER] == header

    def seal(self, row: Row, bound: bytes) -> Row:
        """Return a row with its contents sealed. `bound` is the hash of its thread's record."""
        current = self._current
        if current is None:
            raise LookupError("the thread has no key")
        header, binding, cipher = current
        place = row.seq.to_bytes(8, "big")
        root, check = row.root, row.check
        meta = bytes((len(root), len(check))) + bound + root + check + row.extra
        blob = binding + cipher.encrypt(place + _META[BINDING], meta, _bound(row))
        payload = row.payload
        sealed = payload if payload is None else header + cipher.encrypt(place + _DATA, payload, row.op_id)
        columns = (blob, row.op_id, b"", b"") if root else (b"", row.op_id, blob, b"")
        return new_tuple(Row, (*row[:_ROOT], *columns, sealed, row.hidden))

    def open(self, row: Row) -> tuple[Row, bytes]:
        """Return a row with its contents, and the hash of the record that its thread had.

        If they do not authenticate, the row has a wrong checksum, and the hash is empty.
        """
        payload = row.payload
        try:
            place = row.seq.to_bytes(8, "big")
            if payload is not None:
                opened = self._opened(place + _DATA, payload, row.op_id)
                payload = DAMAGED if opened is None else opened
            blob = row.root or row.extra
            version = BINDING if blob[:1] == _BINDING else FORMAT
            both = row.root and row.extra
            meta = None if both else self._opened(place + _META[version], blob, _bound(row), version)
            if meta is not None and bool(meta[0]) == bool(row.root):
                begin = 2 + BOUND if version == BINDING else 2
                first, second = begin + meta[0], begin + meta[0] + meta[1]
                columns = (meta[begin:first], row.op_id, meta[second:], meta[first:second])
                return new_tuple(Row, (*row[:_ROOT], *columns, payload, row.hidden)), meta[2:begin]
            check = ERASED if self.is_erased(blob) else b""
        except (TypeError, ValueError, AttributeError, OverflowError):  # a damaged column may have another type
            payload, check = (None if payload is None else DAMAGED), b""
        columns = (_NO_ROOT if row.root else b"", row.op_id, b"", check)
        return new_tuple(Row, (*row[:_ROOT], *columns, payload, row.hidden)), b""

    def seal_text(self, text: bytes, bound: bytes) -> bytes:
        """Return the sealed text of an index entry, bound to the other fields of the entry."""
        current = self._current
        if current is None:
            raise LookupError("the thread has no key")
        return current.header + bytes(current.cipher.encrypt(_TEXT, text, bound))

    def open_text(self, sealed: bytes, bound: bytes) -> bytes | None:
        """Return the text of an index entry; None if it does not authenticate."""
        return self._opened(_TEXT, sealed, bound)

    def is_erased(self, sealed: bytes) -> bool:
        """Tell whether the key that sealed the bytes was destroyed."""
        return _is_sealed(sealed) and 0 < sealed[1] <= self.last and sealed[1] not in self._generations

    def _opened(self, nonce: bytes, sealed: bytes, bound: bytes, version: int = FORMAT) -> bytes | None:
        if not _is_sealed(sealed) or sealed[0] != version or (generation := self._generations.get(sealed[1])) is None:
            return None
        return decrypted(generation.cipher, nonce, sealed[HEADER:], bound)


def _is_sealed(data: bytes) -> bool:
    """Tell whether bytes look like sealed ones of a row."""
    return len(data) >= ROW_OVERHEAD and data[0] in (FORMAT, BINDING)


class StoreCipher:
    """Seals and opens chunks, and makes tokens of words, with one generation of a store's key."""

    def __init__(self, number: int, secret: bytes) -> None:
        self._header = bytes((FORMAT, number))
        self._address = _derived(secret, "address of a chunk")
        self._chunk = _derived(secret, "key of a chunk")
        self._nonce = _derived(secret, "nonce of a chunk")
        self._check = _derived(secret, "check of a chunk")
        words = _derived(secret, "token of a word")

        @lru_cache(maxsize=50_000)
        def token(word: str) -> str:
            number = int.from_bytes(blake3(word.encode("utf-8", "surrogatepass"), key=words).digest(length=5), "big")
            return "".join(_LETTERS[number >> shift & 31] for shift in range(0, 40, 5))

        self.token = token
        """Return the token that stands for a word in the index: 40 bits of a keyed hash, as 8 letters and digits."""
        self.wrapping = aead(_derived(secret, "key that wraps keys"))
        """The cipher that wraps the keys of threads."""

    def address(self, digest: bytes) -> bytes:
        """Return the address of a chunk."""
        return blake3(digest, key=self._address).digest()

    def seal(self, digest: bytes, address: bytes, stored: bytes) -> bytes:
        """Return the sealed bytes of a chunk."""
        nonce = blake3(stored, key=self._nonce).digest(length=NONCE_BYTES)
        cipher = fast_aead(blake3(digest, key=self._chunk).digest())
        body: bytes = self._header + nonce + cipher.encrypt(nonce, stored, address)
        return body + self._check_of(address, body)

    def open(self, digest: bytes, address: bytes, sealed: bytes) -> bytes:
        """Return the bytes of a chunk; if they do not authenticate, bytes that no digest matches."""
        if sealed[:HEADER] != self._header or len(sealed) < CHUNK_OVERHEAD:
            return DAMAGED
        cipher = fast_aead(blake3(digest, key=self._chunk).digest())
        first = HEADER + NONCE_BYTES
        opened = decrypted(cipher, sealed[HEADER:first], sealed[first:-_CHECK], address)
        return DAMAGED if opened is None else opened

    def is_sound(self, address: bytes, sealed: bytes) -> bool:
        """Tell whether sealed bytes of a chunk are unchanged. This does not need the digest of the chunk."""
        return sealed[:HEADER] == self._header and sealed[-_CHECK:] == self._check_of(address, sealed[:-_CHECK])

    def _check_of(self, address: bytes, body: bytes) -> bytes:
        return blake3(address + body, key=self._check).digest(length=_CHECK)
