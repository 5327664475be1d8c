"""Runs: the cost of a journaled call compared with an append, and of resuming a long run compared with loading it.

The call does nothing and returns one message of about 1 KB; the append adds the same message. Each side has its own
store.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import backtrail
from backtrail import AfterToolCall, EveryN, Message, Never
from bench.clock import take_turns
from bench.data import Messages, noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.clock import Times
    from bench.scale import Scale

STRATEGIES: dict[str, Any] = {"never": Never(), "each": AfterToolCall()}
"""AfterToolCall is the default."""
CALLS = 10
"""Calls of one iteration; its end is not measured with them."""


def runs(directory: Path, scale: Scale) -> Result:
    """Measure calls, then iterations of a short run and of a long one, then resuming the long one."""
    with ExitStack() as stack:
        stores = {name: _store(directory / f"{name}.db", stack) for name in ("append", *STRATEGIES)}
        thread: backtrail.Thread[Any] = stores["append"].thread("t")
        thread.save({"messages": []})
        told = iter(Messages(3).many(scale.rounds + 1))
        actions: dict[str, Any] = {"append": lambda: thread.append("messages", next(told))}
        for name, strategy in STRATEGIES.items():
            actions[name] = Calls(stores[name], strategy, scale.rounds, stack)
        stored = {name: -store.stats().payload_bytes for name, store in stores.items()}
        times = take_turns(actions, scale.rounds, scale.budget)
        for name, store in stores.items():
            stored[name] = (stored[name] + store.stats().payload_bytes) / (len(times[name].taken) + 1)
    default = "a call of a run with its checkpoint / append"
    cpu = times["each"].median.over(times["append"].median).cpu
    figures = [
        _figure("a call of a run: intent + result / append", times["never"], times["append"]),
        _figure(default, times["each"], times["append"]),
        Figure(f"{default}: CPU", cpu, gate=2.5, goal=2.0, samples=len(times["each"].taken)),
        Figure(f"{default}: bytes", stored["each"] / stored["append"], gate=2.0, goal=1.5),
    ]
    with ExitStack() as stack:
        few, many = scale.run_steps
        short = Loop(directory / "short.db", few, stack)
        long = Loop(directory / "long.db", many, stack)
        turns = take_turns({"long": long, "short": short}, scale.rounds, scale.budget)
    note = f"{many:,} iterations behind it, and {few:,}"
    figures.append(_figure("an iteration of a long run / of a short one", turns["long"], turns["short"], note=note))
    resumes = take_turns({"resume": long.resume, "load": long.load}, scale.load_rounds, scale.budget)
    figures += [
        _figure(
            "resuming a long run / loading its state", resumes["resume"], resumes["load"], note=f"{many:,}", gate=2.0
        ),
        Figure("resuming a long run", resumes["resume"].median.wall * 1e3, unit="ms", note=f"{many:,} iterations"),
    ]
    return Result(figures)


def _store(path: Path, stack: ExitStack) -> backtrail.Store:
    """Open a store whose WAL has its full size."""
    store = stack.enter_context(backtrail.open(path))
    store.thread("filler").save(noise(WAL_BYTES))
    return store


def _figure(name: str, one: Times, other: Times, *, gate: float | None = None, note: str = "") -> Figure:
    wall, cpu = one.median.over(other.median)
    return Figure(name, wall, cpu, samples=len(one.taken), gate=gate, note=note)


class Calls:
    """A run whose every call does nothing."""

    def __init__(self, store: backtrail.Store, strategy: Any, count: int, stack: ExitStack) -> None:
        self._told = iter(Messages(3).many(count + 1))
        self._run = stack.enter_context(store.run("r", strategy=strategy))
        self._iterations = self._run.iterations()
        next(self._iterations)
        self._made = 0

    def __call__(self) -> None:
        """Make a call; the first of an iteration ends the one before, in the median that does not count."""
        if self._made == CALLS:
            self._made = 0
            next(self._iterations)
        self._made += 1
        message = next(self._told)
        self._run.tool("tool", lambda: message)


class Loop:
    """A run with iterations of one message and one call behind it. Calling it does one more."""

    def __init__(self, path: Path, iterations: int, stack: ExitStack) -> None:
        self._path = path
        with backtrail.open(path, durability="relaxed") as store, store.run("r", strategy=EveryN(100)) as run:
            self._work(run, iterations)
            run.halt("long enough")
        self._store = _store(path, stack)
        self._run = stack.enter_context(self._held())
        self._numbers = self._run.iterations()
        next(self._numbers)

    @contextmanager
    def _held(self) -> Iterator[backtrail.Run]:
        with self._store.run("r", strategy=EveryN(100)) as run:
            yield run
            run.halt("measured")

    def _work(self, run: backtrail.Run, count: int) -> None:
        told = iter(Messages(5).many(count))
        for number in run.iterations():
            if number > count:
                return
            self._step(run, next(told))

    def _step(self, run: backtrail.Run, message: dict[str, Any]) -> None:
        run.message(Message.user(message["content"]))
        run.tool("tool", lambda: len(message["content"]))
        run.state["steps"] = run.iteration

    def __call__(self) -> None:
        """Do an iteration."""
        self._step(self._run, Messages(9).many(1)[0])
        next(self._numbers)

    def resume(self) -> None:
        """Open the run in a store that was just opened, and come to the iteration that is to be done."""
        with backtrail.open(self._path) as store, store.run("r", takeover=True, strategy=Never()) as run:
            next(run.iterations())
            run.halt("enough")

    def load(self) -> None:
        """Load the run's state from a store that was just opened."""
        with backtrail.open(self._path) as store:
            assert store.runs.thread("r").load().state["messages"]
