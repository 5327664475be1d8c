"""Commands that only read: their output for people and for programs."""

import pytest

import backtrail
from tests.support.commands import docs, good, run


def heads():
    with backtrail.open(docs.URL, read_only=True) as store:
        return {info.id: info.head_id for info in store.threads()}


def test_log_shows_newest_first(trip_store):
    lines = good("log", "trip").out.splitlines()
    assert lines[0].split() == ["ID", "STEP", "AGE", "LABEL", "TAGS", "ADDED", "FIRST", "WORDS"]
    assert lines[1].endswith("assistant: Flights are 60 each way.")
    assert " 3 " in lines[1]
    assert " fly  " in lines[1]
    assert " cheap " in lines[1]
    assert " +56 B " in lines[1]
    assert len(lines) == 4


def test_log_stops_after_n_rows(trip_store):
    first = good("log", "trip", "-n", 1, "--jsonl")
    assert [row["step"] for row in first.rows] == [3]
    (hint,) = first.err.splitlines()
    before = hint.split("--before ")[1].split(",")[0]
    assert [row["step"] for row in good("log", "trip", "--before", before, "--jsonl").rows] == [2, 1]
    assert [row["step"] for row in good("log", "trip", "-n", 0, "--json").json] == [3, 2, 1]


def test_graph_shows_rewinds_and_forks(trip_store):
    lines = good("log", "trip", "--graph").out.splitlines()
    drawn = [line[:5].rstrip() for line in lines[1:]]
    assert drawn == ["@", "│ ○", "├─╯", "├─▶", "●", "●"]
    assert "fork trip-cheap" in lines[4]
    assert [row["in_view"] for row in good("log", "trip", "--graph", "--jsonl").rows] == [True, False, True, True]


def test_graph_of_a_fork_names_its_origin(trip_store):
    assert "forked from trip@" in good("log", "trip-cheap", "--graph").out.splitlines()[-1]


def test_graph_marks_the_head_after_a_rewind(trip_store):
    good("rewind", "trip@1", "--yes")
    drawn = [line[:5].rstrip() for line in good("log", "trip", "--graph").out.splitlines()[1:]]
    assert drawn == ["  ○", "  │ ○", "  ├─╯", "  ├─▶", "  ○", "╭─╯", "@"]


def test_graph_skips_deleted_checkpoints(trip_store):
    def drawn(*words):
        return [line[:5].rstrip() for line in good("log", "trip", "--graph", *words).out.splitlines()[1:]]

    assert drawn("-n", 2) == ["@", "│ ○"]
    good("delete", "trip@before-booking", "--yes")
    assert drawn() == ["@", "│ ○", "●"]


def test_show_prints_a_checkpoint_and_its_state(trip_store):
    out = good("show", "trip@before-booking").out
    assert "label      before-booking\n" in out
    assert out.endswith('"content": "Lisbon in May, a window seat"\n    }\n  ]\n}\n')
    data = good("show", "trip@2", "--json").json
    assert (data["step"], data["label"], data["of"], data["state"]["budget"]) == (2, "before-booking", "thread", 120)


@pytest.mark.parametrize(
    ("ref", "step"),
    [("trip", 3), ("trip@", 3), ("trip@-", 2), ("trip@~2", 1), ("trip@2", 2), ("trip@fly", 3), ("trip@cheap", 3)],
)
def test_refs_match_the_library(trip_store, ref, step):
    assert good("show", ref, "--json").json["step"] == step


def test_ids_and_prefixes_are_refs(trip_store):
    whole = good("show", "trip@book", "--json").json["id"]  # out of view
    assert good("show", whole, "--json").json["id"] == whole
    assert good("show", f"trip@{whole[:6]}", "--json").json["id"] == whole


def test_ids_may_contain_an_at_sign(trip_store):
    with backtrail.open(docs.URL) as store:
        store.thread("ann@example.com").save({"n": 1}, label="a@b")
        store.thread("ann").save({"n": 2})
    assert good("show", "ann@example.com", "--path", "n").out == "1\n"
    assert good("show", "ann@example.com@a@b", "--path", "n").out == "1\n"
    assert good("show", "ann", "--path", "n").out == "2\n"


def test_path_prints_only_its_value(trip_store):
    assert good("show", "trip", "--path", "messages[-1].content").out == '"Flights are 60 each way."\n'
    assert good("show", "trip", "--path", "messages", "--jsonl").out.count("\n") == 1


def test_diff_shows_the_changes(trip_store):
    assert good("diff", "trip").out.splitlines()[0] == "~ budget: 120 -> 60"
    assert good("diff", "trip@1", "@2").out.startswith("+ messages[0]: ")
    rows = good("diff", "trip", "trip-cheap", "--jsonl").rows
    assert rows[0] == {"op": "~", "path": "budget", "old": 60, "new": 40}
    assert rows[1]["op"] == "-"
    assert "new" not in rows[1]
    same = good("diff", "trip", "trip")
    assert (same.out, same.err) == ("", "no change\n")
    assert good("diff", "trip", "trip", "--json").json == []


def test_search_finds_messages(trip_store):
    assert [row["conversation_id"] for row in good("search", "lisbon", "--jsonl").rows] == [
        "lunch",
        "trip-cheap",
        "trip",
    ]
    assert [row["kind"] for row in good("search", "lisbon", "--kind", "conversation", "--jsonl").rows] == [
        "conversation"
    ]
    assert len(good("search", "lisbon", "-n", 1, "--jsonl").rows) == 1
    assert good("search", "sbon", "--jsonl").rows == []
    assert len(good("search", "sbon", "--contains", "--thread", "trip", "--jsonl").rows) == 1
    assert good("search", "nowhere").err == "no message matches; --contains also searches inside of words\n"
    assert good("search", "nowhere", "--contains").err == "no message matches\n"


def test_watch_respects_after_and_timeout(trip_store):
    rows = good("watch", "trip", "--after", "before-booking", "--timeout", "0s", "--jsonl").rows
    assert [row["label"] for row in rows] == ["book", "before-booking", "fly"]
    assert len(good("watch", "trip", "--after", "1", "-n", 2).out.splitlines()) == 2
    assert good("watch", "--agent", "planner", "--timeout", "0s").out == ""


def test_threads_are_listed_page_by_page(trip_store):
    assert [row["id"] for row in good("threads", "--jsonl").rows] == ["trip", "trip-cheap"]
    page = good("threads", "-n", 1)
    assert "--after trip," in page.err
    assert [row["id"] for row in good("threads", "--after", "trip", "--jsonl").rows] == ["trip-cheap"]
    assert [row["id"] for row in good("threads", "trip-", "--json").json] == ["trip-cheap"]
    assert [row["id"] for row in good("threads", "--kind", "conversation", "--jsonl").rows] == ["lunch"]
    none = good("threads", "--agent", "nobody").err
    assert none == "there are no threads of agent 'nobody'; see `backtrail threads`\n"


def test_agents_conversations_and_runs_are_listed(trip_store):
    assert good("agents", "--json").json[0]["agent_id"] == "planner"
    assert good("agents", "planner", "--jsonl").rows[0]["name"] == "before-lunch"
    assert good("conversations", "planner", "--jsonl").rows[0]["message_count"] == 2
    assert good("conversations", "planner", "--archived", "--jsonl").rows == []
    assert good("conversations", "planner", "--tag", "x", "--jsonl").rows == []
    (row,) = good("runs", "--status", "halted", "--jsonl").rows
    assert (row["session_id"], row["reason"], row["in_doubt"]) == ("session-42", "waiting for an answer", [])
    assert good("runs", "--status", "failed", "--jsonl").rows == []


def test_stats_and_where(trip_store):
    assert good("stats", "--json").json["checkpoints"] == 11
    assert "threads           2\n" in good("stats").out
    assert good("where").out == "sqlite:///agents.db\n"
    assert good("where", "--store", "postgresql://me:secret@host/db", "--json").json == {
        "url": "postgresql://me@host/db"
    }


def test_stats_compares_stored_with_copied_size(tmp_path):
    store = str(tmp_path / "s.db")
    with backtrail.open(store) as opened:
        assert opened.thread("tiny").save({"n": 1})
    assert "9 B for them, 2.2 times more\n" in good("stats", "--store", store).out
    with backtrail.open(store) as opened:
        opened.thread("tiny").delete()
    assert "9 B for them\n" in good("stats", "--store", store).out
    with backtrail.open(store) as opened:
        opened.thread("long").save({"text": "word " * 10_000})
    assert " times less\n" in good("stats", "--store", store).out


def test_reading_commands_write_nothing(trip_store):
    before, stood = heads(), (trip_store / "agents.db").stat().st_size
    for words in (
        "log trip",
        "log trip --graph",
        "show trip",
        "diff trip",
        "threads",
        "agents planner",
        "stats",
        "runs",
    ):
        good(*words.split())
    assert heads() == before
    assert (trip_store / "agents.db").stat().st_size == stood


def test_ambiguous_id_needs_a_kind(trip_store):
    with backtrail.open(docs.URL) as store:
        store.thread("lunch").save({"n": 1})
    done = run("show", "lunch")
    assert done.code == 1
    assert "--kind thread or --kind conversation" in done.err
    assert good("show", "lunch", "--kind", "thread", "--path", "n").out == "1\n"
    assert good("log", "lunch", "--kind", "conversation", "--jsonl").rows[0]["step"] == 2


def test_stored_text_is_escaped(trip_store):
    with backtrail.open(docs.URL) as store:
        store.thread("evil\x1b[2J").save(
            {"messages": [{"role": "user", "content": "a\x1b]0;x\x07\nb"}]}, label="l\x1b[31m"
        )
    for words in (["threads"], ["log", "evil\x1b[2J"], ["log", "evil\x1b[2J", "--graph"], ["search", "b"]):
        out = good(*words).out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_types_outside_json_become_similar_ones(trip_store):
    import datetime as dt
    import decimal
    import uuid

    state = {
        "b": b"ab",
        "t": (1, 2),
        "d": dt.date(2026, 5, 1),
        "x": decimal.Decimal("1.50"),
        "n": float("nan"),
        7: {"s"},
    }
    state["u"] = uuid.UUID(int=1)
    with backtrail.open(docs.URL) as store:
        store.thread("odd").save(state)
    shown = good("show", "odd", "--json").json["state"]
    assert shown == {
        "b": "YWI=", "t": [1, 2], "d": "2026-05-01", "x": "1.50", "n": "nan", "7": ["s"], "u": str(uuid.UUID(int=1)),
    }  # fmt: skip


def test_log_of_a_fork_continues_into_its_source(trip_store):
    with backtrail.open() as store:
        fork = store.thread("trip").fork("later")
        fork.save({"n": 1})
    rows = good("log", "later", "--jsonl").rows
    assert [(row["thread_id"], row["step"]) for row in rows] == [
        ("later", 4),
        ("later", 3),
        ("trip", 2),
        ("trip", 1),
    ]
    assert "forked from trip" in good("log", "later").out
    assert good("show", "later@~3", "--json").json["step"] == 1
    assert [row["step"] for row in good("log", "later", "--before", "2", "--jsonl").rows] == [1]
    with backtrail.open() as store:
        store.thread("trip").delete()
    shown = good("log", "later")
    assert "the log ends here: the origin of later" in shown.err
    assert len(good("log", "later", "--jsonl").rows) == 2
