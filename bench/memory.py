"""How much memory handles hold: a fresh process opens many threads and takes a step on each."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from bench.data import Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from bench.scale import Scale

MESSAGES = 100
ROOT = Path(__file__).resolve().parent.parent


def memory(directory: Path, scale: Scale) -> Result:
    """Measure the memory of handles after a step on each."""
    path = directory / "handles.db"
    with backtrail.open(path, durability="relaxed") as store:
        source = Messages(1)
        for at in range(scale.handles):
            store.thread(f"t{at}").save({"messages": source.many(MESSAGES)})
    name = f"memory of {scale.handles:,} handles after a step on {MESSAGES} messages each"
    places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
    done = subprocess.run(  # noqa: S603 - this very module
        [sys.executable, "-m", __spec__.name, str(path), str(scale.handles)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    grown: int | None = json.loads(done.stdout)
    if grown is None:
        return Result([Figure(name, None, gate=60, goal=30, unit="MB", note="this system does not tell it")])
    return Result([Figure(name, grown / 1e6, gate=60, goal=30, unit="MB")])


def resident() -> int | None:
    """Return how many bytes of memory this process has; None if the system does not tell it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def grow(path: str, count: int) -> int | None:
    """Take a step on each thread with a handle of its own; return the memory that is added while all handles live."""
    messages = Messages(2).many(count)
    with backtrail.open(path) as store:
        step(store.thread("t0"), messages[0])  # what is loaded once
        gc.collect()
        before = resident()
        handles: list[backtrail.Thread[Any]] = [store.thread(f"t{at}") for at in range(count)]
        for handle, message in zip(handles, messages, strict=True):
            step(handle, message)
        gc.collect()
        after = resident()
    return None if before is None or after is None else after - before


def step(thread: backtrail.Thread[Any], message: dict[str, Any]) -> None:
    """Append a message in a step."""
    with thread.step() as state:
        state["messages"].append(message)


if __name__ == "__main__":
    print(json.dumps(grow(sys.argv[1], int(sys.argv[2]))))
