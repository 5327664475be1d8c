"""Time: actions taken in turns, so that whatever disturbs the machine disturbs all of them alike.

Only times of one loop are ever compared. Each action has run once before the loop begins. Each round has another order:
an action that always comes after a large one, which leaves the processor's caches cold, would seem to take up to twice
its time.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Action = Callable[[], Any]
LEAST = 3
"""An action that is over its budget at once is still taken that often."""


class Cost(NamedTuple):
    """Wall time and CPU time, of all threads of the process, in seconds."""

    wall: float
    cpu: float

    def over(self, other: Cost) -> Cost:
        """How many times the other this is."""
        return Cost(self.wall / other.wall, self.cpu / max(other.cpu, 1e-9))


@dataclass(frozen=True, slots=True)
class Times:
    """What an action took, each time."""

    taken: list[Cost] = field(default_factory=list)

    @property
    def mean(self) -> Cost:
        """The mean, where rare and costly saves count: seals, snapshots, checkpoints of the WAL."""
        return Cost(statistics.fmean(c.wall for c in self.taken), statistics.fmean(c.cpu for c in self.taken))

    @property
    def median(self) -> Cost:
        """The median, where every time is alike."""
        return Cost(statistics.median(c.wall for c in self.taken), statistics.median(c.cpu for c in self.taken))


def timed(action: Action) -> Cost:
    """Return what an action takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def take_turns(
    actions: dict[str, Action],
    rounds: int,
    budget: float,
    *,
    always: frozenset[str] = frozenset(),
    in_order: bool = False,
) -> dict[str, Times]:
    """Take the actions in turns and return their times; `in_order`: one action prepares the next.

    An action that would exceed its budget skips some rounds, evenly, unless it is in `always`. The garbage collector
    ignores objects from before the loop, because their number depends on the benchmark.
    """
    shares = {}
    for name, action in actions.items():
        taken = timed(action).wall
        shares[name] = rounds if name in always else min(rounds, max(LEAST, int(budget / taken)))
    times = {name: Times() for name in actions}
    order, rng = list(actions.items()), random.Random(1)
    gc.collect()
    gc.freeze()
    try:
        for at in range(rounds):
            if not in_order:
                rng.shuffle(order)
            for name, action in order:
                share = shares[name]
                if (at + 1) * share // rounds > at * share // rounds:
                    times[name].taken.append(timed(action))
    finally:
        gc.unfreeze()
    return times
