# Made from src/backtrail/checkpoint.py by tools/generate_aio.py: change it there, then `make aio`.
"""A checkpoint as users of the async mirror hold it: what is known at once, and what is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from backtrail import checkpoint as sync
from backtrail.aio.blocks import called
from backtrail.aio.executor import detached

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.aio.executor import Crew

S = TypeVar("S")


class Checkpoint(Generic[S]):
    """An immutable point in a thread. Two are equal if they have the same id."""

    __slots__ = ("_crew", "_sync", "tags", "thread_id")

    def __init__(self, crew: Crew, checkpoint: sync.Checkpoint[S]) -> None:
        self._crew = crew
        self._sync = checkpoint
        self.thread_id = checkpoint.thread_id
        self.tags = checkpoint.tags

    @property
    def id(self) -> str:
        """What names it for good, in whatever store it is."""
        return self._sync.id

    @property
    def parent_id(self) -> str | None:
        """The id of the one it was made on top of; for the first one of a fork, of the one it was forked from."""
        return self._sync.parent_id

    @property
    def op_id(self) -> bytes:
        """What tells this checkpoint from one that a dropped transaction gave the same id."""
        return self._sync.op_id

    @property
    def seq(self) -> int:
        """Its place in the thread's log."""
        return self._sync.seq

    @property
    def step(self) -> int:
        """How many checkpoints led to it, itself included."""
        return self._sync.step

    @property
    def label(self) -> str | None:
        """Its name in the thread, if it was given one."""
        return self._sync.label

    @property
    def kind(self) -> str:
        """One of manual, automatic, pre_operation, recovery."""
        return self._sync.kind

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of what was saved with it."""
        return self._sync.metadata

    @property
    def created_at(self) -> dt.datetime:
        """When it was made, by its writer's clock, in UTC."""
        return self._sync.created_at

    @property
    def size(self) -> int:
        """Bytes of the whole state, as if it stood alone, uncompressed."""
        return self._sync.size

    @property
    def stored(self) -> int:
        """Bytes that this checkpoint added to the store: its row's content and the chunks that were new."""
        return self._sync.stored

    @property
    def root(self) -> str:
        """The hash of the state: equal states have equal roots, however they came about."""
        return self._sync.root

    @property
    def damaged(self) -> bool:
        """Whether its row does not match its checksum; then only its id is sure."""
        return self._sync.damaged

    @called
    async def load_state(self) -> S:
        """Return the state, loaded and verified when it is first read."""
        return await self._crew.apart(lambda: self._sync.state)

    @called
    async def get(self, path: str | tuple[Any, ...], default: Any = None) -> Any:
        """Return what is at a path, reading only what leads there; `default` if there is nothing."""
        return await self._crew.apart(self._sync.get, path, default)

    @called
    async def tail(self, path: str | tuple[Any, ...], n: int) -> list[Any]:
        """Return the last n items of a list or tuple, oldest first, without loading the rest."""
        return await self._crew.apart(self._sync.tail, path, n)

    @called
    async def to_bytes(self) -> bytes:
        """Return the checkpoint and its whole state as bytes that stand alone."""
        return await self._crew.apart(self._sync.to_bytes)

    @classmethod
    async def from_bytes(cls, data: Any, type: type[S] | None = None, *, types: tuple[Any, ...] = ()) -> Checkpoint[S]:  # noqa: A002 - the name users know
        """Return a checkpoint from what `to_bytes` gave: `Corrupt` if damaged, `Invalid` if it is something else."""
        crew = detached()
        found = await crew.apart(_bytes_of, data, type, types=types)
        return cls(crew, found)

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
