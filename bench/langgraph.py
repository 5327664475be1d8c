"""LangGraph's savers, driven as a compiled graph drives them: the same calls, with the same values in them.

By default a channel's whole value is in every checkpoint. A *delta channel* (`langgraph.channels.DeltaChannel`, in
beta) keeps what a step added with `put_writes`, leaves the channel out of the checkpoint, and puts its whole value
into one checkpoint in 100; a load replays the writes since then. tests/project/test_bench.py has a compiled graph read
what was written here.

This is the only module that imports LangGraph, and it is only imported when that is installed.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # what a graph puts into a checkpoint, too
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.data import Message, noise
from bench.raw import WAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.checkpoint.postgres import PostgresSaver

SNAPSHOT_EVERY = 100
"""LangGraph's own default."""
CHANNEL = "messages"
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


def fold(state: list[Message], writes: Sequence[list[Message]]) -> list[Message]:
    """Add what steps wrote: the reducer of the delta channel."""
    return state + [message for write in writes for message in write]


@contextmanager
def on_sqlite(path: Path, *, full: bool = False) -> Iterator[SqliteSaver]:
    """Make a saver as its documentation does; `full` sets synchronous=FULL, whatever this SQLite's default is."""
    with closing(sqlite3.connect(str(path), check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()
        if full:
            connection.execute("PRAGMA synchronous = FULL")
        yield saver


def on_postgres(url: str) -> AbstractContextManager[PostgresSaver]:
    """Make a saver as its documentation does; whoever writes the first time has to call `setup`."""
    from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415 - a package of its own

    return PostgresSaver.from_conn_string(url)


def synchronous(saver: SqliteSaver) -> str:
    """Return the durability that a saver's connection has."""
    return SYNCHRONOUS[saver.conn.execute("PRAGMA synchronous").fetchone()[0]]


def size_on_sqlite(saver: SqliteSaver) -> int:
    """Return how many bytes the database of a saver has, those in its WAL included."""
    (count,), (size,) = (saver.conn.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(count) * int(size)


class Conversation:
    """One thread of a saver that begins with these messages. Calling it saves one more, as a step of a graph does.

    `size` tells how many bytes the saver's database has.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[str],
        history: list[Message],
        messages: Sequence[Message],
        *,
        delta: bool,
        size: Callable[[], int] = lambda: 0,
    ) -> None:
        self.saver = saver
        self._size = size
        self._delta = delta
        self._messages = iter(messages)
        self._length = len(history)
        self.state = list(history)
        self._fill()
        self.config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
        self._version: Any = None
        self._step = -1
        self._updates = 0
        self._put(_DeltaSnapshot(self.state) if delta else self.state)
        self._before = size()

    def _fill(self) -> None:
        """Write as much as every series has written before it is timed."""
        checkpoint = empty_checkpoint() | {"channel_values": {"filler": noise(WAL_BYTES)}}
        config: Any = {"configurable": {"thread_id": "filler", "checkpoint_ns": ""}}
        self.saver.put(config, checkpoint, {"source": "input", "step": -1, "parents": {}}, {})  # type: ignore[arg-type]

    def __call__(self) -> None:
        """Save one more message."""
        message = next(self._messages)
        self.state.append(message)
        if not self._delta:
            self._put(self.state)
            if len(self.state) >= 2 * self._length:
                del self.state[self._length :]  # as everywhere, what is measured at n is measured up to 2n
            return
        self.saver.put_writes(self.config, [(CHANNEL, [message])], str(uuid4()))
        self._updates += 1
        if self._updates < SNAPSHOT_EVERY:
            self._put(None)
        else:
            self._updates = 0
            self._put(_DeltaSnapshot(self.state))

    def _put(self, value: Any) -> None:
        """Put a checkpoint with this value of the channel, or without the channel."""
        self._step += 1
        self._version = self.saver.get_next_version(self._version, None)
        versions = {CHANNEL: self._version}
        checkpoint: Any = {
            "v": 4,
            "ts": dt.datetime.now(dt.UTC).isoformat(),
            "id": str(uuid6(clock_seq=self._step)),
            "channel_values": {} if value is None else {CHANNEL: value},
            "channel_versions": versions,
            "versions_seen": {"__input__": {}},
            "updated_channels": [CHANNEL],
        }
        metadata: Any = {"source": "loop", "step": self._step, "parents": {}}
        if self._updates:
            metadata["counters_since_delta_snapshot"] = {CHANNEL: (self._updates, self._updates)}
        self.config = self.saver.put(self.config, checkpoint, metadata, versions)

    def added(self) -> int:
        """How many bytes the database has grown by since the history was put there."""
        return self._size() - self._before


def load(saver: BaseCheckpointSaver[str]) -> list[Message]:
    """Return the messages of the newest checkpoint, replaying writes if need be."""
    config: Any = {"configurable": {"thread_id": "1", "checkpoint_ns": ""}}
    found = saver.get_tuple(config)
    assert found is not None
    values = found.checkpoint["channel_values"]
    empty: Any = DeltaChannel(fold, list)
    if CHANNEL in values:
        channel = empty.from_checkpoint(values[CHANNEL])
    else:
        history = saver.get_delta_channel_history(config=found.config, channels=[CHANNEL])[CHANNEL]
        channel = empty.from_checkpoint(history["seed"])
        channel.replay_writes(history["writes"])
    return channel.get()
