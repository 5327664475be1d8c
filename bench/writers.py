"""Concurrent writers: the writes of many connections in a fixed time, compared with one connection.

Each writer is a process, because the threads of one process would wait for each other, not for the server. All writers
start first and wait. Then one or all of them get the signals to begin and to end, and report how much they wrote. Run
as a program, this module is a writer. The server runs on the same machine and shares its cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from bench.data import Messages
from bench.figures import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.scale import Server

ROOT = Path(__file__).resolve().parent.parent
APPENDS, INSERTS = "appends", "raw inserts"
LEAD = 0.05
"""Seconds between telling writers to begin and the beginning."""


def figures(url: str, store: str, size: int, scale: Server) -> list[Figure]:
    """Measure rates in a database that has a table `raw`, and in the store in this schema of it."""
    rates = _rates(url, store, size, scale)
    found = []
    medians = {kind: statistics.median(found) for kind, found in rates.items()}
    raw = medians[INSERTS, scale.writers] / medians[INSERTS, 1]
    for way in (APPENDS, INSERTS):
        one, all_of_them = medians[way, 1], medians[way, scale.writers]
        marks: dict[str, Any] = {"better": "higher", "samples": scale.windows}
        gate = {"gate": 2.0, "goal": raw} if way == APPENDS else {}
        found += [
            Figure(f"PostgreSQL: {way} by {scale.writers} connections / by one", all_of_them / one, **gate, **marks),
            Figure(f"PostgreSQL: {way} by one connection", one, unit="per s", **marks),
            Figure(f"PostgreSQL: {way} by {scale.writers} connections", all_of_them, unit="per s", **marks),
        ]
    return found


def _rates(url: str, store: str, size: int, scale: Server) -> dict[tuple[str, int], list[float]]:
    """Return the writes per second in each window, by kind of write and number of writers."""
    writers = [_Writer(url, store, size, 1 + at) for at in range(scale.writers)]
    kinds = [(way, count) for way in (APPENDS, INSERTS) for count in (1, scale.writers)]
    rates: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    try:
        for writer in writers:
            writer.answer()
        for at in range(scale.windows):
            for way, count in kinds:
                chosen = [writers[(at + number) % scale.writers] for number in range(count)]
                begin = time.monotonic() + LEAD
                for writer in chosen:
                    writer.tell(way, begin, begin + scale.seconds)
                rates[way, count].append(sum(int(writer.answer()) for writer in chosen) / scale.seconds)
    finally:
        for writer in writers:
            writer.end()
    return rates


class _Writer:
    """A process that writes on a signal."""

    def __init__(self, url: str, store: str, size: int, number: int) -> None:
        places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", "bench.writers", url, store, str(size), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )

    def tell(self, way: str, begin: float, end: float) -> None:
        """Have it write from one moment to another."""
        assert self._process.stdin is not None
        print(begin, end, way, file=self._process.stdin, flush=True)

    def answer(self) -> str:
        """Return the next line of its output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a writer has failed: see above")
        return line.strip()

    def end(self) -> None:
        """End it."""
        self._process.communicate()


def _appends(url: str, store: str, number: int) -> Callable[[], Any]:
    """Append messages to a thread; each is a new one, as its id is new."""
    thread: backtrail.Thread[Any] = backtrail.open(url, schema=store).thread(f"writer {number}")
    thread.save({"messages": []})
    messages = enumerate(cycle(Messages(100 + number).many(500)))

    def append() -> None:
        at, message = next(messages)
        thread.append("messages", {**message, "id": f"m{at}"})

    return append


def write(url: str, store: str, size: int, number: int) -> None:
    """Be a writer, until stdin ends."""
    from bench.place import Raw  # noqa: PLC0415 - needs psycopg

    ways = {APPENDS: _appends(url, store, number), INSERTS: Raw(url, size, number).insert}
    for action in ways.values():
        action()
    print("ready", flush=True)
    for line in sys.stdin:
        begin, end, way = line.strip().split(" ", 2)
        print(_count(ways[way], float(begin), float(end)), flush=True)


def _count(action: Callable[[], Any], begin: float, end: float) -> int:
    """Return how often an action is done between two moments."""
    count = 0
    time.sleep(max(begin - time.monotonic(), 0))
    while True:
        action()
        if time.monotonic() > end:
            return count
        count += 1


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
