# Made from src/backtrail/sealed/rotation.py by tools/generate_aio.py: change it there, then `make aio`.
"""The keys of an encrypted store in the async mirror."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from backtrail.aio.blocks import called

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from backtrail.aio.executor import Executor
    from backtrail.models import KeyReport, KeyStatus
    from backtrail.sealed import rotation as sync
    from backtrail.sealed.keys import Key


class Keys:
    """The keys of an encrypted store: `store.keys`."""

    def __init__(self, executor: Executor, keys: sync.Keys) -> None:
        self._executor = executor
        self._sync = keys

    @called
    async def status(self) -> KeyStatus:
        """Return which key wraps the store's keys, and how many keys there are."""
        return await self._executor.apart(self._sync.status)

    @called
    async def backup(self, path: str | os.PathLike[str]) -> int:
        """Copy the keyring to a new store, while others write; return its size in bytes.

        A keyring in files becomes a new directory; any other becomes an SQLite file. `keyring=` of `open` takes it.
        """
        return await self._executor.apart(self._sync.backup, path)

    async def rotate(
        self,
        key: Key | None = None,
        *,
        data: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> KeyReport:
        """Replace the caller's key, the keys of the data, or both.

        `key` is the new key of the caller: it opens the store from now on, and the data does not change. Without `key`
        and `data`, the key that opened the store replaces the keys in its `previous`. With `data`, the store and all
        threads get new keys, backtrail seals all data again, and it destroys the old keys. Other processes can write
        meanwhile. If a rotation is interrupted, the next call continues it.
        """
        work = partial(self._sync.rotate, key, data=data)
        return await self._executor.watched(lambda tell: work(progress=tell), progress)
