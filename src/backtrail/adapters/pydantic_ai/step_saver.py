"""`StepSaver`: saves each step of a run when it has finished, so that a crash loses only the step in progress.

Pydantic AI saves a conversation after its run. With this capability, the request and the answer of a model are stored
before the tools run that the answer calls.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability

from backtrail.errors import Invalid

if TYPE_CHECKING:
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.conversation_store import ConversationStore
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import RunContext


class StepSaver(AbstractCapability[Any]):
    """A capability for one run: `store.saving_steps(conversation)`. The end of the run saves its result, too."""

    def __init__(self, store: ConversationStore, conversation: Conversation, *, scope: str | None = None) -> None:
        self._store = store
        self._given = conversation
        self._conversation = copy(conversation)  # with its mark of what is stored
        self._conversation.messages = list(conversation.messages)
        self._scope = scope
        self._run_id: str | None = None
        self._count = 0
        """Messages of the run that are saved."""

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Save the request, with the results of the tools that have run."""
        await self._save(ctx, ctx.messages)
        return request_context

    async def after_node_run(self, ctx: RunContext[Any], *, node: Any, result: Any) -> Any:  # noqa: ARG002
        """Save the model's answer before the tools run that it calls."""
        await self._save(ctx, ctx.messages)
        return result

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        """Save the result. It knows the new revision afterwards, so saving it again is allowed."""
        final = result.conversation
        conversation = await self._save(ctx, final.messages)
        conversation.usage = final.usage
        conversation.deferred_tool_requests = final.deferred_tool_requests
        await self._store.save(conversation, scope=self._scope)
        result._conversation_saved(conversation.revision or "")  # noqa: SLF001 - as ConversationStore.save does
        return result

    async def _save(self, ctx: RunContext[Any], messages: list[ModelMessage]) -> Conversation:
        """Save the messages of the run that are not saved yet. Other capabilities may have cut the older history."""
        if ctx.conversation_id != self._given.conversation_id:
            raise Invalid(
                f"this StepSaver is for conversation {self._given.conversation_id!r}: "
                "pass the same conversation to saving_steps() and as conversation= of the run",
                code="invalid.argument",
            )
        if self._run_id not in (None, ctx.run_id):
            raise Invalid("a StepSaver is for one run: call saving_steps() for each", code="invalid.argument")
        self._run_id = ctx.run_id
        new = [message for message in messages if message.run_id == ctx.run_id][self._count :]
        if new:
            self._conversation.messages += new
            self._conversation.usage = copy(ctx.usage)
            self._conversation.deferred_tool_requests = None
            await self._store.save(self._conversation, scope=self._scope)
            self._count += len(new)
        return self._conversation
