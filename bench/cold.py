"""A plain save by a new process: how much it reads to find the changes, and how much it stores.

Run as a program, it is that process: it has the state in memory, opens the store and saves.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backtrail
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.engine.tree.nodes import LEAF, TEXT, check_chunk
from bench.data import Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.scale import Scale

SEED = 9
BODIES = (LEAF, TEXT)
"""Nodes that hold what users saved; the others hold references."""
ROOT = Path(__file__).resolve().parent.parent


def cold(directory: Path, scale: Scale) -> Result:
    """Save with one more message, in fresh processes."""
    path = directory / "cold.db"
    source = Messages(SEED)
    with backtrail.open(path, durability="relaxed") as store:
        thread: backtrail.Thread[Any] = store.thread("t")
        thread.save({"messages": source.many(scale.long)})
    extra = source.many(scale.processes)
    found = [_child(path, scale.long + 1 + at) for at in range(scale.processes)]
    with backtrail.open("memory://") as other:  # the same messages, appended
        alone: backtrail.Thread[Any] = other.thread("t")
        alone.save({"messages": Messages(SEED).many(scale.long)})
        appended = statistics.fmean(alone.append("messages", message).stored for message in extra)
    what = f"fresh process, plain save at {scale.long:,}"
    return Result(
        [
            Figure(f"{what}: chunk bodies read", max(one["bodies"] for one in found), gate=0, goal=0, unit="chunks"),
            Figure(f"{what}: other nodes read", max(one["others"] for one in found), unit="chunks"),
            Figure(
                f"{what}: bytes stored / by an append",
                statistics.fmean(one["stored"] for one in found) / appended,
                gate=1.2,
                goal=1.0,
                samples=len(found),
            ),
        ]
    )


def _child(path: Path, length: int) -> dict[str, int]:
    places = [str(ROOT), str(Path(backtrail.__file__).resolve().parent.parent)]
    done = subprocess.run(  # noqa: S603 - this very module
        [sys.executable, "-m", "bench.cold", str(path), str(length)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


@contextmanager
def kinds_read() -> Iterator[list[bytes]]:
    """Give a list that gets the kind of every node that is read from an SQLite store inside the block."""
    kinds: list[bytes] = []
    plain = SqliteBackend.chunks

    def counted(self: SqliteBackend, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        found = plain(self, digests)
        kinds.extend(check_chunk(digest, stored).kind for digest, stored in found.items())
        return found

    SqliteBackend.chunks = counted  # type: ignore[method-assign]
    try:
        yield kinds
    finally:
        SqliteBackend.chunks = plain  # type: ignore[method-assign]


def save(path: str, length: int) -> dict[str, int]:
    """Save a state of this many messages, and count the reads from the store."""
    state = {"messages": Messages(SEED).many(length)}
    with kinds_read() as kinds, backtrail.open(path) as store:
        stored = store.thread("t").save(state).stored
    bodies = sum(kind in BODIES for kind in kinds)
    return {"bodies": bodies, "others": len(kinds) - bodies, "stored": stored}


if __name__ == "__main__":
    print(json.dumps(save(sys.argv[1], int(sys.argv[2]))))
