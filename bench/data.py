"""The messages that everything is measured with: about 1 KB each, the same ones in every run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, Any]

TEXT = (
    "the plan for this week is to compare the two offers we have and then decide which hotel fits the budget while "
    "keeping enough time for the museum and a walk along the river before dinner so please check again whether trains "
    "leave early enough on friday and tell me what a table for four would cost in that small place near the station"
)
WORDS = TEXT.split()


class Messages:
    """Makes chat messages; each is made once, so that nothing is stored less because it was there before."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._count = 0

    def one(self) -> Message:
        """Make a message."""
        self._count += 1
        text = " ".join(self._rng.choices(WORDS, k=260))[:960]
        return {"role": "user", "id": f"m{self._count}", "content": text}

    def many(self, count: int) -> list[Message]:
        """Make messages."""
        return [self.one() for _ in range(count)]

    def supply(self, count: int) -> Iterator[Message]:
        """Make messages now and give them later: making one takes as long as saving one."""
        return iter(self.many(count))


def noise(count: int) -> bytes:
    """Bytes that do not compress, the same ones for the same count."""
    return random.Random(count).randbytes(count)
