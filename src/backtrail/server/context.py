"""`Context`: what an endpoint gets. It runs operations on the caller's part of the store, in worker threads."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.responses import HTMLResponse, Response

from backtrail.operations import TABLE
from backtrail.operations.segments import segment
from backtrail.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from backtrail.server.access import Access
    from backtrail.server.application import Server
    from backtrail.store import Store

T = TypeVar("T")
JSON_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Context:
    """One request: its route's parameters, and the store as the caller may see it."""

    request: Request
    params: Mapping[str, str]
    access: Access
    store: Store
    server: Server

    async def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in a worker thread. It may go on after the time limit; the caller gets 504 then."""
        call = partial(contextvars.copy_context().run, partial(function, *args, **options))
        work = asyncio.get_running_loop().run_in_executor(self.server.workers, call)
        try:
            return await asyncio.wait_for(asyncio.shield(work), self.server.time_limit)
        except TimeoutError:
            work.add_done_callback(lambda done: done.exception())  # else asyncio logs its error
            raise Problem(504, "timeout", f"this takes more than {self.server.time_limit} seconds") from None

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation of the table, and return its result. Arguments that are None are left out."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return await self.run(TABLE[operation], self.store, given)

    async def body(self) -> bytes:
        """Return the body of the request; 413 if it is too large."""
        limit = self.server.body_limit
        too_large = Problem(413, "invalid.size", f"a request has at most {limit} bytes")
        stated = self.request.headers.get("content-length", "0")
        if stated.isdecimal() and int(stated) > limit:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.server.time_limit):
                async for part in self.request.stream():
                    size += len(part)
                    if size > limit:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise Problem(408, "timeout", f"the body takes more than {self.server.time_limit} seconds") from None
        return b"".join(parts)

    async def json(self) -> dict[str, Any]:
        """Return the JSON object in the body; an empty object for an empty body."""
        body = await self.body()
        if not body:
            return {}
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON_TYPE:
            raise Problem(415, "invalid.type", "send the body as Content-Type: application/json")
        try:
            data = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise Problem(400, "invalid.json", f"the body is not JSON ({error})") from None
        if not isinstance(data, dict):
            raise Problem(400, "invalid.json", "the body is a JSON object")
        return data

    def url(self, *segments: Any, **query: Any) -> str:
        """Return the URL of a path of this application, wherever it is mounted: `ctx.url("threads", id)`."""
        from urllib.parse import urlencode  # noqa: PLC0415 - only pages need it

        path = "/".join((self.request.scope.get("root_path", "").rstrip("/"), *map(segment, segments)))
        given = {name: value for name, value in query.items() if value is not None}
        return f"{path or '/'}{'?' if given else ''}{urlencode(given, errors='surrogatepass')}"

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page made from a template of the inspector."""
        text = self.server.templates.get_template(template).render(ctx=self, url=self.url, **values)
        return HTMLResponse(text.encode("utf-8", "replace"), status)


def json_response(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON data as a response."""
    return Response(json_bytes(data), status, dict(headers or {}), media_type=JSON_TYPE)


def json_bytes(data: Any) -> bytes:
    """Return JSON data as bytes. Lone surrogates, which UTF-8 lacks, are escaped."""
    try:
        return json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(data, allow_nan=False).encode()


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text:.40} is too large")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"JSON has no number {text}")
