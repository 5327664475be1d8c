"""The async mirror of backtrail: the same names, awaited. docs/async.md says what differs.

tools/generate_aio.py makes `checkpoint`, `thread`, `agents`, `conversations`, `runs`, `keys` and `store` from the
synchronous modules; `blocks`, `scheduler`, `run`, `copy` and `executor` are written by hand.
"""

from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.copy import copy, restore_backup
from backtrail.aio.store import Store, open  # noqa: A004 - as backtrail.open
from backtrail.aio.thread import Thread

__all__ = ["Checkpoint", "Store", "Thread", "copy", "open", "restore_backup"]
