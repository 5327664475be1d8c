"""Repair of tool calls that have no output.

A call stays without an output if its process ended, or went on with another turn. The Responses API refuses a history
with such a call, and the SDK's runner drops the call, so that the model would not know about it. The session returns an
output that says "interrupted" instead. It writes nothing: if the real output arrives later, it is the only one.

A call is *awaited*, and not repaired, while this process has added it without an output and no user message followed,
or while a paused run of the session waits for its approval.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from backtrail.conversations.items import Item
    from backtrail.store import Store

INTERRUPTED: Final = (
    "[interrupted] This call was cut short. No output was recorded, and whether it took effect is not known."
)
_OUTPUTS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
"""The types of calls whose output is a text, with the types of their outputs.

The SDK's runner drops unanswered calls of other types.
"""


@dataclass(frozen=True, slots=True)
class Repair:
    """A call without an output, for which `get_items` returns an "interrupted" output."""

    call_id: str
    name: str | None
    arguments: str | None
    """The arguments as the text that the model wrote."""


def _is_call(item: Item) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and kind in _OUTPUTS


def unanswered_calls(items: Sequence[Item]) -> list[int]:
    """Return the positions of calls that no later item answers."""
    answers: set[tuple[str, str]] = set()
    positions: list[int] = []
    for at in range(len(items) - 1, -1, -1):
        kind, call_id = items[at].get("type"), items[at].get("call_id")
        if not isinstance(kind, str) or not isinstance(call_id, str):
            continue
        if kind not in _OUTPUTS:
            answers.add((kind, call_id))
        elif (_OUTPUTS[kind], call_id) not in answers:
            positions.append(at)
    return positions[::-1]


def with_outputs(items: Sequence[Item], positions: Container[int]) -> list[Item]:
    """Return the items with an "interrupted" output for each call at `positions`.

    The outputs follow the last call of an unbroken series of calls.
    """
    whole: list[Item] = []
    answers: list[Item] = []
    for at, item in enumerate(items):
        if not _is_call(item):
            whole += answers
            answers = []
        whole.append(item)
        if at in positions:
            answers.append({"type": _OUTPUTS[item["type"]], "call_id": item["call_id"], "output": INTERRUPTED})
    return whole + answers


def repair_of(call: Item) -> Repair:
    """Return the description of a repaired call."""
    text = call.get("arguments", call.get("input"))
    name = call.get("name")
    return Repair(call["call_id"], name if isinstance(name, str) else None, text if isinstance(text, str) else None)


class AwaitedCalls:
    """The calls that this process has added to the sessions of one store and not yet answered."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def add_calls(self, session_id: str, items: Iterable[Item]) -> None:
        """Record the calls among items that are about to be added."""
        with self._lock:
            self._calls[session_id].update(item["call_id"] for item in items if _is_call(item) and _has_id(item))

    def add_answers(self, session_id: str, items: Iterable[Item]) -> None:
        """Record the answers among items that were added. A user message ends the wait for all earlier calls."""
        with self._lock:
            calls = self._calls[session_id]
            for item in items:
                if item.get("role") == "user":
                    calls.clear()
                elif _is_call(item) and _has_id(item):
                    calls.add(item["call_id"])  # a user message before it may have cleared the set
                elif _has_id(item):
                    calls.discard(item["call_id"])
            if not calls:
                del self._calls[session_id]

    def of(self, session_id: str) -> frozenset[str]:
        """Return the awaited calls of a session."""
        with self._lock:
            return frozenset(self._calls.get(session_id, ()))


def _has_id(item: Item) -> bool:
    return isinstance(item.get("call_id"), str)


_awaited: weakref.WeakKeyDictionary[Store, AwaitedCalls] = weakref.WeakKeyDictionary()
_lock: Final = threading.Lock()


def awaited_calls(store: Store) -> AwaitedCalls:
    """Return the awaited calls of all sessions of a store in this process."""
    with _lock:
        return _awaited.setdefault(store, AwaitedCalls())
