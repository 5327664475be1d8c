"""Sessions of the Claude Agent SDK in a backtrail store: extra `claude`; docs/claude.md is the guide."""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import claude_agent_sdk as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("claude", error) from error

from backtrail.adapters.claude.session_store import BacktrailSessionStore
from backtrail.adapters.claude.transcript_import import check_transcripts, import_transcripts

__all__ = ["BacktrailSessionStore", "check_transcripts", "import_transcripts"]
