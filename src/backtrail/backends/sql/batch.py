"""Functions on batches that do not depend on the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.backends.columns import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backtrail.backends.port import NewThread


def number_of(thread: int, created: Sequence[int]) -> int:
    """Return the number of a thread in a batch: -1, -2 ... stand for the threads that the batch created."""
    return created[-thread - 1] if -len(created) <= thread < 0 else thread


def thread_columns(new: NewThread) -> tuple[Any, ...]:
    """Return the columns of a new thread, in the order of its fields."""
    return (new.space, encoded(new.name), new.uid, encoded(new.agent), new.created_at, encoded(new.origin))
