"""Events and sessions of ADK as data of a conversation.

A message keeps its event in `raw`, as the framework's own JSON has it; its other fields are derived for search, titles
and listings, and never read back. Two different sessions never name the same conversation.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any, Final, NamedTuple, Self

import pydantic
from google.adk.events import Event
from google.adk.sessions.state import State

from backtrail.adapters.thread_ids import joined_id
from backtrail.conversations.models import Message, Role, ToolCall
from backtrail.errors import Corrupt, Invalid
from backtrail.validation import MAX_ID, check_id, now, to_data

FORMAT: Final = "adk"
"""The `raw_format` of messages that hold an event."""


class SessionKey(NamedTuple):
    """The key of a session."""

    app_name: str
    user_id: str
    session_id: str

    @classmethod
    def read(cls, app_name: Any, user_id: Any, session_id: Any) -> Self:
        """Return the key that a caller named, or raise `Invalid`."""
        check_id(app_name, "app_name")
        check_id(user_id, "user_id")
        check_id(session_id, "session_id")
        return cls(app_name, user_id, session_id.strip() or session_id)

    @property
    def conversation_id(self) -> str:
        """The id of the conversation of the session."""
        return joined_id("adk", *self)

    @property
    def user_thread(self) -> str:
        """The id of the thread with the state of the user."""
        return joined_id("adk-user", self.app_name, self.user_id)

    @property
    def app_thread(self) -> str:
        """The id of the thread with the state of the app."""
        return joined_id("adk-app", self.app_name)


# -- state ------------------------------------------------------------------------------------------


class Deltas(NamedTuple):
    """The parts of a change of state, without their prefixes."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]

    @classmethod
    def of(cls, delta: dict[str, Any]) -> Self:
        """Split a change of state. Temporary state is not kept."""
        parts: tuple[dict[str, Any], ...] = ({}, {}, {})
        for key, value in delta.items():
            if key.startswith(State.APP_PREFIX):
                parts[0][key.removeprefix(State.APP_PREFIX)] = value
            elif key.startswith(State.USER_PREFIX):
                parts[1][key.removeprefix(State.USER_PREFIX)] = value
            elif not key.startswith(State.TEMP_PREFIX):
                parts[2][key] = value
        return cls(*parts)


_state: Final[pydantic.TypeAdapter[dict[str, Any]]] = pydantic.TypeAdapter(dict[str, Any])


def json_state(state: Any, path: str) -> dict[str, Any]:
    """Return state as plain JSON data; `Invalid` if JSON cannot hold it."""
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise Invalid(f"{path} is a dict whose keys are strings", code="invalid.value", path=path)
    kept = {key: value for key, value in state.items() if not key.startswith(State.TEMP_PREFIX)}
    _refuse_numbers(kept, path)
    try:
        plain: dict[str, Any] = json.loads(_state.dump_json(kept))
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path} cannot be kept as JSON: {error}", code="invalid.value", path=path) from error
    return plain


def _refuse_numbers(value: Any, path: str) -> None:
    """Refuse numbers that JSON does not have; the framework would make None of them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Invalid(f"{path}: JSON has no value that is {value!r}", code="invalid.value", path=path)
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_numbers(part, f"{path}[{key!r:.60}]")
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            _refuse_numbers(part, f"{path}[{at}]")


# -- events -----------------------------------------------------------------------------------------


def event_data(event: Any) -> dict[str, Any]:
    """Return an event as a message of the conversation; `Invalid` if it cannot be read back."""
    if not isinstance(event, Event):
        raise Invalid(f"append_event takes an Event, not {type(event).__name__}", code="invalid.argument")
    delta = json_state(event.actions.state_delta, "event.actions.state_delta")
    try:
        raw = json.loads(event.model_dump_json(exclude_none=True))
        raw.setdefault("actions", {})["state_delta"] = delta
        Event.model_validate(raw)  # as it is read back
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the event cannot be kept as JSON: {error}", code="invalid.value", path="event") from error
    parts = [part for part in (raw.get("content") or {}).get("parts") or () if isinstance(part, dict)]
    answers = [part["function_response"].get("id") for part in parts if "function_response" in part]
    tokens = (raw.get("usage_metadata") or {}).get("candidates_token_count")
    message = Message(
        Role.USER if event.author == "user" else Role.TOOL if answers else Role.ASSISTANT,
        "\n".join(text for part in parts for text in _texts(part)),
        id=check_id(event.id, "an event's id"),
        timestamp=_time(event.timestamp),
        tokens=tokens if type(tokens) is int and tokens >= 0 else None,
        tool_calls=[call for part in parts for call in _calls(part)],
        metadata={"tool_call_id": answers[0]} if len(answers) == 1 and answers[0] else {},
        raw=raw,
        raw_format=FORMAT,
    )
    return to_data(message)


def event_of(message: dict[str, Any]) -> Event:
    """Return the event of a message."""
    try:
        return Event.model_validate(message["raw"])
    except (KeyError, ValueError) as error:
        raise Corrupt(f"an event of ADK cannot be read: {error}", code="corrupt.state") from error


def events_among(messages: Any) -> list[dict[str, Any]]:
    """Return the messages that hold events. Others, such as appended by hand, are not part of the session."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Corrupt("a session has no list of messages", code="corrupt.state")
    return [message for message in messages if message.get("raw_format") == FORMAT]


def _texts(part: dict[str, Any]) -> list[str]:
    if isinstance(part.get("text"), str):
        return [part["text"]]
    response = (part.get("function_response") or {}).get("response")
    return [] if response is None else [json.dumps(response, ensure_ascii=False)]


def _calls(part: dict[str, Any]) -> list[ToolCall]:
    call = part.get("function_call")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return []
    call_id, arguments = call.get("id"), call.get("args")
    known = {"id": call_id} if isinstance(call_id, str) and 0 < len(call_id) <= MAX_ID else {}
    return [ToolCall(call["name"], arguments if isinstance(arguments, dict) else {}, **known)]


def _time(seconds: float) -> dt.datetime:
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, OSError, ValueError):
        return now()
