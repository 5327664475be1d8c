"""backtrail keeps the state of AI agents: save, resume, fork, diff and rewind any Python agent."""

from backtrail import builtins as builtins
from backtrail.checkpoints import Checkpoint
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
from backtrail.store import Store, open  # noqa: A004 - backtrail.open is the name users know
from backtrail.threads import Thread
from backtrail.values import (
    MISSING,
    NEW,
    Change,
    Damage,
    Diff,
    GcReport,
    Hit,
    Items,
    PruneReport,
    Reordered,
    Stats,
    ThreadInfo,
    VerifyReport,
)

__all__ = [
    "MISSING",
    "NEW",
    "AgentState",
    "Attachment",
    "AttachmentType",
    "Change",
    "Checkpoint",
    "CheckpointType",
    "CommitUnknown",
    "Conflict",
    "Conversation",
    "Corrupt",
    "Damage",
    "Diff",
    "Error",
    "GcReport",
    "Hit",
    "InDoubt",
    "Invalid",
    "Items",
    "Member",
    "Message",
    "NotFound",
    "PruneReport",
    "Record",
    "Reordered",
    "Role",
    "Stats",
    "Store",
    "Thread",
    "ThreadInfo",
    "ToolCall",
    "ToolStatus",
    "Type",
    "Unavailable",
    "VerifyReport",
    "open",
    "schema",
    "upcast",
]
