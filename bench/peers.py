"""Saves beside LangGraph's SqliteSaver: the same messages, one more per save, in one loop.

Its default puts all messages into every checkpoint; the delta channel is described in `bench.langgraph`. Only `put`
is counted for the default, although a graph also calls `put_writes` for each step: that favours the saver.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.clock import take_turns
from bench.data import Message, Messages
from bench.figures import Figure, Result
from bench.saves import APPEND, PLAIN, Series, point, ratio

if TYPE_CHECKING:
    from pathlib import Path

    from bench.clock import Times
    from bench.scale import Scale

DEFAULT, DELTA = "SqliteSaver", "SqliteSaver, delta channel"
MISSING = "LangGraph is not installed"


def installed() -> bool:
    """Whether LangGraph and its SqliteSaver are there to be compared with."""
    return find_spec("langgraph") is not None and find_spec("langgraph.checkpoint.sqlite") is not None


def peers(directory: Path, scale: Scale) -> Result:
    """Put, with and without a delta channel, beside append and plain save, at every length."""
    if not installed():
        return Result([Figure("SqliteSaver.put / append", None, note=MISSING)])
    from bench.langgraph import synchronous  # noqa: PLC0415 - an extra

    rounds = scale.peer_rounds
    longest = Messages(1).many(max(scale.lengths))
    kept: dict[tuple[str, int], Any] = {}
    for length in scale.lengths:
        history = longest[:length]
        for way in (APPEND, PLAIN):
            kept[way, length] = Series(directory / f"ours {way} {length}.db", way, history, rounds)
        for name in (DEFAULT, DELTA):
            kept[name, length] = _conversation(directory, name, history, rounds, full=False)
    default = synchronous(kept[DEFAULT, scale.lengths[0]].saver)
    if default != "FULL":
        kept |= {
            (f"{name}, FULL", length): _conversation(directory, name, longest[:length], rounds, full=True)
            for length in scale.lengths
            for name in (DEFAULT, DELTA)
        }
    named = {" at ".join(map(str, key)): key for key in kept}
    always = frozenset(name for name, key in named.items() if key[0].startswith(DELTA))
    times = take_turns({name: kept[key] for name, key in named.items()}, rounds, scale.budget, always=always)
    by_key = {key: times[name] for name, key in named.items()}
    result = Result(_figures(by_key, kept, scale, default))
    for (series, length), one in kept.items():
        if series in (DEFAULT, DELTA):
            result.points.append(point(series, length, by_key[series, length], one.added()))
        one.close()
    return result


def _conversation(directory: Path, name: str, history: list[Message], rounds: int, *, full: bool) -> Any:
    from bench.langgraph import Conversation  # noqa: PLC0415 - an extra

    path = directory / f"{name} {len(history)} {full}.db"
    messages = Messages(len(history) + 1).many(rounds + 1)
    return Conversation(path, history, messages, delta=name == DELTA, full=full)


def _figures(times: dict[tuple[str, int], Times], kept: dict[tuple[str, int], Any], scale: Scale, default: str) -> Any:
    figures = []
    for series in dict.fromkeys(name for name, _ in times if name not in (APPEND, PLAIN)):
        said = f"synchronous={'FULL' if series.endswith('FULL') else default}"
        for way in (APPEND, PLAIN):
            for length in scale.lengths:
                put = times[series, length]
                marks = MARKS.get((series, way, length), {})
                name = f"{series}: put / {way}, at {length:,}"
                figures.append(ratio(name, put, times[way, length].mean, better="higher", note=said, **marks))
        for length in scale.lengths:
            put = times[series, length]
            each = kept[series, length].added() / (len(put.taken) + 1)
            name = f"{series}: bytes on disk per put, at {length:,}"
            figures.append(Figure(name, each, unit="B", samples=len(put.taken), note=said))
    return figures


MARKS: dict[tuple[str, str, int], dict[str, float]] = {
    (DEFAULT, APPEND, 10_000): {"gate": 100, "goal": 200},
    (DEFAULT, PLAIN, 10_000): {"gate": 3, "goal": 10},
}
