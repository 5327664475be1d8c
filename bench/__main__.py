"""What saving and loading cost on SQLite, as ratios from one interleaved run.

Run it with `make bench`; `make bench ARGS=--quick` takes fewer rounds. Times are compared with a raw insert of the
same bytes into an SQLite table with the same durability, taken in turns with it, so that a noisy machine disturbs both
alike. Bytes are counted, not timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

import backtrail

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = (
    "the plan for this week is to compare the two offers we have and then decide which hotel fits the budget while "
    "keeping enough time for the museum and a walk along the river before dinner so please check again whether trains "
    "leave early enough on friday and tell me what a table for four would cost in that small place near the station"
)
WORDS = TEXT.split()


class Messages:
    """Makes chat messages of about 1 KB, the same ones in every run."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._count = 0

    def one(self) -> dict[str, Any]:
        """Make a message."""
        self._count += 1
        text = " ".join(self._rng.choices(WORDS, k=260))[:960]
        return {"role": "user", "id": f"m{self._count}", "content": text}

    def many(self, count: int) -> list[dict[str, Any]]:
        """Make messages."""
        return [self.one() for _ in range(count)]


class Raw:
    """One row per insert, into a table of a database of its own, as durable as the store."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 1000"):
            self._connection.execute(f"PRAGMA {setting}").fetchall()
        self._connection.execute("CREATE TABLE row (key INTEGER PRIMARY KEY, payload BLOB)")

    def insert(self, payload: bytes) -> None:
        """Insert one row."""
        self._connection.execute("INSERT INTO row (payload) VALUES (?)", (payload,))


def timed(action: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall time and the CPU time of an action, in microseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - wall) * 1e6, (time.process_time() - cpu) * 1e6


def compare(rounds: int, actions: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, float]]:
    """Run the actions in turns and return their mean wall and CPU times."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            taken[name].append(timed(action))
    return {
        name: (statistics.fmean(wall for wall, _ in times), statistics.fmean(cpu for _, cpu in times))
        for name, times in taken.items()
    }


def show(name: str, value: str) -> None:
    """Print one figure."""
    print(f"{name:<66}{value:>20}")


def appends(directory: Path, rounds: int) -> None:
    """Compare an append at several lengths with a raw insert."""
    source = Messages(1)
    store = backtrail.open(directory / "appends.db")
    raw = Raw(directory / "raw.db")
    actions: dict[str, Callable[[], Any]] = {}
    for length in (10, 100, 1_000, 10_000):
        thread: backtrail.Thread[Any] = store.thread(f"{length} messages")
        thread.save({"messages": source.many(length)})
        actions[f"append at {length:,}"] = lambda thread=thread: thread.append("messages", source.one())
    payload = random.Random(2).randbytes(550)
    actions["raw"] = lambda: raw.insert(payload)
    plain: backtrail.Thread[Any] = store.thread("plain")
    state = {"messages": source.many(1_000)}
    plain.save(state)

    def save() -> None:
        state["messages"].append(source.one())
        plain.save(state)

    actions["plain save at 1,000"] = save
    means = compare(rounds, actions)
    wall, cpu = means.pop("raw")
    for name, (taken, spent) in means.items():
        show(f"{name} messages / raw FULL insert (CPU)", f"{taken / wall:.2f} ({spent / cpu:.1f})")
    ten, many = means["append at 10"], means["append at 10,000"]
    show("append at 10,000 messages / at 10 (CPU)", f"{many[0] / ten[0]:.2f} ({many[1] / ten[1]:.2f})")
    store.close()


def sizes(directory: Path) -> None:
    """Count what saves add to the file."""
    source = Messages(3)
    path = directory / "sizes.db"
    with backtrail.open(path, durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": []})
        for _ in range(1_000):
            thread.append("messages", *source.many(2))
    show("bytes on disk per step of 2 x 1 KB messages, 1,000 steps", f"{path.stat().st_size / 1_000:,.0f}")
    with backtrail.open(path, durability="relaxed") as store:
        thread = store.thread("t")
        show(
            "bytes stored by a status flip on the last message", f"{thread.set('messages[-1].status', 'done').stored:,}"
        )
        token = thread.append("messages[-1].content", " and").stored
        show("bytes stored by a token appended to its text", f"{token:,}")
        costs = []
        for step in range(100, 1_000, 30):
            fork = thread.fork(f"fork at {step}", at=step)
            costs.append(fork.load().stored + fork.append("messages", source.one()).stored)
        show("bytes stored by a fork and its first save, mean of 30", f"{statistics.fmean(costs):,.0f}")
        big: backtrail.Thread[Any] = store.thread("big")
        rng = random.Random(4)
        big.save({"big": {f"key {i}": rng.randbytes(500).hex() for i in range(10_000)}, "messages": []})
        beside = [big.append("messages", source.one()).stored for _ in range(200)]
        show("bytes stored by a message beside a 10 MB dict, mean of 200", f"{statistics.fmean(beside):,.0f}")
        long: backtrail.Thread[Any] = store.thread("long")
        state = {"messages": source.many(10_000)}
        whole = long.save(state).stored
        state["messages"][:3_000] = [{"role": "system", "content": "a summary"}]
        show("first 30 % of 10,000 replaced: rewritten", f"{100 * long.save(state).stored / whole:.2f} %")


def loads(directory: Path, rounds: int) -> None:
    """Compare reading the last messages with reading all of them."""
    source = Messages(5)
    path = directory / "loads.db"
    with backtrail.open(path, durability="relaxed") as store:
        store.thread("t").save({"messages": source.many(10_000)})

    def cold(read: Callable[[backtrail.Checkpoint[Any]], Any]) -> None:
        with backtrail.open(path) as store:
            read(store.thread("t").load())

    means = compare(
        max(rounds // 20, 5),
        {"all": lambda: cold(lambda c: c.state), "last": lambda: cold(lambda c: c.tail("messages", 20))},
    )
    show("cold load of the last 20 of 10,000 messages / of all", f"{means['last'][0] / means['all'][0]:.3f}")
    show("cold load of 10,000 messages, ms (this machine)", f"{means['all'][0] / 1000:.1f}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 60 if parser.parse_args().quick else 400
    with tempfile.TemporaryDirectory(prefix="backtrail-bench-") as name:
        directory = Path(name)
        appends(directory, rounds)
        sizes(directory)
        loads(directory, rounds)


if __name__ == "__main__":
    main()
