"""States that are dicts, or deep: a plain save, and a set, of one value among many keys or below many levels.

Each value of a dict is a small record of about 40 bytes. Saves go to memory as well: there nothing waits for a disk.
"""

from __future__ import annotations

import statistics
from itertools import count
from typing import TYPE_CHECKING, Any

import backtrail
from bench.clock import take_turns
from bench.data import noise
from bench.figures import Figure, Result
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from bench.clock import Action
    from bench.scale import Scale

SAVED, CHANGED, SHALLOW, DEEP = 1_000, 10_000, 1, 60
STRIDE = 7_919
"""A prime: one key after another is changed, far from the last."""
MARKS: dict[str, dict[str, float]] = {
    f"plain save of a dict of {SAVED:,} keys, one changed": {"gate": 1.5, "goal": 1.0},
    f"set a key in a dict of {CHANGED:,}": {"gate": 1.0, "goal": 0.4},
}


def dicts(directory: Path, scale: Scale) -> Result:
    """Save and set in dicts and in deep states, in turns."""
    stored: list[int] = []
    with backtrail.open(directory / "dicts.db") as disk, backtrail.open("memory://") as memory:
        disk.thread("filler").save(noise(WAL_BYTES))
        actions: dict[str, Action] = {}
        for place, store in (("", disk), ("memory: ", memory)):
            saved, changed, added = (store.thread(name) for name in ("saved", "changed", "added"))
            actions |= {
                f"{place}plain save of a dict of {SAVED:,} keys, one changed": _save(saved, SAVED),
                f"{place}set a key in a dict of {CHANGED:,}": _set(changed, CHANGED),
                f"{place}set a new key in a dict of {scale.many_keys:,}": _add(added, scale.many_keys, stored),
            }
            for depth in (SHALLOW, DEEP):
                actions[f"{place}plain save at depth {depth}"] = _deep(store.thread(f"deep {depth}"), depth)
        times = take_turns(actions, scale.rounds, scale.budget)
    figures = []
    for name, taken in times.items():
        wall, cpu = taken.mean
        figures.append(Figure(name, wall * 1e3, cpu * 1e3, unit="ms", samples=len(taken.taken), **MARKS.get(name, {})))
    name = f"bytes of a new key in a dict of {scale.many_keys:,}"
    figures.append(Figure(name, statistics.fmean(stored), gate=1000, goal=300, unit="B", samples=len(stored)))
    return Result(figures)


def _record(at: int) -> dict[str, Any]:
    return {"name": f"user {at}", "score": 7 * at, "tags": ["a", "b"]}


def _state(keys: int) -> dict[str, Any]:
    return {f"key {at}": _record(at) for at in range(keys)}


def _save(thread: backtrail.Thread[Any], keys: int) -> Action:
    state, turns = _state(keys), count()
    thread.save(state)

    def save() -> None:
        at = next(turns)
        state[f"key {at * STRIDE % keys}"] = _record(keys + at)
        thread.save(state)

    return save


def _set(thread: backtrail.Thread[Any], keys: int) -> Action:
    thread.save(_state(keys))
    turns = count()

    def put() -> None:
        at = next(turns)
        thread.set(f"key {at * STRIDE % keys}", _record(keys + at))

    return put


def _add(thread: backtrail.Thread[Any], keys: int, stored: list[int]) -> Action:
    thread.save(_state(keys))
    turns = count(keys)

    def add() -> None:
        at = next(turns)
        stored.append(thread.set(f"key {at}", _record(at)).stored)

    return add


def _deep(thread: backtrail.Thread[Any], depth: int) -> Action:
    innermost: dict[str, Any] = {"leaf": 0, "text": "x" * 200}
    state, turns = innermost, count()
    for level in range(depth):
        state = {"down": state, "level": level}

    def save() -> None:
        innermost["leaf"] = next(turns)
        thread.save(state)

    return save
