"""Resources: states of threads, conversations and runs, under `backtrail://` URIs. Ids are segments of paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import mcp_types as types

from backtrail.errors import Invalid
from backtrail.operations import call
from backtrail.operations.segments import from_segment, segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backtrail.store import Store

_SCHEME: Final = "backtrail://"
_JSON: Final = "application/json"
_LISTED: Final = 20
COMPLETIONS: Final = 100
"""The most values of a completion: the protocol's limit."""
KINDS: Final = {"thread": "threads", "conversation": "conversations", "run": "runs"}
"""The kinds of threads that are resources, and the first part of their URIs."""

TEMPLATES: Final = (
    types.ResourceTemplate(
        uri_template="backtrail://threads/{thread_id}/state",
        name="thread state",
        description="The present state of a thread.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        uri_template="backtrail://threads/{thread_id}/state@{ref}",
        name="thread state at a checkpoint",
        description="The state of a thread at a ref: @-, @~3, a label, a tag, a step or an id.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        uri_template="backtrail://conversations/{conversation_id}",
        name="conversation",
        description="A conversation with its newest messages.",
        mime_type=_JSON,
    ),
    types.ResourceTemplate(
        uri_template="backtrail://runs/{run_id}",
        name="run",
        description="The status of a run, its newest calls, and the calls in doubt.",
        mime_type=_JSON,
    ),
)
_COMPLETED: Final = {"thread_id": "thread", "conversation_id": "conversation", "run_id": "run", "agent_id": "agent"}


def uri_of(kind: str, name: str) -> str:
    """Return the URI of the newest state of a thread of a kind."""
    return f"{_SCHEME}{KINDS[kind]}/{segment(name)}{'/state' * (kind == 'thread')}"


def newest(store: Store) -> list[types.Resource]:
    """Return the resources of each kind that changed last."""
    return [
        types.Resource(
            uri=uri_of(kind, info["thread_id"]),
            name=f"{kind} {info['thread_id']}".encode("utf-8", "replace").decode(),
            description=f"changed at {info['updated_at']}",
            mime_type=_JSON,
        )
        for kind in KINDS
        for info in call(store, "thread_list", {"kind": kind, "limit": _LISTED})["threads"]
    ]


def read(store: Store, uri: str) -> dict[str, Any]:
    """Read a resource; `Invalid` if the URI has none of the forms of `TEMPLATES`."""
    part, _, rest = uri.removeprefix(_SCHEME).partition("/")
    name, _, view = rest.partition("/")
    try:
        name, view = from_segment(name), unquote(view, errors="surrogatepass")
    except UnicodeDecodeError:
        name = ""
    if uri.startswith(_SCHEME) and name:
        if part == "threads" and view == "state":
            return call(store, "thread_state", {"thread_id": name})
        if part == "threads" and view.startswith("state@"):
            return call(store, "thread_state", {"thread_id": name, "ref": view.removeprefix("state@")})
        if part == "conversations" and not view:
            return call(store, "conversation_load", {"conversation_id": name})
        if part == "runs" and not view:
            return call(store, "run_status", {"run_id": name})
    forms = ", ".join(template.uri_template for template in TEMPLATES)
    raise Invalid(f"{uri!r:.200} is not a resource; the forms are: {forms}", code="invalid.uri")


def complete(store: Store, name: str, value: str, known: Mapping[str, str]) -> list[str]:
    """Return the values of an argument that begin with `value`, at most one more than `COMPLETIONS`."""
    kind = _COMPLETED.get(name)
    if kind is not None:
        page = call(store, "thread_list", {"kind": kind, "prefix": value or None, "limit": COMPLETIONS + 1})
        values = [info["thread_id"] for info in page["threads"]]
    elif name == "ref" and known.get("thread_id"):
        page = call(store, "thread_history", {"thread_id": known["thread_id"], "limit": COMPLETIONS})
        labels = [word for each in page["checkpoints"] for word in (each["label"], *each["tags"]) if word]
        values = [word for word in dict.fromkeys(("@", "@-", *labels)) if word.startswith(value)]
    else:
        values = []
    return [word for word in values if word.isprintable()]
