"""The inspector: pages that show a store. HTML from templates, a little JavaScript, nothing from elsewhere.

Each module has the pages of one subject: it calls operations of the table and hands their JSON to a template. `part` in
a query asks for a part of a page, and JavaScript puts that part into the open page.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from backtrail.server.inspector import agents, changes, conversations, overview, runs, storage, text, threads
from backtrail.server.problems import Problem
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from backtrail.server.context import Context

_STATIC: Final = Path(__file__).with_name("static")
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NO_PAGES: Final = ("api", "v1", "events", "static")


def environment() -> Environment:
    """Return the templates. Every value is escaped: stored text is only text."""
    made = Environment(
        loader=PackageLoader("backtrail.server.inspector", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=text.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= text.FILTERS
    return made


def speaks(segments: tuple[str, ...], request: Request) -> bool:
    """Tell whether an error of a request should be a page."""
    return segments[0] not in _NO_PAGES and "text/html" in request.headers.get("accept", "")


async def static(ctx: Context) -> Response:
    """Return a file of the package."""
    path = _STATIC / ctx.params["name"]
    if path.parent != _STATIC or path.suffix not in _TYPES or not path.is_file():
        raise Problem(404, "not_found.path", "there is no such file")
    body = path.read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in ctx.request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(body, 200, headers, media_type=_TYPES[path.suffix])


ROUTES: Final[tuple[Route, ...]] = (
    *overview.ROUTES,
    *threads.ROUTES,
    *conversations.ROUTES,
    *runs.ROUTES,
    *agents.ROUTES,
    *storage.ROUTES,
    *changes.ROUTES,
    Route("GET /static/{name}", static, public=True),
)
