"""The HTTP API, made from the table of operations: a route under /api/v1 for each row.

Arguments come from the path, from the query of a GET or DELETE, and from the JSON body of other methods. `If-Match` is
the head that a change expects: a change of another head is a `Conflict`, 409 with both heads. The ETag of a result is
the id of its checkpoint or head, a dot, and a hash of the result. A result that depends on ids of checkpoints only
never changes, and may be cached for ever. A job answers 202 with a path that tells its progress.

A request that does not fit the OpenAPI document gets 400. One that fits, and that the operation refuses for its meaning
(a cursor of another list, nothing to undo), gets 409.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from backtrail.errors import Error, Invalid, NotFound
from backtrail.operations import TABLE, Effect
from backtrail.operations.arguments import check_arguments
from backtrail.server.context import JSON_TYPE, json_bytes, json_response
from backtrail.server.openapi import document
from backtrail.server.problems import Problem, details
from backtrail.server.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from backtrail.operations import Operation
    from backtrail.server.access import Access
    from backtrail.server.context import Context
    from backtrail.store import Store

LOG: Final = logging.getLogger("backtrail.server")
PREFIX: Final = "/api/v1"
_FOR_EVER: Final = "private, max-age=31536000, immutable"
_KEPT_JOBS: Final = 100
_DIGITS: Final = 100
"""The most digits of a number in a query."""
_ID: Final = re.compile("[0-9a-f]{24}")


def _route(operation: Operation) -> Route:
    method, _, path = operation.route.partition(" ")

    async def endpoint(ctx: Context) -> Response:
        arguments = {**await _arguments(operation, ctx), **ctx.params}
        checked = check_arguments(operation.name, operation.schema, arguments)
        if operation.job:
            return await _started(operation, ctx, arguments)
        try:
            answer = await ctx.run(operation.function, ctx.store, **checked)
        except Invalid as error:
            raise Problem(409, error.code, str(error)) from error
        return _answered(operation, ctx.request, arguments, answer)

    return Route(f"{method} {PREFIX}{path}", endpoint, operation.effect)


async def _arguments(operation: Operation, ctx: Context) -> dict[str, Any]:
    if ctx.request.method in ("GET", "HEAD", "DELETE"):
        given = _from_query(operation, ctx.request)
    else:
        given = await ctx.json()
        if ctx.request.url.query:
            raise Invalid("this method takes its arguments in the body, not in the query", code="invalid.argument")
    for name in ctx.params:
        if name in given:
            raise Invalid(f"{name} is in the path already: omit it in the query or body", code="invalid.argument")
    expected = _if_match(operation, ctx.request)
    if expected is not None:
        given["expect"] = expected
    if ctx.request.headers.get("if-none-match", "").strip() == "*" and "new" in operation.schema["properties"]:
        given["new"] = True
    return given


def _from_query(operation: Operation, request: Request) -> dict[str, Any]:
    """Return the arguments in a query, as the types that the schema names."""
    given: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        schema = operation.schema["properties"].get(name, {})
        if schema.get("type") == "array":
            given[name] = values
        elif len(values) > 1:
            raise Invalid(f"{name} is given twice", code="invalid.argument", path=name)
        else:
            given[name] = _typed(values[0], schema.get("type"))
    return given


def _typed(text: str, kind: str | None) -> Any:
    if kind == "integer" and text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _DIGITS:
        return int(text)
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text  # `check_arguments` says what is wrong with it


def _if_match(operation: Operation, request: Request) -> str | None:
    """Return the head in an If-Match header: the part of the ETag before the dot. A condition is never ignored."""
    header = request.headers.get("if-match", "").strip()
    arguments = operation.schema["properties"]
    if not header or operation.effect is Effect.READ:
        return None
    if "expect" not in arguments:
        raise Invalid(f"{operation.name} takes no If-Match: leave it out", code="invalid.argument")
    if header == "*" and "new" not in arguments:  # the thread must exist anyway
        return None
    if header == "*" or "," in header:
        raise Invalid("If-Match takes the ETag of one answer", code="invalid.argument")
    return header.removeprefix("W/").strip('"').partition(".")[0]


def _answered(operation: Operation, request: Request, arguments: dict[str, Any], answer: dict[str, Any]) -> Response:
    body = json_bytes(answer)
    named = (answer.get(name) for name in ("head_id", "checkpoint_id", "b"))
    head = next((each for each in named if isinstance(each, str) and _ID.fullmatch(each)), "")
    etag = f'"{head}.{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    fixed = [arguments.get(name) for name in operation.immutable]
    if fixed and all(each is not None and each in answer.values() for each in fixed):
        headers["Cache-Control"] = _FOR_EVER
    if request.method in ("GET", "HEAD") and etag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    return Response(body, 200, headers, media_type=JSON_TYPE)


# -- jobs -------------------------------------------------------------------------------------------------


class Jobs:
    """The jobs of a server: the newest 100, each for those with the access that started it."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OperationJob] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, operation: Operation, store: Store, arguments: dict[str, Any], access: Access) -> OperationJob:
        """Start an operation in a thread of its own; one at a time for each access."""
        with self._lock:
            running = next((job for job in self._jobs.values() if job.is_running(operation.name, access)), None)
            if running is not None:
                return running
            job = OperationJob(operation, store, arguments, access)
            self._jobs[job.id] = job
            if len(self._jobs) > _KEPT_JOBS:
                self._jobs.popitem(last=False)
        threading.Thread(target=job.run, name=f"backtrail {operation.name}", daemon=True).start()
        return job

    def get(self, job_id: str, access: Access) -> OperationJob:
        """Return a job, or `NotFound`."""
        job = self._jobs.get(job_id)
        if job is None or job.access != access:
            raise NotFound(f"there is no job {job_id!r:.100}", code="not_found.job")
        return job


class OperationJob:
    """A running or finished operation."""

    def __init__(self, operation: Operation, store: Store, arguments: dict[str, Any], access: Access) -> None:
        self.id = secrets.token_hex(8)
        self.access = access
        self._operation = operation
        self._store = store
        self._arguments = arguments
        self._status: dict[str, Any] = {"status": "running", "progress": {}}

    def is_running(self, operation: str, access: Access) -> bool:
        """Tell whether this is a running job of an operation and an access."""
        return (self._operation.name, self.access) == (operation, access) and self._status["status"] == "running"

    def run(self) -> None:
        """Do the work."""
        progress: dict[str, int] = {}

        def told(what: str, count: int) -> None:
            progress[what] = count
            self._status = {"status": "running", "progress": dict(progress)}

        try:
            result = self._operation(self._store, self._arguments, progress=told)
            self._status = {"status": "done", "progress": progress, "result": result}
        except Exception as error:  # the caller asks for it
            if not isinstance(error, Error):
                LOG.exception("the job %s failed", self._operation.name)
            self._status = {"status": "failed", "progress": progress, "problem": details(error)}

    def data(self) -> dict[str, Any]:
        """Return the job as JSON data."""
        return {"job_id": self.id, "operation": self._operation.name, **self._status}


async def _started(operation: Operation, ctx: Context, arguments: dict[str, Any]) -> Response:
    job = ctx.server.jobs.start(operation, ctx.store, arguments, ctx.access)
    return json_response(job.data(), 202, {"Location": ctx.url("api", "v1", "jobs", job.id)})


async def _job(ctx: Context) -> Response:
    return json_response(ctx.server.jobs.get(ctx.params["job_id"], ctx.access).data())


# -- the document -----------------------------------------------------------------------------------------


async def _openapi(ctx: Context) -> Response:
    return json_response(document(ctx.url("api", "v1")))


ROUTES: Final[tuple[Route, ...]] = (
    *(_route(operation) for operation in TABLE.values()),
    Route(f"GET {PREFIX}/jobs/{{job_id}}", _job),
    Route(f"GET {PREFIX}/openapi.json", _openapi),
)
