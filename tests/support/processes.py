"""Processes for tests: each begins with nothing of the one that asks for it.

They are forked by a server that has imported what they need, and has neither threads nor stores. To import it anew took
each of them longer than what it was there for.
"""

import multiprocessing

spawn = multiprocessing.get_context("forkserver")
spawn.set_forkserver_preload(
    ["backtrail.backends.sqlite.backend", "tests.agents.test_processes", "tests.backends.sqlite.test_processes"]
)
