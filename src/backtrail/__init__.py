"""backtrail keeps the state of AI agents: save, resume, fork, diff and rewind any Python agent."""

from typing import TYPE_CHECKING, Any

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
from backtrail.repairs import repaired
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
    CopyReport,
    Damage,
    Diff,
    ExportReport,
    GcReport,
    Hit,
    ImportReport,
    Items,
    MigrateReport,
    PruneReport,
    Reordered,
    Salvage,
    Stats,
    ThreadInfo,
    VerifyReport,
)

if TYPE_CHECKING:
    from backtrail import builtins as builtins

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
    "schema",
    "tool",
    "upcast",
]


def __getattr__(name: str) -> Any:
    """Load `backtrail.builtins` when it is first used: most programs do without."""
    if name == "builtins":
        import backtrail.builtins  # noqa: PLC0415

        return backtrail.builtins
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
