"""Sessions of the OpenAI Agents SDK in a backtrail store: extra `openai`; docs/openai.md is the guide."""

from __future__ import annotations

from backtrail.adapters.adapter_store import missing_extra

try:
    import agents as _framework  # noqa: F401 - the adapter needs it
except ImportError as error:
    raise missing_extra("openai", error) from error

from backtrail.adapters.openai.call_repair import Repair
from backtrail.adapters.openai.session import BacktrailSession
from backtrail.adapters.openai.sqlite_import import check_database, import_database
from backtrail.adapters.openai.turns import Turn

__all__ = ["BacktrailSession", "Repair", "Turn", "check_database", "import_database"]
