"""backtrail keeps the state of AI agents: save, resume, fork, diff and rewind any Python agent.

The names are loaded when they are first used: the command line answers before the library is read.
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backtrail import builtins as builtins
    from backtrail.agents import Agents, AgentVersion
    from backtrail.checkpoints import Checkpoint
    from backtrail.conversations import Conversations
    from backtrail.copying import copy
    from backtrail.engine.editing import Editor
    from backtrail.engine.journal import Call
    from backtrail.engine.schema import Member, Record, Type, schema, upcast
    from backtrail.entities import (
        AgentState,
        Attachment,
        AttachmentType,
        CheckpointType,
        Conversation,
        Message,
        Role,
        ToolCall,
        ToolStatus,
    )
    from backtrail.errors import CommitUnknown, Conflict, Corrupt, Error, InDoubt, Invalid, NotFound, Unavailable
    from backtrail.policies import Policy
    from backtrail.repairs import repaired
    from backtrail.reports import (
        CopyReport,
        Damage,
        ExportReport,
        GcReport,
        ImportReport,
        MigrateReport,
        PruneReport,
        Salvage,
        Stats,
        VerifyReport,
    )
    from backtrail.restoring import restore_backup
    from backtrail.run_calls import CallError
    from backtrail.run_history import Irreversible
    from backtrail.run_tools import llm, tool
    from backtrail.running import Run
    from backtrail.runs import RunRecord, Runs
    from backtrail.schedules import AutoCheckpoint
    from backtrail.store import Store, open  # noqa: A004 - backtrail.open is the name users know
    from backtrail.strategies import (
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
    from backtrail.threads import Thread
    from backtrail.values import (
        MISSING,
        NEW,
        AgentCheckpoint,
        AgentInfo,
        Change,
        ConversationInfo,
        Diff,
        Hit,
        Items,
        Reordered,
        ThreadInfo,
    )

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
    "Error",
    "Event",
    "EveryN",
    "ExportReport",
    "GcReport",
    "Hit",
    "ImportReport",
    "InDoubt",
    "Invalid",
    "Irreversible",
    "Items",
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
    "agents": "AgentVersion Agents",
    "checkpoints": "Checkpoint",
    "conversations": "Conversations",
    "copying": "copy",
    "engine.editing": "Editor",
    "engine.journal": "Call",
    "engine.schema": "Member Record Type schema upcast",
    "entities": "AgentState Attachment AttachmentType CheckpointType Conversation Message Role ToolCall ToolStatus",
    "errors": "CommitUnknown Conflict Corrupt Error InDoubt Invalid NotFound Unavailable",
    "policies": "Policy",
    "repairs": "repaired",
    "restoring": "restore_backup",
    "reports": (
        "CopyReport Damage ExportReport GcReport ImportReport MigrateReport PruneReport Salvage Stats VerifyReport"
    ),
    "run_calls": "CallError",
    "run_history": "Irreversible",
    "run_tools": "llm tool",
    "running": "Run",
    "runs": "RunRecord Runs",
    "schedules": "AutoCheckpoint",
    "store": "Store open",
    "strategies": (
        "AfterLlmResponse AfterToolCall Done Event EveryN Never NotDone RunState RunStatus Strategy ToolCallRecord"
    ),
    "threads": "Thread",
    "values": ("MISSING NEW AgentCheckpoint AgentInfo Change ConversationInfo Diff Hit Items Reordered ThreadInfo"),
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
