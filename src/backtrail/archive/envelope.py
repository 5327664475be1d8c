"""The file of an encrypted export: the bytes of a plain one, in frames. docs/format.md has every byte.

The file has a random key of its own, which is wrapped by the caller's key or by a passphrase. Each frame is sealed by
AES-256-GCM. Its nonce is its number and whether it is the last one, and the whole head of the file is associated data.
So a frame that was changed, moved, left out or taken from another file does not authenticate, and neither does the end
of a file that was cut.

Always true:
- nothing of a frame is returned before it has authenticated;
- an open file has authenticated its last frame: it is not truncated;
- memory holds one frame.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, NoReturn

import ormsgpack
from blake3 import blake3

from backtrail.errors import Corrupt, Invalid, Unavailable
from backtrail.sealed.keys import NONCE_BYTES, SECRET_BYTES, Key, check_key, decrypted, fast_aead, secret_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINE: Final = b"backtrail sealed export 1\n"
FRAME: Final = 1 << 16
"""The plain bytes of a frame; the last one has fewer, or as many."""
TAG: Final = 16
SCRYPT_COST: Final = 17
"""The cost of a passphrase: scrypt with N = 2^17, r = 8, p = 1, which takes 128 MiB of memory."""
_MOST_COST: Final = 20
_MOST_MEMORY: Final = 2_000_000_000
_SALT_BYTES: Final = 16
_LENGTH_BYTES: Final = 2
_CHECK_BYTES: Final = 32
_KEY: Final = "key"
_SCRYPT: Final = "scrypt"


class Passphrase:
    """A passphrase that seals files. It is in no repr."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        given: object = text
        if not isinstance(given, str) or not given:
            raise Invalid("a passphrase must be a str, and not empty", code="invalid.passphrase")
        self._text = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Passphrase:
        """Return the passphrase in a file: its first line. A file that other users may read or write is refused."""
        return cls(secret_text(path, "passphrase").partition("\n")[0].rstrip("\r"))

    def key(self, salt: bytes, cost: int) -> Key:
        """Return the key that scrypt makes of the passphrase."""
        return Key(
            hashlib.scrypt(self._text, salt=salt, n=1 << cost, r=8, p=1, maxmem=_MOST_MEMORY, dklen=SECRET_BYTES)
        )

    def __repr__(self) -> str:
        return "Passphrase()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a passphrase cannot be pickled or copied")


Secret = Key | Passphrase


def secret_of(key: Any, passphrase: Any) -> Secret | None:
    """Return what seals or opens a file, from the arguments of a caller; None for a plain file."""
    if key is not None and passphrase is not None:
        raise Invalid("pass key= or passphrase=, not both", code="invalid.argument")
    if passphrase is not None:
        return passphrase if isinstance(passphrase, Passphrase) else Passphrase(passphrase)
    return None if key is None else check_key(key)


class Head(NamedTuple):
    """The beginning of an encrypted export."""

    id: bytes
    """The id of the export."""
    slot: list[Any]
    """How the file's key is wrapped: ["key", id, wrapped], or ["scrypt", cost, salt, wrapped]."""
    check: bytes
    """The hash of the head, which every frame is bound to."""
    size: int

    @property
    def has_passphrase(self) -> bool:
        """Whether a passphrase opens the file, and not a key."""
        return bool(self.slot[0] == _SCRYPT)


# -- writing --------------------------------------------------------------------------------------------


@contextmanager
def sealing(file: BinaryIO, secret: Secret, export_id: bytes) -> Iterator[FrameWriter]:
    """Yield a file whose bytes are sealed and written to another one. If the block raises, the file has no end."""
    file_key = os.urandom(SECRET_BYTES)
    if isinstance(secret, Passphrase):
        salt = os.urandom(_SALT_BYTES)
        wrapped = secret.key(salt, SCRYPT_COST).wrap(file_key, _context(export_id))
        slot: list[Any] = [_SCRYPT, SCRYPT_COST, salt, wrapped]
    else:
        slot = [_KEY, secret.id, secret.wrap(file_key, _context(export_id))]
    packed = ormsgpack.packb([export_id, slot])
    head = LINE + len(packed).to_bytes(_LENGTH_BYTES, "big") + packed
    check = blake3(head).digest()
    file.write(head + check)
    writer = FrameWriter(file, _cipher(file_key), check)
    yield writer
    writer.end()


class FrameWriter:
    """Writes the frames of a file."""

    def __init__(self, file: BinaryIO, cipher: Any, check: bytes) -> None:
        self._file = file
        self._cipher = cipher
        self._check = check
        self._number = 0
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        """Add bytes to the file."""
        self._waiting += data
        while len(self._waiting) > FRAME:  # the last frame is never empty
            self._seal(bytes(self._waiting[:FRAME]), is_last=False)
            del self._waiting[:FRAME]

    def end(self) -> None:
        """Write the last frame."""
        self._seal(bytes(self._waiting), is_last=True)

    def _seal(self, data: bytes, *, is_last: bool) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), data, self._check))
        self._number += 1


# -- reading --------------------------------------------------------------------------------------------


def read_head(file: BinaryIO, path: Path) -> Head | None:
    """Read the head of an export; None if the export is not encrypted."""
    line = file.read(len(LINE))
    if line != LINE:
        if line.startswith(LINE[:-2]) and line[len(LINE) - 2 : -1].isdigit():
            raise Invalid(
                f"{path}: is an encrypted export of a newer version of backtrail: upgrade backtrail",
                code="invalid.format",
            )
        if line and LINE.startswith(line):
            raise damaged(path, "it is truncated")
        file.seek(0)
        return None
    length = file.read(_LENGTH_BYTES)
    packed = file.read(int.from_bytes(length, "big"))
    check = file.read(_CHECK_BYTES)
    fields = _head_fields(packed) if blake3(line + length + packed).digest() == check else None
    if fields is None:
        raise damaged(path, "its first bytes are truncated or damaged")
    return Head(*fields, check, len(line) + len(length) + len(packed) + len(check))


def _head_fields(packed: bytes) -> tuple[bytes, list[Any]] | None:
    """Return the id and the slot of a head; None if no writer could have written them. The hash can be forged."""
    try:
        export_id, (kind, *rest) = ormsgpack.unpackb(packed)
        types = [type(each) for each in rest]
        is_scrypt = kind == _SCRYPT and types == [int, bytes, bytes] and 0 < rest[0] <= _MOST_COST
        known = is_scrypt or (kind == _KEY and types == [str, bytes])
        return (export_id, [kind, *rest]) if known and type(export_id) is bytes else None
    except (ValueError, TypeError):
        return None


class FrameReader:
    """The plain bytes of an encrypted export, to seek and read in."""

    def __init__(self, file: BinaryIO, path: Path, head: Head, secret: Secret | None) -> None:
        self._file = file
        self._path = path
        self._head = head
        self._at = 0
        self._kept = (-1, b"")
        self._cipher = _cipher(_file_key(head, secret, path))
        sealed = path.stat().st_size - head.size
        self._frames = -(-sealed // (FRAME + TAG))
        self.size = sealed - self._frames * TAG
        """How many plain bytes there are."""
        if self.size <= 0:
            raise damaged(path, "it is truncated")
        self._frame(self._frames - 1)

    def seek(self, at: int) -> None:
        """Go to an offset."""
        self._at = at

    def read(self, count: int) -> bytes:
        """Return so many bytes, or those up to the end."""
        parts = []
        while count > 0 and self._at < self.size:
            number, skip = divmod(self._at, FRAME)
            part = self._frame(number)[skip : skip + count]
            parts.append(part)
            count -= len(part)
            self._at += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _frame(self, number: int) -> bytes:
        if self._kept[0] != number:
            start = self._head.size + number * (FRAME + TAG)
            self._file.seek(start)
            self._kept = (number, self._opened(number, self._file.read(FRAME + TAG), start))
        return self._kept[1]

    def _opened(self, number: int, sealed: bytes, start: int) -> bytes:
        is_last = number == self._frames - 1
        opened = decrypted(self._cipher, _nonce(number, is_last=is_last), sealed, self._head.check)
        if opened is not None:
            return opened
        other = decrypted(self._cipher, _nonce(number, is_last=not is_last), sealed, self._head.check)
        if is_last and other is not None:
            raise damaged(self._path, "it is truncated")
        raise damaged(self._path, f"it is damaged between byte {start} and byte {start + len(sealed)}")


def _file_key(head: Head, secret: Secret | None, path: Path) -> bytes:
    """Return the key of a file, unwrapped by the caller's key or passphrase."""
    *_, wrapped = head.slot
    if secret is None or isinstance(secret, Passphrase) != head.has_passphrase:
        wanted = "a passphrase: pass passphrase=" if head.has_passphrase else f"key {head.slot[1]!r}: pass key="
        raise Unavailable(f"{path}: this export is encrypted by {wanted}", code="unavailable.encrypted")
    if isinstance(secret, Passphrase):
        try:
            return secret.key(head.slot[2], head.slot[1]).unwrap(wrapped, _context(head.id))
        except Unavailable:
            raise Unavailable(f"{path}: this passphrase does not open the export", code="unavailable.key") from None
    keys = {each.id: each for each in (*secret.previous, secret)}
    if head.slot[1] not in keys:
        raise Unavailable(
            f"{path}: this export is encrypted by key {head.slot[1]!r}, but the given key is {secret.id!r}",
            code="unavailable.key",
        )
    file_key = keys[head.slot[1]].unwrap(wrapped, _context(head.id))
    if len(file_key) != SECRET_BYTES:
        raise Unavailable(f"{path}: key {head.slot[1]!r} did not unwrap the key of the export", code="unavailable.key")
    return file_key


def damaged(path: Path, why: str) -> Corrupt:
    """Return the error for a damaged export."""
    return Corrupt(f"{path}: {why}; nothing was read from it: make the export again", code="corrupt.export")


def _context(export_id: bytes) -> bytes:
    return b"backtrail sealed export 1 " + export_id


def _cipher(file_key: bytes) -> Any:
    return fast_aead(blake3(file_key, derive_key_context="backtrail sealed 1 frames of an export").digest())


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(NONCE_BYTES - 1, "big") + bytes((is_last,))
