"""Maintenance: the space that pruning and gc free, and how long other writers wait meanwhile.

A store of many checkpoints is pruned to few and collected while other processes append to their own threads. Each
process records when an append began and how long it took. The waits during prune and gc are then compared with those
before. Run as a program, this module is a writer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from bench.data import Messages
from bench.figures import Figure, Result
from bench.server import missing, server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.scale import Scale, Upkeep

ROOT = Path(__file__).resolve().parent.parent
THREADS, SHARING = 8, 2
"""Threads that messages are appended to, and threads of states that have most of their chunks in common."""
DOCUMENTS = 300
"""Texts of about 1 KB in each of those states."""
GATE = 50.0
"""Milliseconds that one writer in a hundred may have to wait."""

Span = tuple[float, float]
Place = dict[str, Any]
"""What a store is opened with."""


def upkeep(directory: Path, scale: Scale) -> Result:
    """Measure pruning and collecting in SQLite, in files and in PostgreSQL."""
    size = scale.upkeep
    result = Result()
    for kind, url in (("SQLite", f"{directory}/{{}}.db"), ("files", f"{directory.absolute().as_uri()}/{{}}")):
        result.figures.extend(figures(kind, lambda name, url=url: {"url": url.format(name)}, size))
    if why := missing():
        result.figures.append(
            Figure("PostgreSQL: writers' wait during prune and gc, p99", None, gate=GATE, unit="ms", note=why)
        )
    else:
        with server(directory) as url:
            result.figures.extend(figures("PostgreSQL", lambda name: {"url": url, "schema": name}, size))
    return result


def figures(kind: str, place: Callable[[str], Place], size: Upkeep) -> Iterator[Figure]:
    """Measure one kind of store; `place` returns the arguments to open the store of a name."""
    filled = place("pruned")
    names = fill(filled, size)
    before = _bytes(filled)
    writers = [Writer(filled, number, size.pause) for number in range(size.writers)]
    try:
        for writer in writers:
            writer.ready()
        alone = _timed(lambda: time.sleep(size.seconds))
        with backtrail.open(**filled) as store:
            policy = backtrail.Policy(keep_last=size.keep // len(names))
            pruned = _timed(lambda: store.prune(policy, threads=names))
            collected = _timed(store.gc)
    finally:
        waits = [wait for writer in writers for wait in writer.end()]
    after = _bytes(filled)
    left = {"note": f"{size.keep} checkpoints, and {len(waits):,} appends of writers"}
    gate = {} if kind == "PostgreSQL" else {"gate": 1.3}
    yield Figure(f"{kind}: a store of many checkpoints", before, unit="B", note=f"{size.checkpoints:,}")
    yield Figure(f"{kind}: pruned and collected", after, unit="B", **left)
    yield Figure(
        f"{kind}: pruned and collected / a new store of what is left", after / _anew(filled, place("anew")), **gate
    )
    for what, (begin, end) in (("prune", pruned), ("gc", collected)):
        yield Figure(f"{kind}: {what}, beside writers", end - begin, unit="s")
    yield from _waits(f"{kind}: writers' wait", waits, alone)
    yield from _waits(f"{kind}: writers' wait during prune and gc", waits, (pruned[0], collected[1]), gate=GATE)


def fill(place: Place, size: Upkeep) -> list[str]:
    """Make the store; return the names of its threads."""
    each = size.checkpoints // (THREADS + SHARING)
    with backtrail.open(**place, durability="relaxed") as store:
        for at in range(THREADS):
            thread: backtrail.Thread[Any] = store.thread(f"messages {at}")
            thread.save({"messages": []})
            for message in Messages(at).many(each - 1):
                thread.append("messages", message)
        first: backtrail.Thread[Any] = store.thread("shared 0")
        first.save({"documents": Messages(THREADS).many(DOCUMENTS)})
        for at in range(1, SHARING):
            first.fork(f"shared {at}")
        for at in range(SHARING):
            shared: backtrail.Thread[Any] = store.thread(f"shared {at}")
            for n, message in enumerate(Messages(THREADS + 1 + at).many(each - 1)):
                shared.set(("documents", n * 7 % DOCUMENTS), message)
        return [info.id for info in store.threads()]


def _bytes(place: Place) -> int:
    with backtrail.open(**place) as store:
        return store.stats().stored_bytes


def _anew(old: Place, new: Place) -> int:
    """Return the size of a new store with the checkpoints of an old one."""
    with backtrail.open(**old) as source, backtrail.open(**new) as target:
        backtrail.copy(source, target)
        target.gc()
        return target.stats().stored_bytes


def _timed(work: Callable[[], object]) -> Span:
    begin = time.monotonic()
    work()
    return begin, time.monotonic()


def _waits(what: str, waits: list[Span], span: Span, **gate: float) -> Iterator[Figure]:
    """Tell the waits of the appends that were under way in a span of time; the gate is that of the 99th of 100."""
    found = sorted(1000 * (end - begin) for begin, end in waits if begin < span[1] and end > span[0])
    told: dict[str, Any] = {"unit": "ms", "samples": len(found)}
    yield Figure(f"{what}, median", statistics.median(found), **told)
    yield Figure(f"{what}, p99", found[len(found) * 99 // 100], **gate, **told)
    yield Figure(f"{what}, longest", found[-1], **told)


class Writer:
    """A process that appends until it gets the signal to end."""

    def __init__(self, place: Place, number: int, pause: float) -> None:
        places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
        self._process = subprocess.Popen(  # noqa: S603 - this very module
            [sys.executable, "-m", "bench.upkeep", json.dumps(place), str(number), str(pause)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )

    def ready(self) -> None:
        """Wait until it writes."""
        assert self._process.stdout is not None
        self._process.stdout.readline()  # nothing, if it has failed: its end says so

    def end(self) -> list[Span]:
        """End it; return when each of its appends began and ended."""
        told, _ = self._process.communicate()
        if not told:
            raise RuntimeError("a writer has failed: see above")
        return [(begin, end) for begin, end in json.loads(told)]


def write(place: Place, number: int, pause: float) -> None:
    """Be a writer, until stdin ends."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    waits: list[Span] = []
    messages = cycle(Messages(100 + number).many(500))
    with backtrail.open(**place) as store:
        thread: backtrail.Thread[Any] = store.thread(f"writer {number}")
        thread.save({"messages": []})
        print("ready", flush=True)
        for at in count():
            message = {**next(messages), "id": f"m{at}"}
            waits.append(_timed(lambda message=message: thread.append("messages", message)))  # type: ignore[misc]
            if over.wait(pause):
                break
    print(json.dumps(waits), flush=True)


if __name__ == "__main__":
    write(json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
