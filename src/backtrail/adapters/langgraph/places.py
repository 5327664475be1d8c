"""Places: which backtrail thread a config of LangGraph means, and what it asks for.

The thread of the outermost namespace has the id that the user gave; that of another one has the two with a `|` between
them. In the user's part, `|` and backslash are escaped with a backslash, so no two places have one id, and what begins
with a thread's part and `|` are its other namespaces, and nobody else's. What would be longer than an id may be ends in
a digest; then the rows say what was meant.

LangGraph hands the config that a read returned to the writes that come of it. So the checkpoint id in it is a `ReadId`:
a string that also knows whether the latest checkpoint was asked for, or this one by its id, and by which read. It tells
a race of two workers from a journey to the past: in `put` they look the same. To users it is the id, and nothing else.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from backtrail.engine.namespaces import Above
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from langchain_core.runnables import RunnableConfig

_ID_MAX: Final = 512
_HALF: Final = 300
_DIGEST: Final = "\\#"
"""Begins a digest. No escaped text holds it."""
_LOOP: Final = "__pregel_"
"""The keys that LangGraph adds to the config of a run begin so."""


class ReadId(str):
    """The id of a checkpoint that was read. A pickle, a JSON text and whatever else is made of it hold a plain string.

    `run` says which read it was: what the run that began with it writes and saves can be told from what others did on
    the same checkpoint. It is empty for what was done by the run that saved the checkpoint. `without` are the runs
    whose writes the read left out.
    """

    __slots__ = ("is_latest", "run", "without")
    is_latest: bool
    run: str
    without: tuple[str, ...]

    def __new__(cls, text: str, *, is_latest: bool, run: str | None = None, without: Iterable[str] = ()) -> Self:
        """Mark an id as read, just now if it is not said when."""
        made = super().__new__(cls, text)
        made.is_latest = is_latest
        made.run = os.urandom(6).hex() if run is None else run
        made.without = tuple(sorted(without))
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if type(other) in (str, ReadId) else NotImplemented  # as a plain string has it

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other) if type(other) in (str, ReadId) else NotImplemented

    __hash__ = str.__hash__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return str, (str(self),)


class Place(NamedTuple):
    """A namespace of a thread of a graph."""

    thread_id: str
    ns: str

    @property
    def id(self) -> str:
        """The id of its backtrail thread."""
        mine = _escaped(self.thread_id)
        return mine if self.ns == "" else _within(f"{mine}|", self.ns)

    @property
    def is_said(self) -> bool:
        """Whether the id says which place it is; else the rows have to."""
        return Place.said_by(self.id) == self

    @staticmethod
    @lru_cache(256)
    def said_by(text: str) -> Place | None:
        """Return the place that an id says; None if it ends in a digest."""
        if _DIGEST in text:
            return None
        at = 0
        while at < len(text) and text[at] != "|":
            at += 2 if text[at] == "\\" else 1
        thread_id = re.sub(r"\\(.)", r"\1", text[:at], flags=re.DOTALL)
        return Place(thread_id, text[at + 1 :])

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return the config of one of its checkpoints."""
        found = {"thread_id": self.thread_id, "checkpoint_ns": self.ns, "checkpoint_id": checkpoint_id}
        return {"configurable": found}


def below(thread_id: str) -> str:
    """Return how the ids of all namespaces of a thread begin, but for the outermost."""
    return f"{_escaped(thread_id)}|"


def _escaped(thread_id: str) -> str:
    text = thread_id.replace("\\", "\\\\").replace("|", "\\|")
    return text if len(text) <= _HALF else f"{text[: _HALF - 80].rstrip(chr(92))}{_DIGEST}{digest(thread_id)}"


def _within(start: str, ns: str) -> str:
    whole = start + ns
    return whole if len(whole) <= _ID_MAX and _DIGEST not in ns else f"{start}{_DIGEST}{digest(ns)}"


def digest(text: str) -> str:
    """Return a digest of a text, in hex."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def label_of(checkpoint_id: str) -> str:
    """Return the label of the row of a checkpoint: its id, if that can be one."""
    checkpoint_id = str.__str__(checkpoint_id)
    plain = 0 < len(checkpoint_id) <= _ID_MAX and not checkpoint_id.startswith(("@", _DIGEST))
    return checkpoint_id if plain else f"{_DIGEST}{digest(checkpoint_id)}"


# -- what a config asks for -------------------------------------------------------------------------------


def asked(config: Any) -> Mapping[str, Any]:
    """Return what a config asks for; `Invalid` if it is no config."""
    found = config.get("configurable") if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise Invalid(
            'a config has a key "configurable": {"configurable": {"thread_id": "..."}}', code="invalid.argument"
        )
    return found


def thread_of(config: Any) -> str:
    """Return the thread id of a config."""
    thread_id = asked(config).get("thread_id")
    if thread_id is None or thread_id == "":
        raise Invalid(
            'the config names no thread: pass {"configurable": {"thread_id": "..."}}', code="invalid.argument"
        )
    return _text(thread_id if isinstance(thread_id, str) else str(thread_id), "thread_id")


def place_of(config: Any) -> Place:
    """Return the place that a config means."""
    ns = asked(config).get("checkpoint_ns")
    return Place(thread_of(config), _text("" if ns is None else ns, "checkpoint_ns"))


def checkpoint_of(config: Any) -> str | None:
    """Return the checkpoint that a config names."""
    found = asked(config).get("checkpoint_id")
    return None if found is None or found == "" else _text(found, "checkpoint_id")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} is a string, not {value!r:.100}", code="invalid.argument")
    return str.__str__(value)  # without what a subclass adds


def is_fork(config: Any, metadata: Mapping[str, Any]) -> bool:
    """Tell whether what is saved on a checkpoint may leave out what came after it: the config asked for it by its id.

    An id that no read returned is one that the caller names, unless a run of LangGraph's hands it over: there it is
    the checkpoint that this run saved last, or, if the run has just begun, one that is not there.
    """
    found = asked(config)
    parent = found.get("checkpoint_id")
    if isinstance(parent, ReadId):
        return not parent.is_latest
    return not _is_run(found) or _is_begun(metadata)


def without_of(config: Any) -> tuple[str, ...]:
    """Return the runs whose writes the run that hands over a config was not shown."""
    found = asked(config).get("checkpoint_id")
    return found.without if isinstance(found, ReadId) else ()


def run_of(config: Any) -> str:
    """Return which run hands over a config: that of the read of its checkpoint; "" for the run that saved it."""
    found = asked(config).get("checkpoint_id")
    return found.run if isinstance(found, ReadId) else ""


def under_of(config: Any, metadata: Mapping[str, Any]) -> list[str] | None:
    """Return what a checkpoint of a subgraph keeps of the outermost graph: see `backtrail.engine.namespaces`."""
    found = asked(config)
    parents = metadata.get("parents")
    outer = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(outer, str) or not found.get("checkpoint_ns"):
        return None
    if isinstance(outer, ReadId):
        return [label_of(outer), outer.run, *outer.without]
    return [label_of(outer), ""] if _is_run(found) else [label_of(outer)]


def above_of(config: Any) -> Above | None:
    """Return the checkpoint of the outermost graph that a run of a subgraph stands on; None if no run asks."""
    parents = asked(config).get("checkpoint_map")
    outer = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(outer, str):
        return None
    return Above(label_of(outer), frozenset(outer.without if isinstance(outer, ReadId) else ()))


def is_first(config: Any, metadata: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint without a parent comes of a caller who found none: there must still be none.

    A subgraph that is replayed may begin again beside what it has; a race there is one of the graph above it, too.
    """
    found = asked(config)
    ran = _is_run(found) or metadata.get("source") == "update"
    return ran and not found.get("checkpoint_ns")


def _is_run(found: Mapping[str, Any]) -> bool:
    return any(str(key).startswith(_LOOP) for key in found)


def _is_begun(metadata: Mapping[str, Any]) -> bool:
    step = metadata.get("step")
    return isinstance(step, int) and step < 0
