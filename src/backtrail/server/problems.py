"""Errors as problem details (RFC 9457), with the codes of `backtrail.errors`."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from backtrail.errors import CommitUnknown, Conflict, Corrupt, Error, InDoubt, Invalid, NotFound, Unavailable
from backtrail.operations.answers import message_of

_STATUS: Final[tuple[tuple[type[Error], int], ...]] = (
    (NotFound, 404),
    (Conflict, 409),
    (InDoubt, 409),
    (Invalid, 400),
    (Corrupt, 500),
    (CommitUnknown, 500),
    (Unavailable, 503),
)
_FORBIDDEN: Final = ("unavailable.read_only", "unavailable.scope")
_TITLES: Final = {
    400: "The request is wrong",
    401: "A token is needed",
    403: "This is not allowed",
    404: "There is no such thing",
    405: "The method is not allowed",
    408: "The request takes too long",
    409: "This cannot be done",
    413: "The request is too large",
    415: "The request is not JSON",
    421: "The server has another name",
    500: "The server failed",
    501: "The server lacks a part",
    503: "The storage is unavailable",
    504: "The request takes too long",
}
_DETAIL_MAX: Final = 2_000


class Problem(Exception):  # noqa: N818 - the name that RFC 9457 uses
    """An answer that is an error of HTTP, not of the store."""

    def __init__(self, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers or {}


def status_of(error: Error) -> int:
    """Return the HTTP status of an error."""
    if error.code in _FORBIDDEN:
        return 403
    if error.code == "not_found.store":  # 404 would say that the thread is gone
        return 503
    return next((status for cls, status in _STATUS if isinstance(error, cls)), 500)


def details(error: Exception) -> dict[str, Any]:
    """Return the problem details of an error. The text of an unexpected error stays on the server."""
    if isinstance(error, Problem):
        status, code, detail = error.status, error.code, str(error)
    elif isinstance(error, Error):
        status, code, detail = status_of(error), error.code, message_of(error)
    else:
        status, code, detail = 500, "error", "The server failed; its log has the details."
    problem: dict[str, Any] = {
        "type": f"urn:backtrail:{code}",
        "title": _TITLES[status],
        "status": status,
        "detail": detail[:_DETAIL_MAX],
        "code": code,
    }
    if isinstance(error, Conflict):
        problem |= {"expected": error.expected, "actual": error.actual}
    if isinstance(error, Invalid) and isinstance(error.path, str):
        problem["path"] = error.path
    return problem


def headers_of(error: Exception) -> dict[str, str]:
    """Return the headers that a response to an error needs."""
    if not isinstance(error, Problem):
        return {}
    return {**error.headers, **({"WWW-Authenticate": 'Bearer realm="backtrail"'} if error.status == 401 else {})}  # noqa: PLR2004


def problem_response(error: Exception) -> Response:
    """Return an error as a response."""
    problem = details(error)
    return Response(json.dumps(problem), problem["status"], headers_of(error), media_type="application/problem+json")
