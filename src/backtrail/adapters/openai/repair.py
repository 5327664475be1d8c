"""Calls of tools that have no output: told apart from those that are still awaited, and answered.

An output is missing for good when the process that was to write it is gone, or went on with another turn. The Responses
API refuses a history with such a call, and the runner leaves the call out, so that the model would not know that it was
ever made. It gets an output that says so instead. Nothing of this is written: when the true output comes after all, it
is the only one.

A call is *awaited*, and left alone, as long as this process has added it without an output and no user has spoken
since, or as long as a run that was saved with the session waits for its approval.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from backtrail.adapters.openai.items import Item
    from backtrail.store import Store

INTERRUPTED: Final = (
    "[interrupted] This call was cut short. No output was recorded, and whether it took effect is not known."
)
_OUTPUTS: Final = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
"""Calls whose output is a text. Others have outputs that cannot be made up; those the runner leaves out."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A call without an output, which `get_items` answers."""

    call_id: str
    name: str | None
    arguments: str | None
    """As the model wrote them."""


def _is_call(item: Item) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and kind in _OUTPUTS


def orphans(items: Sequence[Item]) -> list[int]:
    """Return the places of calls that no later item answers."""
    answers: set[tuple[str, str]] = set()
    found: list[int] = []
    for place in range(len(items) - 1, -1, -1):
        kind, call_id = items[place].get("type"), items[place].get("call_id")
        if not isinstance(kind, str) or not isinstance(call_id, str):
            continue
        if kind not in _OUTPUTS:
            answers.add((kind, call_id))
        elif (_OUTPUTS[kind], call_id) not in answers:
            found.append(place)
    return found[::-1]


def repaired(items: Sequence[Item], places: Container[int]) -> list[Item]:
    """Return the items with an answer for each call at these places, behind the calls that were made with it."""
    made: list[Item] = []
    answers: list[Item] = []
    for place, item in enumerate(items):
        if not _is_call(item):
            made += answers
            answers = []
        made.append(item)
        if place in places:
            answers.append({"type": _OUTPUTS[item["type"]], "call_id": item["call_id"], "output": INTERRUPTED})
    return made + answers


def repair_of(call: Item) -> Repair:
    """Return what is known of a call that is answered."""
    given = call.get("arguments", call.get("input"))
    name = call.get("name")
    return Repair(call["call_id"], name if isinstance(name, str) else None, given if isinstance(given, str) else None)


class Awaited:
    """The calls that this process has added and not yet answered, by session; of one store."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, set[str]] = defaultdict(set)
        self._turn = threading.Lock()

    def calls(self, session_id: str, items: Iterable[Item]) -> None:
        """Take note of the calls among items that are about to be added."""
        with self._turn:
            self._calls[session_id].update(item["call_id"] for item in items if _is_call(item) and _id_of(item))

    def answers(self, session_id: str, items: Iterable[Item]) -> None:
        """Take note of what items that were added answer: a user who speaks leaves nothing to be awaited."""
        with self._turn:
            calls = self._calls[session_id]
            for item in items:
                if item.get("role") == "user":
                    calls.clear()
                elif _is_call(item) and _id_of(item):
                    calls.add(item["call_id"])  # behind the user's word
                elif _id_of(item):
                    calls.discard(item["call_id"])
            if not calls:
                del self._calls[session_id]

    def __call__(self, session_id: str) -> frozenset[str]:
        """Return the calls of a session."""
        with self._turn:
            return frozenset(self._calls.get(session_id, ()))


def _id_of(item: Item) -> bool:
    return isinstance(item.get("call_id"), str)


_awaited: weakref.WeakKeyDictionary[Store, Awaited] = weakref.WeakKeyDictionary()
_turn: Final = threading.Lock()


def awaited_in(store: Store) -> Awaited:
    """Return what all sessions of a store await in this process."""
    with _turn:
        return _awaited.setdefault(store, Awaited())
