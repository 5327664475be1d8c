"""How much is measured: a full run, and a quick one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """The scale of measurements on a server: histories, connections, seconds."""

    appends: tuple[int, ...] = (10, 100, 1_000, 10_000)
    plain: tuple[int, ...] = (100, 1_000)
    steps: tuple[int, ...] = (1_000,)
    peers: tuple[int, ...] = (1_000, 10_000)
    loaded: int = 1_000
    """The history that is loaded whole; the last messages are those of the long one."""
    writers: int = 16
    seconds: float = 2.0
    """For how long rates are counted."""
    windows: int = 5
    """How often."""
    async_rounds: int = 5


@dataclass(frozen=True, slots=True)
class Agents:
    """Which conversations and agents are compared."""

    long: int = 100_000
    short: int = 100
    """Messages of a conversation."""
    many: int = 1_000
    few: int = 10
    """Conversations of an agent."""
    each: int = 100
    """Messages of each of those."""
    restores: int = 5


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The scale of pruning and gc, and the number of writers beside them."""

    checkpoints: int = 10_000
    keep: int = 100
    writers: int = 2
    pause: float = 0.002
    """Seconds between two appends of one of them."""
    seconds: float = 5.0
    """For how long they write while nothing else goes on."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The large store that commands are run on, and how often."""

    threads: int = 100_000
    checkpoints: int = 50_000
    """Of one more thread."""
    rounds: int = 7


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths are counted in messages of about 1 KB; budgets in seconds of one action in one loop."""

    lengths: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000)
    """Histories that are saved to."""
    long: int = 10_000
    """The history that is loaded, compacted and saved by a fresh process."""
    steps: tuple[int, ...] = (1_000, 10_000)
    """Threads whose bytes are counted."""
    rounds: int = 400
    budget: float = 6.0
    peer_rounds: int = 200
    """A multiple of 100: a delta channel writes all of its value once in 100 steps."""
    load_rounds: int = 21
    dict_keys: int = 10_000
    """Of about 1 KB each."""
    many_keys: int = 100_000
    """Of a dict with small values."""
    handles: int = 1_000
    """Whose memory is measured."""
    forks: int = 60
    run_steps: tuple[int, int] = (10, 10_000)
    """Iterations of a short run and of a long one."""
    processes: int = 3
    coroutines: int = 1_000
    async_rounds: int = 5
    large: int = 50_000_000
    """Bytes of the state that is saved while the event loop is watched."""
    server: Server = Server()
    agents: Agents = Agents()
    upkeep: Upkeep = Upkeep()
    commands: Commands = Commands()


FULL = Scale()
QUICK = Scale(
    lengths=(10, 100, 1_000, 10_000),
    steps=(1_000,),
    rounds=200,
    budget=1.0,
    peer_rounds=100,
    load_rounds=5,
    many_keys=10_000,
    forks=30,
    run_steps=(10, 1_000),
    processes=1,
    async_rounds=3,
    server=Server(seconds=0.5, windows=3, async_rounds=1),
    agents=Agents(long=10_000, many=100, restores=3),
    upkeep=Upkeep(checkpoints=2_000, seconds=2.0),
    commands=Commands(threads=5_000, checkpoints=2_000, rounds=5),
)
