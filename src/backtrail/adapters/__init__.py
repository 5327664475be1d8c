"""Adapters: a backtrail store under the agent frameworks that people already use.

Each is a module that needs its own extra and nothing else; importing this package imports none of them. They use what
users use: the public API of `backtrail` and `backtrail.aio`.
"""
