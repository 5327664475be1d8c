"""The ASGI application: routing, access, errors, and the headers of every response.

It needs no lifespan, so it can be mounted under any path of another application. The store's calls run in worker
threads, at most `workers` at once; further requests wait for a thread.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from backtrail.errors import Error
from backtrail.operations import Effect
from backtrail.server import api, events, inspector, mcp_endpoint, openai_conversations
from backtrail.server.access import LOOPBACK, SAFE_METHODS, Access, Gate, Tokens, read_tokens
from backtrail.server.context import Context
from backtrail.server.problems import Problem, details, headers_of, problem_response, status_of
from backtrail.server.routing import RouteMatch, Router, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jinja2 import Environment
    from starlette.types import Message, Receive, Scope, Send

    from backtrail.store import Store

LOG: Final = logging.getLogger("backtrail.server")
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_STORAGE: Final = 500
"""Statuses from here on are failures of the storage."""
_HEADERS: Final = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Server:
    """An ASGI application that serves a store: `backtrail.server.app(...)` makes one."""

    def __init__(
        self,
        store: Store,
        *,
        write: bool,
        tokens: Tokens,
        scope: str | Iterable[str] | None,
        hosts: Iterable[str] | None = LOOPBACK,
        body_limit: int = 8 * 1024 * 1024,
        time_limit: float = 60.0,
        workers: int = 16,
        mcp: Mapping[str, Any] | None = None,
        only_mcp: bool = False,
    ) -> None:
        agents = None if scope is None else (scope,) if isinstance(scope, str) else tuple(scope)
        self.body_limit = body_limit
        self.time_limit = time_limit
        self.workers = ThreadPoolExecutor(workers, "backtrail server")
        given, self.token = read_tokens(tokens, agents, write=write)
        self.templates: Environment = inspector.environment()
        self.events = events.Events()
        self.jobs = api.Jobs()
        self.mcp = mcp_endpoint.McpSessions(mcp or {})
        self._store = store
        self._stores: dict[Access, Store] = {}
        self._gate = Gate(given, Access(agents, write), hosts)
        others = (*api.ROUTES, *events.ROUTES, *openai_conversations.ROUTES, *inspector.ROUTES)
        self._router = Router((*mcp_endpoint.ROUTES, *(() if only_mcp else others)))
        for access in {Access(agents, write), *(given or {}).values()}:
            self.store_for(access)  # a wrong agent is an error now, not at the first request

    def store_for(self, access: Access) -> Store:
        """Return the store as an access sees it."""
        if access.agents is None and access.write:
            return self._store
        if access not in self._stores:
            self._stores[access] = self._store.scoped(access.agents, read_only=not access.write)
        return self._stores[access]

    def end_streams(self) -> None:
        """End the answers that have no end of their own: events, and sessions of MCP."""
        self.events.close()
        self.mcp.close()

    def close(self) -> None:
        """Stop the watchers and the worker threads. The store stays open."""
        self.end_streams()
        self.workers.shutdown(wait=False, cancel_futures=True)

    # -- ASGI -----------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            request = Request(scope, receive)
            try:
                response = await self._answer(request)
            except ClientDisconnect:
                return
            except Exception as error:  # noqa: BLE001 - every error becomes a response
                response = self._failed(request, error)

            async def with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    there = {name.lower() for name, _ in message["headers"]}
                    more = [(n.encode(), v.encode()) for n, v in _HEADERS.items() if n.encode() not in there]
                    message["headers"] = [*message["headers"], *more]
                await send(message)

            await response(scope, receive, with_headers)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        self.events.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Response:
        self._gate.check_host(request)
        segments = segments_of(request.scope)
        match = set[str]() if segments is None else self._router.match(request.method, segments)
        if not isinstance(match, RouteMatch):
            if not match:
                self._gate.access_of(request)  # the paths are no secret, but a stranger gets one answer for all
                raise Problem(404, "not_found.path", "there is no such path")
            allowed = ", ".join(sorted(match))
            raise Problem(405, "invalid.method", f"this path has {allowed}", {"Allow": allowed})
        route = match.route
        if route.public:
            return await route.endpoint(Context(request, match.params, Access(()), self._store, self))
        if self._gate.needs_token and "token" in request.query_params and request.method in SAFE_METHODS:
            return self._let_in(request)
        access = self._gate.access_of(request)
        if request.method not in SAFE_METHODS:
            self._gate.check_change(request)
        if route.effect is not Effect.READ and not access.write:
            raise Problem(403, "unavailable.read_only", "this server takes no changes: start it with --write")
        return await route.endpoint(Context(request, match.params, access, self.store_for(access), self))

    def _let_in(self, request: Request) -> Response:
        """Turn the token of a link into a cookie, and redirect to the link without the token."""
        token = self._gate.known(request.query_params["token"])
        if token is None:
            raise Problem(401, "forbidden.token", "this token is not valid: open the link that the server printed")
        query = request.url.remove_query_params("token").query
        path = f"/{request.url.path.lstrip('/')}"  # two slashes would lead to another host
        response = RedirectResponse(f"{path}{'?' if query else ''}{query}", 303)
        response.set_cookie(
            self._gate.cookie,
            self._gate.cookie_for(token),
            path=request.scope.get("root_path", "") or "/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    def _failed(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, Error | Problem):
            LOG.error("%s %s failed", request.method, ascii(request.url.path), exc_info=error)
        elif isinstance(error, Error) and status_of(error) >= _STORAGE:  # callers do not get the place of the store
            LOG.error("%s %s: %s", request.method, ascii(request.url.path), ascii(str(error)))
        segments = segments_of(request.scope) or ("",)
        if openai_conversations.speaks(segments):
            return openai_conversations.error_response(error)
        if inspector.speaks(segments, request):
            problem = details(error)
            root = request.scope.get("root_path", "")
            page = self.templates.get_template("error.html").render(problem=problem, root=root)
            return HTMLResponse(page.encode("utf-8", "replace"), problem["status"], headers_of(error))
        return problem_response(error)
