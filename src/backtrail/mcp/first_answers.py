"""What a client asks first, answered without the SDK: `initialize` or `server/discover`, and `tools/list`.

These answers depend on the options of the server alone. They are those that the SDK's server gives; a test compares
them for each version of the protocol. A message that is not exactly of the usual form gets no answer here.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any, Final

NAME: Final = "backtrail"
INSTRUCTIONS: Final = (
    "A store of agents' state: conversations, checkpoints, runs and threads, with their whole history. Every list has "
    "pages: pass the next_cursor of a page as cursor. Long values are previews: pass path to read one whole. Nothing "
    "is lost by a rewind or a restore: thread_undo and agent_undo take it back."
)
HANDSHAKES: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The protocols that begin with `initialize`."""
STATELESS: Final = "2026-07-28"
"""The protocol whose every request names its version."""
_HANDSHAKE_LINES: Final = 2
_META: Final = "io.modelcontextprotocol/"


class FirstAnswers:
    """The first messages of a connection, and their answers."""

    def __init__(self, *, read_only: bool, destructive: bool) -> None:
        self._options = {"read_only": read_only, "destructive": destructive}
        self.handshake: list[bytes] = []
        """The lines of the handshake so far: the request, and the client's `notifications/initialized`."""

    def answer(self, line: bytes) -> bytes | None:
        """Return the line that answers a line, empty for a notification; None if the SDK has to answer it."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # and UnicodeDecodeError
            return None
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return None
        method, params, number = message.get("method"), message.get("params", {}), message.get("id")
        if method == "notifications/initialized" and len(self.handshake) == 1 and "id" not in message:
            self.handshake.append(line)
            return b""
        if not isinstance(params, dict) or type(number) not in (int, str):
            return None
        result = self._result(line, method, params)
        if result is None:
            return None
        answer = {"jsonrpc": "2.0", "id": number, "result": result}
        return json.dumps(answer, separators=(",", ":")).encode() + b"\n"

    def _result(self, line: bytes, method: Any, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize" and not self.handshake and _is_hello(params):
            self.handshake.append(line)
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": _capabilities(list_changes=False),
                "serverInfo": _server_info(),
                "instructions": INSTRUCTIONS,
            }
        if params.keys() - {"_meta"}:
            return None
        stateless = not self.handshake and _is_stateless(params)
        ready = len(self.handshake) == _HANDSHAKE_LINES
        if method == "tools/list" and (stateless or ready):
            tools = {"tools": self._tools()}
            return tools | _stateless_fields() if stateless else tools
        if method == "server/discover" and stateless:
            capabilities = _capabilities(list_changes=True)
            found = {"supportedVersions": [STATELESS], "capabilities": capabilities, "instructions": INSTRUCTIONS}
            return found | _stateless_fields()
        return None

    def _tools(self) -> list[dict[str, Any]]:
        from backtrail.mcp.tools import described, offered  # noqa: PLC0415 - the handshake does not need it

        return [described(operation) for operation in offered(**self._options).values()]


def _is_hello(params: dict[str, Any]) -> bool:
    client, capabilities = params.get("clientInfo"), params.get("capabilities")
    return (
        params.get("protocolVersion") in HANDSHAKES
        and _is_named(client)
        and isinstance(capabilities, dict)
        and all(isinstance(each, dict) for each in capabilities.values())
    )


def _is_stateless(params: dict[str, Any]) -> bool:
    meta = params.get("_meta")
    return (
        isinstance(meta, dict)
        and meta.get(f"{_META}protocolVersion") == STATELESS
        and _is_named(meta.get(f"{_META}clientInfo"))
        and isinstance(meta.get(f"{_META}clientCapabilities"), dict)
    )


def _is_named(client: Any) -> bool:
    return isinstance(client, dict) and all(isinstance(client.get(field), str) for field in ("name", "version"))


def _capabilities(*, list_changes: bool) -> dict[str, Any]:
    listed = {"listChanged": list_changes}
    return {"completions": {}, "prompts": listed, "resources": {**listed, "subscribe": True}, "tools": listed}


def _server_info() -> dict[str, str]:
    return {"name": NAME, "title": NAME, "version": version("backtrail")}


def _stateless_fields() -> dict[str, Any]:
    meta = {f"{_META}serverInfo": _server_info()}
    return {"resultType": "complete", "cacheScope": "private", "ttlMs": 0, "_meta": meta}
