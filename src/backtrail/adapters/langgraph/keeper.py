"""What a saver does, synchronously: LangGraph's checkpoints as checkpoints of backtrail threads.

- The id of a LangGraph checkpoint is the label of its row, so it is found by an index.
- The head of a thread is LangGraph's latest checkpoint: the last one that was put, whatever any clock says.
- A checkpoint is put on its parent. If that is not the head, it is a fork if the config asked for the parent by its id,
  and a `Conflict` if it asked for the latest: then somebody else was faster.
- Of the channels, only those that LangGraph says are new are looked at, and only what changed in them is stored.
"""

from __future__ import annotations

import heapq
import threading
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from langgraph.checkpoint.base import CheckpointTuple

from backtrail.adapters.langgraph import books, pending, places
from backtrail.adapters.langgraph.places import Place, ReadId, label_of
from backtrail.adapters.langgraph.values import Values
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.models import MISSING, NEW

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import DeltaChannelHistory

    from backtrail import Checkpoint, Store, Thread
    from backtrail.adapters.langgraph.books import Book
    from backtrail.adapters.langgraph.consent import Consent
    from backtrail.engine.namespaces import Above

T = TypeVar("T")
_HELD: Final = 256
"""So many threads are remembered as they stood when they were last written to."""
_PAGE: Final = 16
"""The writes on so many checkpoints are read at once by a listing."""
_COURTESY: Final = 0.5
"""Seconds for which a task's writes wait for those of another one."""


class Keeper:
    """Keeps the checkpoints of graphs in a store."""

    def __init__(self, store: Store, consent: Consent) -> None:
        self._store = store
        self._consent = consent
        self._held: dict[tuple[str, bool], tuple[Thread[Any], threading.Lock]] = {}

    def with_graph(self, classes: Iterable[type]) -> Keeper:
        """Return the same with the classes of a graph; itself, if it knows them."""
        consent = self._consent.with_graph(classes)
        if consent is None:
            return self
        made = Keeper(self._store, consent)
        made._held = self._held
        return made

    def _thread(self, place: Place, *, aside: bool = False) -> Thread[Any]:
        """Return a new handle, which expects nothing."""
        return self._handle(place.id, aside=aside)[0]

    def _handle(self, name: str, *, aside: bool) -> tuple[Thread[Any], threading.Lock]:
        """Return a new handle, and a lock that all who ask for this thread share."""
        made, held = self._store.thread(name, types=self._consent.types, aside=aside), self._held
        # as long as there is a handle of a thread, others need not read what it wrote; used last, they stand last
        first, turn = held.pop((name, aside), (made, threading.Lock()))
        held[name, aside] = (first, turn)
        if len(held) > _HELD:
            with suppress(RuntimeError, StopIteration):  # somebody else does the same
                held.pop(next(iter(held)), None)
        return made, turn

    # -- putting --------------------------------------------------------------------------------------

    def _learning(self, value: Any, save: Callable[[], T]) -> T:
        """Save something; once more, if it was refused, and holds classes that nobody had named."""
        known = self._consent.types
        try:
            return save()
        except Invalid as error:
            if error.code == "invalid.value":
                self._consent.learn(value)
            if self._consent.types is known:  # another thread may have met the same class meanwhile
                raise
        return save()

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> RunnableConfig:
        """Save a checkpoint on top of its parent."""
        return self._learning(
            checkpoint["channel_values"], lambda: self._put(config, checkpoint, metadata, new_versions)
        )

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> RunnableConfig:
        place, parent = places.place_of(config), places.checkpoint_of(config)
        about, large = books.written(
            place, config, checkpoint, metadata, parent, under=self._under(place, parent, metadata)
        )
        name = checkpoint["id"]
        meta: dict[str, Any] = {"label": label_of(name), "metadata": about}
        more = {} if large is None else {books.KEY: large}
        found = self._named(place, parent) if parent is not None and places.is_fork(config, metadata) else None
        if parent is None or (found is None and places.is_fork(config, metadata)):
            first = parent is None and places.is_first(config, metadata)
            self._begin(place, {**checkpoint["channel_values"], **more}, meta, first=first)
            return place.config(str(name))
        since = None if found is None else found[1].rest.get("channel_versions")
        state, changed = _channels(checkpoint, new_versions, since)
        on: dict[str, Any] = {"expect": label_of(parent)} if found is None else {"onto": found[0]}
        self._thread(place).save({**state, **more}, changed=[*changed, books.KEY], **on, **meta)
        return place.config(str(name))

    def _under(self, place: Place, parent: str | None, metadata: Mapping[str, Any]) -> list[str] | None:
        """Return what an update of a subgraph's checkpoint keeps of the outer graph: what that checkpoint does."""
        is_update = place.ns and parent is not None and metadata.get("source") in ("update", "fork")
        found = self._named(place, parent) if is_update and parent is not None else None
        return None if found is None else found[1].under

    def _begin(self, place: Place, state: dict[str, Any], meta: dict[str, Any], *, first: bool) -> None:
        """Save a checkpoint that has no parent, or whose parent is gone."""
        thread = self._thread(place)
        head = None if first else thread.latest()
        if head is not None and books.read(head) is None:
            text = f"there is a thread {place.id!r} already that is not LangGraph's: use another thread_id"
            raise Conflict(text, code="conflict.exists", actual=head.id)
        self._thread(place).save(state, expect=NEW if first else None, **meta)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written on top of a checkpoint."""
        place, name = places.place_of(config), places.checkpoint_of(config)
        if name is None:
            raise Invalid(
                "the config of writes names their checkpoint: checkpoint_id is missing", code="invalid.argument"
            )
        run, without = places.run_of(config), places.without_of(config)
        note, listed = pending.Note(name, task_id, task_path, run, without), list(writes)
        self._learning(listed, lambda: self._put_writes(place, note, listed))

    def _put_writes(self, place: Place, note: pending.Note, writes: Sequence[tuple[str, Any]]) -> None:
        aside, turn = self._handle(place.id, aside=True)
        taken = turn.acquire(timeout=_COURTESY)  # they would not conflict, but get in each other's way
        try:
            pending.put(aside, note, writes)
        finally:
            if taken:
                turn.release()

    # -- getting --------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest."""
        place, name = places.place_of(config), places.checkpoint_of(config)
        gone: frozenset[str] = frozenset()
        is_latest = name is None
        if name is None and place.ns:
            found, gone, is_latest = self._latest_within(place, places.above_of(config))
        elif name is None:
            found, gone = self._latest_after(place)
        else:
            found, gone = self._named_after(place, name)
            gone |= frozenset(places.without_of(config))
        if found is None:
            return None
        row, book = found
        writes = pending.read(self._thread(place, aside=True), [book.id], gone)[book.id]
        return _tuple(book, books.values(row), writes, ReadId(book.id, is_latest=is_latest, without=gone))

    def _latest_within(
        self, place: Place, above: Above | None
    ) -> tuple[tuple[Checkpoint[Any], Book] | None, frozenset[str], bool]:
        """Return the latest checkpoint of a namespace that a rewind of the outermost graph has not taken back.

        With it: the runs that had gone on from it, and whether it is the head of its thread.
        """
        outer = Place(place.thread_id, "").id
        row, gone, is_head = self._thread(place)._latest_within(outer, above)  # noqa: SLF001 - in one read
        return self._with_book(place, row), gone, is_head

    def _latest(self, place: Place) -> tuple[Checkpoint[Any], Book] | None:
        return self._latest_after(place)[0]

    def _latest_after(self, place: Place) -> tuple[tuple[Checkpoint[Any], Book] | None, frozenset[str]]:
        """Return the latest checkpoint, and the runs that had gone on from it before the thread was rewound to it."""
        head, gone = self._thread(place)._latest_after()  # noqa: SLF001 - in one read
        return self._with_book(place, head), gone

    def _with_book(self, place: Place, head: Checkpoint[Any] | None) -> tuple[Checkpoint[Any], Book] | None:
        book = None if head is None else books.read(head)
        if head is not None and book is None:
            text = f"the head of thread {place.id!r} was not saved by LangGraph: rewind the thread to what was"
            raise Conflict(text, code="conflict.stale", actual=head.id)
        return None if head is None or book is None else (head, book)

    def _named_after(self, place: Place, name: str) -> tuple[tuple[Checkpoint[Any], Book] | None, frozenset[str]]:
        """Return a checkpoint by its id; if it is the latest, without the runs that a rewind took back."""
        head, gone = self._thread(place)._latest_after()  # noqa: SLF001 - in one read
        book = None if head is None or head.label != label_of(name) else books.read(head)
        return (self._named(place, name), frozenset()) if head is None or book is None else ((head, book), gone)

    def _named(self, place: Place, name: str) -> tuple[Checkpoint[Any], Book] | None:
        label = label_of(name)
        try:
            row = self._thread(place).load(label)
        except (NotFound, Invalid):  # as the beginning of an id it may mean several
            return None
        book = books.read(row) if row.label == label and row.thread_id == place.id else None
        return None if book is None else (row, book)

    # -- listing --------------------------------------------------------------------------------------

    def listed(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the name that LangGraph gave it
        before: RunnableConfig | None = None,
        limit: int | None = None,
        *,
        loaded: bool = False,
    ) -> Iterator[CheckpointTuple]:
        """Give checkpoints, newest first; their values are read when they are looked at, or at once: `loaded`."""
        name = None if config is None else places.checkpoint_of(config)
        if limit is not None and limit <= 0:
            return
        chosen = self._chosen(config, None if before is None else places.checkpoint_of(before), name)
        fitting = islice((each for each in chosen if _has_all(each[1].metadata, filter or {})), limit)
        while page := list(islice(fitting, _PAGE)):
            writes = self._writes(page)
            for row, book in page:
                values = books.values(row) if loaded else Values(_loading(row))
                yield _tuple(book, values, writes[book.place][book.id], ReadId(book.id, is_latest=False))

    def _writes(self, page: Sequence[tuple[Checkpoint[Any], Book]]) -> dict[Place, dict[str, pending.Writes]]:
        """Return the writes on some checkpoints, by their places and ids."""
        ids: dict[Place, list[str]] = {}
        for _, book in page:
            ids.setdefault(book.place, []).append(book.id)
        return {place: pending.read(self._thread(place, aside=True), some) for place, some in ids.items()}

    def _chosen(
        self, config: RunnableConfig | None, before: str | None, name: str | None
    ) -> Iterator[tuple[Checkpoint[Any], Book]]:
        chosen = self._places(config)
        if name is not None:
            found = (self._named(place, name) for place in chosen)
            return (each for each in found if each is not None and (before is None or each[1].id < before))
        rows = [self._rows(place, before) for place in chosen]
        return rows[0] if len(rows) == 1 else heapq.merge(*rows, key=lambda each: each[0].created_at, reverse=True)

    def _rows(self, place: Place, before: str | None) -> Iterator[tuple[Checkpoint[Any], Book]]:
        """Give the checkpoints of a place, newest first; of those that were put twice, the later one."""
        thread = self._thread(place)
        end = None if before is None else self._named(place, before)
        seen: set[str] = set()
        for row in thread.history(newest_first=True, everything=True, before=None if end is None else end[0]):
            book = books.read(row)
            # one that is not here, such as that of another namespace, was before or after these by the time in its id
            if book is None or book.id in seen or (before is not None and end is None and book.id >= before):
                continue
            seen.add(book.id)
            yield row, book

    def _places(self, config: RunnableConfig | None) -> list[Place]:
        """Return the places that a config means: one, all of a thread, or all there are."""
        if config is None:
            found = []
            for info in self._store.threads():
                with suppress(Corrupt):  # one that is damaged does not hide the others
                    found.append(self._place(info.id))
            return [place for place in found if place is not None]
        if places.asked(config).get("checkpoint_ns") is not None:
            return [places.place_of(config)]
        return self._places_of(places.thread_of(config))

    def _places_of(self, thread_id: str) -> list[Place]:
        inner = (self._place(info.id) for info in self._store.threads(prefix=places.below(thread_id)))
        return [Place(thread_id, ""), *(place for place in inner if place is not None)]

    def _place(self, name: str) -> Place | None:
        """Return the place whose thread has this id; None if it is not LangGraph's."""
        head = self._store.thread(name, types=self._consent.types).latest()
        book = None if head is None else books.read(head)
        return None if book is None else book.place

    # -- keeping order --------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread of a graph, with all its namespaces: the outermost last, so that it can be done again."""
        name = places.thread_of({"configurable": {"thread_id": thread_id}})
        outer = self._thread(Place(name, ""))
        if outer.latest() is not None and not any(True for _ in self._rows(Place(name, ""), None)):
            raise Conflict(f"thread {outer.id!r} is not LangGraph's", code="conflict.exists", actual=None)
        below = places.below(name)
        inner = {info.id for kind in (None, "aside") for info in self._store.threads(prefix=below, kind=kind)}
        for each in (*sorted(inner), outer.id):
            self._handle(each, aside=True)[0].delete()
            self._handle(each, aside=False)[0].delete()

    def delete_for_runs(self, run_ids: Iterable[str]) -> None:
        """Delete what some runs have saved. Looks at the rows of all threads."""
        wanted = set(run_ids)
        if not wanted:
            return
        for place in self._places(None):
            thread, aside = self._thread(place), self._thread(place, aside=True)
            rows = [(row, book) for row in thread.history(everything=True) if (book := books.read(row)) is not None]
            doomed = {book.id for _, book in rows if _is_text_in(book.metadata.get("run_id"), wanted)}
            for row, book in rows:  # what later ones are made from stays
                if book.id not in doomed and book.parent in doomed:
                    doomed -= {each.label or "" for each in self._made_from(place, row, book)}
            for row, book in rows:
                if book.id in doomed:
                    for write in aside.find(label=label_of(book.id)):
                        aside.delete_checkpoint(write)
                    thread.delete_checkpoint(row)

    def _made_from(self, place: Place, row: Checkpoint[Any], book: Book) -> list[Checkpoint[Any]]:
        """Return the checkpoints without which the delta channels of one cannot be made."""
        wanted = set(book.metadata.get(books.COUNTERS) or ())
        wanted -= _seeds(row, book, wanted).keys()
        found: list[Checkpoint[Any]] = []
        for each in self._ancestors(place, book) if wanted else ():
            found.append(each.row)
            wanted -= _seeds(each.row, each.book, wanted).keys()
            if not wanted:
                break
        return found

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread of a graph: all its namespaces, checkpoints, branches and writes; all or nothing."""
        source, target = (places.thread_of({"configurable": {"thread_id": each}}) for each in (source, target))
        with self._store.transaction():
            self._copy_all(source, target)

    def _copy_all(self, source: str, target: str) -> None:
        for place in self._places_of(source):
            to = Place(target, place.ns)
            thread, made = self._thread(place), self._thread(to)
            if made.latest() is not None:
                text = f"there is a thread {to.id!r} already: copy to a new one"
                raise Conflict(text, code="conflict.exists", actual=None)
            head = thread.latest()
            rows = list(thread.history(everything=True))
            for row in rows:
                self._copy(row, made, to)
            if head is not None and rows and rows[-1] != head:
                made.rewind(head.label)
            aside = self._thread(to, aside=True)
            for write in self._thread(place, aside=True).history():
                aside.save(write.state, label=write.label, metadata=write.metadata)

    def _copy(self, row: Checkpoint[Any], made: Thread[Any], to: Place) -> None:
        book = books.read(row)
        if book is None or row.label is None:
            return
        about = row.metadata
        about[books.KEY].pop("place", None)
        if not to.is_said:
            about[books.KEY]["place"] = list(to)
        meta: dict[str, Any] = {"label": row.label, "metadata": about}
        if book.parent is None:
            made.save(row.state, **meta)
            return
        try:
            made.save(row.state, onto=label_of(book.parent), **meta)
        except NotFound:
            made.save(row.state, **meta)

    def prune(self, thread_ids: Iterable[str], strategy: str) -> None:
        """Delete all checkpoints of threads, or all but the latest of each namespace and what it is made from."""
        if strategy not in ("keep_latest", "delete"):
            raise Invalid(f'strategy is "keep_latest" or "delete", not {strategy!r}', code="invalid.argument")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for place in self._places_of(places.thread_of({"configurable": {"thread_id": thread_id}})):
                self._keep_latest(place)

    def _keep_latest(self, place: Place) -> None:
        found = self._latest_within(place, None)[0] if place.ns else self._latest(place)
        if found is None:
            return
        thread, aside = self._thread(place), self._thread(place, aside=True)
        kept = [found[0], *self._made_from(place, *found)]
        labels = {row.label for row in kept}
        writes = list(aside.history())
        thread.prune(keep_last=0, keep_tagged=False, keep=kept, until=found[0])  # a run may go on meanwhile
        if writes:
            last = [write for write in writes if write.label in labels]
            aside.prune(keep_last=0, keep_tagged=False, keep=last, until=writes[-1])

    # -- delta channels -------------------------------------------------------------------------------

    def _ancestors(self, place: Place, book: Book) -> Iterator[Ancestor]:
        """Give the parent of a checkpoint, its parent, and so on: each stands before its child in the log.

        A thread that was forked has its first checkpoint from another one, where it goes on.
        """
        child, at = book, place
        while True:
            rows = self._rows(at, None)
            runs: dict[str | None, set[str]] = {}
            """The runs that went on from checkpoints, by their ids: what goes on from one stands behind it."""
            for row, its in rows:
                runs.setdefault(its.parent, set()).add(its.run)
                if its.id == child.parent:
                    yield Ancestor(row, its, at, frozenset(runs.get(its.id, ())) - {child.run})
                    child = its
            origin = self._origin(at)
            if child.parent is None or origin is None or origin.id != child.id:
                return
            child, at = origin, origin.place

    def _origin(self, place: Place) -> Book | None:
        """Return the checkpoint that a thread was forked from; None if it was not."""
        info = self._store.info(place.id)
        if info is None or info.forked_from is None:
            return None
        found = self._store.checkpoint(info.forked_from)
        if found is None:
            text = f"thread {place.id!r} was forked from a checkpoint that is gone, and delta channels are made from it"
            raise NotFound(text, code="not_found.checkpoint")
        return books.read(found)

    def delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
        """Return what each channel was last stored as on the way to a checkpoint, and what was written to it since."""
        place, name = places.place_of(config), places.checkpoint_of(config)
        seeds: dict[str, Any] = {}
        path: list[tuple[Ancestor, set[str]]] = []
        """The checkpoints on the way, the newest first, and the channels that are made from writes on each."""
        found = self._latest(place) if name is None else self._named(place, name)
        for each in self._ancestors(place, found[1]) if found is not None and channels else ():
            wanted = set(channels) - seeds.keys()
            if not wanted:
                break
            path.append((each, wanted))
            seeds.update(_seeds(each.row, each.book, wanted))
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        ids: dict[Place, list[str]] = {}
        for each, _ in path:
            ids.setdefault(each.place, []).append(each.book.id)
        noted = {at: pending.all_on(self._thread(at, aside=True), some) for at, some in ids.items()}
        for each, wanted in reversed(path):
            notes = [note for note in noted[each.place][each.book.id] if note.run not in each.others]
            for write in pending.merged(notes):
                if write[1] in wanted:
                    writes[write[1]].append(write)
        return {
            channel: {"writes": writes[channel], **({"seed": seeds[channel]} if channel in seeds else {})}  # type: ignore[typeddict-item]
            for channel in channels
        }


class Ancestor(NamedTuple):
    """A checkpoint on the way to another one, and the runs that went on from it, but for the one that led there."""

    row: Checkpoint[Any]
    book: Book
    place: Place
    others: frozenset[str]


def _is_text_in(value: Any, wanted: Collection[str]) -> bool:
    return isinstance(value, str) and value in wanted


def _loading(row: Checkpoint[Any]) -> Callable[[], dict[str, Any]]:
    return lambda: books.values(row)


def _channels(
    checkpoint: Mapping[str, Any], new: Mapping[str, Any], since: Mapping[str, Any] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the state of a checkpoint, given that of its parent, and the keys whose values may be others than there.

    A channel of the same version as the parent's has the value that it has there, be it none: it is left as it is. What
    has another version has the value that is given, or none. Which those are LangGraph says in `new`, counted from the
    checkpoint that it loaded: that is the parent, but for a copy, which is put beside it. `since` are the parent's own.
    """
    values, versions = checkpoint["channel_values"], checkpoint.get("channel_versions") or {}
    same = {each for each in versions if each not in new and (since is None or since.get(each) == versions[each])}
    if not new:  # it may be that nobody counted: what is given is held against what is there
        same.difference_update(values)
    changed = [each for each in values if each not in same]
    return {each: values[each] for each in changed} | dict.fromkeys(same, MISSING), changed


def _tuple(book: Book, values: MutableMapping[str, Any], writes: pending.Writes, name: ReadId) -> CheckpointTuple:
    parent = None if book.parent is None else ReadId(book.parent, is_latest=False, run=book.run)
    return CheckpointTuple(
        config=book.place.config(name),
        checkpoint={**book.rest, "id": name, "channel_values": values},  # type: ignore[typeddict-item]
        metadata=book.metadata,  # type: ignore[arg-type]
        parent_config=None if parent is None else book.place.config(parent),
        pending_writes=writes,
    )


def _has_all(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in wanted.items())


def _seeds(row: Checkpoint[Any], book: Book, channels: Collection[str]) -> dict[str, Any]:
    """Return the values that a checkpoint has of these channels. Its state is not read if it can have none."""
    found = {channel: row.get((channel,), MISSING) for channel in channels if channel not in book.lacks}
    return {channel: value for channel, value in found.items() if value is not MISSING}
