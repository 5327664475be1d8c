"""The effort of a piece of code, counted in calls: the same on every machine, however busy it is."""

import sys
from contextlib import contextmanager


@contextmanager
def at_most(calls):
    """Fail if a block makes more calls of functions, in Python or in C, on this thread."""
    made = 0

    def count(_frame, event, _argument):
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert made <= calls, f"{made:,} calls, at most {calls:,} are allowed"
