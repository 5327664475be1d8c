"""Adapters: a backtrail store for agent frameworks.

Each adapter needs its own extra and nothing else. Importing this package imports none of them. Adapters use the public
API of `backtrail` and `backtrail.aio`.
"""
