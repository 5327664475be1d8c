"""How many instructions an append takes, as valgrind counts them: the same on a busy machine as on a quiet one.

Two processes append to the same threads, one of them more often. The difference is the cost of the appends alone, rare
and costly ones included. What the kernel does is not counted.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from bench.data import Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from bench.scale import Scale

LENGTH = 100
"""Messages before the first append."""
FEW, MANY = 100, 300
ROOT = Path(__file__).resolve().parent.parent


def instructions(directory: Path, scale: Scale) -> Result:  # noqa: ARG001 - every group takes it
    """Count the instructions of an append."""
    name, marks = f"append at {LENGTH}: instructions", {"gate": 390_000, "goal": 340_000}
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return Result([Figure(name, None, **marks, unit="", note="valgrind is not installed")])
    few, many = (_counted(valgrind, directory, count) for count in (FEW, MANY))
    return Result([Figure(name, (many - few) / (MANY - FEW), **marks, unit="", samples=MANY - FEW)])


def _counted(valgrind: str, directory: Path, count: int) -> int:
    """Return the instructions of a process that makes so many appends."""
    places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
    told = directory / "callgrind.out"
    done = subprocess.run(  # noqa: S603 - this very module
        [valgrind, "--tool=callgrind", f"--callgrind-out-file={told}", sys.executable, "-m", __spec__.name, str(count)],
        check=True,
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONHASHSEED": "0"},
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(done.stderr)
    return int(found[1])


def append(directory: str, count: int) -> None:
    """Append messages to threads, each of which doubles its length."""
    # By the clock, a store notes when its threads were last written to. Under valgrind an append takes a thousand times
    # as long, more on a busy machine: so the clock ticks with each write.
    time.time_ns = itertools.count(time.time_ns(), 1_000_000).__next__
    threads: list[backtrail.Thread[Any]] = []
    history, messages = Messages(1).many(LENGTH), Messages(LENGTH + 1).many(MANY + 1)
    with backtrail.open(Path(directory) / "store.db", durability="relaxed") as store:  # the kernel does not count
        for at in range(MANY // LENGTH):
            threads.append(store.thread(f"t{at}"))
            threads[-1].save({"messages": history})
            threads[-1].append("messages", messages[MANY])
        for at in range(count):
            threads[at // LENGTH].append("messages", messages[at])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        append(place, int(sys.argv[1]))
