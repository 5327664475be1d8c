"""The page of a conversation: a transcript."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from backtrail.conversations.transcript import answered_call, dicts, read_message
from backtrail.operations.answers import plain, whole_number
from backtrail.operations.threads import handle
from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.responses import Response

    from backtrail.server.context import Context
    from backtrail.store import Store

_PAGE: Final = 50
_WHOLE: Final = 64_000
"""Messages of at most this many bytes are on the page; larger ones are loaded when they are opened."""
_IMAGE: Final = re.compile(r"data:image/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]+")


async def conversation(ctx: Context) -> Response:
    """Show a conversation: the newest messages, or those around the index `at`; at the head, or at `ref`."""
    query, name = ctx.request.query_params, ctx.params["conversation_id"]
    ref, at = query.get("ref") or None, query.get("at", "")
    thread = await ctx.call("thread_show", thread_id=name, kind="conversation")
    if ref is not None:
        found = await ctx.call("thread_checkpoint", thread_id=name, kind="conversation", ref=ref)
        ref = found["checkpoint_id"]
    info = await ctx.call("conversation_load", conversation_id=name, messages=0) if thread["head"] else None
    count = await ctx.run(_count, ctx.store, name, ref or "@") if thread["head"] or ref else 0
    wanted = whole_number(at)
    start = max(count - _PAGE if wanted is None else min(wanted - 10, count - _PAGE), 0)
    messages = await _messages(ctx, name, ref or "@", start) if count else []
    return ctx.page(
        "conversation.html",
        conversation_id=name,
        info=info,
        thread=thread,
        ref=ref,
        messages=messages,
        start=start,
        end=start + _PAGE,
        count=count,
        origin=info and info["forked_from"],
        page=_PAGE,
        write=ctx.access.write,
    )


def _count(store: Store, name: str, ref: str) -> int:
    part = handle(store, "conversation", name).load(ref).part("messages", limit=0, most=0)
    return part.count or 0


async def _messages(ctx: Context, name: str, ref: str, start: int) -> list[dict[str, Any]]:
    found = await ctx.run(_read, ctx.store, name, ref, start)
    answers = {call: (index, message) for index, message in found if (call := answered_call(message))}
    shown = [message_view(index, message, answers) for index, message in found]
    calls = {call["id"] for each in shown for call in each["calls"] if call["answer_at"] is not None}
    return [each for each in shown if not (each["answers"] and each["answers"] in calls)]


def _read(store: Store, name: str, ref: str, start: int) -> list[tuple[int, Any]]:
    """Return messages with their indexes; a dict with `size` only for a large one."""
    part = handle(store, "conversation", name).load(ref).part("messages", start=start, limit=_PAGE, most=_WHOLE)
    if not part.entries:
        whole = part.value if isinstance(part.value, list | tuple) else []
        return [*enumerate(plain(whole))][start : start + _PAGE]
    return [
        (at, plain(each.value) if each.size <= _WHOLE else {"size": each.size, "large": True})
        for at, each in part.entries
    ]


def message_view(index: int, message: Any, answers: dict[str, tuple[int, Any]]) -> dict[str, Any]:
    """Return a message as the template shows it. `answers` has the results of calls, with their indexes."""
    fields = message if isinstance(message, dict) else {}
    shown = read_message(message)
    calls = []
    for call in shown.calls if shown else ():
        at, answer = answers.get(call.id or "", (None, None))
        calls.append({**call._asdict(), "answer": _answer(call.result, answer), "answer_at": at})
    return {
        "index": index,
        "id": fields.get("id") if isinstance(fields.get("id"), str) else None,
        "large": fields.get("size") if fields.get("large") is True else None,
        "role": shown.role if shown else "",
        "name": shown.name if shown else "",
        "text": shown.text if shown else "",
        "nothing": shown.content if shown and not shown.text and not shown.calls else None,
        "calls": calls,
        "answers": answered_call(message),
        "time": fields.get("timestamp") if isinstance(fields.get("timestamp"), str) else None,
        "tokens": fields.get("tokens"),
        "images": [*dict.fromkeys(_images(message))],
        "attachments": [each for each in dicts(message, "attachments") if not _data_url(each)],
        "other": None if shown or fields.get("large") else message,
    }


def _answer(result: str | None, message: Any) -> str | None:
    if result is not None:
        return result
    shown = read_message(message)
    return None if shown is None else shown.text or f"({shown.content})"


def _images(message: Any) -> Iterator[str]:
    """Give the pictures of a message as data URLs. Nothing else is ever loaded."""
    for attached in dicts(message, "attachments"):
        if url := _data_url(attached):
            yield url
    raw = message.get("raw") if isinstance(message, dict) and isinstance(message.get("raw"), dict) else message
    for part in dicts(raw, "content"):
        source, url = part.get("source"), part.get("image_url")
        if isinstance(source, dict):
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        elif isinstance(url, dict):
            url = url.get("url")
        if isinstance(url, str) and _IMAGE.fullmatch(url):
            yield url


def _data_url(attached: dict[str, Any]) -> str | None:
    url = f"data:{attached.get('mime_type')};base64,{attached.get('content')}"
    return url if _IMAGE.fullmatch(url) else None


async def message(ctx: Context) -> Response:
    """Return one whole message, of any size."""
    index = whole_number(ctx.params["index"])
    if index is None:
        raise Problem(404, "not_found.path", "a message has a number")
    name, ref = ctx.params["conversation_id"], ctx.request.query_params.get("ref") or "@"

    def read() -> Any:
        return plain(handle(ctx.store, "conversation", name).load(ref).get(("messages", index)))

    shown = message_view(index, await ctx.run(read), {})
    return ctx.page("conversation_message.html", conversation_id=name, ref=ref, message=shown)


ROUTES: Final[tuple[Route, ...]] = (
    Route("GET /conversations/{conversation_id}", conversation),
    Route("GET /conversations/{conversation_id}/messages/{index}", message),
)
