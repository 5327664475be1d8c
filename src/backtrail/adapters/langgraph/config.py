"""What a LangGraph config names: a namespace of a thread, a checkpoint, and the read that found the checkpoint.

The backtrail thread of a graph's root namespace has the user's thread id. The thread of another namespace has
`<thread id>|<namespace>`. In the user's part, a backslash escapes `|` and backslash. So two namespaces never share an
id, and every id that begins with `<thread id>|` belongs to that thread. An id that would be too long ends in a digest;
then the rows name the namespace.

LangGraph passes the config that a read returned on to the writes that follow. The checkpoint id in that config is a
`ReadId`: a string that also knows whether the caller asked for the latest checkpoint or for this one, and in which
read. `put` needs it to tell a race between two workers from time travel. Users see an ordinary id.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from backtrail.engine.namespaces import Above
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from langchain_core.runnables import RunnableConfig

_ID_MAX: Final = 512
_THREAD_ID_MAX: Final = 300
_DIGEST: Final = "\\#"
"""The beginning of a digest in an id. Escaped text never contains it."""
_RUN_KEY: Final = "__pregel_"
"""LangGraph adds keys with this prefix to the config of a run."""


class ReadId(str):
    """The id of a checkpoint that a read returned: a string with facts about the read.

    `is_latest` tells whether the caller asked for the latest checkpoint. `run` identifies the read and the graph run
    that began with it; it is empty for the run that saved the checkpoint. `skipped` are the runs whose writes the read
    left out. Pickle, JSON and `str` make a plain string of it.
    """

    __slots__ = ("is_latest", "run", "skipped")
    is_latest: bool
    run: str
    skipped: tuple[str, ...]

    def __new__(cls, text: str, *, is_latest: bool, run: str | None = None, skipped: Iterable[str] = ()) -> Self:
        """Make the id; without `run`, with a new random run."""
        read_id = super().__new__(cls, text)
        read_id.is_latest = is_latest
        read_id.run = os.urandom(6).hex() if run is None else run
        read_id.skipped = tuple(sorted(skipped))
        return read_id

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if type(other) in (str, ReadId) else NotImplemented  # as for a plain string

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other) if type(other) in (str, ReadId) else NotImplemented

    __hash__ = str.__hash__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return str, (str(self),)


class GraphNamespace(NamedTuple):
    """A namespace of a graph's thread: the root (`ns` is empty), or the namespace of a subgraph."""

    thread_id: str
    ns: str

    @property
    def id(self) -> str:
        """The id of the namespace's backtrail thread."""
        return _id_of(self)[0]

    @property
    def is_in_id(self) -> bool:
        """Whether `id` contains the whole namespace. If not, the metadata of rows have it."""
        return _id_of(self)[1]

    @staticmethod
    @lru_cache(256)
    def from_id(text: str) -> GraphNamespace | None:
        """Return the namespace that a thread's id contains; None if the id ends in a digest."""
        if _DIGEST in text:
            return None
        at = 0
        while at < len(text) and text[at] != "|":
            at += 2 if text[at] == "\\" else 1
        thread_id = re.sub(r"\\(.)", r"\1", text[:at], flags=re.DOTALL)
        return GraphNamespace(thread_id, text[at + 1 :])

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return the LangGraph config that names a checkpoint of this namespace."""
        names = {"thread_id": self.thread_id, "checkpoint_ns": self.ns, "checkpoint_id": checkpoint_id}
        return {"configurable": names}


_namespace: Final = lru_cache(512)(GraphNamespace)


@lru_cache(512)
def _id_of(namespace: GraphNamespace) -> tuple[str, bool]:
    """Return the id of a namespace's thread, and whether the id contains the whole namespace."""
    thread_id, ns = namespace
    thread = _escaped(thread_id)
    name = f"{thread}|{ns}" if ns else thread
    if ns and (len(name) > _ID_MAX or _DIGEST in ns):
        name = f"{thread}|{_DIGEST}{_digest(ns)}"
    return name, GraphNamespace.from_id(name) == namespace


def subgraph_prefix(thread_id: str) -> str:
    """Return the prefix of the ids of a thread's subgraph namespaces."""
    return f"{_escaped(thread_id)}|"


def _escaped(thread_id: str) -> str:
    text = thread_id.replace("\\", "\\\\").replace("|", "\\|")
    if len(text) <= _THREAD_ID_MAX:
        return text
    return f"{text[: _THREAD_ID_MAX - 80].rstrip(chr(92))}{_DIGEST}{_digest(thread_id)}"


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()


def label_of(checkpoint_id: str) -> str:
    """Return the label of a checkpoint's row: the checkpoint's id, or a digest of an id that cannot be a label."""
    checkpoint_id = str.__str__(checkpoint_id)
    is_label = 0 < len(checkpoint_id) <= _ID_MAX and not checkpoint_id.startswith(("@", _DIGEST))
    return checkpoint_id if is_label else f"{_DIGEST}{_digest(checkpoint_id)}"


# -- the fields of a config -------------------------------------------------------------------------------


def configurable(config: Any) -> Mapping[str, Any]:
    """Return the `configurable` part of a config, or raise `Invalid`."""
    fields = config.get("configurable") if isinstance(config, dict) else None
    if not isinstance(fields, dict):
        raise Invalid(
            'the config has no "configurable": pass {"configurable": {"thread_id": "..."}}', code="invalid.argument"
        )
    return fields


def checked_thread_id(thread_id: Any) -> str:
    """Return a thread id as a string; `Invalid` if it is missing or empty."""
    if thread_id is None or thread_id == "":
        raise Invalid(
            'the config names no thread: pass {"configurable": {"thread_id": "..."}}', code="invalid.argument"
        )
    return _text(thread_id if isinstance(thread_id, str) else str(thread_id), "thread_id")


class ConfigPosition(NamedTuple):
    """The position that a config names: a namespace, a checkpoint in it, and the read that found the checkpoint."""

    fields: Mapping[str, Any]
    """The `configurable` part of the config."""
    namespace: GraphNamespace
    checkpoint_id: str | None
    run: str = ""
    """The graph run that passes the config: the run that read its checkpoint, or "" for the one that saved it."""
    skipped: tuple[str, ...] = ()
    """The graph runs that this run skipped: it has not seen their writes."""


def position_of(config: Any) -> ConfigPosition:
    """Return the position that a config names."""
    fields = configurable(config)
    thread_id, ns, name = fields.get("thread_id"), fields.get("checkpoint_ns"), fields.get("checkpoint_id")
    if type(thread_id) is not str or not thread_id:
        thread_id = checked_thread_id(thread_id)
    namespace = _namespace(thread_id, _text("" if ns is None else ns, "checkpoint_ns"))
    if type(name) is ReadId:
        return ConfigPosition(fields, namespace, str.__str__(name) or None, name.run, name.skipped)
    return ConfigPosition(fields, namespace, None if name is None or name == "" else _text(name, "checkpoint_id"))


def namespace_of(config: Any) -> GraphNamespace:
    """Return the namespace that a config names."""
    return position_of(config).namespace


def checkpoint_id_of(config: Any) -> str | None:
    """Return the id of the checkpoint that a config names, if any."""
    name = configurable(config).get("checkpoint_id")
    return None if name is None or name == "" else _text(name, "checkpoint_id")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{field} must be a string, not {value!r:.100}", code="invalid.argument")
    return str.__str__(value)  # without a subclass's attributes


def is_fork(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Tell whether a save may make a fork: the config names the parent by id, so later checkpoints may be dropped.

    A plain string is an id that the caller named, with one exception: a run of LangGraph passes the id of the
    checkpoint that it saved last, or, at its first step, an id that does not exist.
    """
    parent = fields.get("checkpoint_id")
    if isinstance(parent, ReadId):
        return not parent.is_latest
    step = metadata.get("step")
    return not _is_run(fields) or (isinstance(step, int) and step < 0)


def is_first(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint without a parent must be the first of its thread: its run found the thread empty.

    Not in a subgraph: a replayed subgraph may start again beside its old checkpoints, and a race of two workers shows
    up as a conflict in the outer graph.
    """
    return (_is_run(fields) or metadata.get("source") == "update") and not fields.get("checkpoint_ns")


def _is_run(fields: Mapping[str, Any]) -> bool:
    return any(map(str.startswith, map(str, fields), repeat(_RUN_KEY)))


def outer_checkpoint_of(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str] | None:
    """Return the record of the outer graph's checkpoint for a subgraph's checkpoint; None outside of a subgraph.

    It is the outer checkpoint's label, its run, and the runs that this run skipped: see `backtrail.engine.namespaces`.
    """
    parents = metadata.get("parents")
    outer = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(outer, str) or not fields.get("checkpoint_ns"):
        return None
    if isinstance(outer, ReadId):
        return [label_of(outer), outer.run, *outer.skipped]
    return [label_of(outer), ""] if _is_run(fields) else [label_of(outer)]


def outer_position_of(fields: Mapping[str, Any]) -> Above | None:
    """Return the outer graph's checkpoint on which a subgraph's run began; None if the config names none."""
    parents = fields.get("checkpoint_map")
    outer = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(outer, str):
        return None
    return Above(label_of(outer), frozenset(outer.skipped if isinstance(outer, ReadId) else ()))
