"""Async versions of `backtrail.copy` and `backtrail.restore_backup`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from backtrail.aio.executor import detached
from backtrail.aio.store import Store
from backtrail.archive import backup as backups
from backtrail.archive import copy as sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail import store
    from backtrail.models import CopyReport
    from backtrail.sealed.keys import Key

Place = Store | str | os.PathLike[str]


async def copy(
    src: Place,
    dst: Place,
    *,
    key: Key | None = None,
    to_key: Key | None = None,
    plain: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy a whole store into another one, and compare the root of every checkpoint; see `backtrail.copy`.

    `src` and `dst` are asynchronous stores, or URLs. `progress` is called in the event loop.
    """
    make = partial(sync.copy, _plain(src), _plain(dst), key=key, to_key=to_key, plain=plain)
    return await detached().watched(lambda tell: make(progress=tell), progress)


async def restore_backup(
    backup: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> str | None:
    """Replace a store by a backup; see `backtrail.restore_backup`. `progress` is called in the event loop."""
    return await detached().watched(lambda tell: backups.restore_backup(backup, store, progress=tell), progress)


def _plain(given: Place) -> store.Store | str | os.PathLike[str]:
    return given._sync if isinstance(given, Store) else given  # noqa: SLF001 - the two are one
