"""The classes of LangChain, LangGraph, numpy and Python that channels may hold (`allowed_types`: those of users).

A save refuses an instance of any other class, unless it equals a plain value: then it stores the plain value. An
exception is stored as its `repr`, as in LangGraph's own savers.
"""

from __future__ import annotations

import collections
import functools
import ipaddress
import logging
import re
import sys
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

from langchain_core import agents, documents, messages
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from backtrail import Type
from backtrail.adapters.plain_values import plain
from backtrail.engine.schema.registry import PlainFallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOG: Final = logging.getLogger("backtrail.adapters")
_FACTORIES: Final[dict[str, Any]] = {kind.__name__: kind for kind in (list, dict, set, int, float, str)}


def _send(fields: dict[str, Any]) -> Send:
    send = Send(fields["node"], fields["arg"])
    send.timeout = fields["timeout"]
    return send


def _factory(value: collections.defaultdict[Any, Any]) -> str | None:
    factory: Any = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise ValueError(f"a defaultdict of {factory!r} cannot be saved: use one of {', '.join(_FACTORIES)}")
    return name


def _as_text(cls: type) -> Type:
    """Return the store's form of a class whose instances `str` describes fully."""
    return Type(cls, cls.__name__, dump=lambda value: {"text": str(value)}, load=lambda fields: cls(fields["text"]))


def _of_items(cls: type, dump: Callable[[Any], Any]) -> Type:
    """Return the store's form of a collection class: its items as a list."""
    return Type(cls, cls.__name__, dump=lambda value: {"items": dump(value)}, load=lambda fields: cls(fields["items"]))


TYPES: Final[tuple[Any, ...]] = (
    messages.AIMessage,
    messages.AIMessageChunk,
    messages.ChatMessage,
    messages.ChatMessageChunk,
    messages.FunctionMessage,
    messages.FunctionMessageChunk,
    messages.HumanMessage,
    messages.HumanMessageChunk,
    messages.RemoveMessage,
    messages.SystemMessage,
    messages.SystemMessageChunk,
    messages.ToolMessage,
    messages.ToolMessageChunk,
    documents.Document,
    Command,
    Interrupt,
    Overwrite,
    TimeoutPolicy,
    _DeltaSnapshot,
    Type(
        Send,
        "Send",
        dump=lambda value: {"node": value.node, "arg": value.arg, "timeout": value.timeout},
        load=_send,
    ),
    Type(
        collections.deque,
        "deque",
        dump=lambda value: {"items": list(value), "maxlen": value.maxlen},
        load=lambda fields: collections.deque(fields["items"], fields["maxlen"]),
    ),
    Type(
        collections.defaultdict,
        "defaultdict",
        dump=lambda value: {"factory": _factory(value), "items": dict(value)},
        load=lambda fields: collections.defaultdict(_FACTORIES.get(fields["factory"] or ""), fields["items"]),
    ),
    _of_items(collections.OrderedDict, dict),
    _of_items(collections.Counter, dict),
    *map(_as_text, (ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network)),
    *map(_as_text, (ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network)),
    Type(
        re.Pattern,
        "Pattern",
        dump=lambda value: {"pattern": value.pattern, "flags": value.flags},
        load=lambda fields: re.compile(fields["pattern"], fields["flags"]),
    ),
    Type(
        zoneinfo.ZoneInfo,
        "ZoneInfo",
        dump=lambda value: {"key": value.key},
        load=lambda fields: zoneinfo.ZoneInfo(fields["key"]),
    ),
)


def _fields(cls: type, *names: str) -> Type:
    """Return the store's form of a LangGraph class whose constructor takes its attributes by name."""
    return Type(
        cls,
        f"langgraph.{cls.__name__}",
        dump=lambda value: {name: getattr(value, name) for name in names},
        load=lambda fields: cls(**fields),
    )


_ITEM: Final = ("namespace", "key", "value", "created_at", "updated_at")
FRAMEWORK: Final[tuple[Any, ...]] = (
    _fields(Item, *_ITEM),
    _fields(SearchItem, *_ITEM, "score"),
    agents.AgentAction,
    agents.AgentActionMessageLog,
    agents.AgentFinish,
    agents.AgentStep,
)
"""Classes of the frameworks with common names. A user's class of the same name has priority."""


def numpy_types() -> tuple[Any, ...]:
    """Return the store's form of numpy's arrays; empty while numpy is not imported."""
    numpy = sys.modules.get("numpy")
    return () if getattr(numpy, "ndarray", None) is None else (_array_type(numpy),)


@functools.cache
def _array_type(numpy: Any) -> Type:
    def dump(value: Any) -> dict[str, Any]:
        if value.dtype.hasobject or numpy.dtype(value.dtype.str) != value.dtype:
            raise ValueError(f"an array of {value.dtype} cannot be saved: use numbers, strings, bytes or times")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return {"dtype": value.dtype.str, "shape": list(value.shape), "order": order, "data": value.tobytes(order)}

    def load(fields: dict[str, Any]) -> Any:
        kind = numpy.dtype(fields["dtype"])
        if kind.hasobject:
            raise ValueError("an array of objects cannot be loaded")
        array = numpy.frombuffer(bytearray(fields["data"]), dtype=kind)
        return array.reshape(fields["shape"], order=fields["order"])

    return Type(numpy.ndarray, "numpy.ndarray", dump=dump, load=load)


def _simple(value: Any) -> Any:
    return repr(value) if isinstance(value, BaseException) else plain(value)


@functools.lru_cache(1024)
def _warn_unknown(name: str) -> None:
    """Warn once for each name that a stored class is not allowed."""
    LOG.warning(
        "a checkpoint holds a %r, a class that neither the graph's schemas nor types= name: its fields are loaded "
        "instead, as a backtrail.Record. Pass BacktrailSaver(..., types=[%s])",
        name,
        name.rpartition(":")[2].rpartition(".")[2],
    )


_PLAINLY: Final = PlainFallback(_simple, _warn_unknown)


def all_of(named: Iterable[Any]) -> tuple[Any, ...]:
    """Return the classes that a saver always allows: `TYPES` and the caller's `types=`."""
    return tuple(dict.fromkeys((_PLAINLY, *TYPES, *named)))
