"""Connections to PostgreSQL that stores of tests use one after the other.

A process of the server that is new has to read its catalogs before it knows a table: with that, the first save of a
store takes ten times as long as the second. So a connection that a store closes goes to the next one that wants the
same, as a pooler would pass it on. What always holds: it has nothing of what was set, prepared, locked or listened to
there; one that was lost or is in the middle of something is closed; a process that was forked off has its own.
"""

import atexit
import contextlib
import os
import weakref
from unittest import mock

import psycopg

from backtrail.backends.postgres.pool import Pool
from backtrail.backends.postgres.session import PgSession

_OWNER = os.getpid()
_MOST = 8
"""Connections that are kept with the same options."""
_kept = {}
"""What stores have closed, by the options that it was opened with."""
_opened_with = weakref.WeakKeyDictionary()
_connect, _close = Pool.connect, PgSession.close


@contextlib.contextmanager
def warm_connections():
    """Let stores that are opened in the block have the connections of those before them."""

    def connect(pool):
        if os.getpid() != _OWNER:
            return _connect(pool)
        options = repr(sorted(pool._options.items()))
        connection = _as_new(_kept.setdefault(options, [])) or _connect(pool)
        _opened_with[connection] = options
        return connection

    def close(session):
        options = _opened_with.pop(session.connection, None)
        if os.getpid() == _OWNER and options and session.is_idle and len(_kept[options]) < _MOST:
            _kept[options].append(session.connection)
        else:
            _close(session)

    with mock.patch.object(Pool, "connect", connect), mock.patch.object(PgSession, "close", close):
        yield


def _as_new(kept):
    """Return a clean connection of the cache, or None."""
    with contextlib.suppress(IndexError):
        while True:
            connection = kept.pop()
            try:
                connection.execute("DISCARD ALL")
            except psycopg.Error:
                connection.close()
            else:
                return connection
    return None


@atexit.register
def _close_all():
    if os.getpid() == _OWNER:
        for connection in [connection for kept in _kept.values() for connection in kept]:
            connection.close()
