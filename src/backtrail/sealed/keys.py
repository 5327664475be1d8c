"""`Key`: the caller's key, which wraps the keys of a store.

A key comes from a file, from the environment, from bytes, or from a pair of functions that call a key management
service. The secret is in no repr and in no error, and a key cannot be pickled.
"""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from blake3 import blake3

from backtrail.errors import Error, Invalid, NotFound, Unavailable
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 12
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _Library(NamedTuple):
    """What is used of the package `cryptography`."""

    siv: Any
    gcm: Any
    refusals: tuple[type[Exception], ...]
    """What decrypting raises: the bytes do not authenticate, or are too short."""


@functools.cache
def _library() -> _Library:
    try:
        with loading:
            from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm  # noqa: PLC0415 - only these stores
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            "encrypted stores need cryptography: pip install 'backtrail[encryption]'", code="unavailable.extra"
        ) from error
    try:
        AESGCMSIV(bytes(SECRET_BYTES))
    except UnsupportedAlgorithm as error:
        raise Unavailable(
            "encrypted stores need AES-GCM-SIV, which this OpenSSL lacks: install cryptography from a wheel",
            code="unavailable.extra",
        ) from error
    return _Library(AESGCMSIV, AESGCM, (InvalidTag, ValueError))


def aead(secret: bytes) -> Any:
    """Return AES-256-GCM-SIV with a key; `Unavailable` if the package `cryptography` is missing or too old."""
    return _library().siv(secret)


def fast_aead(secret: bytes) -> Any:
    """Return AES-256-GCM with a key: 20 times as fast, but no nonce may be used for two texts."""
    return _library().gcm(secret)


class Key:
    """The key of an encrypted store: 32 secret bytes, or the functions of a key management service.

    `previous` are older keys. A store that is still wrapped by one of them can be opened, and `store.keys.rotate()`
    wraps it by this key.
    """

    __slots__ = ("_secret", "_unwrap", "_wrap", "id", "previous")

    def __init__(self, secret: bytes, *, previous: Iterable[Key] = ()) -> None:
        given: object = secret
        if not isinstance(given, bytes) or len(given) != SECRET_BYTES:
            raise Invalid(f"a key has {SECRET_BYTES} bytes; Key.generate() makes one", code="invalid.key")
        self._secret: bytes | None = secret
        self._wrap: Callable[[bytes], bytes] | None = None
        self._unwrap: Callable[[bytes], bytes] | None = None
        self.id = "key-" + blake3(secret, derive_key_context="backtrail sealed 1 id of a key").hexdigest(length=8)
        """Names the key in stores and errors. It tells nothing about the secret."""
        self.previous = _keys(previous)

    @classmethod
    def generate(cls) -> Self:
        """Return a new random key."""
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, previous: Iterable[Key] = ()) -> Self:
        """Return the key in a file, as `save` and `backtrail keys init` write it: 64 hexadecimal digits.

        A file that other users may read or write is refused.
        """
        return cls(_parsed(secret_text(path, "key"), str(Path(path))), previous=previous)

    @classmethod
    def from_env(cls, name: str = "BACKTRAIL_KEY", *, previous: Iterable[Key] = ()) -> Self:
        """Return the key in an environment variable: 64 hexadecimal digits."""
        text = os.environ.get(name)
        if not text:
            raise NotFound(f"the environment variable {name} is not set", code="not_found.key")
        return cls(_parsed(text, name), previous=previous)

    @classmethod
    def from_callbacks(
        cls,
        wrap: Callable[[bytes], bytes],
        unwrap: Callable[[bytes], bytes],
        id: str,  # noqa: A002 - what key management services call it
        *,
        previous: Iterable[Key] = (),
    ) -> Self:
        """Return a key that a key management service keeps.

        `wrap` encrypts 32 bytes, `unwrap` decrypts what `wrap` returned; `id` names the key. A store calls `unwrap`
        once when it is opened, and `wrap` when it is created and when its keys rotate.
        """
        name: object = id
        if not all(map(callable, (wrap, unwrap))) or not isinstance(name, str) or not name:
            raise Invalid("from_callbacks takes two functions and the id of the key", code="invalid.key")
        made = cls.__new__(cls)
        made._secret, made._wrap, made._unwrap = None, wrap, unwrap  # noqa: SLF001 - of this class
        made.id, made.previous = id, _keys(previous)
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only this user may read."""
        if self._secret is None:
            raise Invalid("a key of a key management service cannot be saved", code="invalid.key")
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise Invalid(
                f"{os.fspath(path)}: exists already; a key is never replaced", code="invalid.key_file"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"{os.fspath(path)}: cannot be written ({error.strerror})", code="unavailable.key"
            ) from None
        with os.fdopen(fd, "w") as file:
            file.write(self._secret.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        """Return a secret, encrypted by this key; `context` must be the same when it is unwrapped."""
        if self._secret is not None:
            nonce = os.urandom(NONCE_BYTES)
            return nonce + bytes(aead(self._secret).encrypt(nonce, secret, context))
        return self._called("wrap", self._wrap, secret)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a wrapped secret; `Unavailable` if this key did not wrap it."""
        if self._secret is None:
            return self._called("unwrap", self._unwrap, wrapped)
        secret = decrypted(aead(self._secret), wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)
        if secret is None:
            raise Unavailable(
                f"{self.id} cannot unwrap a key: the keyring or the export is damaged", code="unavailable.key"
            )
        return secret

    def _called(self, what: str, function: Callable[[bytes], bytes] | None, given: bytes) -> bytes:
        try:
            answer = function(given) if function is not None else None
        except Error:
            raise
        except Exception as error:
            raise Unavailable(
                f"{what} of key {self.id!r} failed: {type(error).__name__}", code="unavailable.key"
            ) from error
        if not isinstance(answer, bytes):
            raise Unavailable(
                f"{what} of key {self.id!r} must return bytes, not {type(answer).__name__}", code="unavailable.key"
            )
        return answer

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key cannot be pickled or copied: pass the path of its file instead")


def secret_text(path: str | os.PathLike[str], what: str) -> str:
    """Return the text of a file with a secret. If other users may read or write the file, it is refused."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096)
    except FileNotFoundError:
        raise NotFound(f"{place}: there is no such {what} file", code="not_found.key") from None
    except OSError as error:
        raise Unavailable(
            f"{place}: this {what} file cannot be read ({error.strerror})", code="unavailable.key"
        ) from None
    if os.name == "posix" and mode & _OTHERS:
        raise Invalid(
            f"{place}: other users may use this {what} file: run `chmod 600 {place}`, and consider the {what} known",
            code="invalid.key_file",
        )
    return text.decode("utf-8", "replace")


def decrypted(cipher: Any, nonce: bytes, sealed: bytes, context: bytes | None) -> bytes | None:
    """Return what a cipher sealed; None if the bytes do not authenticate."""
    try:
        opened: bytes = cipher.decrypt(nonce, sealed, context)
    except _library().refusals:
        return None
    return opened


def check_key(key: object) -> Key:
    """Return a caller's key, or raise `Invalid`."""
    if not isinstance(key, Key):
        raise Invalid(
            f"key= takes a backtrail.Key, not {type(key).__name__}: Key.from_file(path), Key.from_env() or Key(bytes)",
            code="invalid.key",
        )
    return key


def _keys(keys: Iterable[Key]) -> tuple[Key, ...]:
    listed = tuple(keys)
    for each in listed:
        check_key(each)
    return listed


def _parsed(text: str, where: str) -> bytes:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise Invalid(f"{where}: is not a key, which has {2 * SECRET_BYTES} hexadecimal digits", code="invalid.key")
    return secret
