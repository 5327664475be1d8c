"""What a write is to stand on, and trying until nobody else was first.

A write is prepared on how the thread is known to stand and committed on the condition that it still stands so. If
somebody else was first, the thread is read again and the write prepared anew.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from backtrail.backends.port import Stale
from backtrail.engine import log
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.engine.heads import Heads, Standing

T = TypeVar("T")

PATIENCE: Final = 60.0
"""Seconds for which a write that needs no expectation tries again while others are first."""
_AT_ONCE: Final = 2
"""How often a write is tried again without a pause."""

ANY: Final = -1
"""The expectation of a write that may land on whatever is there."""
NOTHING: Final = 0
"""The expectation that there is no head."""


class Key(NamedTuple):
    """Which thread is meant."""

    space: str
    name: str
    agent: str | None = None


class Expect(NamedTuple):
    """Which checkpoint a write is to stand on: the seq of the head, and its op_id where that is known.

    A seq alone may name another checkpoint than was meant: one that a dropped transaction had, and lost.
    """

    head: int
    op_id: bytes | None = None
    label: str | None = None
    """The head's label, if that is what is known of it."""


LABELLED: Final = -2
"""The expectation of a head that has a certain label."""
ANYTHING: Final = Expect(ANY)


class Unchanged(Exception):  # noqa: N818 - it is no error
    """What a proposal raises that has nothing to write, with how the thread stands."""

    def __init__(self, standing: Standing | None) -> None:
        super().__init__()
        self.standing = standing


def exists(key: Key, standing: Standing) -> Conflict:
    """Return the error of a write that wanted to be the first."""
    actual = log.checkpoint_id(standing.record.uid, standing.newest.head)
    return Conflict(f"there is a thread {key.name!r} already", code="conflict.exists", actual=actual)


def patiently(heads: Heads, key: Key, attempt: Callable[[Standing | None], T], known: Standing | None = None) -> T:
    """Try on what is known, then on what is there, until no other writer was first.

    What is known may be old. So whatever an attempt on it raises, which is how a function says that there is nothing to
    do, counts only if the thread still stands so: else the attempt is made again on what is there. Only that the store
    could not be reached is raised at once; of a write whose outcome is unknown, a second one might be a duplicate.
    """
    standing = known if known is not None else heads.standing(key.space, key.name)
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        try:
            return attempt(standing)
        except (CommitUnknown, Unavailable):
            raise
        except Stale:
            tries += 1
            if time.monotonic() > until:
                raise Unavailable(
                    f"thread {key.name!r} is written to without pause; gave up after {PATIENCE:.0f} s",
                    code="unavailable.contended",
                ) from None
            if tries > _AT_ONCE:
                time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - only to get out of step
            standing = heads.standing(key.space, key.name)
        except Exception as error:
            if known is None or standing is not known:
                raise
            standing = heads.standing(key.space, key.name)
            same = standing is not None and standing.newest.op_id == known.newest.op_id
            if same and not isinstance(error, Corrupt):  # what is damaged in memory may be sound in the store
                raise
