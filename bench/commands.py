"""The command line: how long a command takes, from its start to its end, on a small store and on a large one.

Each is a process of its own, in turns with the others and with a Python that does nothing, which is what none of them
can be quicker than. What is imported was compiled before, as it is where a package is installed.
"""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from bench.scale import Commands, Scale

SOURCE = Path(backtrail.__file__).resolve().parent
START, LONG = 150.0, 1000.0
"""Milliseconds that a command may take on a small store, and on a large one."""
WORDS = (["threads"], ["log", "long"], ["log", "long", "--graph"], ["stats"])
_AT_ONCE = 1000


def commands(directory: Path, scale: Scale) -> Result:
    """Measure commands."""
    size = scale.commands
    compileall.compile_dir(SOURCE, quiet=1)
    small, large = directory / "small.db", directory / "large.db"
    fill(small, 5, 5)
    fill(large, size.threads, size.checkpoints)
    runs = {"Python, which does nothing": [sys.executable, "-c", "pass"], "backtrail --help": _command("--help")}
    for name, store in (("a small store", small), (_told(size), large)):
        for words in WORDS:
            runs[f"backtrail {' '.join(words)}, {name}"] = _command(*words, "--store", str(store))
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(size.rounds):
        for name, command in runs.items():
            taken[name].append(_milliseconds(command))
    figures = [_figure(name, times, name.endswith(_told(size))) for name, times in taken.items()]
    return Result([*figures, _listing(large, size)])


def _listing(path: Path, size: Commands) -> Figure:
    """Measure a listing of the 20 threads that were written to last, in a process that has the store open."""
    times = []
    with backtrail.open(path) as store:
        for _ in range(size.rounds):
            begin = time.perf_counter()
            list(store.threads(limit=20))
            times.append(1000 * (time.perf_counter() - begin))
    name = f"store.threads(limit=20) of {size.threads:,} threads"
    return Figure(name, statistics.median(times), gate=5.0, goal=1.0, unit="ms", samples=len(times))


def fill(path: Path, threads: int, checkpoints: int) -> None:
    """Make a store of many threads with one checkpoint each, and one with many."""
    with backtrail.open(path, durability="relaxed") as store:
        for begin in range(0, threads, _AT_ONCE):
            with store.transaction():
                for at in range(begin, min(begin + _AT_ONCE, threads)):
                    store.thread(f"chat-{at:06}").save({"messages": [{"role": "user", "content": f"hello {at}"}]})
        long: backtrail.Thread[Any] = store.thread("long")
        long.save({"messages": []})
        for begin in range(1, checkpoints, _AT_ONCE):
            with store.transaction():
                for at in range(begin, min(begin + _AT_ONCE, checkpoints)):
                    long.append("messages", {"role": "user", "content": f"message {at}"})


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "backtrail", *words]


def _milliseconds(command: list[str]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    begin = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - this package
    return 1000 * (time.perf_counter() - begin)


def _told(size: Commands) -> str:
    return f"{size.threads:,} threads and one of {size.checkpoints:,} checkpoints"


def _figure(name: str, times: list[float], large: bool) -> Figure:  # noqa: FBT001 - which of the two stores
    gate = None if name.startswith("Python") else LONG if large else START
    return Figure(name, statistics.median(times), gate=gate, unit="ms", samples=len(times))
