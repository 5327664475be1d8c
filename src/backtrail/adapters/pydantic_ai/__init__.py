"""Conversations of Pydantic AI in a backtrail store: extra `pydantic-ai`; docs/pydantic-ai.md is the guide."""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import pydantic_ai.conversation_store as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("pydantic_ai", error) from error

from backtrail.adapters.pydantic_ai.conversation_store import BacktrailConversationStore
from backtrail.adapters.pydantic_ai.step_saver import StepSaver

__all__ = ["BacktrailConversationStore", "StepSaver"]
