"""Processes for tests, which inherit nothing from the process that starts them.

A fork server starts them. It has imported the needed modules, and has neither threads nor stores. Importing the modules
in each process took longer than its work.
"""

import multiprocessing

spawn = multiprocessing.get_context("forkserver")
spawn.set_forkserver_preload(
    ["backtrail.backends.sqlite.backend", "tests.agents.test_processes", "tests.backends.sqlite.test_processes"]
)
