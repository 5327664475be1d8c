"""Routes: which function answers a method and a path.

A path is split before its percent escapes are decoded: an id may contain slashes, as `%2F`. A route's segment in braces
takes one segment of the path. Paths are relative to the place where the application is mounted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from backtrail.operations import Effect
from backtrail.operations.segments import from_segment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.responses import Response
    from starlette.types import Scope

    from backtrail.server.context import Context

    Endpoint = Callable[[Context], Awaitable[Response]]


class Route(NamedTuple):
    """A method and a path, such as "GET /threads/{thread_id}", and the function that answers."""

    path: str
    endpoint: Endpoint
    effect: Effect = Effect.READ
    """A route that writes or destroys needs a token that may write."""
    public: bool = False
    """Whether it needs no token: for files of the package, never for data."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.path.partition(" ")[0]

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the path."""
        return tuple(self.path.partition(" ")[2].strip("/").split("/"))


class RouteMatch(NamedTuple):
    """A route, and the values of its segments in braces."""

    route: Route
    params: dict[str, str]


class Router:
    """Finds routes. Of two routes that match, the one with fewer braces wins."""

    def __init__(self, routes: Iterable[Route]) -> None:
        ordered = sorted(routes, key=lambda route: route.path.count("{"))
        self._routes = [(route, route.method, route.segments) for route in ordered]

    def match(self, method: str, segments: tuple[str, ...]) -> RouteMatch | set[str]:
        """Return the route of a request, or the methods that its path has; none if there is no such path."""
        allowed: set[str] = set()
        for route, has, wanted in self._routes:
            params = _params(wanted, segments)
            if params is None:
                continue
            if method == has or (method == "HEAD" and has == "GET"):
                return RouteMatch(route, params)
            allowed |= {has, "HEAD"} if has == "GET" else {has}
        return allowed


def _params(wanted: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str] | None:
    if len(wanted) != len(segments):
        return None
    params: dict[str, str] = {}
    for name, segment in zip(wanted, segments, strict=True):
        if name.startswith("{"):
            if not segment:
                return None
            params[name[1:-1]] = segment
        elif name != segment:
            return None
    return params


def segments_of(scope: Scope) -> tuple[str, ...] | None:
    """Return the decoded segments of a request's path below the mount; None if they are not UTF-8."""
    path, raw = scope["path"], scope.get("raw_path") or b""
    text = raw.decode("latin-1")
    if path not in (unquote(text), unquote(unquote(text))):  # no raw path, or a middleware has changed the path
        text = quote(path)
    root = scope.get("root_path", "").rstrip("/")
    parts = text.split("/")[1 + root.count("/") :] if root and path.startswith(root) else text.split("/")[1:]
    if parts and parts[-1] == "" and len(parts) > 1:
        parts.pop()
    try:
        return tuple(map(from_segment, parts)) or ("",)
    except UnicodeDecodeError:
        return None
