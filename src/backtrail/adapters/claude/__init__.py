"""Sessions of the Claude Agent SDK in a backtrail store: extra `claude`; docs/claude.md is the guide."""

from __future__ import annotations

from backtrail.adapters.opening import missing

try:
    import claude_agent_sdk as _framework  # noqa: F401 - what follows needs it
except ImportError as error:
    raise missing("claude", error) from error

from backtrail.adapters.claude.sessions import BacktrailSessionStore

__all__ = ["BacktrailSessionStore"]
