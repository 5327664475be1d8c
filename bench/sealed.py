"""What encryption costs: an encrypted SQLite store beside a plain one, in turns. `python -m bench.sealed` prints it.

Times are CPU times: the disk waits for both stores alike. Instructions are counted by valgrind, if it is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import backtrail
from bench.clock import take_turns
from bench.data import Messages

LENGTH = 4000
"""Messages of the thread that is loaded."""
APPENDS = 500
FEW, MANY = 100, 300
ROOT = Path(__file__).resolve().parent.parent
KEYS: dict[str, dict[str, Any]] = {"plain": {}, "encrypted": {"key": backtrail.Key(bytes(32))}}


def appends(directory: Path) -> float:
    """Return the CPU time of an append to an encrypted store, in times of a plain one."""
    stores = {name: backtrail.open(directory / f"{name} appends.db", **options) for name, options in KEYS.items()}
    threads = {name: store.thread("t") for name, store in stores.items()}
    for thread in threads.values():
        thread.save({"messages": Messages(1).many(100)})
    supplies = {name: Messages(2).supply(APPENDS + 1) for name in threads}
    actions = {name: lambda name=name: threads[name].append("messages", next(supplies[name])) for name in threads}
    times = take_turns(actions, APPENDS, 60.0)
    for store in stores.values():
        store.close()
    return times["encrypted"].mean.over(times["plain"].mean).cpu


def loads(directory: Path) -> float:
    """Return the CPU time of a load by a store that was just opened, in times of a plain one."""
    for name, options in KEYS.items():
        with backtrail.open(directory / f"{name} loads.db", **options) as store:
            store.thread("t").save({"messages": Messages(3).many(LENGTH)})
            for message in Messages(4).many(50):
                store.thread("t").append("messages", message)

    def load(name: str) -> None:
        with backtrail.open(directory / f"{name} loads.db", **KEYS[name]) as store:
            assert len(store.thread("t").load().state["messages"]) == LENGTH + 50

    times = take_turns({name: lambda name=name: load(name) for name in KEYS}, 40, 60.0)
    return times["encrypted"].median.over(times["plain"].median).cpu


def sizes(directory: Path) -> tuple[float, float]:
    """Return the size of an encrypted file in sizes of a plain one, and the bytes that a row takes more."""
    files, rows = {}, 0
    for name, options in KEYS.items():
        path = directory / f"{name} sizes.db"
        with backtrail.open(path, durability="relaxed", **options) as store:
            store.thread("t").save({"messages": []})
            for message in Messages(5).many(5000):
                store.thread("t").append("messages", message)
            rows = store._backend.usage().rows  # noqa: SLF001 - nobody else counts them
        files[name] = path.stat().st_size
    return files["encrypted"] / files["plain"], (files["encrypted"] - files["plain"]) / rows


def instructions(directory: Path) -> float | None:
    """Return the instructions of an append to an encrypted store, in those of a plain one; None without valgrind."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        return None
    costs = {
        name: _counted(valgrind, directory, name, MANY) - _counted(valgrind, directory, name, FEW) for name in KEYS
    }
    return costs["encrypted"] / costs["plain"]


def _counted(valgrind: str, directory: Path, name: str, count: int) -> int:
    places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
    program = [sys.executable, "-m", "bench.sealed", name, str(count)]
    done = subprocess.run(  # noqa: S603 - this very module
        [valgrind, "--tool=callgrind", f"--callgrind-out-file={directory / 'callgrind.out'}", *program],
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


def append(name: str, count: int) -> None:
    """Append so many messages: what valgrind counts."""
    supply = Messages(6).supply(MANY)
    with tempfile.TemporaryDirectory() as place, backtrail.open(Path(place) / "s.db", **KEYS[name]) as store:
        thread = store.thread("t")
        thread.save({"messages": Messages(7).many(100)})
        for _ in range(count):
            thread.append("messages", next(supply))


def main() -> None:
    """Print the figures."""
    if len(sys.argv) > 1:
        append(sys.argv[1], int(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        times, per_row = sizes(directory)
        print("encrypted / plain, on SQLite, messages of 1 KB")
        print(f"append, CPU: {appends(directory):.2f}")
        counted = instructions(directory)
        print("append, instructions:", "valgrind is not installed" if counted is None else f"{counted:.2f}")
        print(f"open and load {LENGTH:,} messages, CPU: {loads(directory):.2f}")
        print(f"size of the file: {times:.3f}; {per_row:+.0f} bytes a row")


if __name__ == "__main__":
    main()
