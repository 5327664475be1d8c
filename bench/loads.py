"""Loads of a long history: all of it, its end, one message; beside the loads of LangGraph's SqliteSaver.

Cold means a new store object, or a new connection and saver, each time; warm means one that has loaded it before. The
operating system has the file in its cache in both cases. The last 100 messages were appended one by one.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import backtrail
from bench import peers
from bench.clock import take_turns
from bench.data import Message, Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.clock import Action, Times
    from bench.scale import Scale

APPENDED = 100
COLD, WARM, COLD_DELTA, WARM_DELTA = "cold peer", "warm peer", "cold delta peer", "warm delta peer"


def loads(directory: Path, scale: Scale) -> Result:
    """Load in all ways."""
    path = directory / "ours.db"
    messages = Messages(5).many(scale.long)
    appended = min(APPENDED, scale.long // 2)
    with backtrail.open(path, durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": messages[:-appended]})
        for message in messages[-appended:]:
            thread.append("messages", message)
    middle = f"messages[{scale.long // 2}]"
    reads: dict[str, Callable[[backtrail.Checkpoint[Any]], Any]] = {
        "full load": lambda checkpoint: checkpoint.state,
        "last 20": lambda checkpoint: checkpoint.tail("messages", 20),
        "one message": lambda checkpoint: checkpoint.get(middle),
    }
    with backtrail.open(path) as kept:
        assert kept.thread("t").load().state == {"messages": messages}
        actions = _ours(path, kept, reads)
        if peers.installed():
            actions |= _theirs(directory, messages, appended)
        times = take_turns(actions, scale.load_rounds, 60 * scale.budget)
    return Result(_figures(times, list(reads), scale))


def _ours(path: Path, kept: backtrail.Store, reads: dict[str, Callable[[Any], Any]]) -> dict[str, Action]:
    def cold(read: Callable[[Any], Any]) -> None:
        with backtrail.open(path) as store:
            read(store.thread("t").load())

    actions: dict[str, Action] = {}
    for name, read in reads.items():
        actions[f"cold {name}"] = lambda read=read: cold(read)
        actions[f"warm {name}"] = lambda read=read: read(kept.thread("t").load())
    return actions


def _theirs(directory: Path, messages: list[Message], appended: int) -> dict[str, Action]:
    from bench.langgraph import Conversation, connect, load  # noqa: PLC0415 - an extra

    actions: dict[str, Action] = {}
    for delta in (False, True):
        path = directory / f"theirs {delta}.db"
        # Half of the steps between two snapshots are left to be replayed: what a load finds in the mean.
        steps = appended // 2 if delta else 1
        thread = Conversation(path, messages[:-steps], messages[-steps:], delta=delta, full=False)
        for _ in range(steps):
            thread()
        assert load(thread.saver) == messages
        thread.close()

        def cold(path: Path = path) -> None:
            saver = connect(path)
            with closing(saver.conn):
                load(saver)

        actions[COLD_DELTA if delta else COLD] = cold
        actions[WARM_DELTA if delta else WARM] = partial(load, connect(path))
    return actions


MARKS = {
    "cold full load": {"gate": 2.0, "goal": 1.0},
    "warm full load": {"gate": 0.8, "goal": 0.5},
    "cold last 20": {"gate": 0.1, "goal": 0.03},
}


def _figures(times: dict[str, Times], reads: list[str], scale: Scale) -> list[Figure]:
    figures = []
    for name in (f"{state} {read}" for read in reads for state in ("cold", "warm")):
        one = times[name].median
        samples = len(times[name].taken)
        shown = f"{name} of {scale.long:,}"
        figures.append(Figure(shown, one.wall * 1e3, one.cpu * 1e3, unit="ms", samples=samples))
        if COLD not in times:
            figures.append(Figure(f"{shown} / SqliteSaver's load", None, note=peers.MISSING))
            continue
        pairs = ((COLD, "SqliteSaver's load"), (COLD_DELTA, "its load with a delta channel"))
        for peer, words in pairs if name.startswith("cold") else ((WARM, pairs[0][1]), (WARM_DELTA, pairs[1][1])):
            wall, cpu = one.over(times[peer].median)
            marks = MARKS.get(name, {}) if peer in (COLD, WARM) else {}
            figures.append(Figure(f"{shown} / {words}", wall, cpu, samples=samples, **marks))
    return figures
