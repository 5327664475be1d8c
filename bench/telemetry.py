"""What telemetry costs an append: `python -m bench.telemetry`.

| side | what it is |
|---|---|
| off | a store without telemetry |
| api | `telemetry=True, spans="all"`, but the program has no SDK |
| sampled out | the SDK and `spans="all"`, inside of a span that its sampler dropped |
| slow | the SDK; spans of slow and failed calls only: the default |
| recorded | `spans="all"`: every span kept and handed to a processor that does nothing |

Times are medians of interleaved rounds: each round appends to the store of each side, in a random order. Instructions
are counted by valgrind, if it is installed, as in `bench.instructions`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

import backtrail
from bench.data import Messages

if TYPE_CHECKING:
    from collections.abc import Callable

SIDES = ("off", "api", "sampled out", "slow", "recorded")
ROUNDS = 400
FEW, MANY = 100, 300
ROOT = Path(__file__).resolve().parent.parent


def around(side: str) -> AbstractContextManager[Any]:
    """Return the span around the appends of a side: it is the program's own, and not measured."""
    dropped = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
    return trace.use_span(dropped) if side == "sampled out" else nullcontext()


def appender(side: str, directory: Path, stack: ExitStack, durability: str) -> Callable[[Any], Any]:
    """Open the store of a side with 100 messages; return what appends another one."""
    place = directory / f"{side}.db"
    spans = "slow" if side in ("off", "slow") else "all"
    store = stack.enter_context(backtrail.open(place, durability=durability, telemetry=side != "off", spans=spans))
    if side == "api":  # as without an SDK, also if another side of this process has one
        store._backend._tracer = trace.NoOpTracer()  # noqa: SLF001 - to measure this very thing
    thread = store.thread("chat", agent="planner")
    thread.save({"messages": Messages(1).many(100)})
    return partial(thread.append, "messages")


def times(durability: str) -> dict[str, tuple[float, float]]:
    """Return the medians of wall time and CPU time of an append in microseconds, by side."""
    taken: dict[str, list[tuple[int, int]]] = {side: [] for side in SIDES}
    messages = Messages(2).many(ROUNDS)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place, ExitStack() as stack:
        sides = {side: appender(side, Path(place), stack, durability) for side in SIDES}
        for message in messages:
            for side in random.sample(SIDES, len(SIDES)):
                with around(side):
                    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
                    sides[side](message)
                    taken[side].append((time.perf_counter_ns() - wall, time.process_time_ns() - cpu))
    return {
        side: (statistics.median(wall for wall, _ in each) / 1e3, statistics.median(cpu for _, cpu in each) / 1e3)
        for side, each in taken.items()
    }


def instructions(valgrind: str, side: str) -> float:
    """Return the instructions of an append."""
    few, many = (_counted(valgrind, side, count) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _counted(valgrind: str, side: str, count: int) -> int:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        told = f"--callgrind-out-file={place}/callgrind.out"
        done = subprocess.run(  # noqa: S603 - this very module
            [valgrind, "--tool=callgrind", told, sys.executable, "-m", "bench.telemetry", side, str(count)],
            check=True,
            capture_output=True,
            text=True,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


def count(side: str, appends: int) -> None:
    """Make so many appends: what is counted."""
    messages = Messages(2).many(MANY)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place, ExitStack() as stack:
        append = appender(side, Path(place), stack, "relaxed")  # the kernel does not count
        stack.enter_context(around(side))
        for message in messages[:appends]:
            append(message)


def main() -> None:
    """Print the table."""
    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())
    trace.set_tracer_provider(provider)
    if len(sys.argv) == 3:
        count(sys.argv[1], int(sys.argv[2]))
        return
    full, relaxed = times("full"), times("relaxed")
    valgrind = shutil.which("valgrind")
    counted = {side: instructions(valgrind, side) if valgrind else 0 for side in SIDES}
    print("side | full: wall us | CPU us | relaxed: CPU us | instructions")
    for side in SIDES:
        pairs = [
            (full[side][0], full["off"][0]),
            (full[side][1], full["off"][1]),
            (relaxed[side][1], relaxed["off"][1]),
        ]
        pairs += [(counted[side], counted["off"])] if valgrind else []
        print(side, *(f"{value:,.0f} ({100 * value / off - 100:+.1f} %)" for value, off in pairs), sep=" | ")


if __name__ == "__main__":
    main()
