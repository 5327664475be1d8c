"""The OpenAPI 3.1 document of the HTTP API, made from the table of operations."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from backtrail.operations import TABLE, Effect
from backtrail.operations.schema import TEXT, optional

if TYPE_CHECKING:
    from backtrail.operations import Operation

_PROBLEM: Final = {
    "type": "object",
    "description": "Problem details, RFC 9457.",
    "properties": {
        "type": TEXT,
        "title": TEXT,
        "status": {"type": "integer"},
        "detail": TEXT,
        "code": TEXT | {"description": "The code of the error, such as not_found.thread."},
        "expected": optional(TEXT) | {"description": "In a conflict: the head that the caller expected."},
        "actual": optional(TEXT) | {"description": "In a conflict: the present head."},
        "path": TEXT | {"description": "The argument that is wrong."},
    },
    "required": ["type", "title", "status", "detail", "code"],
}
_HEAD: Final = TEXT | {"minLength": 1, "pattern": '^"[0-9a-f]{24}"$'}
_JOB: Final = {
    "type": "object",
    "properties": {
        "job_id": TEXT,
        "operation": TEXT,
        "status": {"type": "string", "enum": ["running", "done", "failed"]},
        "progress": {"type": "object", "additionalProperties": {"type": "integer"}},
        "result": {},
        "problem": {"$ref": "#/components/schemas/Problem"},
    },
    "required": ["job_id", "operation", "status", "progress"],
}


def document(server: str = "/api/v1") -> dict[str, Any]:
    """Return the document. `server` is the path of the API."""
    paths: dict[str, Any] = {}
    for operation in TABLE.values():
        method, _, path = operation.route.partition(" ")
        paths.setdefault(path, {})[method.lower()] = _described(operation, method, path)
    paths["/jobs/{job_id}"] = {
        "get": {
            "operationId": "job_show",
            "summary": "Show the progress or the result of a job.",
            "parameters": [{"name": "job_id", "in": "path", "required": True, "schema": TEXT}],
            "responses": _responses(_JOB),
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "backtrail", "version": version("backtrail")},
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM},
        },
    }


def _described(operation: Operation, method: str, path: str) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", path)
    rest = {name: each for name, each in operation.schema["properties"].items() if name not in in_path}
    required = [name for name in operation.schema["required"] if name not in in_path]
    parameters = [_parameter(name, "path", operation, required=True) for name in in_path]
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.description,
        "x-backtrail-effect": str(operation.effect),
        "responses": _responses(_JOB if operation.job else operation.result, "202" if operation.job else "200"),
    }
    if method in ("GET", "DELETE"):
        parameters += [_parameter(name, "query", operation, required=name in required) for name in rest]
    elif rest:  # null means absent
        rest = {name: each if name in required else optional(each) for name, each in rest.items()}
        body = {"type": "object", "properties": rest, "required": required, "additionalProperties": False}
        described["requestBody"] = {"required": bool(required), "content": {"application/json": {"schema": body}}}
    if "expect" in rest and operation.effect is not Effect.READ:
        parameters.append({"name": "If-Match", "in": "header", "schema": _HEAD, "description": "The expected head."})
    return {**described, "parameters": parameters}


def _parameter(name: str, place: str, operation: Operation, *, required: bool) -> dict[str, Any]:
    schema = operation.schema["properties"][name]
    bare = {key: value for key, value in schema.items() if key != "description"}
    if place == "path" and bare.get("type") == "string":
        bare = {**bare, "minLength": 1}
    return {"name": name, "in": place, "required": required, "schema": bare, "description": schema["description"]}


def _responses(result: dict[str, Any], status: str = "200") -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": "The result.", "content": {"application/json": {"schema": result}}},
        "default": {"description": "An error.", "content": problem},
    }
