# Made from src/backtrail/checkpoint.py by tools/generate_aio.py: change it there, then `make aio`.
"""Checkpoints of the async mirror: properties return what the row says, and methods read the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backtrail import checkpoint as sync
from backtrail.aio.blocks import called
from backtrail.aio.executor import detached

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.aio.executor import Executor
    from backtrail.models import StatePart

S = TypeVar("S")


class Checkpoint(Generic[S]):
    """An immutable point in a thread. Two are equal if they have the same id."""

    __slots__ = ("_executor", "_sync", "tags")

    def __init__(self, executor: Executor, checkpoint: sync.Checkpoint[S]) -> None:
        self._executor = executor
        self._sync = checkpoint
        self.tags = checkpoint.tags

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return self._sync.thread_id

    @property
    def thread_kind(self) -> str | None:
        """The kind of the thread: "thread", "agent", "conversation" or "run". None after `from_bytes`."""
        return self._sync.thread_kind

    @property
    def id(self) -> str:
        """The id of the checkpoint, the same in every store that has it."""
        return self._sync.id

    @property
    def parent_id(self) -> str | None:
        """The id of the parent checkpoint; for the first checkpoint of a fork, the id of the forked checkpoint."""
        return self._sync.parent_id

    @property
    def op_id(self) -> bytes:
        """The id of the write. A checkpoint of a dropped transaction may have the same id, but never the same op_id."""
        return self._sync.op_id

    @property
    def seq(self) -> int:
        """The position in the thread's log."""
        return self._sync.seq

    @property
    def step(self) -> int:
        """The number of checkpoints on the path to this checkpoint, itself and ancestors before a fork included."""
        return self._sync.step

    @property
    def label(self) -> str | None:
        """The name of the checkpoint in its thread, or None."""
        return self._sync.label

    @property
    def kind(self) -> str:
        """One of manual, automatic, pre_operation, recovery."""
        return self._sync.kind

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the metadata that was saved with the checkpoint."""
        return self._sync.metadata

    @property
    def created_at(self) -> dt.datetime:
        """The time of the write, by the writer's clock, in UTC."""
        return self._sync.created_at

    @property
    def size(self) -> int:
        """The bytes of the whole state, uncompressed and unshared."""
        return self._sync.size

    @property
    def stored(self) -> int:
        """The bytes that this checkpoint added to the store: its row's content and the new chunks."""
        return self._sync.stored

    @property
    def root(self) -> str:
        """The hash of the state. Equal states have equal roots."""
        return self._sync.root

    @property
    def damaged(self) -> bool:
        """Whether the row does not match its checksum. Then only the id is reliable."""
        return self._sync.damaged

    @called
    async def load_state(self) -> S:
        """Return the state. The first access loads and verifies it."""
        return await self._executor.apart(lambda: self._sync.state)

    @called
    async def get(self, path: str | tuple[Any, ...], default: Any = None) -> Any:
        """Return the value at a path, or `default`. Only the nodes that lead there are read."""
        return await self._executor.apart(self._sync.get, path, default)

    @called
    async def tail(self, path: str | tuple[Any, ...], n: int) -> list[Any]:
        """Return the last n items of a list or tuple, oldest first. Earlier items are not loaded."""
        return await self._executor.apart(self._sync.tail, path, n)

    @called
    async def part(
        self,
        path: str | tuple[Any, ...] = (),
        *,
        start: int = 0,
        limit: int = 100,
        most: int = 2000,
    ) -> StatePart:
        """Return the value at a path: whole if it has at most `most` bytes, else only its type and size.

        Of a large list or dict, it also returns up to `limit` entries from the position `start` on. Entries of more
        than `most` bytes are not read. `NotFound` if there is no value at the path.
        """
        return await self._executor.apart(self._sync.part, path, start=start, limit=limit, most=most)

    @called
    async def to_bytes(self) -> bytes:
        """Return the checkpoint and its whole state as self-contained bytes."""
        return await self._executor.apart(self._sync.to_bytes)

    @classmethod
    async def from_bytes(cls, data: Any, type: type[S] | None = None, *, types: tuple[Any, ...] = ()) -> Checkpoint[S]:  # noqa: A002 - the name users know
        """Return the checkpoint of `to_bytes`; `Corrupt` for damaged bytes, `Invalid` for any other data."""
        executor = detached()
        found = await executor.apart(_bytes_of, data, type, types=types)
        return cls(executor, found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other._sync == self._sync

    def __hash__(self) -> int:
        return hash(self._sync)

    def __repr__(self) -> str:
        return repr(self._sync)


def plain(value: Any) -> Any:
    """Return what the synchronous code knows a checkpoint by."""
    return value._sync if isinstance(value, Checkpoint) else value  # noqa: SLF001 - the two are one


_bytes_of = sync.Checkpoint.from_bytes
