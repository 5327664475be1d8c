"""Checkpoint headers: everything in a LangGraph checkpoint except its channel values.

LangGraph's metadata become the metadata of the row, under their own keys, so that a caller can filter by them without
loading the state. The rest (versions, `versions_seen`, the parent) stands beside them under one key of ours. A row's
metadata are small. A header that does not fit goes into the state under the same key: graphs with hundreds of nodes
have such headers, and the state stores only what changed.
"""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.base import get_checkpoint_metadata

from backtrail.adapters.langgraph.config import GraphNamespace, outer_checkpoint_of
from backtrail.adapters.plain_values import packed_plain, plain_data
from backtrail.engine.adapter_labels import MARK
from backtrail.engine.asides import RUN
from backtrail.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backtrail import Checkpoint
    from backtrail.adapters.langgraph.config import ConfigPosition

KEY: Final = MARK
DELTA_COUNTERS: Final = "counters_since_delta_snapshot"
"""The metadata in which LangGraph counts the steps since a delta channel last stored its value."""
_METADATA_MAX: Final = 3500
"""The most bytes of a row's metadata. The store's own limit is a little higher and counts a little differently."""


class CheckpointHeader(NamedTuple):
    """The header of a LangGraph checkpoint: everything except its channel values."""

    id: str
    namespace: GraphNamespace
    parent: str | None
    fields: dict[str, Any]
    """LangGraph's own fields: v, ts, channel_versions, versions_seen, updated_channels ..."""
    metadata: dict[str, Any]
    run: str = ""
    """The graph run that made this checkpoint from its writes on the parent; "": the run that saved the parent."""
    absent: frozenset[str] = frozenset()
    """Delta channels without a value in this checkpoint, known without a read of the state."""
    outer: list[str] | None = None
    """In a subgraph: the result of `outer_checkpoint_of`, the outer graph's checkpoint and its runs."""


def encode_header(
    position: ConfigPosition,
    config: Any,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    label: str,
    outer: list[str] | None = None,
) -> tuple[dict[str, Any] | bytes, dict[str, Any] | None]:
    """Return the metadata of a checkpoint's row, and the part of the header for the state; None if all fits the row.

    `label` is the label of the row. Plain metadata that fit are returned as their bytes.
    """
    given: Any = {"metadata": _flat(config.get("metadata")), "configurable": position.fields}
    own: dict[str, Any] = dict(get_checkpoint_metadata(given, metadata))  # type: ignore[arg-type]
    if KEY in own or RUN in own or KEY in checkpoint["channel_values"]:
        raise Invalid(f"{KEY!r} and {RUN!r} are reserved: rename the metadata key or channel", code="invalid.argument")
    fields = {**checkpoint}
    name = str.__str__(fields.pop("id"))
    del fields["channel_values"]
    namespace, run = position.namespace, {RUN: position.run} if position.run else {}
    header: dict[str, Any] = {"parent": position.checkpoint_id}
    if label != name:
        header["id"] = name
    if namespace.ns and (under := outer or outer_checkpoint_of(position.fields, metadata)) is not None:
        header["under"] = under
    if not namespace.is_in_id:
        header["place"] = list(namespace)
    if isinstance(counters := own.get(DELTA_COUNTERS), dict):
        header["held"] = [channel for channel in counters if channel in checkpoint["channel_values"]]
    packed = packed_plain({**own, **run, KEY: {**header, "rest": fields}})
    if packed is not None and len(packed) <= _METADATA_MAX:
        return packed, None
    own, fields = plain_data(own), plain_data(fields)
    whole = {**own, **run, KEY: {**header, "rest": fields}}
    if _size(whole) <= _METADATA_MAX:
        return whole, None
    if _size({**own, KEY: header}) <= _METADATA_MAX:
        return {**own, **run, KEY: header}, {"rest": fields}
    return {**run, KEY: header}, {"rest": fields, "metadata": own}


def _flat(mapping: Any) -> Any:
    """Return a mapping of LangGraph's, whose items take many calls to read, as a dict."""
    if type(mapping) is not ChainMap:
        return mapping
    flat: dict[Any, Any] = {}
    for each in reversed(mapping.maps):
        flat.update(each)
    return flat


def _size(value: Any) -> int:
    try:
        return len(ormsgpack.packb(value, default=repr, option=ormsgpack.OPT_NON_STR_KEYS))
    except (TypeError, ValueError):  # the save refuses the value and names its path
        return len(repr(value))


def read_header(checkpoint: Checkpoint[Any]) -> CheckpointHeader | None:
    """Return the header of a row; None if LangGraph did not write the row."""
    metadata = checkpoint.metadata
    header, run = metadata.pop(KEY, None), metadata.pop(RUN, "")
    if header is None:
        return None
    try:
        more = {} if "rest" in header else checkpoint.get((KEY,), {})
        fields, metadata = (header if "rest" in header else more)["rest"], more.get("metadata", metadata)
        stored = header.get("place")
        namespace = GraphNamespace.from_id(checkpoint.thread_id) if stored is None else _namespace(*stored)
        if namespace is not None and namespace.id != checkpoint.thread_id:  # the thread is a fork with another id
            namespace = GraphNamespace.from_id(checkpoint.thread_id)
        name = header.get("id", checkpoint.label)
        parent = header["parent"]
        counters = metadata.get(DELTA_COUNTERS) if "held" in header else None
        absent = frozenset(counters or ()).difference(header.get("held", ()))
        outer = header.get("under")
        is_sound = (
            type(fields) is dict and type(metadata) is dict and type(parent) in (str, type(None)) and type(run) is str
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise _damaged(checkpoint) from error
    if not is_sound or namespace is None or type(name) is not str:
        raise _damaged(checkpoint)
    return CheckpointHeader(name, namespace, parent, fields, metadata, run, absent, outer)


def _namespace(thread_id: Any, ns: Any) -> GraphNamespace:
    if type(thread_id) is not str or type(ns) is not str:
        raise TypeError
    return GraphNamespace(thread_id, ns)


def _damaged(checkpoint: Checkpoint[Any]) -> Corrupt:
    text = f"the LangGraph fields of checkpoint {checkpoint.id} of thread {checkpoint.thread_id!r} are damaged"
    return Corrupt(text, code="corrupt.state", checkpoint_id=checkpoint.id)


def channel_values(checkpoint: Checkpoint[Any]) -> dict[str, Any]:
    """Return the channel values of a checkpoint: its state without a part of the header."""
    state = checkpoint.state
    if type(state) is not dict:
        raise _damaged(checkpoint)
    state.pop(KEY, None)
    return state
