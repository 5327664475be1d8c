"""OpenAI's Conversations API (`/v1/conversations`) on the conversations of a store.

The `openai` client and `OpenAIConversationsSession` of the Agents SDK use it unchanged: set `base_url` to the server's
`/v1` and `api_key` to its token. A new conversation belongs to the agent of the caller's scope, else to the agent
`openai-agents`. An item is a message, which keeps the item in `raw`. Messages from elsewhere become items: the message
itself, and one item for each of its tool calls and their results.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.items import FORMAT, items_of
from backtrail.conversations.models import Conversation, Message, from_raw
from backtrail.errors import Error, Invalid, NotFound
from backtrail.operations import Effect
from backtrail.operations.answers import plain
from backtrail.operations.retries import in_transaction, with_retries
from backtrail.server.context import json_response
from backtrail.server.problems import details, headers_of
from backtrail.server.routing import Route
from backtrail.validation import json_value, to_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.responses import Response

    from backtrail.models import ConversationInfo
    from backtrail.server.access import Access
    from backtrail.server.context import Context
    from backtrail.store import Store

    Item = dict[str, Any]
    Call = Callable[[Store, Context, dict[str, Any]], dict[str, Any]]

AGENT: Final = "openai-agents"
"""The agent of conversations outside of a scope; the session of our adapter has the same."""
_ITEMS_MAX: Final = 20
_LIMIT: Final = 20
_LIMIT_MAX: Final = 100
_PAIRS_MAX: Final = 16
_KEY_MAX: Final = 64
_VALUE_MAX: Final = 512
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_WITH_STATUS: Final = ("message", "function_call", "function_call_output")


def speaks(segments: tuple[str, ...]) -> bool:
    """Tell whether a path belongs to this API."""
    return segments[:1] == ("v1",)


def error_response(error: Exception) -> Response:
    """Return an error in the form of OpenAI."""
    problem = details(error)
    kind = "invalid_request_error" if problem["status"] < 500 else "server_error"  # noqa: PLR2004 - a status
    body = {"message": problem["detail"], "type": kind, "param": problem.get("path"), "code": problem["code"]}
    return json_response({"error": body}, problem["status"], headers_of(error))


# -- conversations ----------------------------------------------------------------------------------------


def _create(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    messages = [_message(item, f"items[{at}]") for at, item in enumerate(_items(given.get("items")))]
    _check_new(messages, ())
    made = Conversation(
        _owner(ctx.access),
        id=f"conv_{uuid.uuid4().hex}",
        messages=messages,
        metadata=_metadata(given.get("metadata")),
    )
    store.conversations.save(made.auto_title())
    return _conversation(store.conversations.info(made.id))


def _retrieve(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    del given
    return _conversation(store.conversations.info(ctx.params["conversation_id"]))


def _update(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    if "metadata" not in given:
        raise Invalid("metadata is missing: update needs metadata", code="invalid.argument", path="metadata")
    return _conversation(
        store.conversations.update(ctx.params["conversation_id"], metadata=_metadata(given["metadata"]))
    )


def _delete(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    del given
    name = ctx.params["conversation_id"]
    if not store.conversations.delete(name):
        raise _no_conversation(name)
    return {"id": name, "object": "conversation.deleted", "deleted": True}


def _conversation(info: ConversationInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "object": "conversation",
        "created_at": 0 if info.created_at is None else int(info.created_at.timestamp()),
        "metadata": dict(info.metadata),
    }


def _owner(access: Access) -> str:
    return access.agents[0] if access.agents else AGENT


def _metadata(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    good = isinstance(given, dict) and len(given) <= _PAIRS_MAX
    if not good or not all(_is_pair(key, value) for key, value in given.items()):
        raise Invalid(
            f"metadata is an object of at most {_PAIRS_MAX} texts, with keys of at most {_KEY_MAX} characters and "
            f"values of at most {_VALUE_MAX}",
            code="invalid.argument",
            path="metadata",
        )
    return dict(given)


def _is_pair(key: Any, value: Any) -> bool:
    return len(key) <= _KEY_MAX and isinstance(value, str) and len(value) <= _VALUE_MAX


# -- items ------------------------------------------------------------------------------------------------


def _create_items(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    name = ctx.params["conversation_id"]
    items = _items(given.get("items"))
    if not items:
        raise Invalid("items is missing: send 1 to 20 items", code="invalid.argument", path="items")
    messages = [_message(item, f"items[{at}]") for at, item in enumerate(items)]

    def add() -> None:
        _check_new(messages, (each["id"] for each in _all(store, name)))
        store.conversations.append(name, *messages)

    if any("id" in item for item in items):
        with_retries(lambda: in_transaction(store, add))
    else:
        store.conversations.append(name, *messages)
    return _listing([item for message in messages for item in _wire(message)], more=False)


def _list_items(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    order, after = given.get("order", "desc"), given.get("after")
    limit = _limit(given.get("limit"))
    if order not in ("asc", "desc"):
        raise Invalid("order is asc or desc", code="invalid.argument", path="order")
    name = ctx.params["conversation_id"]
    if order == "desc" and after is None:
        items = [item for message in _tail(store, name, limit + 1) for item in _wire(message)][::-1]
    else:
        items = _all(store, name)[:: 1 if order == "asc" else -1]
    if after is not None:
        start = next((at + 1 for at, item in enumerate(items) if item["id"] == after), None)
        if start is None:
            raise NotFound(f"there is no item {after!r:.100} in this conversation", code="not_found.item")
        items = items[start:]
    return _listing(items[:limit], more=len(items) > limit)


def _retrieve_item(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    del given
    found = next(
        (item for item in _all(store, ctx.params["conversation_id"]) if item["id"] == ctx.params["item_id"]), None
    )
    if found is None:
        raise _no_item(ctx.params["item_id"])
    return found


def _delete_item(store: Store, ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    del given
    name, item_id = ctx.params["conversation_id"], ctx.params["item_id"]
    thread = store.conversations.thread(name)

    def delete() -> None:
        head = thread.latest()
        if head is None:
            raise _no_conversation(name)
        for at, stored in enumerate(head.get("messages", ())):
            items = _wire(Message.from_data(stored))
            if any(item["id"] == item_id for item in items):
                if len(items) > 1:
                    raise Invalid("this item is a part of a message with several items", code="invalid.argument")
                thread.delete_at(("messages", at), expect=head)
                return
        raise _no_item(item_id)

    with_retries(delete)
    return _conversation(store.conversations.info(name))


def _all(store: Store, name: str) -> list[Item]:
    return [item for message in store.conversations.load(name).messages for item in _wire(message)]


def _tail(store: Store, name: str, count: int) -> list[Message]:
    return store.conversations.tail(name, count)


def _listing(items: list[Item], *, more: bool) -> dict[str, Any]:
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more}


def _items(given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > _ITEMS_MAX:
        raise Invalid(f"items is a list of at most {_ITEMS_MAX} items", code="invalid.argument", path="items")
    return given


def _limit(given: Any) -> int:
    limit = _LIMIT if given is None else int(given) if str(given).isdecimal() and len(str(given)) < 5 else 0  # noqa: PLR2004
    if not 1 <= limit <= _LIMIT_MAX:
        raise Invalid(f"limit must be from 1 to {_LIMIT_MAX}", code="invalid.argument", path="limit")
    return limit


def _message(item: Any, path: str) -> Message:
    """Return an item as a message, in the form in which OpenAI returns it: with its type, id and parts."""
    if not isinstance(item, dict):
        raise Invalid(f"{path} is an object", code="invalid.argument", path=path)
    kind = item.get("type", "message")
    if not isinstance(kind, str) or (kind == "message" and not isinstance(item.get("role"), str)):
        raise Invalid(f"{path} needs a type, or a role and content", code="invalid.argument", path=path)
    item_id = item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"
    if not isinstance(item_id, str):
        raise Invalid(f"{path}.id is a text", code="invalid.argument", path=f"{path}.id")
    return from_raw(Message, json_value(_normal({**item, "id": item_id}), path), FORMAT, {"id": item_id})


def _normal(item: Item) -> Item:
    kind = item.get("type") or "message"
    item = {**item, "type": kind}
    if kind in _WITH_STATUS and item.get("status") is None:
        item["status"] = "completed"
    if kind == "message" and isinstance(item.get("content"), str):
        assistant = item.get("role") == "assistant"
        part: Item = {"type": "output_text" if assistant else "input_text", "text": item["content"]}
        item["content"] = [{**part, "annotations": []} if assistant else part]
    return item


def _wire(message: Message) -> list[Item]:
    """Return the items of a message. A message from elsewhere may have several."""
    found = items_of(to_data(message), f"message {message.id}")
    return [
        _normal(plain({**item, "id": item.get("id") or (message.id if at == 0 else f"{message.id}-{at}")}))
        for at, item in enumerate(found)
    ]


def _check_new(messages: list[Message], known: Iterable[str]) -> None:
    ids = set(known)
    for at, message in enumerate(messages):
        if message.id in ids:
            raise Invalid(f"items[{at}].id is the id of another item", code="invalid.argument", path=f"items[{at}].id")
        ids.add(message.id)


def _no_conversation(name: str) -> Error:
    return NotFound(f"there is no conversation {name!r:.100}", code="not_found.conversation")


def _no_item(name: str) -> Error:
    return NotFound(f"there is no item {name!r:.100} in this conversation", code="not_found.item")


# -- routes -----------------------------------------------------------------------------------------------


def _route(path: str, call: Call, effect: Effect = Effect.READ) -> Route:
    async def endpoint(ctx: Context) -> Response:
        given = dict(ctx.request.query_params)
        if ctx.request.method == "POST":
            given = await ctx.json()
        return json_response(await ctx.run(call, ctx.store, ctx, given))

    return Route(path, endpoint, effect)


_ONE: Final = "/v1/conversations/{conversation_id}"
ROUTES: Final[tuple[Route, ...]] = (
    _route("POST /v1/conversations", _create, Effect.WRITE),
    _route(f"GET {_ONE}", _retrieve),
    _route(f"POST {_ONE}", _update, Effect.WRITE),
    _route(f"DELETE {_ONE}", _delete, Effect.DESTROY),
    _route(f"POST {_ONE}/items", _create_items, Effect.WRITE),
    _route(f"GET {_ONE}/items", _list_items),
    _route(f"GET {_ONE}/items/{{item_id}}", _retrieve_item),
    _route(f"DELETE {_ONE}/items/{{item_id}}", _delete_item, Effect.WRITE),
)
