"""A handle knows the tip after its last write. Reads start from it, and see what other processes wrote since."""

import contextlib

import pytest

import backtrail


@pytest.fixture(params=["sqlite", "file"])
def handles(request, tmp_path):
    """Two handles of one thread, as two processes have them: their stores share no memory."""
    url = tmp_path / "a.db" if request.param == "sqlite" else (tmp_path / "a").as_uri()
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(backtrail.open(url)).thread("t") for _ in range(2)]


def test_latest_sees_a_write_of_another_process(handles):
    here, there = handles
    here.save({"n": 1})
    assert here.latest().state == {"n": 1}
    there.save({"n": 2})
    assert here.latest().state == {"n": 2}
    assert here.current_step == 2


def test_latest_sees_moves_of_the_head_by_another_process(handles):
    here, there = handles
    first = here.save({"n": 1})
    here.save({"n": 2})
    there.rewind(first.id)
    assert here.latest().state == {"n": 1}
    there.delete()
    assert here.latest() is None
    there.save({"n": 3})
    assert here.latest().state == {"n": 3}
    assert here.latest().step == 1


def test_latest_sees_tags_of_another_process(handles):
    here, there = handles
    here.save({"n": 1})
    there.tag("@", "good")
    assert here.latest().tags == ("good",)


def test_find_sees_writes_of_another_process(handles):
    here, there = handles
    here.save({"n": 1}, label="a")
    assert here.find(label="b") == []
    found = there.save({"n": 2}, label="b")
    assert here.find(label="b") == [found]
    there.delete_checkpoint("b")
    assert here.find(label="b") == []
    there.delete()
    assert here.find(label="a") == []


def test_find_leaves_out_what_a_rewind_took_out_of_view(handles):
    here, there = handles
    here.save({"n": 1}, label="a")
    here.save({"n": 2}, label="b")
    there.rewind("a")
    assert here.find(label="b") == []
    assert [each.label for each in here.find(label=["a", "b"])] == ["a"]


def test_reads_of_a_known_tip_take_few_statements(tmp_path):
    with backtrail.open(tmp_path / "a.db") as store:
        thread = store.thread("t")
        thread.save({"n": 1}, label="a")
        statements = []
        with store._engine.backend._shared.use() as connection:
            connection.exec_trace = lambda _, statement, __: not statements.append(statement)
        assert thread.latest().state == {"n": 1}
        assert len(statements) == 2, statements  # the newest row, its tags
        statements.clear()
        assert thread.find(label="b") == []
        assert len(statements) == 1, statements
