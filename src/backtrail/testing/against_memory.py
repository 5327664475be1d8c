"""Random batches and maintenance: a backend must give the same answers as the memory backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import Batch, MissingChunks, Stale, Vanished
from backtrail.testing.samples import HOLDERS, digest, names, new, row

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
"""For a random test that several classes inherit."""

_threads = st.sampled_from([-2, -1, 0, 1, 2, 3, 99])
_seqs = st.integers(0, 5)
_words = ("a", "ab", "b", "\0", "\ud800")
_texts = st.sampled_from(_words)
_digests = st.sampled_from([digest(text) for text in "abc"])


def _tuples(*parts: Any, most: int = 2) -> Any:
    return st.lists(st.tuples(*parts), max_size=most).map(tuple)


_rows = st.builds(
    row,
    _seqs,
    label=st.none() | _texts,
    head=st.integers(0, 1),
    root=st.sampled_from([b"", b"r"]),
    created_at=st.integers(0, 3),
    op_id=st.sampled_from([b"1", b"2", b"3"]),
    hidden=st.booleans(),
)
_news = st.builds(
    new,
    _texts,
    space=st.sampled_from(["thread", "run"]),
    uid=st.sampled_from([b"1", b"2", b"3", b"4"]),
    agent=st.sampled_from([None, "a", "b"]),
)
_batches: Any = st.builds(
    Batch,
    threads=st.lists(_news, max_size=2).map(tuple),
    renew=_tuples(_threads, _news),
    rows=_tuples(_threads, _rows),
    chunks=_tuples(_digests, st.binary(max_size=3)),
    touch=st.lists(_digests, max_size=1).map(tuple),
    visible=_tuples(_threads, _seqs, most=1),
    newest=_tuples(_threads, _seqs, most=1),
    tags=_tuples(_threads, _seqs, st.lists(_texts, max_size=1).map(tuple), most=1),
    hide=_tuples(_threads, _seqs),
    show=_tuples(_threads, _seqs, most=1),
    tag=_tuples(_threads, _seqs, _texts),
    untag=_tuples(_threads, _seqs, _texts),
    pins=_tuples(_threads, _seqs, st.just((HOLDERS[0],)), most=1),
    pin=_tuples(_threads, _seqs, st.sampled_from(HOLDERS[:2])),
    unpin=_tuples(_threads, _seqs, st.sampled_from(HOLDERS[:2])),
    untouch=_tuples(_threads, _seqs),
)
writes: Any = _batches | st.tuples(st.just("append"), st.integers(1, 3), st.none() | _texts) | st.just("again")
maintenance: Any = st.sampled_from(["epoch", "sweep", "remove", "rewrite", "reclaim"])


def _without_guesses(backend: Any, batch: Batch) -> Batch:
    """Remove entries that name a thread by a number that it does not have yet."""
    known = {-2, -1, 0, 99, *backend.thread_numbers(0, 99)}
    kept: dict[str, Any] = {
        field: tuple(entry for entry in getattr(batch, field) if entry[0] in known)
        for field in Batch._fields
        if field not in ("threads", "chunks", "touch", "gaps")
    }
    if batch.gaps:
        kept["threads"] = ()  # a backend that refuses such a batch may have used up the numbers of its threads
    return batch._replace(**kept)


def _answer(backend: Any, action: Any, earlier: Batch) -> Any:  # noqa: PLR0911 - one for each action
    """Do the action and return the answer, or the exception's class and values."""
    try:
        match action:
            case Batch():
                return backend.commit(action)
            case ("append", no, label, op_id):
                newest = backend.newest(no)
                added = row(newest.seq + 1 if newest else 1, label=label, op_id=op_id)
                return backend.commit(Batch(rows=((no, added),)))
            case "again":
                return backend.commit(earlier)
            case "epoch":
                return backend.next_epoch()
            case "sweep":
                return backend.remove_chunks(backend.addresses([digest("a"), digest("b")]), 2)
            case "remove":
                return [backend.remove_rows(no, range(6)) for no in range(4)]
            case "rewrite":
                stored = [*backend.rows(1, [(0, 2)]), row(3)]
                return backend.rewrite(1, [each._replace(op_id=b"1", payload=b"rewritten") for each in stored])
            case "reclaim":
                return backend.reclaim()
    except (Stale, Vanished, MissingChunks) as answer:
        return type(answer), vars(answer)


def _skipped_numbers(wanted: Any, given: Any) -> bool:
    """Tell whether new threads got higher numbers than in memory: a refused batch may use numbers up."""
    created = type(wanted) is tuple and type(given) is tuple and {*map(type, (*wanted, *given))} == {int}
    return created and len(wanted) == len(given) and all(low < high for low, high in zip(wanted, given, strict=True))


def compare(backend: Any, actions: list[Any], look: Callable[[Any], Any]) -> None:
    """Do the actions on an empty store and in memory: the answers, and the results of `look`, must be equal."""
    memory = MemoryBackend()
    batches: list[Batch] = []
    for at, chosen in enumerate(actions):
        action = (*chosen, b"%d" % (at % 3)) if type(chosen) is tuple else chosen
        earlier = batches[at % len(batches)] if batches else Batch()
        if isinstance(chosen, Batch):
            action = _without_guesses(memory, chosen)
            batches.append(action)
        wanted, given = _answer(memory, action, earlier), _answer(backend, action, earlier)
        if _skipped_numbers(wanted, given):
            return  # the actions that follow name threads by number
        assert wanted == given
        assert look(memory) == look(backend)
    for no in range(4):
        for text in _words:
            assert memory.labelled(no, [text]) == backend.labelled(no, [text])
            assert memory.tagged(no, text) == backend.tagged(no, text)
            assert names(memory, prefix=text) == names(backend, prefix=text)
        spans = [(3, 4), (1, 2), (2, 2)]
        of_threads = [(no, *span) for span in spans]
        assert memory.rows_of(of_threads, payload=True) == backend.rows_of(of_threads, payload=True)
        assert memory.newest_of([no]) == backend.newest_of([no])
        assert memory.count(no, spans) == backend.count(no, spans)
        assert memory.rows(no, spans, visible=True) == backend.rows(no, spans, visible=True)
        newest = memory.rows(no, spans, newest_first=True, limit=2)
        assert newest == backend.rows(no, spans, newest_first=True, limit=2)
