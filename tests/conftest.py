"""What all tests share: how hard hypothesis tries, where files are, and asserts of the shipped suite that explain
themselves.

`default` is for every day. `torture` is for `make torture`, by --hypothesis-profile or $HYPOTHESIS_PROFILE.

Temporary files are in memory where it has room: all that is synced is synced there as well, and a disk's speed proves
nothing. $TMPDIR says where they are to be instead.
"""

import gc
import os
import signal
import tempfile

import psutil
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("backtrail.testing", "tests.conformance", "tests.machine", "tests.support")

from tests.support.commands import trip_files, trip_store  # noqa: E402, F401 - fixtures, for those who ask for them by name

settings.register_profile("default", deadline=None, max_examples=25, stateful_step_count=30)
settings.register_profile("torture", deadline=None, max_examples=5000, stateful_step_count=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_finish():
    """Leave the collected tests out of Python's garbage collection: each of its runs would go through all of them."""
    gc.collect()
    gc.freeze()


MEMORY = "/dev/shm"
ENOUGH = 8 << 30


def has_room(directory):
    """Whether it is one that programs may be run from and that takes, as the memory does, what tests write."""
    if not os.access(directory, os.W_OK):
        return False
    found = os.statvfs(directory)
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    return free >= ENOUGH and not found.f_flag & os.ST_NOEXEC


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job of a shell: those that tests start would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = MEMORY
    tempfile.tempdir = None  # it may have been chosen already
