"""Loads of a long history: all of it, its end, one message; beside the loads of LangGraph's SqliteSaver.

Cold means a new store object, or a new connection and saver, each time; warm means one that has loaded it before. The
operating system has the file in its cache in both cases. The last 100 messages were appended one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import backtrail
from bench import peers
from bench.clock import take_turns
from bench.data import Message, Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from bench.clock import Action, Times
    from bench.scale import Scale

APPENDED = 100
Read = Callable[[backtrail.Checkpoint[Any]], Any]
READS: dict[str, Read] = {
    "full load": lambda checkpoint: checkpoint.state,
    "last 20": lambda checkpoint: checkpoint.tail("messages", 20),
}
COLD, WARM, COLD_DELTA, WARM_DELTA = "cold peer", "warm peer", "cold delta peer", "warm delta peer"


def loads(directory: Path, scale: Scale) -> Result:
    """Load in all ways."""
    path = directory / "ours.db"
    middle = f"messages[{scale.long // 2}]"
    reads = READS | {"one message": lambda checkpoint: checkpoint.get(middle)}
    saver = None
    if peers.installed():
        from bench.langgraph import on_sqlite  # noqa: PLC0415 - an extra

        def saver(name: str) -> AbstractContextManager[Any]:
            return on_sqlite(directory / f"{name}.db")

    times = measured(partial(backtrail.open, path), saver, scale.long, reads, scale)
    return Result(figures(times, list(reads), scale.long, marks=MARKS))


def measured(
    opened: Callable[..., backtrail.Store],
    saver: Callable[[str], AbstractContextManager[Any]] | None,
    length: int,
    reads: dict[str, Read],
    scale: Scale,
) -> dict[str, Times]:
    """Time loads of so many messages: `opened` opens our store, `saver` the peer's database of a name."""
    messages = Messages(5).many(length)
    appended = min(APPENDED, length // 2)
    with opened(durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": messages[:-appended]})
        for message in messages[-appended:]:
            thread.append("messages", message)
    with ExitStack() as stack:
        kept = stack.enter_context(opened())
        assert kept.thread("t").load().state == {"messages": messages}
        actions = _ours(opened, kept, reads)
        if saver is not None:
            actions |= _theirs(saver, messages, appended, stack)
        return take_turns(actions, scale.load_rounds, 60 * scale.budget)


def _ours(opened: Callable[[], backtrail.Store], kept: backtrail.Store, reads: dict[str, Read]) -> dict[str, Action]:
    def cold(read: Read) -> None:
        with opened() as store:
            read(store.thread("t").load())

    actions: dict[str, Action] = {}
    for name, read in reads.items():
        actions[f"cold {name}"] = lambda read=read: cold(read)
        actions[f"warm {name}"] = lambda read=read: read(kept.thread("t").load())
    return actions


def _theirs(
    saver: Callable[[str], AbstractContextManager[Any]], messages: list[Message], appended: int, stack: ExitStack
) -> dict[str, Action]:
    from bench.langgraph import Conversation, load  # noqa: PLC0415 - an extra

    actions: dict[str, Action] = {}
    for delta in (False, True):
        opened = partial(saver, f"theirs {delta}")
        # Half of the steps between two snapshots are left to be replayed: what a load finds in the mean.
        steps = appended // 2 if delta else 1
        with opened() as first:
            first.setup()
            thread = Conversation(first, messages[:-steps], messages[-steps:], delta=delta)
            for _ in range(steps):
                thread()
            assert load(first) == messages

        def cold(opened: Callable[[], AbstractContextManager[Any]] = opened) -> None:
            with opened() as one:
                load(one)

        actions[COLD_DELTA if delta else COLD] = cold
        actions[WARM_DELTA if delta else WARM] = partial(load, stack.enter_context(opened()))
    return actions


MARKS = {
    "cold full load": {"gate": 1.2, "goal": 1.0},
    "warm full load": {"gate": 0.8, "goal": 0.5},
    "cold last 20": {"gate": 0.1, "goal": 0.03},
}


def figures(
    times: dict[str, Times],
    reads: list[str],
    length: int,
    *,
    before: str = "",
    peer: str = peers.DEFAULT,
    marks: dict[str, dict[str, float]],
) -> list[Figure]:
    """Hold each load against the peer's in the same condition; `before` is what all names begin with."""
    found = []
    for name in (f"{state} {read}" for read in reads for state in ("cold", "warm")):
        one = times[name].median
        samples = len(times[name].taken)
        shown = f"{before}{name} of {length:,}"
        found.append(Figure(shown, one.wall * 1e3, one.cpu * 1e3, unit="ms", samples=samples))
        if COLD not in times:
            found.append(Figure(f"{shown} / {peer}'s load", None, note=peers.MISSING))
            continue
        pairs = ((COLD, f"{peer}'s load"), (COLD_DELTA, "its load with a delta channel"))
        for other, words in pairs if name.startswith("cold") else ((WARM, pairs[0][1]), (WARM_DELTA, pairs[1][1])):
            wall, cpu = one.over(times[other].median)
            held = marks.get(name, {}) if other in (COLD, WARM) else {}
            found.append(Figure(f"{shown} / {words}", wall, cpu, samples=samples, **held))
    return found
