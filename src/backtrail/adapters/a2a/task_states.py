"""Tasks of A2A as states of threads: the protocol's own JSON, so that a save costs what changed.

The messages of the history are the state's `messages`, where search finds them; their parts are their `content`. A
task that JSON does not keep exactly is stored as the bytes of its protocol buffer. `listed` is what a listing needs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from a2a.types.a2a_pb2 import Task
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict, ParseDict

from backtrail.errors import Corrupt, Invalid

LISTED: Final = "listed"
_TASK: Final = "task"
_MESSAGES: Final = "messages"
_BYTES: Final = "bytes"
_NAMES: Final = {"messageId": "id", "parts": "content"}
"""The fields of a message that have other names here: those that search knows."""
_FIELDS: Final = {name: field for field, name in _NAMES.items()}


class ListedTask(NamedTuple):
    """The fields of a task by which listings filter and sort."""

    owner: str
    id: str
    context_id: str
    state: int
    timestamp: int | None
    """Nanoseconds since 1970."""

    @property
    def order(self) -> tuple[bool, int, str]:
        """The place in a listing, which is descending: as in the framework's own stores."""
        return (self.timestamp is not None, self.timestamp or 0, self.id)


def state_of(owner: str, task: Task) -> dict[str, Any]:
    """Return the state for a task; `Invalid` if the argument is not a task with an id."""
    if not isinstance(task, Task):
        raise Invalid(f"a task store keeps tasks, not {type(task).__name__}", code="invalid.argument")
    if not task.id:
        raise Invalid("a task needs an id", code="invalid.id", path="id")
    has_time = task.HasField("status") and task.status.HasField("timestamp")
    time = task.status.timestamp.ToNanoseconds() if has_time else None
    state: dict[str, Any] = {LISTED: list(ListedTask(owner, task.id, task.context_id, task.status.state, time))}
    try:
        document = MessageToDict(task)
        is_exact = _bytes(ParseDict(document, Task())) == _bytes(task)
    except (JsonError, ValueError):
        is_exact, document = False, {}
    if not is_exact:
        return state | {_BYTES: task.SerializeToString()}
    messages = [{_NAMES.get(key, key): value for key, value in each.items()} for each in document.pop("history", ())]
    return state | {_TASK: document, _MESSAGES: messages}


def _bytes(task: Task) -> bytes:
    found: bytes = task.SerializeToString(deterministic=True)
    return found


def task_of(state: Any) -> Task:
    """Return the task of a state; `Corrupt` if a thread of this name was not written by the adapter."""
    try:
        if _BYTES in state:
            return Task.FromString(state[_BYTES])
        document = dict(state[_TASK])
        messages = [{_FIELDS.get(key, key): value for key, value in each.items()} for each in state[_MESSAGES]]
        return ParseDict(document | {"history": messages}, Task())
    except Exception as error:
        raise Corrupt("the state is not a task of A2A", code="corrupt.state") from error


def listed_of(fields: Any) -> ListedTask | None:
    """Return the fields for listings from a state; None if the adapter did not write it."""
    is_list = isinstance(fields, list) and len(fields) == len(ListedTask._fields)
    return ListedTask(*fields) if is_list else None
