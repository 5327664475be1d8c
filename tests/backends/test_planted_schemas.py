"""Triggers, views and rules that an attacker put into a store's database: a save does not run them."""

import sqlite3
from contextlib import closing

import pytest

import backtrail
from backtrail.errors import Corrupt
from tests.support import servers

PLANTED = {
    "trigger": ("CREATE TRIGGER spy AFTER INSERT ON row BEGIN DELETE FROM tag; END",),
    "changed trigger": (
        "DROP TRIGGER row_marks",
        "CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN DELETE FROM tag; END",
    ),
    "removed trigger": ("DROP TRIGGER row_marks",),
    "view": ("CREATE VIEW spy AS SELECT * FROM row",),
    "quoted": ('CREATE TRIGGER "a""b;" AFTER INSERT ON row BEGIN DELETE FROM tag; END',),
}


@pytest.mark.parametrize("statements", PLANTED.values(), ids=PLANTED)
def test_planted_schema_is_named_refused_and_removed(tmp_path, statements):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("t").save({"messages": [{"role": "user", "content": "first"}]})
        store.thread("t").tag(1, "kept")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)
    with backtrail.open(path, read_only=True) as store:
        assert store.thread("t").load("kept").step == 1
        assert any("was not made by backtrail" in fault for fault in store.verify().faults)
    with backtrail.open(path) as store:
        for write in (
            lambda: store.thread("t").save({"n": 2}),
            lambda: store.thread("new").save({"n": 2}),
            store.gc,
            lambda: store.search("first"),
        ):
            with pytest.raises(Corrupt, match="verify") as caught:
                write()
            assert caught.value.code == "corrupt.schema"
        assert store.verify(repair=True).repaired
        assert store.verify().ok
        store.thread("t").save({"messages": [{"role": "user", "content": "second"}]})
        assert store.thread("t").load("kept").step == 1
        assert len(store.search("second")) == 1
    with backtrail.open(path) as store:
        assert store.verify().ok


def test_tables_of_others_are_left_alone(tmp_path):
    path = tmp_path / "s.db"
    backtrail.open(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (x)")
        database.execute("ANALYZE")
    with backtrail.open(path) as store:
        store.thread("t").save({"n": 1})
        assert store.verify().ok


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER spy AFTER INSERT ON {0}.row FOR EACH ROW EXECUTE FUNCTION {0}.touch_2()",
        "CREATE RULE spy AS ON DELETE TO {0}.tag DO INSTEAD NOTHING",
    ],
    ids=["trigger", "rule"],
)
def test_planted_postgresql_triggers_are_named_and_removed(planted):
    running = servers.server()
    with servers.place(running) as opener, opener() as store:
        store.thread("t").save({"n": 1})
        assert store.verify().ok
        with running.connect() as connection:
            connection.execute(planted.format(opener.keywords["schema"]))
        assert store.verify().faults == ("1 triggers or rules are not ones that backtrail has made",)
        store.verify(repair=True)
        assert store.verify().ok
        store.thread("t").save({"n": 2})
