"""The async mirror of backtrail: the same names, awaited. docs/async.md says what differs.

`checkpoints`, `threads`, `agents`, `conversations`, `runs` and `store` are made from the modules of those names by
tools/generate_aio.py; `blocks`, `schedules`, `running` and `copying` are written by hand.
"""

from backtrail.aio.checkpoint import Checkpoint
from backtrail.aio.copy import copy, restore_backup
from backtrail.aio.store import Store, open  # noqa: A004 - as backtrail.open
from backtrail.aio.thread import Thread

__all__ = ["Checkpoint", "Store", "Thread", "copy", "open", "restore_backup"]
