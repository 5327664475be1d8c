"""backtrail keeps the state of AI agents: save, resume, fork, diff and rewind any Python agent.

The names are loaded when they are first used: the command line answers before the library is read.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backtrail import builtins as builtins
    from backtrail.agents.models import AgentState, CheckpointType
    from backtrail.agents.repository import Agents, AgentVersion, Erased
    from backtrail.agents.scheduler import AutoCheckpoint
    from backtrail.archive.backup import restore_backup
    from backtrail.archive.copy import copy
    from backtrail.checkpoint import Checkpoint
    from backtrail.conversations.models import (
        Attachment,
        AttachmentType,
        Conversation,
        Message,
        Role,
        ToolCall,
        ToolStatus,
    )
    from backtrail.conversations.repository import Conversations
    from backtrail.engine.journal import Call
    from backtrail.engine.schema.registry import Member, Record, Type, schema, upcast
    from backtrail.engine.tree.edits import Editor
    from backtrail.errors import CommitUnknown, Conflict, Corrupt, Error, InDoubt, Invalid, NotFound, Unavailable
    from backtrail.maintenance.retention import Policy
    from backtrail.models import (
        MISSING,
        NEW,
        AgentCheckpoint,
        AgentInfo,
        Change,
        ConversationInfo,
        CopyReport,
        Damage,
        Diff,
        ErasedThread,
        ErasureReport,
        ExportReport,
        GcReport,
        Hit,
        Hits,
        ImportReport,
        Items,
        KeyReport,
        KeyStatus,
        MigrateReport,
        PruneReport,
        Reordered,
        Salvage,
        StatePart,
        Stats,
        ThreadInfo,
        VerifyReport,
    )
    from backtrail.runs.calls import CallError
    from backtrail.runs.decorators import llm, tool
    from backtrail.runs.history import Irreversible
    from backtrail.runs.repository import RunRecord, Runs
    from backtrail.runs.run import Run
    from backtrail.runs.strategies import (
        AfterLlmResponse,
        AfterToolCall,
        Done,
        Event,
        EveryN,
        Never,
        NotDone,
        RunState,
        RunStatus,
        Strategy,
        ToolCallRecord,
    )
    from backtrail.runs.unanswered_calls import repaired
    from backtrail.scope import Scope
    from backtrail.sealed.keys import Key
    from backtrail.sealed.rotation import Keys
    from backtrail.store import Store, open  # noqa: A004 - backtrail.open is the name users know
    from backtrail.thread import Thread

__all__ = [
    "MISSING",
    "NEW",
    "AfterLlmResponse",
    "AfterToolCall",
    "AgentCheckpoint",
    "AgentInfo",
    "AgentState",
    "AgentVersion",
    "Agents",
    "Attachment",
    "AttachmentType",
    "AutoCheckpoint",
    "Call",
    "CallError",
    "Change",
    "Checkpoint",
    "CheckpointType",
    "CommitUnknown",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "Conversations",
    "CopyReport",
    "Corrupt",
    "Damage",
    "Diff",
    "Done",
    "Editor",
    "Erased",
    "ErasedThread",
    "ErasureReport",
    "Error",
    "Event",
    "EveryN",
    "ExportReport",
    "GcReport",
    "Hit",
    "Hits",
    "ImportReport",
    "InDoubt",
    "Invalid",
    "Irreversible",
    "Items",
    "Key",
    "KeyReport",
    "KeyStatus",
    "Keys",
    "Member",
    "Message",
    "MigrateReport",
    "Never",
    "NotDone",
    "NotFound",
    "Policy",
    "PruneReport",
    "Record",
    "Reordered",
    "Role",
    "Run",
    "RunRecord",
    "RunState",
    "RunStatus",
    "Runs",
    "Salvage",
    "Scope",
    "StatePart",
    "Stats",
    "Store",
    "Strategy",
    "Thread",
    "ThreadInfo",
    "ToolCall",
    "ToolCallRecord",
    "ToolStatus",
    "Type",
    "Unavailable",
    "VerifyReport",
    "copy",
    "llm",
    "open",
    "repaired",
    "restore_backup",
    "schema",
    "tool",
    "upcast",
]

_HOMES: dict[str, str] = {
    "agents.repository": "AgentVersion Agents Erased",
    "agents.scheduler": "AutoCheckpoint",
    "archive.backup": "restore_backup",
    "archive.copy": "copy",
    "checkpoint": "Checkpoint",
    "conversations.repository": "Conversations",
    "engine.journal": "Call",
    "engine.schema.registry": "Member Record Type schema upcast",
    "engine.tree.edits": "Editor",
    "agents.models": "AgentState CheckpointType",
    "conversations.models": "Attachment AttachmentType Conversation Message Role ToolCall ToolStatus",
    "errors": "CommitUnknown Conflict Corrupt Error InDoubt Invalid NotFound Unavailable",
    "maintenance.retention": "Policy",
    "models": (
        "AgentCheckpoint AgentInfo Change ConversationInfo CopyReport Damage Diff ErasedThread ErasureReport "
        "ExportReport GcReport Hit Hits "
        "ImportReport Items KeyReport KeyStatus MISSING MigrateReport NEW PruneReport Reordered Salvage StatePart "
        "Stats ThreadInfo VerifyReport"
    ),
    "runs.calls": "CallError",
    "runs.decorators": "llm tool",
    "runs.history": "Irreversible",
    "runs.repository": "RunRecord Runs",
    "runs.run": "Run",
    "runs.strategies": (
        "AfterLlmResponse AfterToolCall Done Event EveryN Never NotDone RunState RunStatus Strategy ToolCallRecord"
    ),
    "runs.unanswered_calls": "repaired",
    "scope": "Scope",
    "sealed.keys": "Key",
    "sealed.rotation": "Keys",
    "store": "Store open",
    "thread": "Thread",
}
"""Where each name comes from, by module."""


def __getattr__(name: str) -> Any:
    """Load a name when it is first used, and `backtrail.builtins`: most programs do without."""
    if name == "builtins":
        return _loaded("backtrail.builtins")
    for home, names in _HOMES.items():
        if name in names.split():
            found = getattr(_loaded(f"backtrail.{home}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded(name: str) -> Any:
    with _import("backtrail.loading").loading:
        return _import(name)


def __dir__() -> list[str]:
    """Return the names that are there, loaded or not."""
    return sorted({*globals(), *__all__})
