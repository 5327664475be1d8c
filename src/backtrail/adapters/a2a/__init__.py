"""Tasks of A2A servers in a backtrail store: extra `a2a`; docs/a2a.md is the guide.

task_store   `BacktrailTaskStore`: a thread for each task
task_states  tasks as states of threads
"""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import a2a.server.tasks as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("a2a", error) from error

from backtrail.adapters.a2a.task_store import BacktrailTaskStore

__all__ = ["BacktrailTaskStore"]
