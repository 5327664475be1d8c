"""Checkpoints of Microsoft Agent Framework's workflows in a backtrail store: extra `agent-framework`.

docs/agent-framework.md is the guide.

checkpoint_storage   `BacktrailCheckpointStorage`: a thread for each workflow
framework_types      the framework's classes as data
"""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import agent_framework as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("agent_framework", error) from error

from backtrail.adapters.agent_framework.checkpoint_storage import BacktrailCheckpointStorage

__all__ = ["BacktrailCheckpointStorage"]
