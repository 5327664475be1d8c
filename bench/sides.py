"""One chat in several stores side by side: the cost of its turns, bytes and reads in each store.

All stores take the same turns in one loop, in a new random order for each turn, so that no store always follows one
that leaves the disk busy. A slow store may stop after fewer turns. Stores are only compared over turns that both have
taken, and reads only after equally many turns.
"""

from __future__ import annotations

import gc
import random
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bench.clock import Cost, take_turns, timed
from bench.data import Messages
from bench.figures import Figure, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

ORDER = 7
"""The seed of the order in which turns are taken."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    turns: int = 1_000
    fewer: int = 500
    """For what is slow."""
    lengths: tuple[int, ...] = (10, 100, 500, 1_000)
    """After how many turns the time of one is told: the median of as many as `window`, or half, if that is less."""
    window: int = 20
    rounds: int = 9
    """How often something is read."""
    budget: float = 4.0
    """Seconds for the reads of one kind by one store."""
    writers: int = 20
    pause: float = 0.02
    """Seconds that the model of a writer takes."""


FULL = Scale()
QUICK = Scale(turns=100, fewer=50, lengths=(10, 50, 100), rounds=3, budget=0.5)


class Turn(NamedTuple):
    """The messages of a turn, 1 KB each."""

    said: str
    answer: str


def script(turns: int) -> list[Turn]:
    """Return the chat that all of them have."""
    texts = [message["content"] for message in Messages(1).many(2 * turns)]
    return [Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)]


class Race(NamedTuple):
    """What became of messages that were written at the same moment."""

    kept: int
    told: int
    """Those that are not there, and whose writer got an error."""
    lost: int
    """Those that are not there, and nobody was told."""
    errors: tuple[str, ...] = ()
    """The classes of the errors."""

    @classmethod
    def judge(cls, there: Sequence[bool], errors: Sequence[BaseException | None]) -> Race:
        """Return the fate of each writer's message, from the store's content and the writer's result."""
        outcome = list(zip(there, errors, strict=True))
        told = sum(not kept and error is not None for kept, error in outcome)
        lost = sum(not kept and error is None for kept, error in outcome)
        return cls(sum(there), told, lost, tuple(sorted({type(e).__name__ for e in errors if e is not None})))


class Chat(Protocol):
    """A chat in a store. One that is not kept has no size; reads and races are called by what they do."""

    name: str
    note: str
    turns: int
    size: Callable[[], int] | None
    reads: dict[str, Callable[[], Any]]
    races: dict[str, Callable[[], Race]]

    def turn(self, at: int) -> None:
        """Take the turn of this number."""

    def close(self) -> None:
        """Close the store."""


@dataclass(frozen=True, slots=True)
class Calls:
    """A chat of calls: a function that takes a turn, one for the size, and reads."""

    name: str
    turns: int
    turn: Callable[[int], Any]
    size: Callable[[], int] | None = None
    reads: dict[str, Callable[[], Any]] = field(default_factory=dict)
    races: dict[str, Callable[[], Race]] = field(default_factory=dict)
    note: str = ""

    def close(self) -> None:
        """Do nothing: the owner of the store closes it."""


@dataclass(frozen=True, slots=True)
class Side:
    """The measurements of one chat."""

    name: str
    note: str = ""
    taken: list[Cost] = field(default_factory=list)
    bytes: dict[int, int] = field(default_factory=dict)
    """After so many turns."""
    reads: dict[str, float] = field(default_factory=dict)
    """Milliseconds."""
    races: dict[str, Race] = field(default_factory=dict)

    def ms(self, length: int, window: int) -> float | None:
        """Return the median time of the turns up to this one."""
        if len(self.taken) < length:
            return None
        last = self.taken[length - min(window, length // 2) : length]
        return statistics.median(cost.wall for cost in last) * 1e3

    def total(self, turns: int) -> Cost:
        """Return the time of the first turns."""
        return Cost(*map(sum, zip(*self.taken[:turns], strict=True)))

    def as_data(self, scale: Scale) -> dict[str, Any]:
        """Return all of it for the JSON."""
        wall, cpu = self.total(len(self.taken))
        return {
            "name": self.name,
            "note": self.note,
            "turns": len(self.taken),
            "seconds": wall,
            "cpu_seconds": cpu,
            "ms": {str(length): self.ms(length, scale.window) for length in scale.lengths},
            "bytes": {str(turns): size for turns, size in self.bytes.items()},
            "reads_ms": self.reads,
            "races": {what: race._asdict() for what, race in self.races.items()},
        }


@dataclass(frozen=True, slots=True)
class Compared(Result):
    """The results of a framework's group: figures, and the sides that they come from."""

    sides: list[Side] = field(default_factory=list)


def measure(chats: Sequence[Chat], scale: Scale) -> list[Side]:
    """Have all chats take their turns, then read, then race."""
    with ExitStack() as stack:
        for chat in chats:
            stack.callback(chat.close)
        sides = {chat.name: Side(chat.name, chat.note) for chat in chats}
        _take(chats, sides, scale)
        for what in dict.fromkeys(what for chat in chats for what in chat.reads):
            actions = {chat.name: chat.reads[what] for chat in chats if what in chat.reads}
            for name, times in take_turns(actions, scale.rounds, scale.budget).items():
                sides[name].reads[what] = times.median.wall * 1e3
        for chat in chats:
            sides[chat.name].races.update({what: race() for what, race in chat.races.items()})
    return list(sides.values())


def _take(chats: Sequence[Chat], sides: dict[str, Side], scale: Scale) -> None:
    order = random.Random(ORDER)
    weighed = {*scale.lengths, scale.fewer, scale.turns}
    gc.collect()
    gc.freeze()
    try:
        for at in range(max(chat.turns for chat in chats)):
            going = [chat for chat in chats if at < chat.turns]
            order.shuffle(going)
            for chat in going:
                sides[chat.name].taken.append(timed(partial(chat.turn, at)))
                if at + 1 in weighed and chat.size is not None:
                    sides[chat.name].bytes[at + 1] = chat.size()
    finally:
        gc.unfreeze()


# -- figures ----------------------------------------------------------------------------------------

BETTER = "theirs is better"
"""Said where a ratio is below 1."""


def ratio(name: str, theirs: float, ours: float, marks: dict[str, float] | None = None, **options: Any) -> Figure:
    """How many times ours theirs is: of bytes or of time, so that more is better for us."""
    value = theirs / ours
    note = "; ".join(filter(None, (BETTER if value < 1 else "", options.pop("note", ""))))
    return Figure(name, value, better="higher", note=note, **(marks or {}), **options)


def against(theirs: Side, ours: Side, alone: Side, marks: dict[str, dict[str, float]]) -> list[Figure]:
    """Compare one side with ours; `alone` is the cost of the framework itself, without a store."""
    turns = min(len(theirs.taken), len(ours.taken))
    what = f"{theirs.name} / {ours.name}"
    first, second, floor = (side.total(turns) for side in (theirs, ours, alone))
    over = first.over(second)
    beyond = [side.wall - floor.wall for side in (first, second)]
    figures = [
        ratio(f"{what}: bytes after {turns:,} turns", theirs.bytes[turns], ours.bytes[turns], marks.get("bytes")),
        ratio(
            f"{what}: time of {turns:,} turns",
            over.wall,
            1,
            marks.get("time"),
            cpu=over.cpu,
            samples=turns,
            note=theirs.note,
        ),
    ]
    if min(beyond) > 0:
        figures.append(ratio(f"{what}: the same without {alone.name}", *beyond, samples=turns))
    if len(theirs.taken) == len(ours.taken):
        figures += [
            ratio(f"{what}: {read}", theirs.reads[read], ours.reads[read], marks.get(read))
            for read in ours.reads
            if read in theirs.reads
        ]
    return figures


def turns_at(ours: Side, theirs: Side, scale: Scale, marks: dict[int, dict[str, float]]) -> list[Figure]:
    """Hold a turn with our store against one with theirs, after so many turns: less is better for us."""
    figures = []
    for length in scale.lengths:
        one, other = ours.ms(length, scale.window), theirs.ms(length, scale.window)
        if one and other:
            name = f"{ours.name} / {theirs.name}: a turn at {length:,}"
            figures.append(Figure(name, one / other, samples=min(scale.window, length // 2), **marks.get(length, {})))
    return figures


SHORT, LONG = {"gate": 1.5}, {"gate": 1.0}


def turns_of(theirs: Side, ours: Side, scale: Scale, *, gated: bool = True) -> list[Figure]:
    """Hold a turn with ours against one with theirs: at most 1.5 times theirs at 10 turns, less at 1,000. With CPU.

    Not `gated` if theirs is no store of the framework in a database.
    """
    marks = {10: SHORT, 1_000: LONG} if gated and scale.turns == FULL.turns else {}
    figures = []
    for length in scale.lengths:
        window = min(scale.window, length // 2)
        if len(theirs.taken) < length or len(ours.taken) < length:
            continue
        one, other = ([cost.cpu for cost in side.taken[length - window : length]] for side in (ours, theirs))
        (figure,) = turns_at(ours, theirs, replace(scale, lengths=(length,)), marks)
        figures.append(replace(figure, cpu=statistics.median(one) / max(statistics.median(other), 1e-9)))
    return figures


def size_of(directory: Path) -> int:
    """Return how many bytes the files of a directory have."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def share(alone: Side, side: Side) -> Figure:
    """How much of the time of a side is the framework's own."""
    turns = len(side.taken)
    value = alone.total(turns).wall / side.total(turns).wall * 100
    return Figure(f"{side.name}: what of its time is {alone.name}", value, unit="%", samples=turns)


def raced(side: Side, *, gated: bool) -> list[Figure]:
    """How many messages of writers at once were kept, or told of."""
    figures = []
    for what, race in side.races.items():
        count = race.kept + race.told + race.lost
        told = f"{race.told} told by {', '.join(race.errors)}" if race.told else "none told"
        note = f"{race.kept} kept, {told}, {race.lost} lost silently"
        marks: dict[str, Any] = {"gate": count} if gated else {}
        name = f"{side.name}: {what}, kept or told"
        figures.append(Figure(name, race.kept + race.told, better="higher", unit=f"of {count}", note=note, **marks))
    return figures
