"""Writes that are retried after a conflict, or that join the caller's transaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from backtrail.errors import Conflict, Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.store import Store

T = TypeVar("T")
_TRIES: Final = 20


def with_retries(work: Callable[[], T]) -> T:
    """Call `work` and return its result; retry after a conflict with another writer."""
    for attempt in range(_TRIES - 1):
        try:
            return work()
        except Conflict as error:
            if error.code == "conflict.agent":  # a retry cannot help: another agent owns the thread
                raise
            time.sleep(0.001 * attempt)
    return work()


def in_transaction(store: Store, work: Callable[[], T]) -> T:
    """Call `work` in a transaction and return its result: in a new one, or in the caller's open transaction."""
    try:
        with store.transaction():
            return work()
    except Invalid as error:
        if error.code != "invalid.transaction":
            raise
        return work()
