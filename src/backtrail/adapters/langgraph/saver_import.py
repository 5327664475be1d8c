"""Import of a database of LangGraph's SqliteSaver or PostgresSaver. A `BacktrailSaver` then returns what they returned.

The import reads one snapshot of the database and never writes to it. It imports a thread with all its namespaces,
checkpoints and writes, or skips it and reports the reason. A second import adds only what is new. Checkpoints keep the
times that LangGraph recorded; task writes get the times of their checkpoints.
"""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import WRITES_IDX_MAP

from backtrail.adapters.imports import Skipped, Undecodable, dated_writes
from backtrail.adapters.langgraph.allowed_types import AllowedTypes
from backtrail.adapters.langgraph.config import ConfigPosition, GraphNamespace, label_of
from backtrail.adapters.langgraph.decoder import SaverDecoder, metadata_of
from backtrail.adapters.langgraph.headers import KEY, encode_header, read_header
from backtrail.adapters.langgraph.saver_databases import opened
from backtrail.adapters.langgraph.task_writes import GraphTask, save_writes, writes_on
from backtrail.adapters.row_writes import save_checkpoint
from backtrail.errors import Conflict, Invalid
from backtrail.models import micros
from backtrail.validation import check_progress

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from backtrail import Store, Thread
    from backtrail.adapters.langgraph.saver_databases import CheckpointData, SaverDatabase, WriteData


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The result of an import."""

    threads: int
    """Threads of the database that the store now has, from this import or an earlier one."""
    checkpoints: int
    """Checkpoints that this import added."""
    skipped: tuple[Skipped, ...]


def import_database(
    path: str | os.PathLike[str],
    store: Store,
    *,
    types: Iterable[Any] = (),
    progress: Callable[[str, int], None] | None = None,
) -> DatabaseReport:
    """Import all threads of a database of LangGraph's SqliteSaver or PostgresSaver.

    `path` is a file of SQLite, or the URL of a PostgreSQL database. A second import adds only what is new.

    `types` are your own classes that channels hold, as for `BacktrailSaver`. The import skips a thread that holds other
    classes, is damaged, or has new checkpoints both in the store and in the file. The report lists skipped threads.
    """
    check_progress(progress)
    threads = checkpoints = 0
    skipped: list[Skipped] = []
    allowed = AllowedTypes(types).types
    decoder = SaverDecoder(store.thread("t", types=allowed)._types)  # noqa: SLF001 - with the classes that annotations name
    with opened(path) as database:
        for count, (thread_id, problem) in enumerate(database.threads(), 1):
            try:
                if problem is not None:
                    raise problem
                checkpoints += _ThreadImport(store, allowed, decoder, database, thread_id).add()
                threads += 1
            except (Undecodable, Invalid, Conflict) as error:
                skipped.append(Skipped(thread_id, str(error)))
            if progress is not None:
                progress("threads", count)
    return DatabaseReport(threads, checkpoints, tuple(skipped))


def check_database(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a path or URL is a readable database of LangGraph's SqliteSaver or PostgresSaver."""
    with opened(path) as database:
        for _ in database.threads():
            pass


# -- the store -------------------------------------------------------------------------------------------------


class _ThreadImport:
    """The import of one thread."""

    def __init__(
        self, store: Store, types: tuple[Any, ...], decoder: SaverDecoder, database: SaverDatabase, thread_id: str
    ) -> None:
        self._store = store
        self._types = types
        self._decoder = decoder
        self._database = database
        self._thread_id = thread_id
        self._times: dict[tuple[str, str], int] = {}
        """The times of checkpoints, by namespace and id."""

    def _set_clock(self, ns: str, name: str) -> None:
        """Set the time of the next write to the time of a checkpoint."""
        self._set_time(self._times.get((ns, name)))

    def _thread(self, ns: str, *, aside: bool = False) -> Thread[Any]:
        return self._store.thread(GraphNamespace(self._thread_id, ns).id, types=self._types, aside=aside)

    def add(self) -> int:
        """Add the checkpoints and writes that the store lacks, all or nothing; return the number of new checkpoints.

        Raise `Conflict` if both the file and the store have new checkpoints.
        """
        in_file = self._database.ids(self._thread_id)
        in_store = {ns: self._ids(ns) for ns in in_file}
        missing = {ns: ids - in_store[ns] for ns, ids in in_file.items() if ids - in_store[ns]}
        if any(in_store[ns] - ids for ns, ids in in_file.items()):
            if missing:
                text = f"thread {self._thread_id!r} has new checkpoints both in the store and in the file"
                raise Conflict(text, code="conflict.stale")
            return 0
        with dated_writes(self._store) as self._set_time:
            for each in self._database.checkpoints(self._thread_id) if missing else ():
                if each.id not in in_store[each.ns]:
                    self._save(each, in_store[each.ns])
            for ns in missing:
                self._set_head(ns, max(in_file[ns]))
            for group in self._database.writes(self._thread_id):
                self._write(group)
        return sum(map(len, missing.values()))

    def _ids(self, ns: str) -> set[str]:
        """Return the LangGraph ids of a namespace's checkpoints in the store, and record their times."""
        ids: set[str] = set()
        for row in self._thread(ns).history(everything=True):
            header = read_header(row)
            if header is None:
                text = f"the store has a thread {self._thread_id!r} that is not LangGraph's"
                raise Conflict(text, code="conflict.exists")
            ids.add(header.id)
            self._times[ns, header.id] = micros(row.created_at)
        return ids

    def _save(self, each: CheckpointData, in_store: set[str]) -> None:
        """Save a checkpoint on top of its parent; if the store does not have the parent, on top of the head."""
        with _described(f"checkpoint {each.id}"):
            value = each.decode(self._decoder)
            metadata = metadata_of(each.metadata)
            if type(value) is not dict or value.get("id") != each.id or type(value.get("channel_values")) is not dict:
                raise Undecodable("its data are damaged: they are not a checkpoint of this id")
        if (at := _time(value.get("ts"))) is not None:
            self._times[each.ns, each.id] = at
        self._set_clock(each.ns, each.id)
        namespace = GraphNamespace(self._thread_id, each.ns)
        config, label = namespace.config(each.id), label_of(each.id)
        position = ConfigPosition(config["configurable"], namespace, each.parent)
        row_metadata, large = encode_header(position, config, value, metadata, label=label)
        state = dict(value["channel_values"])
        if large is not None:
            state[KEY] = large
        onto = None if each.parent is None or each.parent not in in_store else label_of(each.parent)
        save_checkpoint(self._thread(each.ns), state, label, row_metadata, onto=onto)
        in_store.add(each.id)

    def _set_head(self, ns: str, name: str) -> None:
        """Make the checkpoint with the greatest id the head: LangGraph takes it for the latest."""
        thread = self._thread(ns)
        head = thread.latest()
        if head is not None and head.label != label_of(name):
            self._set_clock(ns, name)
            thread.rewind(label_of(name))

    def _write(self, group: list[WriteData]) -> None:
        """Add the writes of a task, unless the store has all of them, or has more writes of this task."""
        ns, name, task, path, *_ = group[0]
        with _described(f"the writes of task {task} on checkpoint {name}"):
            writes = [(each.channel, self._decoder.value(each.kind, each.data)) for each in group]
        aside = self._thread(ns, aside=True)
        in_store = [each[1:] for each in writes_on(aside, [name])[name] if each[0] == task]
        if len(in_store) <= len(writes) and not all(_is_among(each, in_store) for each in writes):
            # writes to special channels have indexes of their own, so they go last
            writes.sort(key=lambda each: each[0] in WRITES_IDX_MAP)
            self._set_clock(ns, name)
            save_writes(aside, GraphTask(name, task, path), writes)


def _time(text: Any) -> int | None:
    """Return the time that LangGraph recorded for a checkpoint; None if it is not a time."""
    try:
        time = dt.datetime.fromisoformat(text)
        return micros(time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC))
    except (TypeError, ValueError, OverflowError):
        return None


@contextmanager
def _described(what: str) -> Iterator[None]:
    """Put the name of the part of the file before the text of an `Undecodable` that the block raises."""
    try:
        yield
    except Undecodable as error:
        raise Undecodable(f"{what}: {error}") from error


def _is_among(write: tuple[str, Any], others: list[tuple[str, Any]]) -> bool:
    return any(write == each or repr(write) == repr(each) for each in others)  # a nan is not equal to itself
