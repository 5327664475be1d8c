"""The classes that channels may hold, beside plain data.

They are LangChain's messages, what LangGraph itself keeps, and some of Python's own. Users name theirs. Instances of
any other class are refused when they are saved.

Loading makes instances of these and of those that were named, by their schema name, and of nothing else.
"""

from __future__ import annotations

import collections
import ipaddress
import re
import zoneinfo
from typing import TYPE_CHECKING, Any, Final

from langchain_core import documents, messages
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy

from backtrail import Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def all_of(named: Iterable[Any]) -> tuple[Any, ...]:
    """Return the classes that a saver knows: these, and those that its user names."""
    return tuple(dict.fromkeys((*TYPES, *named)))
