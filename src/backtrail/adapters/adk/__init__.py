"""Sessions of Google's Agent Development Kit in a backtrail store: extra `adk`; docs/adk.md is the guide."""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import google.adk.sessions as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("adk", error) from error

from backtrail.adapters.adk.session_service import BacktrailSessionService
from backtrail.adapters.adk.sqlite_import import check_database, import_database

__all__ = ["BacktrailSessionService", "check_database", "import_database"]
