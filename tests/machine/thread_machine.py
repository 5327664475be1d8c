"""A state machine that does at random whatever can be done with threads, and holds the store against the model.

After every step the thread that was touched is compared with its line in the model: head, history, steps, labels,
tags, and the states of a few of its checkpoints, in view and out of view, to the last type. At the end every
checkpoint of every thread is.

A backend's test says where a store is to be made: `run(place)`, with `place` a context manager that gives a function
which opens the same store each time. In half of the runs states are cut into small chunks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.machine.compare import NAMES
from tests.machine.rules import Aborted, Deeds
from tests.support.chunks import small_chunks

if TYPE_CHECKING:
    from backtrail import Thread
    from tests.machine.compare import Place
    from tests.machine.model import Hand, Line

WRITES: Final = (
    "save",
    "save",
    "save",
    "append",
    "append",
    "grow",
    "look",
    "set",
    "delete_at",
    "step",
    "update",
    "save_expecting",
)
MOVES: Final = ("undo", "undo", "undo", "redo", "redo", "redo", "rewind", "rewind")
REMOVALS: Final = ("delete_checkpoint", "delete_checkpoint", "delete_head", "prune", "prune", "delete", "regret")
OTHERS: Final = ("fork", "tag", "refs", "refs", "diff", "gc", "reopen", "transaction")
KINDS: Final = (*WRITES, *WRITES, *MOVES, *REMOVALS, *OTHERS)

names = st.sampled_from(("a", "a", "a", *NAMES))
seeds = st.integers(0, 0xFFFF)


def run(place: Place, chosen: settings | None = None, *, parts: int = 1) -> None:
    """Run the machine on stores that are made in `place`, as the hypothesis profile says, or a part of such a run."""
    base = chosen or settings.default
    assert base is not None
    quiet = settings(
        base,
        max_examples=max(base.max_examples // parts, 1),
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    made: Any = lambda: ThreadMachine(place)  # noqa: E731 - called where a class is asked for
    run_state_machine_as_test(made, settings=quiet)


class ThreadMachine(Deeds, RuleBasedStateMachine):
    """Random histories of three threads, each through two handles, against the model."""

    def __init__(self, place: Place) -> None:
        RuleBasedStateMachine.__init__(self)
        Deeds.__init__(self, place)
        self.seed = 0
        self.without: frozenset[str] = frozenset()
        self.touched: str | None = None
        """The thread that a step has touched, until it is compared."""

    @initialize(
        small=st.booleans(),
        limit=st.sampled_from((None, None, None, 3)),
        seed=seeds,
        without=st.frozensets(st.sampled_from(sorted({*MOVES, *REMOVALS, *OTHERS})), max_size=5),
    )
    def begin(self, small: bool, limit: int | None, seed: int, without: frozenset[str]) -> None:
        """Open a store; `without` says what this run does not do, so that runs differ."""
        if small:
            self.stack.enter_context(small_chunks())
        self.seed = seed
        self.random.seed(seed)
        self.stack.enter_context(mock.patch("os.urandom", random.Random(seed).randbytes))
        self.options = {"max_checkpoints": limit}
        for line in self.lines.values():
            line.limit = limit
        self.without = without
        self.collects = "gc" not in without
        self.start()

    def teardown(self) -> None:
        try:
            if self.store is not None and self.touched is None:  # else a step failed, and what it found is what counts
                self.check_everything()
                self.store.close()
        finally:
            self.stack.close()

    # -- one step -----------------------------------------------------------------------------------

    @rule(name=names, who=st.integers(0, 1), kind=st.sampled_from(KINDS), seed=seeds)
    def act(self, name: str, who: int, kind: str, seed: int) -> None:
        """Do one thing: this is what an example that fails is reduced to."""
        self._do(name, who, kind, random.Random(f"{self.seed} {seed}"))

    @rule(name=names, count=st.integers(2, 6), seed=seeds)
    def play(self, name: str, count: int, seed: int) -> None:
        """Do several things: this is how examples come to differ."""
        rnd = random.Random(f"{self.seed} {seed}")
        for _ in range(count):
            self._do(name, rnd.randrange(2), rnd.choice(KINDS), rnd)

    def _do(self, name: str, who: int, kind: str, rnd: random.Random) -> None:
        self.touched = name
        hand = self.hands[name][who]
        what = "save" if kind in self.without else kind
        getattr(self, f"do_{what}")(self.lines[name], hand, self.threads[hand], rnd)

    def do_transaction(self, _line: Line, hand: Hand, _thread: Thread[Any], rnd: random.Random) -> None:
        """Do several things at once, and perhaps give them up."""
        names = [hand.name, *rnd.choices(NAMES, k=rnd.randrange(5))]
        lines = {name: self.lines[name].copy() for name in NAMES}
        alive = {point: point.alive for line in lines.values() for point in line.points}
        self.written = set()
        try:
            with self.opened.transaction():
                for name in names:
                    self._do(name, rnd.randrange(2), rnd.choice((*WRITES, *MOVES)), rnd)
                    self.check_line(name)
                if rnd.random() < 0.4:
                    raise Aborted  # noqa: TRY301
            for each in self.threads:
                each.settled = each.expected
        except Aborted:
            self.lines.update(lines)
            for point, was in alive.items():
                point.alive = was
            for each in self.threads:
                each.expected = each.settled
        self.written = None
        for name in names:
            self.check_line(name)

    def do_reopen(self, _line: Line, _hand: Hand, _thread: Thread[Any], _: random.Random) -> None:
        self.opened.close()
        self.start()

    @invariant()
    def touched_thread_is_as_the_model_says(self) -> None:
        if self.touched is not None:
            self.check_line(self.touched)
            self.touched = None
