"""A process goes on writing to an open store that a later version has added to."""

import apsw
import pytest

import backtrail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def test_rows_are_written_to_a_table_with_a_later_column(path):
    with backtrail.open(f"sqlite:///{path}") as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        connection = apsw.Connection(str(path))
        connection.execute("ALTER TABLE row ADD COLUMN later INTEGER")
        connection.close()
        thread.append("messages", "one")
        with store.transaction():
            thread.append("messages", "two")
            store.thread("u").save({"n": 1})
        with store.run("r") as run:
            assert run.tool("f", lambda: 1) == 1
        assert thread.load().state == {"messages": ["one", "two"]}
        assert store.verify().ok
