"""Reused schemas of the shared PostgreSQL server: emptying a schema takes a tenth of the time of creating one.

Their stores use connections again, too (`tests.support.warm`).

Always true: a test that gets a reused schema finds the same as in a new store. `servers.place` makes a new one.
"""

import atexit
import contextlib
import functools
import uuid

from psycopg import sql

import backtrail
from tests.support.servers import server, wait_for
from tests.support.warm import warm_connections

_spare = []
"""Schemas of the shared server that are as those of new stores."""
_SLACK = 128 * 1024
"""Bytes that a schema may take more than a new one: space of what is gone, which `stats` counts."""


@contextlib.contextmanager
def swept(**options):
    """A place on the shared server whose schema may have been another test's, and is emptied.

    It is for tests that go by way of stores alone: those that reach into the schema, or look at how it is made, need a
    `place`. Stores that are still open at the end are closed. A schema that is still in use is dropped.
    """
    schema = _spare.pop() if _spare else _made()
    opened = []

    def remembered(*args, **kwargs):
        opened.append(backtrail.open(*args, **kwargs))
        return opened[-1]

    try:
        with warm_connections():
            try:
                yield functools.partial(remembered, server().url, schema=schema, **options)
            finally:
                for store in opened:
                    store.close()
    finally:
        if _sweep(schema):
            _spare.append(schema)
        else:
            server().drop_schema(schema)


def _made():
    schema = f"test_{uuid.uuid4().hex[:16]}"
    backtrail.open(server().url, schema=schema).close()
    return schema


def _sweep(schema):
    """Reset a schema to its new state, unless it is in use; return whether it was reset."""
    new, name = _new(), sql.Identifier(schema)
    using = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'backtrail' AND state <> 'idle'"
    try:
        wait_for(lambda: _sweeper().execute(using).fetchone() == (0,), seconds=0.5)
    except AssertionError:
        return False
    steps = [sql.SQL("TRUNCATE {}.{}").format(name, sql.Identifier(table)) for table in _grown(schema)]
    steps += [sql.SQL("DELETE FROM {}.{}").format(name, sql.Identifier(table)) for table in new["tables"]]
    steps += [sql.SQL("SELECT setval({}, 1, false)").format(f"{schema}.{sequence}") for sequence in new["sequences"]]
    steps += [sql.SQL("INSERT INTO {}.meta (name, value) VALUES ({}, {})").format(name, *row) for row in new["meta"]]
    _sweeper().execute(sql.SQL("; ").join(steps))  # one message, one transaction
    return True


@functools.cache
def _new():
    """What there is in the schema of a new store."""
    schema = _made()
    listed = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND NOT relispartition AND relkind = "
    found = {
        "tables": [name for (name,) in server().execute(f"{listed} ANY('{{r,p}}')", (schema,))],
        "sequences": [name for (name,) in server().execute(f"{listed} 'S'", (schema,))],
        "meta": server().execute(sql.SQL("SELECT name, value FROM {}.meta").format(sql.Identifier(schema))),
        "sizes": _sizes(schema),
    }
    server().drop_schema(schema)
    return found


def _grown(schema):
    """The tables to be truncated, which takes long and leaves nothing: as few as bring a schema back to its size."""
    more = {table: size - _new()["sizes"][table] for table, size in _sizes(schema).items()}
    grown = []
    for table in sorted(more, key=more.get, reverse=True):
        if sum(more.values()) <= _SLACK:
            break
        grown.append(table)
        del more[table]
    return grown


def _size(schema):
    """How many bytes a schema takes, indexes included."""
    return sum(_sizes(schema).values())


def _sizes(schema):
    """The same, by table."""
    sizes = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relnamespace = %s::regnamespace"
    return dict(_sweeper().execute(f"{sizes} AND relkind = 'r'", (schema,)).fetchall())


@functools.cache
def _sweeper():
    """The connection by which schemas are emptied."""
    connection = server().connect()
    atexit.register(connection.close)
    return connection
