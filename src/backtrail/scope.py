"""Scopes: a store that sees and touches the threads of some agents, and nothing else.

`ScopedBackend` is a backend on top of another one. Every read and every write of a scoped store goes through it, so
this module is the only place that decides what is inside. A thread is inside if its owner is an agent of the scope. The
owner is the agent in its record; the thread of an agent's checkpoints belongs to the agent that it is named after, and
a thread of notes belongs to the owner of the thread that it is about, if there is one. `ReadOnlyBackend` refuses every
change of data.

- A read by name, uid or number gives nothing for a thread outside, as if the thread did not exist.
- Listings, searches and counts have only threads inside.
- Rows from before a thread's deletion are outside: its id may have been another agent's. Rows that a checkpoint of an
  agent inside needs are that agent's own.
- A commit that names a thread outside is refused, and nothing is written. So is maintenance of the whole store.

Two things do not depend on the scope: an id that another agent uses is taken, also after its deletion until `gc` has
removed its checkpoints, and content that another agent has stored is not stored twice (`Checkpoint.stored` is smaller).
"""

# ruff: noqa: D102 - the port documents its methods

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar, cast

from backtrail.backends.defaults import page
from backtrail.backends.port import IndexState, Usage
from backtrail.engine import manifests
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.log import CLEAR, MAX_SEQ, clip, erased_count
from backtrail.errors import Conflict, Invalid, Unavailable
from backtrail.validation import check_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.backends.port import (
        Backend,
        Batch,
        IndexHit,
        NewThread,
        Phrase,
        Row,
        Splice,
        ThreadRecord,
        ThreadTip,
    )

T = TypeVar("T")
_PAGE: Final = 500


class Scope(NamedTuple):
    """What a scoped store may see and do."""

    agents: tuple[str, ...] | None = None
    """The agents whose things exist; None for all things."""
    read_only: bool = False

    @property
    def agent(self) -> str | None:
        """The owner of new threads that name none: the agent of a scope with one agent."""
        return self.agents[0] if self.agents is not None and len(self.agents) == 1 else None


def scope_for(agent: str | Iterable[str] | None, outer: Scope | None, *, read_only: bool) -> Scope:
    """Return the scope of one agent or several, inside an outer scope if there is one; None: of all agents."""
    read_only = read_only or (outer is not None and outer.read_only)
    if agent is None:
        return Scope(None if outer is None else outer.agents, read_only)
    try:
        named = [agent] if isinstance(agent, str) else [*agent]
    except TypeError:
        raise Invalid(f"agent is an agent's id or several, not {agent!r:.100}", code="invalid.argument") from None
    agents = tuple(dict.fromkeys(check_id(each, "an agent's id") for each in named))
    if not agents:
        raise Invalid("a scope needs at least one agent", code="invalid.argument")
    for each in agents:
        if outer is not None and outer.agents is not None and each not in outer.agents:
            raise _outside(f"agent {each!r}")
    return Scope(agents, read_only)


def backend_for(below: Backend, scope: Scope) -> Backend:
    """Return the part of a backend that a scope allows."""
    allowed = cast("Backend", ReadOnlyBackend(below)) if scope.read_only else below
    return allowed if scope.agents is None else ScopedBackend(allowed, scope.agents)


def whole(backend: Backend) -> Backend:
    """Return the backend of the whole store, below all scopes. Only for what has no owner, such as chunks."""
    return whole(backend._below) if isinstance(backend, ScopedBackend) else backend  # noqa: SLF001 - of this module


class ReadOnlyBackend:
    """A backend that refuses every change of data. The search index is no data of users: it is kept up to date."""

    read_only = True
    _CHANGES: Final = frozenset(
        ("commit", "remove_rows", "rewrite", "next_epoch", "remove_chunks", "reclaim", "repair", "clear_index")
    )

    def __init__(self, below: Backend) -> None:
        self._below = below

    def __getattr__(self, name: str) -> Any:
        """Return a method of the backend; `Unavailable` if it changes data."""
        if name in self._CHANGES:
            raise Unavailable("this store is open for reading only", code="unavailable.read_only")
        return getattr(self._below, name)

    def close(self) -> None:
        """Do nothing: the store that the scope was made from stays open."""


class ScopedBackend:
    """The threads of some agents in a backend."""

    def __init__(self, below: Backend, agents: tuple[str, ...]) -> None:
        self._below = below
        self._agents = agents
        self.read_only = below.read_only
        self.undoes_groups = below.undoes_groups
        self.shows_texts = below.shows_texts

    # -- what is inside -----------------------------------------------------------------------------

    def _owner(self, record: ThreadRecord | NewThread) -> str | None:
        if record.space == manifests.SPACE:
            return record.name
        noted = self._below.find_thread(THREAD, record.name) if record.space == ASIDE else None
        return record.agent if noted is None else noted.agent

    def _owns(self, record: ThreadRecord | NewThread) -> bool:
        return self._owner(record) in self._agents

    def _inside(self, record: ThreadRecord | None) -> ThreadRecord | None:
        """Return a record if its thread is inside.

        A deleted thread is inside every scope once its checkpoints are collected: it has no data, and its name is free.
        """
        if record is None or self._owns(record):
            return record
        newest = self._below.newest(record.no)
        if newest is None:
            return record
        deleted = not newest.head and not any(row.root for row in self._below.rows(record.no, [(1, newest.seq)]))
        return record if deleted else None

    def _begin(self, thread: int, rows: Iterable[Row]) -> int:
        """Return the seq from which on the rows of a thread are its owner's; 0 if all of `rows` are.

        It is the last deletion before the first row in use: a visible checkpoint, or one that a checkpoint of an agent
        inside needs.
        """
        suspect = min((row.seq for row in rows if row.hidden or not row.root), default=MAX_SEQ)
        return self._deletion(thread, suspect)

    def _deletion(self, thread: int, suspect: int) -> int:
        if suspect == MAX_SEQ:
            return 0
        visible = self._below.rows(thread, [(1, MAX_SEQ)], visible=True, limit=1)
        first = visible[0].seq if visible else MAX_SEQ
        if suspect >= first:
            return 0
        pinned = (seq for seq, holders in self._below.pins(thread).items() if any(map(self._holds, holders)))
        between = self._below.rows(thread, [(suspect, min((first, *pinned)))])
        return max((row.seq for row in between if row.op == CLEAR), default=0)

    def _holds(self, holder: bytes) -> bool:
        record = self._below.thread_with_uid(holder)
        return record is not None and self._owns(record)

    def _has(self, thread: int) -> bool:
        return self._inside(self._below.thread(thread)) is not None

    def _require(self, thread: int) -> None:
        if not self._has(thread):
            raise _outside("a thread of another agent")

    # -- threads ------------------------------------------------------------------------------------

    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        return self._inside(self._below.find_thread(space, name))

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        return self._inside(self._below.thread_with_uid(uid))

    def thread(self, no: int) -> ThreadRecord | None:
        return self._inside(self._below.thread(no))

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        return self._first(self._below.thread_numbers, after, limit)

    def _first(self, pages: Callable[[int, int], list[int]], after: int, limit: int) -> list[int]:
        """Return the first numbers of threads with an owner inside, from pages of numbers of all threads."""
        found: list[int] = []
        while len(found) < limit and (numbers := pages(after, _PAGE)):
            records = (self._below.thread(no) for no in numbers)
            found += [record.no for record in records if record is not None and self._owns(record)]
            after = numbers[-1]
        return found[:limit]

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        filters: dict[str, Any] = {"prefix": prefix, "origin": origin}
        if agent is not None:
            if agent not in self._agents:
                return []
            listed = self._below.threads(space=space, agent=agent, after=after, limit=limit, **filters)
            return [each for each in listed if self._owns(each[0])]
        found = [
            each
            for owner in self._agents
            for each in self._below.threads(space=space, agent=owner, after=after, limit=limit, **filters)
            if self._owns(each[0])
        ]
        for unowned in (manifests.SPACE, ASIDE):  # threads whose records may name no agent
            if space in (None, unowned):
                found += self._unowned(unowned, after, limit, filters)
        return page(found, after, limit)

    def _unowned(
        self, space: str, after: tuple[int, int] | None, limit: int, filters: dict[str, Any]
    ) -> list[tuple[ThreadRecord, Row]]:
        found: list[tuple[ThreadRecord, Row]] = []
        while len(found) < limit:
            listed = self._below.threads(space=space, agent=None, after=after, limit=_PAGE, **filters)
            found += [each for each in listed if each[0].agent not in self._agents and self._owns(each[0])]
            if len(listed) < _PAGE:
                break
            after = (listed[-1][1].created_at, listed[-1][0].no)
        return found

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        return self._below.tips(agent, touched=touched) if agent in self._agents else []

    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        found = self._below.threads_named(space, names)
        return {name: record for name, record in found.items() if self._inside(record)}

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        return self._below.newest_of([no for no in threads if self._has(no)])

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        inside = {no for no in {no for no, _, _ in spans} if self._has(no)}
        found = self._below.rows_of([span for span in spans if span[0] in inside], payload=payload)
        rows: dict[int, list[Row]] = {}
        for (no, _), row in found.items():
            rows.setdefault(no, []).append(row)
        begins = {no: self._begin(no, each) for no, each in rows.items()}
        return {
            (no, seq): row
            for (no, seq), row in found.items()
            if seq >= begins[no] or erased_count(row) is not None  # else what was erased would look lost
        }

    # -- rows, tags and chunks ------------------------------------------------------------------------

    def newest(self, thread: int) -> Row | None:
        return self._below.newest(thread) if self._has(thread) else None

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        if not self._has(thread):
            return []
        read = partial(
            self._below.rows, thread, payload=payload, visible=visible, newest_first=newest_first, limit=limit
        )
        found = read(ranges)
        begin = 0 if visible else self._begin(thread, found)
        return read(clip(tuple(ranges), begin, MAX_SEQ)) if begin else found

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        return self._below.count(thread, ranges) if self._has(thread) else 0

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        return self._below.labelled(thread, labels) if self._has(thread) else []

    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        return self._since_deletion(thread, self._below.tags(thread, seqs)) if self._has(thread) else {}

    def tagged(self, thread: int, tag: str) -> list[int]:
        return self._below.tagged(thread, tag) if self._has(thread) else []

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        return self._since_deletion(thread, self._below.pins(thread, seqs)) if self._has(thread) else {}

    def _since_deletion(self, thread: int, found: dict[int, T]) -> dict[int, T]:
        begin = self._deletion(thread, min(found, default=MAX_SEQ))
        return {seq: each for seq, each in found.items() if seq >= begin}

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._below.chunks(digests)  # a digest is known only from a row or a chunk that was read

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        return self._below.present(digests)

    def now(self) -> int:
        return self._below.now()

    # -- writing --------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> tuple[int, ...]:
        for new in (*batch.threads, *(new for _, new in batch.renew)):
            self._require_new(new, batch.threads)
        pairs = (batch.rows, batch.visible, batch.newest, batch.renew, batch.hide, batch.show, batch.untouch)
        triples = (batch.tags, batch.pins, batch.tag, batch.untag, batch.pin, batch.unpin)
        for no in {each[0] for part in (*pairs, *triples) for each in part if each[0] >= 0}:
            self._require(no)
        return self._below.commit(batch)

    def _require_new(self, new: NewThread, others: tuple[NewThread, ...]) -> None:
        noted = new.space == ASIDE and any((each.space, each.name) == (THREAD, new.name) for each in others)
        if not noted and not self._owns(new):
            owner = self._owner(new)
            raise _outside("a thread without an agent" if owner is None else f"agent {owner!r}")
        spaces = (THREAD, ASIDE) if new.space == THREAD else (new.space,)  # notes of another agent would be taken over
        if any(self._below.find_thread(each, new.name) and not self.find_thread(each, new.name) for each in spaces):
            raise Conflict(f"the id {new.name!r} is taken: choose another id", code="conflict.taken")

    @contextmanager
    def group(self) -> Iterator[None]:
        with self._below.group():
            yield

    # -- search ---------------------------------------------------------------------------------------

    def unindexed(self, after: int, limit: int) -> list[int]:
        return self._first(self._below.unindexed, after, limit)

    def indexed(self, thread: int) -> IndexState:
        return self._below.indexed(thread) if self._has(thread) else IndexState(0, 0, 0)

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        self._require(thread)
        return self._below.index(thread, was, now, splices)

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[IndexHit]:
        owners = [each for each in self._agents if agent in (None, each)]
        hits: list[IndexHit] = []
        while len(hits) < limit:
            found = [
                hit
                for owner in owners
                for hit in self._below.find(
                    phrases, space=space, agent=owner, threads=threads, without=without, after=after, limit=limit
                )
            ]
            page = sorted(found, key=lambda hit: (hit.entry.time, hit.no), reverse=True)[:limit]
            hits += self._since_taken(page)
            if len(page) < limit:
                break
            after = (page[-1].entry.time, page[-1].no)
        return hits[:limit]

    def _since_taken(self, hits: list[IndexHit]) -> list[IndexHit]:
        """Leave out hits of a former owner of a thread: the index may be older than the present owner."""
        heads = {no: row.head for no, row in self._below.newest_of({hit.record.no for hit in hits}).items()}
        lists = {(hit.record.no, hit.seq) for hit in hits}
        old = {(no, seq) for no, seq in lists if heads.get(no) != seq and self._deletion(no, seq)}
        return [hit for hit in hits if (hit.record.no, hit.seq) not in old]

    # -- changes --------------------------------------------------------------------------------------

    def listen(self, wake: Callable[[Collection[int]], None]) -> AbstractContextManager[float]:
        return self._below.listen(wake)  # numbers only: the watchers read the threads through this backend

    def changed_since(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        return self._below.changed_since(mark, told, others)

    # -- maintenance ----------------------------------------------------------------------------------

    def usage(self) -> Usage:
        """Return the figures of the threads inside.

        Chunks are shared by all agents: they are counted by the checkpoints that added them.
        """
        threads: dict[str, int] = {}
        checkpoints: dict[str, int] = {}
        sizes: dict[str, int] = {}
        items: dict[str, int] = {}
        rows = stored = 0
        marked = set(self.unindexed(0, MAX_SEQ))
        for no in self.thread_numbers(0, MAX_SEQ):
            record, newest = self._below.thread(no), self._below.newest(no)
            if record is None or newest is None:
                continue
            every = self.rows(no, [(1, newest.seq)])
            rows += len(every)
            stored += sum(row.stored for row in every)
            visible = [row for row in every if row.root and not row.hidden]
            figures = [(checkpoints, len(visible)), (sizes, sum(row.size for row in visible))]
            if newest.head:
                figures.append((threads, 1))
                if no not in marked:
                    figures.append((items, self._below.indexed(no).items))
            for counts, figure in figures:
                if figure:
                    counts[record.space] = counts.get(record.space, 0) + figure
        return Usage(threads, rows, checkpoints, sizes, items, 0, stored, stored, sum(items.values()))

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        del progress
        return ()  # files, tables and indexes belong to the whole store

    def last_seq(self, thread: int) -> int:
        return self._below.last_seq(thread) if self._has(thread) else 0

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        del after, limit
        return []

    def addresses(self, digests: Collection[bytes]) -> Collection[bytes]:
        return self._below.addresses(digests)

    def damaged_chunks(self, addresses: Sequence[bytes], is_sound: Callable[[bytes, bytes], bool]) -> list[bytes]:
        del addresses, is_sound
        return []

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        self._require(thread)
        return self._below.remove_rows(thread, seqs)

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        self._require(thread)
        return self._below.rewrite(thread, rows, chunks)

    def next_epoch(self) -> NoReturn:
        raise _whole("garbage collection")

    def remove_chunks(self, addresses: Sequence[bytes], before_epoch: int) -> NoReturn:
        del addresses, before_epoch
        raise _whole("garbage collection")

    def reclaim(self, *, erase: bool = False) -> NoReturn:
        del erase
        raise _whole("garbage collection")

    def repair(self) -> NoReturn:
        raise _whole("a repair")

    def clear_index(self) -> NoReturn:
        raise _whole("reindex")

    @contextmanager
    def snapshot(self) -> Iterator[Backend]:
        with self._below.snapshot() as view:
            yield ScopedBackend(view, self._agents)

    def close(self) -> None:
        """Do nothing: the store that the scope was made from stays open."""


def _outside(what: str) -> Unavailable:
    return Unavailable(
        f"{what} is outside the scope of this store: use a store with a wider scope", code="unavailable.scope"
    )


def _whole(what: str) -> Unavailable:
    return Unavailable(f"{what} needs the whole store: use a store without a scope", code="unavailable.scope")
