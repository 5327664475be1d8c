"""Sessions and storage of Strands Agents in a backtrail store: extra `strands`; docs/strands.md is the guide.

session_repository   `BacktrailSessionRepository`: a conversation for each agent of a session
messages             the messages of such a conversation
storage              `BacktrailStorage`: snapshots, memories and other bytes under keys
"""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import strands.session as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("strands", error) from error

from backtrail.adapters.strands.session_repository import BacktrailSessionRepository
from backtrail.adapters.strands.storage import BacktrailStorage

__all__ = ["BacktrailSessionRepository", "BacktrailStorage"]
