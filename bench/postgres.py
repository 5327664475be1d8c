"""A store in PostgreSQL: saves beside raw inserts and PostgresSaver, writers at once, loads, bytes, coroutines.

All of it is on one server, which is started for it (`bench.server`). CPU times are those of this process, as they are
everywhere: the server's own are not in them, so that the wall times say more here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import aio, loads, peers, server, writers
from bench.clock import take_turns
from bench.data import Message, Messages
from bench.figures import Figure, Result
from bench.saves import APPEND, PLAIN, STEP, Series, ratio, stored_by_an_append

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import backtrail
    from bench.place import Place
    from bench.scale import Scale

DEFAULT, DELTA = "PostgresSaver", "PostgresSaver, delta channel"


def postgres(directory: Path, scale: Scale) -> Result:
    """Measure everything on a separate server."""
    why = server.missing()
    if why:
        return Result([Figure("PostgreSQL: append / raw insert", None, note=why)])
    from bench.place import Place  # noqa: PLC0415 - an extra

    with server.server(directory) as url, ExitStack() as stack:
        place = Place(url)
        stack.callback(place.close)
        figures = [*_saves(place, scale), *_peers(place, scale)]
        place.settle()
        figures += writers.figures(place.url, "writers", stored_by_an_append(), scale.server)
        figures += [*_loads(place, scale), *_sizes(place, scale), *_coroutines(place, scale)]
    return Result(figures)


def _series(place: Place, name: str, way: str, history: list[Message], *, saves: int, stack: ExitStack) -> Series:
    """Make a series in a store of this name."""
    store = place.open(name)
    stack.callback(store.close)
    return Series(store, way, history, saves, size=place.sized(name))


def _saves(place: Place, scale: Scale) -> Iterator[Figure]:
    """Append, plain save and step, in turns with a raw insert."""
    from bench.place import Raw  # noqa: PLC0415 - an extra

    size = stored_by_an_append()
    longest = Messages(1).many(max(scale.server.appends))
    lengths = {APPEND: scale.server.appends, PLAIN: scale.server.plain, STEP: scale.server.steps}
    with ExitStack() as stack:
        raw = Raw(place.url, size)
        stack.callback(raw.close)
        raw.make()
        names = {f"{way} at {length:,}": (way, length) for way, some in lengths.items() for length in some}
        actions: dict[str, Any] = {"raw": raw.insert} | {
            name: _series(place, name, way, longest[:length], saves=scale.rounds, stack=stack)
            for name, (way, length) in names.items()
        }
        place.settle()
        always = frozenset(name for name in actions if not name.startswith(PLAIN))
        times = take_turns(actions, scale.rounds, scale.budget, always=always)
    wall, cpu = times["raw"].mean
    note = place.settings()
    yield Figure("PostgreSQL: raw insert", wall * 1e3, cpu * 1e3, unit="ms", samples=scale.rounds, note=note)
    for name, (way, _) in names.items():
        said, marks = (f" of {size} bytes", {"gate": 1.4, "goal": 1.2}) if way == APPEND else ("", {})
        yield ratio(f"PostgreSQL: {name} / raw insert{said}", times[name], times["raw"].mean, **marks)


def _peers(place: Place, scale: Scale) -> list[Figure]:
    """Put, with and without a delta channel, beside append and plain save, in a loop for each length."""
    if not peers.installed("postgres"):
        return [Figure("PostgresSaver: put / append", None, better="higher", note=peers.MISSING)]
    longest = Messages(1).many(max(scale.server.peers))
    figures = []
    for length in scale.server.peers:
        with ExitStack() as stack:
            figures += _peers_at(place, longest[:length], scale, stack)
    return figures


def _peers_at(place: Place, history: list[Message], scale: Scale, stack: ExitStack) -> list[Figure]:
    length, rounds = len(history), scale.peer_rounds
    kept: dict[str, Any] = {
        way: _series(place, f"{way} beside peers {length}", way, history, saves=rounds, stack=stack)
        for way in (APPEND, PLAIN)
    }
    for name in (DEFAULT, DELTA):
        kept[name] = _conversation(place, name, history, rounds, stack)
    place.settle()
    times = take_turns(kept, rounds, scale.budget, always=frozenset((APPEND, DELTA)))
    figures = []
    for name in (DEFAULT, DELTA):
        figures += peers.figures(name, length, times, kept[name].added(), said="", marks={})
    return figures


def _conversation(place: Place, name: str, history: list[Message], rounds: int, stack: ExitStack) -> Any:
    from bench import langgraph  # noqa: PLC0415 - an extra

    schema = f"{'delta' if name == DELTA else 'default'}_{len(history)}"
    saver = stack.enter_context(langgraph.on_postgres(place.schema(schema)))
    saver.setup()
    messages = Messages(len(history) + 1).many(rounds + 1)
    return langgraph.Conversation(saver, history, messages, delta=name == DELTA, size=place.sized(schema))


def _loads(place: Place, scale: Scale) -> Iterator[Figure]:
    """All of a history, and the last messages of a long one, beside the loads of PostgresSaver."""
    for length, read in ((scale.server.loaded, "full load"), (scale.long, "last 20")):
        saver = None
        if peers.installed("postgres"):
            from bench.langgraph import on_postgres  # noqa: PLC0415 - an extra

            def saver(name: str, length: int = length) -> Any:
                return on_postgres(place.schema(f"{name.replace(' ', '_')}_{length}".lower()))

        opened = partial(place.open, f"loads {length}")
        times = loads.measured(opened, saver, length, {read: loads.READS[read]}, scale)
        yield from loads.figures(times, [read], length, before="PostgreSQL: ", peer=DEFAULT, marks={})


def _sizes(place: Place, scale: Scale) -> Iterator[Figure]:
    """Measure the size of a store's tables: empty, after appends of one message each, and after gc."""
    place.open("new").close()
    yield Figure("PostgreSQL: tables of a new store", place.size("new"), unit="B")
    for count in scale.steps:
        name, source = f"steps {count}", Messages(3)
        with place.open(name, durability="relaxed") as store:
            thread: backtrail.Thread[Any] = store.thread("t")
            thread.save({"messages": []})
            for _ in range(count):
                thread.append("messages", source.one())
            what = f"PostgreSQL: tables, bytes per 1 KB step: {count:,}"
            yield Figure(f"{what} as written", place.size(name) / count, unit="B")
            store.gc()
            yield Figure(f"{what} after gc()", place.size(name) / count, unit="B")


def _coroutines(place: Place, scale: Scale) -> Iterator[Figure]:
    """Coroutines that append at once, compared with the same appends one after the other."""
    fewer = replace(scale, async_rounds=scale.server.async_rounds)
    each, one_by_one, grouped = aio.rates(lambda name: place.options(f"async {name}"), fewer, scale.coroutines)
    what = f"PostgreSQL: {scale.coroutines:,} coroutines, a thread each"
    for words, times in (("one commit each", each), ("awaited one by one", one_by_one)):
        wall, cpu = times.median.over(grouped.median)
        yield Figure(f"{what}: {words} / grouped", wall, cpu, better="higher", samples=fewer.async_rounds)
