"""backtrail keeps the state of AI agents: save, resume, fork, diff and rewind any Python agent."""

from backtrail.checkpoints import Checkpoint
from backtrail.engine.schema import Member, Record, Type, schema, upcast
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
    PruneReport,
    Reordered,
    Stats,
    ThreadInfo,
    VerifyReport,
)

__all__ = [
    "MISSING",
    "NEW",
    "Change",
    "Checkpoint",
    "CommitUnknown",
    "Conflict",
    "Corrupt",
    "Damage",
    "Diff",
    "Error",
    "GcReport",
    "Hit",
    "InDoubt",
    "Invalid",
    "Member",
    "NotFound",
    "PruneReport",
    "Record",
    "Reordered",
    "Stats",
    "Store",
    "Thread",
    "ThreadInfo",
    "Type",
    "Unavailable",
    "VerifyReport",
    "open",
    "schema",
    "upcast",
]
