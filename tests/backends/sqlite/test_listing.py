"""Listings by activity: the table that they read is close to the rows, and the order is that of the rows."""

import random
import re

import pytest

import backtrail
from backtrail.backends.port import Batch
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.backends.sqlite.listing import SLACK
from backtrail.testing.samples import new, row


def listing(backend, page, **filters):
    """List all threads of the name space "thread", page by page; return (time, number) of each."""
    found, after = [], None
    wanted = {"space": "thread", "agent": None, "prefix": None} | filters
    while True:
        part = backend.threads(**wanted, after=after, limit=page)
        found += [(newest.created_at, record.no) for record, newest in part]
        if len(part) < page:
            return found
        after = found[-1]


@pytest.fixture
def backend(tmp_path):
    backend = SqliteBackend(tmp_path / "store")
    yield backend
    backend.close()


def fill(backend, rng, threads=40, rows=6):
    """Write rows with random times, some close together, some with a clock that goes back; return the newest times."""
    numbers = [backend.commit(Batch(threads=(new(f"t{n}", uid=b"%08d" % n),)))[0] for n in range(threads)]
    newest = {}
    for seq in range(1, rows + 1):
        for no in numbers:
            time = rng.choice([rng.randrange(10 * SLACK), newest.get(no, (0,))[0] + rng.randrange(-SLACK, SLACK)])
            head = 0 if rng.random() < 0.1 else seq
            backend.commit(Batch(rows=((no, row(seq, created_at=time, head=head)),)))
            newest[no] = (time, head)
    return sorted(((time, no) for no, (time, head) in newest.items() if head), reverse=True)


@pytest.mark.parametrize("page", [1, 3, 20, 100])
@pytest.mark.parametrize("seed", range(5))
def test_pages_are_in_the_order_of_the_rows(backend, page, seed):
    wanted = fill(backend, random.Random(seed))
    assert listing(backend, page) == wanted
    assert listing(backend, page, prefix="t") == wanted
    assert not backend.check(None)


def test_rewriting_old_rows_keeps_the_activity(backend):
    (no,) = backend.commit(Batch(threads=(new("t"),)))
    rows = [row(seq, created_at=seq * 10 * SLACK, op_id=b"%016d" % seq) for seq in (1, 2, 3)]
    for each in rows:
        backend.commit(Batch(rows=((no, each),)))
    backend.rewrite(no, rows[:2])
    assert listing(backend, 5) == [(30 * SLACK, no)]
    assert not backend.check(None)


@pytest.mark.parametrize("damage", ["DELETE FROM activity WHERE thread = 3", "UPDATE activity SET time = 1 << 50"])
def test_repair_rebuilds_a_damaged_activity(tmp_path, damage):
    path = tmp_path / "store"
    with backtrail.open(path) as store:
        for n in range(5):
            store.thread(f"t{n}").save({"n": n})
        ids = [info.id for info in store.threads()]
        _run(store, damage)
        assert not store.verify().ok
        store.verify(repair=True)
        assert store.verify().ok
        assert [info.id for info in store.threads()] == ids


@pytest.mark.parametrize("time", [1, 1 << 52])
@pytest.mark.parametrize("page", [1, 2, 10])
def test_a_thread_with_a_damaged_time_is_listed_once(tmp_path, time, page):
    with backtrail.open(tmp_path / "store") as store:
        for n in range(5):
            store.thread(f"t{n}").save({"n": n})
        _run(store, f"UPDATE row SET created_at = {time} WHERE key >> 32 = 3")
        found = listing(store._backend, page)
        assert sorted(no for _, no in found) == [1, 2, 3, 4, 5]
        assert [info.id for info in store.threads() if info.damaged] == ["t2"]


def _run(store, sql):
    with store._backend._shared.use() as connection:
        connection.execute(sql)


def test_most_saves_of_a_series_leave_the_table_alone(backend):
    (no,) = backend.commit(Batch(threads=(new("t"),)))
    for seq in range(1, 50):
        backend.commit(Batch(rows=((no, row(seq, created_at=SLACK // 50 * seq)),)))
    with backend._shared.use() as connection:
        assert connection.execute("SELECT time FROM activity").get == SLACK // 50


@pytest.mark.parametrize(
    ("filters", "index"),
    [({}, "activity_time"), ({"agent": "a"}, "thread_agent"), ({"prefix": "t"}, "sqlite_autoindex_thread_2")],
)
def test_a_listing_reads_an_index(backend, filters, index):
    seen = []
    with backend._shared.use() as connection:
        connection.exec_trace = lambda _, sql, values: seen.append((sql, values)) or True
    listing(backend, 5, **filters)
    with backend._shared.use() as connection:
        connection.exec_trace = None
        sql, values = next(entry for entry in seen if re.search("FROM activity WHERE|AND agent|AND name", entry[0]))
        assert index in str(connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall())
