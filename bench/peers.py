"""Saves beside LangGraph's SqliteSaver: the same messages, one more per save, in one loop for each length.

Its default puts all messages into every checkpoint; the delta channel is described in `bench.langgraph`. Only `put`
is counted for the default, although a graph also calls `put_writes` for each step: that favours the saver.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.clock import take_turns
from bench.data import Message, Messages
from bench.figures import Figure, Result
from bench.saves import APPEND, PLAIN, on_sqlite, point, ratio

if TYPE_CHECKING:
    from pathlib import Path

    from bench.clock import Times
    from bench.scale import Scale

DEFAULT, DELTA = "SqliteSaver", "SqliteSaver, delta channel"
MISSING = "LangGraph is not installed"


def installed(saver: str = "sqlite") -> bool:
    """Whether LangGraph and this saver of it are there to be compared with."""
    try:
        return find_spec("langgraph.channels") is not None and find_spec(f"langgraph.checkpoint.{saver}") is not None
    except ModuleNotFoundError:  # a package that they are in is not there either
        return False


def peers(directory: Path, scale: Scale) -> Result:
    """Put, with and without a delta channel, beside append and plain save, at every length."""
    if not installed():
        return Result([Figure("SqliteSaver.put / append", None, better="higher", note=MISSING)])
    longest = Messages(1).many(max(scale.lengths))
    found = []
    for length in scale.lengths:
        with ExitStack() as stack:
            found.append(_at(directory, longest[:length], scale, stack))
    return Result([f for one in found for f in one.figures], [p for one in found for p in one.points])


def _at(directory: Path, history: list[Message], scale: Scale, stack: ExitStack) -> Result:
    """Compare at one length. It has a loop of its own: what a disk has to do for 100 MB would slow down the others."""
    from bench.langgraph import synchronous  # noqa: PLC0415 - an extra

    length, rounds = len(history), scale.peer_rounds
    kept: dict[str, Any] = {
        way: on_sqlite(directory / f"{way} {length}.db", way, history, rounds) for way in (APPEND, PLAIN)
    }
    for one in kept.values():
        stack.callback(one.close)
    conversation = partial(_conversation, directory, history, rounds, stack)
    kept |= {name: conversation(name, full=False) for name in (DEFAULT, DELTA)}
    default = synchronous(kept[DEFAULT].saver)
    if default != "FULL":
        for name in (DEFAULT, DELTA):
            kept[f"{name}, FULL"] = conversation(name, full=True)
    always = frozenset(name for name in kept if name.startswith(DELTA))
    times = take_turns(kept, rounds, scale.budget, always=always)
    result = Result()
    for series in kept.keys() - {APPEND, PLAIN}:
        said = f"synchronous={'FULL' if series.endswith('FULL') else default}"
        marks = {way: MARKS.get((series, way, length), {}) for way in (APPEND, PLAIN)}
        result.figures.extend(figures(series, length, times, kept[series].added(), said=said, marks=marks))
    if length == SHORT:
        name = f"append / SqliteSaver's put, at {length}"
        result.figures.append(ratio(name, times[APPEND], times[DEFAULT].mean, gate=1.0, goal=0.7))
    result.figures.sort(key=lambda figure: figure.name)
    result.points.extend(point(series, length, times[series], kept[series].added()) for series in (DEFAULT, DELTA))
    return result


def _conversation(
    directory: Path, history: list[Message], rounds: int, stack: ExitStack, name: str, *, full: bool
) -> Any:
    from bench import langgraph  # noqa: PLC0415 - an extra

    saver = stack.enter_context(langgraph.on_sqlite(directory / f"{name} {len(history)} {full}.db", full=full))
    messages = Messages(len(history) + 1).many(rounds + 1)
    size = partial(langgraph.size_on_sqlite, saver)
    return langgraph.Conversation(saver, history, messages, delta=name == DELTA, size=size)


def figures(
    series: str, length: int, times: dict[str, Times], added: int, *, said: str, marks: dict[str, dict[str, float]]
) -> list[Figure]:
    """Hold a saver's puts against the saves of the same loop; `marks` are those of each way to save."""
    put = times[series]
    ratios = [
        ratio(
            f"{series}: put / {way}, at {length:,}",
            put,
            times[way].mean,
            better="higher",
            note=said,
            **marks.get(way, {}),
        )
        for way in (APPEND, PLAIN)
    ]
    name = f"{series}: bytes on disk per put, at {length:,}"
    each = added / (len(put.taken) + 1)
    return [*ratios, Figure(name, each, unit="B", samples=len(put.taken), note=said)]


MARKS: dict[tuple[str, str, int], dict[str, float]] = {
    (DEFAULT, APPEND, 10_000): {"gate": 60, "goal": 70},
}
SHORT = 10
"""At this length an append is held against a put: most chats are short."""
