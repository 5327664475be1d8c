"""The classes that channels may hold, beside plain data and those of the user's (see `consent`).

They are LangChain's messages and actions, what LangGraph itself keeps, arrays of numpy, and some of Python's own. What
is no instance of a class that is known is refused when it is saved, but for what equals a plain value: that is kept in
its place. Exceptions are kept as their `repr`, as LangGraph has it: they are for reading.
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
from backtrail.adapters.plain import plain
from backtrail.engine.schema.registry import Plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOG: Final = logging.getLogger("backtrail")
_FACTORIES: Final[dict[str, Any]] = {kind.__name__: kind for kind in (list, dict, set, int, float, str)}


def _send(fields: dict[str, Any]) -> Send:
    made = Send(fields["node"], fields["arg"])
    made.timeout = fields["timeout"]
    return made


def _factory(made: collections.defaultdict[Any, Any]) -> str | None:
    factory: Any = made.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name is not None and _FACTORIES.get(name) is not factory:
        raise ValueError(f"a defaultdict of {factory!r} cannot be kept: only of {', '.join(_FACTORIES)}")
    return name


def _as_text(cls: type) -> Type:
    """Return how to keep a class whose instances `str` says all of."""
    return Type(cls, cls.__name__, dump=lambda value: {"text": str(value)}, load=lambda fields: cls(fields["text"]))


def _of_items(cls: type, dump: Callable[[Any], Any]) -> Type:
    """Return how to keep a collection."""
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
    """Return how to keep a class of LangGraph's that has attributes, and takes them by their names."""
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
"""Those whose names users may have given to classes of their own: then these are meant."""


def numpy_types() -> tuple[Any, ...]:
    """Return how to keep arrays of numpy; nothing if it is not loaded: then there are none."""
    numpy = sys.modules.get("numpy")
    return () if getattr(numpy, "ndarray", None) is None else (_array_type(numpy),)


@functools.cache
def _array_type(numpy: Any) -> Type:
    def dump(value: Any) -> dict[str, Any]:
        if value.dtype.hasobject or numpy.dtype(value.dtype.str) != value.dtype:
            raise ValueError(f"an array of {value.dtype} cannot be kept: only of numbers, texts, bytes and times")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return {"dtype": value.dtype.str, "shape": list(value.shape), "order": order, "data": value.tobytes(order)}

    def load(fields: dict[str, Any]) -> Any:
        kind = numpy.dtype(fields["dtype"])
        if kind.hasobject:
            raise ValueError("an array of objects is not made")
        found = numpy.frombuffer(bytearray(fields["data"]), dtype=kind)
        return found.reshape(fields["shape"], order=fields["order"])

    return Type(numpy.ndarray, "numpy.ndarray", dump=dump, load=load)


def _simple(value: Any) -> Any:
    return repr(value) if isinstance(value, BaseException) else plain(value)


@functools.lru_cache(1024)
def _unknown(name: str) -> None:
    """Say, once, that a class is missing."""
    LOG.warning(
        "a checkpoint holds a %r, a class that neither the schemas of the graph nor types= name: its fields are loaded "
        "in its place (backtrail.Record). To have it back: BacktrailSaver(..., types=[%s])",
        name,
        name.rpartition(":")[2].rpartition(".")[2],
    )


_PLAINLY: Final = Plainly(_simple, _unknown)


def all_of(named: Iterable[Any]) -> tuple[Any, ...]:
    """Return the classes that a saver knows by name: these, and those that its user names."""
    return tuple(dict.fromkeys((_PLAINLY, *TYPES, *named)))
