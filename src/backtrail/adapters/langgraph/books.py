"""Books: what a checkpoint of LangGraph is beside the values of its channels, and where it is kept.

LangGraph's metadata are the metadata of the row, under their own keys, so that they can be read and filtered without
the state. The rest (versions, what each node has seen, the parent) stands beside them under one key of ours. A row's
metadata are small; what does not fit stands in the state, under the same key: graphs of hundreds of nodes have such
books, and a state stores only what changed of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import get_checkpoint_metadata

from backtrail.adapters.langgraph.places import Place, label_of, run_of, under_of
from backtrail.adapters.plain import plain_data
from backtrail.engine.asides import RUN
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backtrail import Checkpoint

KEY: Final = "__langgraph__"
COUNTERS: Final = "counters_since_delta_snapshot"
"""Where LangGraph counts, in the metadata, how long its delta channels have had no value of their own."""
_ROOM: Final = 3500
"""Bytes that metadata may take; the store's own limit is somewhat higher, and counts a little differently."""


class Book(NamedTuple):
    """What is known of a checkpoint without its values."""

    id: str
    place: Place
    parent: str | None
    rest: dict[str, Any]
    """LangGraph's own fields: v, ts, channel_versions, versions_seen, updated_channels ..."""
    metadata: dict[str, Any]
    run: str = ""
    """The run whose writes on the parent it was made from; "": the run that saved the parent."""
    lacks: frozenset[str] = frozenset()
    """Delta channels of which it is known, without a look at the state, that it has no value."""
    under: list[str] | None = None
    """In a namespace: the checkpoint of the outermost graph that it was saved on, and by which run."""


def written(
    place: Place,
    config: Any,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    parent: str | None,
    *,
    under: list[str] | None = None,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the metadata of the row of a checkpoint, and what is to stand in its state, if not all fits."""
    name = str.__str__(checkpoint["id"])
    found: dict[str, Any] = plain_data(dict(get_checkpoint_metadata(config, metadata)))  # type: ignore[arg-type]
    if KEY in found or RUN in found or KEY in checkpoint["channel_values"]:
        raise Invalid(f"{KEY!r} and {RUN!r} are names that the store keeps for itself", code="invalid.argument")
    rest = plain_data({key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")})
    about: dict[str, Any] = {"parent": parent}
    if label_of(name) != name:
        about["id"] = name
    if (outer := under or under_of(config, metadata)) is not None:
        about["under"] = outer
    if not place.is_said:
        about["place"] = list(place)
    if type(counted := found.get(COUNTERS)) is dict:
        about["held"] = [channel for channel in counted if channel in checkpoint["channel_values"]]
    run = {RUN: mine} if (mine := run_of(config)) else {}
    small = {**found, **run, KEY: {**about, "rest": rest}}
    if _size(small) <= _ROOM:
        return small, None
    if _size({**found, KEY: about}) <= _ROOM:
        return {**found, **run, KEY: about}, {"rest": rest}
    return {**run, KEY: about}, {"rest": rest, "metadata": found}


def _size(value: Any) -> int:
    try:
        return len(ormsgpack.packb(value, default=repr, option=ormsgpack.OPT_NON_STR_KEYS))
    except (TypeError, ValueError):  # what cannot be kept is refused when it is saved, by its path
        return len(repr(value))


def read(checkpoint: Checkpoint[Any]) -> Book | None:
    """Return the book of a row; None if LangGraph did not write it."""
    metadata = checkpoint.metadata
    about, run = metadata.pop(KEY, None), metadata.pop(RUN, "")
    if about is None:
        return None
    try:
        more = {} if "rest" in about else checkpoint.get((KEY,), {})
        rest, metadata = (about if "rest" in about else more)["rest"], more.get("metadata", metadata)
        said = about.get("place")
        place = Place.said_by(checkpoint.thread_id) if said is None else _said(*said)
        if place is not None and place.id != checkpoint.thread_id:  # a fork of one whose id said nothing
            place = Place.said_by(checkpoint.thread_id)
        name = about.get("id", checkpoint.label)
        parent = about["parent"]
        counted = metadata.get(COUNTERS) if "held" in about else None
        lacks = frozenset(counted or ()).difference(about.get("held", ()))
        under = about.get("under")
        sound = type(rest) is dict and type(metadata) is dict and type(parent) in (str, type(None)) and type(run) is str
    except (AttributeError, KeyError, TypeError) as error:
        raise _damaged(checkpoint) from error
    if not sound or place is None or type(name) is not str:
        raise _damaged(checkpoint)
    return Book(name, place, parent, rest, metadata, run, lacks, under)


def _said(thread_id: Any, ns: Any) -> Place:
    if type(thread_id) is not str or type(ns) is not str:
        raise TypeError
    return Place(thread_id, ns)


def _damaged(checkpoint: Checkpoint[Any]) -> Corrupt:
    text = f"what LangGraph keeps of checkpoint {checkpoint.id} of thread {checkpoint.thread_id!r} is damaged"
    return Corrupt(text, code="corrupt.state", checkpoint_id=checkpoint.id)


def values(checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return the values of a checkpoint's channels."""
    state = checkpoint.state
    if type(state) is not dict:
        raise _damaged(checkpoint)
    state.pop(KEY, None)
    return state
