"""`StoreServer`: an MCP server whose tools, resources and prompt are those of a store.

A call is one operation in a worker thread. An operation is all done or not done, also if the client disconnects while
it runs: the thread goes on to its end.
"""

from __future__ import annotations

import json
import time
from collections import deque
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server import MCPServer
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from backtrail.errors import Error, Invalid, NotFound
from backtrail.mcp import handoff, resources
from backtrail.mcp.changes import ChangeBus, Subscribers
from backtrail.mcp.first_answers import INSTRUCTIONS, NAME
from backtrail.mcp.tools import TOOLS, described, offered
from backtrail.operations import TABLE, Effect
from backtrail.operations.answers import message_of
from backtrail.operations.arguments import nearest_names, short_repr

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.mcpserver.context import Context

    from backtrail.mcp.stdio import Input, Replies
    from backtrail.operations import Operation
    from backtrail.store import Store

_WORKERS: Final = 8
_MINUTE: Final = 60.0
_MESSAGE_MAX: Final = 1_000


class StoreServer(MCPServer[Any]):
    """An MCP server for a store: `backtrail.mcp.server(...)` makes one."""

    def __init__(
        self, store: Store, *, read_only: bool, destructive: bool, max_bytes: int, max_calls: int | None
    ) -> None:
        changes = ChangeBus(store)
        super().__init__(
            NAME,
            title=NAME,
            instructions=INSTRUCTIONS,
            version=version("backtrail"),
            log_level="WARNING",
            subscriptions=changes,
        )
        self._store = store
        self._tools = offered(read_only=read_only, destructive=destructive)
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._calls: deque[float] = deque()
        self._workers = anyio.CapacityLimiter(_WORKERS)
        self.completion()(self._complete)  # type: ignore[no-untyped-call]  # of the SDK
        # Clients of the protocols before 2026-07-28 subscribe with a request, for which MCPServer has no method.
        Subscribers(changes).register(self._lowlevel_server)

    def serve_streams(self, stdin: Input, stdout: Replies) -> None:
        """Serve a client over streams of lines until the input ends."""

        async def main() -> None:
            # The SDK calls readline, write and flush of a file, in threads.
            files: list[Any] = [anyio.wrap_file(cast("Any", stream)) for stream in (stdin, stdout)]
            async with stdio_server(*files) as (read, write):
                server = self._lowlevel_server
                await server.run(read, write, server.create_initialization_options())

        anyio.run(main)

    async def _run(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(function, *args, **options), limiter=self._workers)

    # -- tools ----------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools of the store that this server has."""
        return tuple(self._tools)

    async def list_tools(self) -> list[types.Tool]:
        """Return the tools of the store, and tools that a program has added."""
        return [
            *(types.Tool.model_validate(described(each)) for each in self._tools.values()),
            *await super().list_tools(),
        ]

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        context: Context[Any, Any] | None = None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Call a tool. An error of the store is an answer that tells the model what to do."""
        if name not in TOOLS and any(tool.name == name for tool in await super().list_tools()):
            return await super().call_tool(name, arguments, context)
        try:
            operation = self._tool(name)
            self._check_limits(arguments)
            text, answer = _as_json(await self._run(operation, self._store, arguments))
        except Error as error:
            text, _ = _as_json({"error": {"code": error.code, "message": message_of(error)[:_MESSAGE_MAX]}})
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=answer)

    def _tool(self, name: str) -> Operation:
        operation = self._tools.get(name)
        if operation is not None:
            return operation
        if name in TOOLS:
            raise Invalid(f"{name} is off in this server: {_off(TABLE[name])}", code="invalid.tool")
        known = ", ".join(nearest_names(name, self._tools))
        raise Invalid(f"there is no tool {short_repr(name)}; the tools are: {known}", code="invalid.tool")

    def _check_limits(self, arguments: dict[str, Any]) -> None:
        size = len(json.dumps(arguments))
        if size > self._max_bytes:
            raise Invalid(f"the arguments have {size} bytes: a call has at most {self._max_bytes}", code="invalid.size")
        if self._max_calls is None:
            return
        now = time.monotonic()
        while self._calls and self._calls[0] <= now - _MINUTE:
            self._calls.popleft()
        if len(self._calls) >= self._max_calls:
            wait = self._calls[0] + _MINUTE - now
            raise Invalid(
                f"a minute has at most {self._max_calls} calls: call again in {wait:.0f} s", code="invalid.rate"
            )
        self._calls.append(now)

    # -- resources ------------------------------------------------------------------------------------

    async def list_resources(self) -> list[types.Resource]:
        """Return the resources that changed last."""
        found: list[types.Resource] = await self._run(resources.newest, self._store)
        return found

    async def list_resource_templates(self) -> list[types.ResourceTemplate]:
        """Return the forms of the resources' URIs."""
        return [*resources.TEMPLATES]

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> list[ReadResourceContents]:
        """Read a resource as JSON."""
        del context
        try:
            text, _ = _as_json(await self._run(resources.read, self._store, str(uri)))
        except (NotFound, Invalid) as error:
            raise ResourceNotFoundError(message_of(error)[:_MESSAGE_MAX]) from error
        except Error as error:
            raise ResourceError(message_of(error)[:_MESSAGE_MAX]) from error
        return [ReadResourceContents(content=text, mime_type="application/json")]

    async def _complete(
        self, ref: types.PromptReference | types.ResourceTemplateReference, argument: Any, context: Any
    ) -> types.Completion:
        known = dict((context.arguments if context is not None else None) or {})
        try:
            values: list[str] = await self._run(resources.complete, self._store, argument.name, argument.value, known)
        except Error:
            values = []
        del ref  # an argument's name has one meaning in all templates and prompts
        return types.Completion(values=values[: resources.COMPLETIONS], has_more=len(values) > resources.COMPLETIONS)

    # -- prompts --------------------------------------------------------------------------------------

    async def list_prompts(self) -> list[types.Prompt]:
        """Return the prompts."""
        return [handoff.PROMPT]

    async def get_prompt(
        self, name: str, arguments: dict[str, Any] | None = None, context: Context[Any, Any] | None = None
    ) -> types.GetPromptResult:
        """Return a prompt, filled with the state of an agent."""
        del context
        if name != handoff.PROMPT.name:
            raise _wrong(f"there is no prompt {short_repr(name)}; there is: {handoff.PROMPT.name}")
        agent_id = (arguments or {}).get("agent_id")
        if not agent_id:
            raise _wrong("handoff needs agent_id, the id of an agent: agent_list has the ids")
        try:
            text: str = await self._run(handoff.summary, self._store, agent_id)
        except Error as error:
            raise _wrong(message_of(error)) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=_encodable(text)))
        return types.GetPromptResult(description=handoff.PROMPT.description, messages=[message])


def _wrong(message: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, message[:_MESSAGE_MAX])


def _off(operation: Operation) -> str:
    if operation.effect is Effect.DESTROY:
        return "it removes data for good; its operator can start it with --allow-destructive"
    return "it only reads; its operator can start it without --read-only"


def _as_json(answer: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an answer as JSON text and as data, both without lone surrogates, which UTF-8 cannot hold."""
    text = json.dumps(answer, ensure_ascii=False)
    clean = _encodable(text)
    return clean, answer if clean == text else json.loads(clean)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
