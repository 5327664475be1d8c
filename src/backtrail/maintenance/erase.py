"""Erasure: remove threads with every byte of theirs, also where agent checkpoints pin them and forks share them.

1. One commit writes an erasure (see `engine.log`) to the log of each thread and hides its rows. It also tags the agent
   checkpoints that point at the thread. From then on nothing brings the thread back.
2. A collection removes the rows, the chunks and the index entries, and overwrites the bytes.
3. In an encrypted store, the keys of the threads are destroyed: backups and other copies cannot be read any more.

A crash in between loses nothing: the next call, or the next `gc`, finishes the work. A fork that another process makes
during the first step is found after it, and erased by a second commit.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from backtrail.backends.port import SEALED, Batch, Stale, Vanished
from backtrail.engine import adapter_labels, journal, log, manifests, rows
from backtrail.engine.asides import ASIDE, THREAD
from backtrail.engine.manifests import AGENT, CONVERSATION
from backtrail.engine.reader import StoreReader
from backtrail.engine.writer import PATIENCE
from backtrail.errors import Conflict, Corrupt, Error, Invalid, NotFound, Unavailable
from backtrail.maintenance import gc
from backtrail.models import ErasedThread, ErasureReport, when
from backtrail.scope import whole
from backtrail.validation import check_id, check_ids, check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.backends.port import NewThread, Row, ThreadRecord
    from backtrail.engine.manifests import Names
    from backtrail.sealed.backend import SealedBackend
    from backtrail.transaction import Engine

RUN: Final = "run"
KINDS: Final = (THREAD, AGENT, CONVERSATION, RUN)
_PARTNERS: Final = {THREAD: ASIDE, ASIDE: THREAD, RUN: journal.SPACE, journal.SPACE: RUN}
"""Threads of these name spaces that have the same name belong together."""


class _Doomed(NamedTuple):
    """A thread to erase."""

    record: ThreadRecord
    newest: Row
    checkpoints: int
    fork: bool

    @property
    def is_erased(self) -> bool:
        """Whether the erasure is written already."""
        return log.erased_count(self.newest) is not None


class _Plan(NamedTuple):
    """The threads to erase, the forks that stay, and the manifests that point at the threads."""

    doomed: list[_Doomed]
    kept_forks: list[ThreadRecord]
    holders: dict[int, _Holder]
    """By the number of the thread of manifests."""


class _Holder(NamedTuple):
    """The manifests of one agent that point at erased conversations."""

    record: ThreadRecord
    newest: int
    tags: list[tuple[int, int, str]]
    """(thread number, seq, tag) to add."""
    checkpoints: list[str]
    """The ids of the agent's checkpoints among them."""


def erase_all(
    engine: Engine,
    kind: str,
    ids: Any,
    *,
    forks: bool = True,
    force: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> ErasureReport:
    """Erase threads of one kind: conversations, runs, plain threads, or agents with everything of theirs.

    `ids` is an id or several. `NotFound` if one of them never existed; then nothing is erased. An id that was erased
    before is erased completely: a call that was interrupted is finished by the next one.
    """
    check_progress(progress)
    names = [check_id(ids, f"the id of a {kind}")] if isinstance(ids, str) else list(check_ids(ids, "ids"))
    for flag, value in (("forks", forks), ("force", force)):
        if type(value) is not bool:
            raise Invalid(f"{flag} must be True or False, not {value!r:.100}", code="invalid.argument")
    reader = engine.outside()
    if reader.backend.read_only:
        raise Unavailable("this store is open for reading only", code="unavailable.read_only")
    plan = _mark_all(engine, reader, kind, names, forks=forks, force=force)
    engine.forget()
    reader.cache.clear()
    remains = remove(reader, progress)
    keys = destroy_keys(reader, [each.record for each in plan.doomed])
    if remains is None and forks and plan.kept_forks:
        held = ", ".join(repr(record.name) for record in plan.kept_forks[:5])
        remains = (
            f"a checkpoint of an agent holds an older conversation under the id {held}, which was forked from what "
            "was erased: delete the checkpoint, or erase that conversation, too"
        )
    return _report(plan, remains, keys)


def partner(names: Names) -> Names:
    """Return the name of the thread that belongs to a thread: the journal of a run, the notes on a plain thread."""
    return _PARTNERS.get(names[0], ""), names[1]


# -- for imports ----------------------------------------------------------------------------------------


def create_erased(reader: StoreReader, thread: NewThread, seq: int) -> None:
    """Create a thread that was erased before it came into this store; `seq` is that of its erasure."""
    row = _erasure(thread, seq - 1, 0, reader.clock())
    reader.backend.commit(Batch(threads=(thread,), rows=((-1, row),), gaps=True))


def tag_holders(reader: StoreReader, names: Iterable[Names]) -> None:
    """Tag the agent checkpoints that point at erased threads: an import may have added such checkpoints."""
    doomed: list[_Doomed] = []
    for each in names:
        record = reader.backend.find_thread(*each)
        stored = [] if record is None else reader.backend.rows(record.no, [(1, log.MAX_SEQ)])
        erasure = next((row for row in reversed(stored) if log.erased_count(row) is not None), None)
        if record is not None and erasure is not None:
            doomed.append(_Doomed(record, erasure, 0, fork=False))
    tags = tuple(tag for holder in _holders(reader, doomed).values() for tag in holder.tags)
    if tags:
        reader.backend.commit(Batch(tag=tags))


# -- what to erase --------------------------------------------------------------------------------------


def _plan(reader: StoreReader, kind: str, ids: list[str], *, forks: bool) -> _Plan:
    records = list(gc.threads(reader))
    named = {(record.space, record.name): record for record in records}
    chosen: dict[int, ThreadRecord] = {}
    for name in ids:
        found = [record for record in records if _belongs(record, kind, name)]
        if not found:
            kinds = [each for each in KINDS if (each, name) in named]
            hint = f"; pass kind={kinds[0]!r} for the {kinds[0]} with this id" if kinds else ""
            raise NotFound(f"there is no {kind} {name!r}{hint}", code=f"not_found.{kind}")
        chosen |= {record.no: record for record in found}
    roots = set(chosen)
    children: dict[bytes, list[tuple[int, ThreadRecord]]] = {}
    for record in records:
        parsed = log.parse_id(record.origin) if record.origin else None
        if parsed is not None:
            children.setdefault(parsed[0], []).append((parsed[1], record))
    kept: dict[int, ThreadRecord] = {}
    todo = list(chosen.values())
    while todo:
        record = todo.pop()
        sibling = named.get(partner((record.space, record.name)))
        begin = _begin(reader, record) if record.uid in children else 0
        below = [child for seq, child in children.get(record.uid, []) if seq > begin]
        if not forks:
            kept |= {each.no: each for each in below}
            below = []
        parts = [*([sibling] if sibling else []), *_namespaces(reader, record, records)]
        for each in (*parts, *below):
            if each.no not in chosen:
                chosen[each.no] = each
                todo.append(each)
                if record.no in roots and each in parts:
                    roots.add(each.no)
    threads = (_doomed(reader, record, fork=no not in roots) for no, record in sorted(chosen.items()))
    doomed = [thread for thread in threads if thread is not None]
    kept_forks = [record for record in kept.values() if record.no not in chosen and _has_rows(reader, record)]
    uids = {record.uid for record in chosen.values()}
    others = [record for record in records if record.no not in chosen and record not in kept_forks]
    kept_forks += [record for record in others if _was_forked(reader, record, uids)]
    return _Plan(doomed, kept_forks, _holders(reader, doomed))


def _begin(reader: StoreReader, record: ThreadRecord) -> int:
    """Return the seq of the erasure before the present thread began, or 0: older forks are of an earlier thread."""
    return log.last_erasure(reader.backend.rows(record.no, [(1, log.MAX_SEQ)])[:-1])


def _belongs(record: ThreadRecord, kind: str, name: str) -> bool:
    """Tell whether a thread is the one of this kind and name; for an agent, whether it belongs to the agent."""
    if kind == AGENT:
        return record.agent == name or (record.space in (AGENT, manifests.SPACE) and record.name == name)
    return record.name == name and record.space in (kind, _PARTNERS.get(kind))


def _namespaces(reader: StoreReader, record: ThreadRecord, records: list[ThreadRecord]) -> list[ThreadRecord]:
    """Return the threads of the subgraphs of a LangGraph thread. A thread of the user may have such a name, too."""
    if record.space != THREAD:
        return []
    named = [each for each in records if each.space == THREAD and each.name.startswith(f"{record.name}|")]
    return [each for each in named if _is_of_langgraph(reader, each)]


def _is_of_langgraph(reader: StoreReader, record: ThreadRecord) -> bool:
    with suppress(Corrupt, Invalid):  # of a damaged row, it cannot be told
        stored = reader.backend.rows(record.no, [(1, log.MAX_SEQ)])
        return any(adapter_labels.mark_of(row, reader.types) for row in stored if row.op in log.CHECKPOINTS)
    return False


def _was_forked(reader: StoreReader, record: ThreadRecord, uids: set[bytes]) -> bool:
    """Tell whether an earlier conversation under this id was forked from one of the threads, and is still pinned.

    The present conversation began after a deletion and has nothing of it, so it cannot be erased for that.
    """
    pinned = manifests.pinned_seqs(reader, record)
    stored = reader.backend.rows(record.no, [(1, log.MAX_SEQ)]) if pinned else []
    origin: str | None = None
    for row in stored:
        if row.op in (log.FORK, log.CLEAR):
            origin = log.unpack_extra(row)[2] if log.is_sound(row, record.uid) else None
        parsed = log.parse_id(origin or "")
        if parsed is not None and parsed[0] in uids and row.seq in pinned:
            return True
    return False


def _has_rows(reader: StoreReader, record: ThreadRecord) -> bool:
    newest = reader.backend.newest(record.no)
    return newest is not None and log.erased_count(newest) is None


def _doomed(reader: StoreReader, record: ThreadRecord, *, fork: bool) -> _Doomed | None:
    newest = reader.backend.newest(record.no)
    if newest is None:
        return None
    count = log.erased_count(newest)
    if count is None:
        stored = reader.backend.rows(record.no, [(1, newest.seq)])
        count = sum(row.op in log.CHECKPOINTS for row in stored)
    return _Doomed(record, newest, count, fork)


def _holders(reader: StoreReader, doomed: list[_Doomed]) -> dict[int, _Holder]:
    """Return the manifests that point at the threads, except those that are erased themselves."""
    gone = {each.record.no for each in doomed}
    by_agent: dict[int, tuple[ThreadRecord, dict[Names, _Doomed]]] = {}
    for each in doomed:
        if each.record.space != CONVERSATION:
            continue
        pinned = {holder for holders in reader.backend.pins(each.record.no).values() for holder in holders}
        records = [reader.backend.thread_with_uid(holder) for holder in pinned]
        if each.record.agent is not None:
            records.append(reader.backend.find_thread(manifests.SPACE, each.record.agent))
        for record in records:
            if record is not None and record.no not in gone and record.space == manifests.SPACE:
                by_agent.setdefault(record.no, (record, {}))[1][CONVERSATION, each.record.name] = each
    holders = (_holder(reader, record, threads) for record, threads in by_agent.values())
    return {holder.record.no: holder for holder in holders if holder is not None}


def _holder(reader: StoreReader, record: ThreadRecord, threads: dict[Names, _Doomed]) -> _Holder | None:
    newest = reader.backend.newest(record.no)
    if newest is None or not newest.head:
        return None
    holder = _Holder(record, newest.seq, [], [])
    tags = reader.backend.tags(record.no)
    for row in reader.backend.rows(record.no, [(1, newest.seq)], visible=True):
        with suppress(Corrupt, NotFound):  # a damaged checkpoint restores nothing
            manifest = manifests.manifest_of(reader, record, row)
            pointers = manifest.pointers(record.name)
            held = [each for names, each in threads.items() if names in pointers and _points(pointers[names].seq, each)]
            words = [manifests.erased_tag(each.record.uid) for each in held]
            holder.tags.extend((record.no, row.seq, word) for word in words if word not in tags.get(row.seq, ()))
            if held and manifests.info_of(row).role == manifests.CHECKPOINT:
                holder.checkpoints.append(log.checkpoint_id(record.uid, row.seq))
    return holder


def _points(seq: int, doomed: _Doomed) -> bool:
    return seq <= doomed.newest.seq


# -- the erasures in the log --------------------------------------------------------------------------------


def _mark_all(engine: Engine, reader: StoreReader, kind: str, ids: list[str], *, forks: bool, force: bool) -> _Plan:
    """Write the erasures; repeat until no thread is left without one, and no checkpoint without a tag.

    Return the last plan.
    """
    until = time.monotonic() + PATIENCE
    tries = 0
    while True:
        plan = _plan(reader, kind, ids, forks=forks)
        open_threads = [each for each in plan.doomed if not each.is_erased]
        if not open_threads and not any(holder.tags for holder in plan.holders.values()):
            return plan
        if not force:
            _refuse_running(engine, open_threads)
        if time.monotonic() > until:
            raise Unavailable(
                "other processes keep writing to what is to be erased: stop them, and try again",
                code="unavailable.contended",
            )
        try:
            _mark(reader, open_threads, plan)
        except (Stale, Vanished):
            tries += 1
            time.sleep(random.random() * min(0.001 * tries, 0.05))  # noqa: S311 - jitter


def _mark(reader: StoreReader, doomed: list[_Doomed], plan: _Plan) -> None:
    """Write the erasures of these threads, in one commit. This is the moment from which on they are erased."""
    at = reader.clock()
    erasures: list[tuple[int, Row]] = []
    hide: list[tuple[int, int]] = []
    for record, newest, count, _ in doomed:
        erasures.append((record.no, _erasure(record, newest.seq, count, at)))
        shown = reader.backend.rows(record.no, [(1, newest.seq)])
        hide += [(record.no, each.seq) for each in shown if not each.hidden]
    reader.backend.commit(
        Batch(
            rows=tuple(erasures),
            hide=tuple(hide),
            newest=tuple((holder.record.no, holder.newest) for holder in plan.holders.values()),
            tag=tuple(tag for holder in plan.holders.values() for tag in holder.tags),
        )
    )


def _erasure(thread: ThreadRecord | NewThread, newest: int, checkpoints: int, at: int) -> Row:
    """Return the row that erases a thread, after its newest row."""
    row = rows.cleared(newest + 1, at)
    return log.checked(row._replace(extra=log.erasure_extra(checkpoints)), thread.uid)


def _refuse_running(engine: Engine, doomed: list[_Doomed]) -> None:
    """Raise `Conflict` if a worker has one of the runs."""
    from backtrail.runs.lease import check_free  # noqa: PLC0415 - runs use this package
    from backtrail.runs.recorder import JournalThread  # noqa: PLC0415

    session = engine.direct
    for record in (each.record for each in doomed if each.record.space == journal.SPACE):
        with suppress(Corrupt, NotFound, Invalid):  # a damaged run cannot be continued
            point = JournalThread(engine, record.name).point(session)
            if point is None:
                continue
            try:
                check_free(record.name, point.data, session.reader.shared_time())
            except Conflict as error:
                raise Conflict(
                    f"run {record.name!r} is being worked on; wait until it ends, or erase it with force=True",
                    code=error.code,
                    **error.details,
                ) from None


# -- the bytes --------------------------------------------------------------------------------------------


def remove(reader: StoreReader, progress: Callable[[str, int], None] | None) -> str | None:
    """Remove the rows, chunks and index entries of erased threads; return why bytes may be left, or None.

    Chunks are shared by all threads, so this collects garbage in the whole store, also for a scope.
    """
    backend = whole(reader.backend)
    everything = reader if backend is reader.backend else StoreReader(backend, reader.types, reader.options)
    everything.clock = reader.clock
    try:
        gc.collect(everything, progress, erase=True)
    except (Corrupt, Unavailable) as error:
        return _advice(error)
    return None


def destroy_keys(reader: StoreReader, threads: list[ThreadRecord]) -> int:
    """Destroy the keys of erased threads of an encrypted store, so that no copy can be read; return how many keys."""
    backend = whole(reader.backend)
    if not backend.present([SEALED]):
        return 0
    from backtrail.sealed import rotation  # noqa: PLC0415 - an extra

    return rotation.destroy_keys(cast("SealedBackend", backend), threads)


def finish(reader: StoreReader) -> None:
    """Destroy the keys of erased threads if a process was killed before it did that. `gc` has removed their bytes."""
    backend = whole(reader.backend)
    if backend.present([SEALED]):
        from backtrail.sealed import rotation  # noqa: PLC0415 - an extra

        unfinished = rotation.unfinished_erasures(cast("SealedBackend", backend), gc.threads(reader))
        if unfinished:
            destroy_keys(reader, unfinished)


def _advice(error: Error) -> str:
    if isinstance(error, Corrupt):
        return f"the store is damaged elsewhere: {error}. Run verify(repair=True), then gc(erase=True)"
    if error.code == "unavailable.erase":
        return str(error)
    return f"nothing can be read any more, but bytes may be left in the storage: {error}. Run gc(erase=True) later"


def _report(plan: _Plan, remains: str | None, keys: int) -> ErasureReport:
    threads = tuple(
        ErasedThread(
            kind=record.space,
            id=record.name,
            agent=record.agent,
            uid=record.uid.hex(),
            checkpoints=count,
            erased_at=when(newest.created_at),
            fork=fork,
        )
        for record, newest, count, fork in plan.doomed
    )
    held = tuple((each.record.name, made) for each in plan.holders.values() for made in each.checkpoints)
    kept = tuple((record.space, record.name) for record in plan.kept_forks)
    return ErasureReport(threads, held, kept, remains, keys)
