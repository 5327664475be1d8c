"""The mark that `changed_since` returns to its caller."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FeedCursor:
    """The state of the threads at the last call of `changed_since`."""

    last: int
    """The highest thread number."""
    newest: dict[int, int] = field(default_factory=dict)
    """The seq of the newest row of each thread that was read."""
    some: object = None
    """The backend's version of the store when it last read some threads."""
    whole: object = None
    """The backend's version of the store when it last read all threads; None if it never did."""
