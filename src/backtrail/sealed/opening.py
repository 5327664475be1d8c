"""Open an encrypted store: its data, its keyring, and the mark that says that they belong together.

A new store gets its keyring first, then its mark. So a crash in between leaves an empty store, which the next `open`
completes. Nothing is written if the key, the keyring or the store is the wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backtrail.backends.port import SEALED, Batch, Copyable
from backtrail.errors import Invalid, Unavailable
from backtrail.sealed.backend import CopyableSealedBackend, SealedBackend
from backtrail.sealed.keyring import Keyring, require_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import Backend
    from backtrail.sealed.keyring import StoreKeys
    from backtrail.sealed.keys import Key


def sealed(below: Backend, key: Key, open_keyring: Callable[[bool], Backend]) -> SealedBackend:
    """Return the sealed backend on top of another one.

    `open_keyring` opens the backend of the keyring; its argument says whether that must exist.
    """
    mark = below.chunks([SEALED]).get(SEALED)
    if mark is None and (below.read_only or below.thread_numbers(0, 1)):
        raise Invalid(
            "this store is not encrypted: open it without key=, or copy it into a new encrypted store "
            "(backtrail copy, or backtrail.copy)",
            code="invalid.not_encrypted",
        )
    backend = open_keyring(mark is not None)
    try:
        keyring = Keyring(backend, key)
        keys = keyring.open() or _created(keyring, mark)
        if mark is None:
            below.commit(Batch(chunks=((SEALED, keys.id),)))
            mark = below.chunks([SEALED])[SEALED]
        require_same(keys, mark)
    except BaseException:
        backend.close()
        raise
    kind = CopyableSealedBackend if isinstance(below, Copyable) else SealedBackend
    return kind(below, keyring)


def _created(keyring: Keyring, mark: bytes | None) -> StoreKeys:
    if mark is not None:
        raise missing_keyring()
    return keyring.create()


def missing_keyring() -> Unavailable:
    """Return the error for an encrypted store whose keyring is not there."""
    return Unavailable(
        "the keyring of this encrypted store is missing: put it back beside the store, or name it in keyring=; "
        "without it the store cannot be read",
        code="unavailable.keyring",
    )
