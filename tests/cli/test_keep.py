"""Commands that keep and move stores, and call builtins."""

import sys
import types

import apsw
import pytest

import backtrail
from backtrail.cli import output, parameters
from backtrail.cli.commands import maintenance
from backtrail.maintenance.repair import steps
from backtrail.maintenance.verify import Findings
from tests.conformance.base import Clock
from tests.support.commands import bad, docs, good, run


def test_prune_names_ages_in_days(trip_store):
    rows = good("prune", "--older-than", "30d", "--dry-run", "--jsonl").rows
    assert "older than 30 days" in {reason for row in rows for reason in row["reasons"]}


def test_prune_shows_removed_and_kept_with_reasons(trip_store):
    rows = good("prune", "--keep-last", 1, "--dry-run", "--jsonl").rows
    gone = [row for row in rows if row["removed"]]
    assert {row["thread_id"] for row in gone} == {"trip", "session-42"}
    assert all(row["reasons"] for row in rows)
    assert any("labelled" in row["reasons"] for row in rows)
    assert len(good("log", "trip", "--jsonl").rows) == 3
    assert "remove" in good("prune", "--keep-last", 1, "--dry-run").out


def test_prune_hides_the_previewed_checkpoints(trip_store, monkeypatch):
    plan = [row["id"] for row in good("prune", "--keep-last", 1, "--dry-run", "--jsonl").rows if row["removed"]]
    assert "--yes" in run("prune", "--keep-last", 1).err
    assert len(good("log", "trip", "--jsonl").rows) == 3
    done = [row["id"] for row in good("prune", "--keep-last", 1, "--yes", "--jsonl").rows if row["removed"]]
    assert done == plan
    assert [row["step"] for row in good("log", "trip", "--jsonl").rows] == [3, 2]


def lose_head(path="agents.db"):
    connection = apsw.Connection(path)
    connection.execute("""UPDATE row SET step = step + 9 WHERE key = (
        SELECT max(key) FROM row WHERE key >> 32 = (SELECT no FROM thread WHERE name = CAST('trip' AS BLOB)))""")
    connection.close()


def test_prune_reports_damaged_threads(trip_store):
    lose_head()
    said = good("prune", "--keep-last", 1, "--dry-run").err
    assert "trip is damaged and was skipped: `backtrail verify` shows the damage\n" in said


def test_prune_lists_whole_removed_threads(trip_store):
    with backtrail.open() as store:
        Clock(store)  # years ago
        store.agents.save(backtrail.AgentState("a", "A", "m"))
        point = store.agents.checkpoint("a", "first")
        store.conversations.save(backtrail.Conversation("a", id="late").add_message(backtrail.Message.user("hi")))
        store.agents.restore(point.id)
        store.agents.forget_undos("a")
    prune = ("prune", "--older-than", "30d", "--dry-run")
    rows = good(*prune, "--jsonl").rows
    assert [(row["kind"], row["removed"]) for row in rows if row["thread_id"] == "late"] == [("conversation", True)]
    assert all(row["thread_id"] for row in rows)
    assert ["conversation", "late"] in [row.split()[2:4] for row in good(*prune).out.splitlines()]


def test_hints_name_the_store(trip_store, monkeypatch):
    monkeypatch.delenv("BACKTRAIL_URL")
    (trip_store / "agents.db").rename("my agents.db")
    store = ("--store", "my agents.db")
    said = good("prune", "--keep-last", 1, "--yes", *store).err
    assert said.endswith("2 checkpoints hidden; `backtrail gc --store 'my agents.db'` frees the space\n")
    lose_head("my agents.db")
    said = good("prune", "--keep-last", 1, "--dry-run", *store).err
    assert "`backtrail verify --store 'my agents.db'` shows the damage\n" in said
    assert "`backtrail verify --repair --store 'my agents.db'` makes" in bad(5, "show", "trip", *store)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--keep-last", "1", "--no-keep-labelled"], [3]),
        (["--keep-last", "2", "--no-keep-labelled"], [3, 2]),
        (["--keep-hourly", "5", "--no-keep-labelled"], [3, 2]),
        (["--keep-daily", "1", "--no-keep-labelled"], [3]),
        (["--keep-weekly", "1", "--no-keep-labelled", "--no-keep-tagged"], [3]),
        (["--older-than", "1s", "--no-keep-labelled", "--no-keep-tagged"], [3]),
        (["--older-than", "10000w"], [3, 2, 1]),
    ],
)
def test_every_prune_rule_has_an_effect(trip_store, words, left):
    good("prune", *words, "--yes")
    assert [row["step"] for row in good("log", "trip", "--jsonl").rows] == left


def test_prune_filters_threads(trip_store):
    good("prune", "--keep-last", 1, "--no-keep-labelled", "--thread", "trip-cheap", "--yes")
    assert len(good("log", "trip", "--jsonl").rows) == 3
    assert good("prune", "--keep-last", 1, "--agent", "planner", "--dry-run", "--jsonl").rows
    with backtrail.open(docs.URL) as store:
        store.thread("lone", agent="no-state").save(1)
    assert good("prune", "--keep-last", 1, "--agent", "no-state", "--dry-run", "--jsonl").rows == []


def test_unknown_agent_is_not_found(trip_store):
    text = "backtrail: there is no agent 'nobody'"
    for line in (["prune", "--keep-last", 1, "--dry-run"], ["prune", "--keep-last", 1, "--yes"], ["export", "all"]):
        assert bad(3, *line, "--agent", "nobody").startswith(text)


@pytest.fixture
def talks(trip_store):
    """A store in which a thread, a conversation and an agent have the same id."""
    with backtrail.open(docs.URL) as store:
        for n in range(3):
            store.thread("talk").save(n)
            store.conversations.append("talk", backtrail.Message.user(str(n)), agent_id="talk")
        store.agents.save(backtrail.AgentState("talk", "Ada", "a-model"))
    return trip_store


def test_prune_requires_kind_for_an_ambiguous_id(talks):
    prune = ("prune", "--keep-last", 1, "--thread", "talk")
    several = "backtrail: 'talk' is ambiguous: pass --kind thread or --kind agent or --kind conversation"
    assert bad(1, *prune, "--yes") == several
    rows = good(*prune, "--kind", "conversation", "--yes", "--jsonl").rows
    assert {(row["kind"], row["thread_id"]) for row in rows} == {("conversation", "talk")}
    assert len(good("log", "talk", "--kind", "thread", "--jsonl").rows) == 3
    assert len(good("log", "talk", "--kind", "conversation", "--jsonl").rows) == 1
    assert bad(3, *prune, "--kind", "run") == "backtrail: there is no run 'talk'; there is conversation 'talk'"
    assert "--thread" in bad(2, "prune", "--keep-last", 1, "--kind", "run")
    good("prune", "--keep-last", 1, "--thread", "trip", "--thread", "session-42", "--yes")
    assert len(good("log", "session-42", "--jsonl").rows) == 1


def test_prune_shows_kinds_if_they_differ(talks):
    plain = good("prune", "--keep-last", 1, "--thread", "trip", "--dry-run").out
    assert plain.splitlines()[0].split() == ["CHECKPOINT", "THREAD", "WHY"]
    assert {
        row["kind"] for row in good("prune", "--keep-last", 1, "--thread", "trip", "--dry-run", "--jsonl").rows
    } == {"thread"}
    table = [row.split()[:4] for row in good("prune", "--keep-last", 1, "--dry-run").out.splitlines()]
    assert table[0] == ["CHECKPOINT", "KIND", "THREAD", "WHY"]
    assert {(row[0], *row[2:]) for row in table if row[-1] == "talk"} == {
        (what, kind, "talk") for what in ("remove", "keep") for kind in ("thread", "conversation")
    }


def test_export_requires_kind_for_an_ambiguous_id(talks):
    several = "backtrail: 'talk' is ambiguous: pass --kind thread or --kind conversation"
    assert bad(1, "export", "one", "--thread", "talk") == several
    assert not (talks / "one").exists()
    good("export", "one", "--thread", "talk", "--kind", "conversation")
    good("import", "one", "--store", "other.db")
    assert good("stats", "--store", "other.db", "--json").json["threads"] == 0
    assert good("conversations", "talk", "--store", "other.db", "--jsonl").rows[0]["message_count"] == 3
    bad(2, "export", "two", "--thread", "talk", "--kind", "agent")
    bad(2, "export", "two", "--kind", "run")
    said = "backtrail: there is no thread 'planner'; there is agent 'planner'"
    assert bad(3, "export", "two", "--thread", "planner") == said
    assert good("export", "two", "--thread", "trip", "--thread", "session-42", "--json").json["threads"] > 2


def test_prune_needs_a_rule(trip_store):
    assert "--keep-last" in bad(2, "prune", "--dry-run")
    bad(2, "prune", "--older-than", "soon")


def test_gc_frees_deleted_space(trip_store):
    good("delete", "trip-cheap", "--yes")
    report = good("gc", "--json").json
    assert report["rows"] > 0
    assert "removed" in good("gc").out


def test_verify_reports_no_damage(trip_store):
    assert good("verify").out == "7 threads, 12 states read: no damage\n"
    assert good("verify", "--json").json["ok"] is True


def test_verify_lists_damage_and_exits_with_5(trip_store):
    damage()
    done = run("verify")
    assert done.code == 5
    assert "trip" in done.out
    data = run("verify", "--json")
    assert data.code == 5
    assert data.json["damaged"][0]["thread_id"] == "trip"
    bad(5, "show", "trip")
    good("show", "lunch")  # all else still loads
    assert "(damaged)" in good("log", "trip").out


def damage():
    connection = apsw.Connection("agents.db")
    ((no,),) = connection.execute("SELECT no FROM thread WHERE space = 'thread' AND name = ?", (b"trip",)).fetchall()
    connection.execute("UPDATE row SET payload = x'00010203' WHERE key >> 32 = ? AND payload IS NOT NULL", (no,))
    connection.close()


def test_thread_with_lost_head_is_shown(trip_store):
    ids = [each["id"] for each in good("log", "trip", "--json").json]
    connection = apsw.Connection("agents.db")
    ((no,),) = connection.execute("SELECT no FROM thread WHERE space = 'thread' AND name = ?", (b"trip",)).fetchall()
    newest = "(SELECT max(key) FROM row WHERE key >> 32 = ?)"
    connection.execute(f"UPDATE row SET created_at = {1 << 62} WHERE key = {newest}", (no,))  # the year 148,000
    connection.close()
    listed = good("log", "trip", "--json").json
    assert [each["id"] for each in listed] == ids
    assert [each["damaged"] for each in listed] == [True] + [False] * (len(ids) - 1)
    assert not any(each["head"] for each in listed)
    assert good("show", f"trip@{ids[1]}").out
    assert good("show", ids[1]).out
    assert good("log", "trip", "--graph").out.count("\n") > len(ids)
    assert good("fork", f"trip@{ids[1]}", "trip-on", "--yes").out
    assert [line.endswith("head") for line in good("threads", "trip").out.splitlines() if line.endswith("  head")] == [
        True
    ]
    for command in (("show", "trip"), ("undo", "trip"), ("rewind", f"trip@{ids[1]}"), ("delete", "trip", "--yes")):
        assert "`backtrail verify --repair`" in bad(5, *command)
    assert run("verify", "--repair", "--yes").code == 0
    assert good("threads", "--json").json[0]["damaged"] is None


def test_verify_repairs_after_a_yes(trip_store):
    damage()
    refused = run("verify", "--repair")
    assert refused.code == 2
    assert "repair: " in refused.err
    assert run("verify").code == 5
    done = run("verify", "--repair", "--yes")
    assert (done.code, done.err.splitlines()[-1]) == (0, "repaired")
    assert good("verify", "--json").json["ok"]


def test_damage_errors_name_verify(trip_store):
    damage()
    said = "`backtrail verify --repair --store agents.db` shows the repair and asks"
    assert run("verify", "--store", "agents.db").err.splitlines()[-1] == said
    assert run("verify", "--json").err == ""
    for stopped in (["gc"], ["export", "all"], ["copy", docs.URL, "copied.db"]):
        store = [] if stopped[0] == "copy" else ["--store", docs.URL]
        hint = f"; `backtrail verify --store {docs.URL}` lists the damage"
        assert bad(5, *stopped, *store).endswith(hint)


def test_damaged_import_file_is_not_a_damaged_store(trip_store):
    good("export", "all")
    whole = (trip_store / "all").read_bytes()
    (trip_store / "bad").write_bytes(whole[: len(whole) // 2])
    assert "verify" not in bad(5, "export", "more", "--since", "bad")


def test_verify_counts_problems(trip_store, monkeypatch):
    for wrong, told in (
        ({"misindexed": ("a",)}, "the search index lacks messages of 1 thread"),
        ({"misindexed": ("a", "b")}, "the search index lacks messages of 2 threads"),
        ({"chunks": ("00",)}, "1 chunk damaged"),
        ({"faults": ("a",)}, "1 fault"),
        ({"faults": ("a",), "chunks": ("0", "1")}, "2 chunks damaged, 1 other fault"),
    ):
        report = backtrail.VerifyReport(7, 15, **{"damaged": (), **wrong})
        monkeypatch.setattr(backtrail.Store, "verify", lambda *_, report=report, **__: report)
        done = run("verify")
        assert (done.code, done.out.splitlines()[-1]) == (5, f"7 threads, 15 states read: {told}")


def test_verify_uses_the_singular(trip_store):
    lose_head()
    said = run("verify", "--repair").err
    assert "repair: thread 'trip': 1 checkpoint or move is lost, 3 checkpoints stay\n" in said
    chunk = list(steps(Findings(chunks=[b"a"])))
    assert chunk == ["1 damaged chunk is removed: the next save of the same content stores it again"]
    assert next(steps(Findings(chunks=[b"a", b"b"]))).startswith("2 damaged chunks are removed")


def test_repair_of_a_sound_store_does_not_ask(trip_store):
    assert good("verify", "--repair").out == "7 threads, 12 states read: no damage\n"


def test_verify_resume_warns_and_reads_everything(trip_store):
    done = good("verify", "--resume")
    assert done.out == "7 threads, 12 states read: no damage\n"
    assert done.err == "warning: --resume is deprecated: verify reads everything\n"


def test_index_follows_new_messages(trip_store, monkeypatch):
    good("index")
    names = ["a", "b"]

    def save_instead_of_sleeping(seconds):
        assert seconds == 5
        if not names:
            raise KeyboardInterrupt
        with backtrail.open("agents.db") as store:
            assert store.search("fox", wait=False).behind == 0
            store.thread(names.pop()).save({"messages": ["a fox"]})

    monkeypatch.setattr(maintenance, "time", types.SimpleNamespace(sleep=save_instead_of_sleeping))
    done = run("index", "--follow", "--every", "5s")
    assert done.out.splitlines() == ["indexed 1 thread"] * 2
    assert len(good("search", "fox", "--no-wait", "--jsonl").rows) == 2


def test_index_goes_on_after_a_long_lock(trip_store, monkeypatch):
    good("index")
    waits = iter(range(2))
    index = backtrail.Store.index
    answers = [backtrail.Unavailable("the database is locked", code="unavailable.locked"), None]

    def locked_at_first(store):
        error = answers.pop(0)
        if error is not None:
            raise error
        return index(store)

    def sleep(_):
        if next(waits, None) == 1:
            raise KeyboardInterrupt

    with backtrail.open("agents.db") as store:
        store.thread("a").save({"messages": ["a fox"]})
    monkeypatch.setattr(maintenance, "time", types.SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(backtrail.Store, "index", locked_at_first)
    done = run("index", "--follow")
    assert done.out.splitlines() == ["indexed 1 thread"]
    assert "the database is locked" in done.err
    answers[:] = [backtrail.Unavailable("the database is locked", code="unavailable.locked")]
    assert "the database is locked" in bad(1, "index")


def test_reindex_rebuilds_the_index(trip_store):
    found = good("search", "lisbon", "--jsonl").rows
    assert found
    connection = apsw.Connection("agents.db")
    connection.execute("UPDATE message SET text = x'01'")
    connection.close()
    done = run("verify", "--store", "agents.db")
    assert done.code == 5
    assert done.err.splitlines()[-1] == "`backtrail reindex --store agents.db` rebuilds the search index"
    assert "`backtrail reindex` rebuilds it" in bad(5, "search", "lisbon")
    indexed = good("reindex", "--json").json["indexed"]
    assert good("reindex").out.startswith(f"{indexed} messages in the index, ")
    assert [row["message_id"] for row in good("search", "lisbon", "--jsonl").rows] == [
        row["message_id"] for row in found
    ]
    assert good("verify", "--json").json["ok"]


def test_reindex_shows_progress(trip_store, monkeypatch):
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("TERM", "xterm")
    good("save", "x", "--yes", "--store", "plain.db", stdin="1")
    assert "100%  index 1 " in good("reindex", "--store", "plain.db").err


def test_migrate(trip_store):
    assert good("migrate", "--yes").out == "7 threads checked, 0 migrated\n"
    assert good("migrate", "--yes", "--json").json["ok"] is True
    assert "--yes" in bad(2, "migrate")


def test_migrate_reports_failures(trip_store, monkeypatch):
    report = backtrail.MigrateReport(2, 1, (("agent", "planner", "no way"),))
    monkeypatch.setattr(backtrail.Store, "migrate", lambda *_, **__: report)
    done = run("migrate", "--yes")
    assert (done.code, done.out.splitlines()[0]) == (1, "agent planner was not migrated: no way")


def test_a_backup_is_a_store(trip_store):
    assert good("backup", "copy.db").out.startswith("copy.db: ")
    assert good("threads", "--store", "copy.db", "--jsonl").out == good("threads", "--jsonl").out
    bad(4, "backup", "copy.db")
    files, again = (f"file://{trip_store}/{name}" for name in ("files", "again"))
    good("copy", docs.URL, files)
    assert good("backup", "again", "--store", files).out.startswith("again: ")
    assert good("log", "trip", "--store", again, "--jsonl").out == good("log", "trip", "--jsonl").out
    assert "again: is a file store: use the URL file://" in bad(1, "threads", "--store", "again")


def test_import_is_complete_and_idempotent(trip_store):
    assert good("export", "all", "--json").json["threads"] == 7
    assert good("import", "all", "--store", "other.db", "--json").json["created"] == 7
    assert good("import", "all", "--store", "other.db").out == "0 new threads, 0 extended, 0 visible rows added\n"
    assert good("log", "trip", "--store", "other.db", "--jsonl").out == good("log", "trip", "--jsonl").out
    good("tag", "trip", "new", "--yes")
    good("save", "trip", "notes.json", "--yes")
    assert good("export", "more", "--since", "all", "--json").json["threads"] == 1
    assert good("import", "more", "--store", "other.db").out.startswith("0 new threads, 1 extended")
    good("tag", "trip", "other", "--yes")
    good("export", "tagged", "--since", "more")
    assert good("import", "tagged", "--store", "other.db").out == (
        "0 new threads, 0 extended, 0 visible rows added, 1 with other marks or tags\n"
    )


def test_parts_of_a_store_are_exported(trip_store):
    assert good("export", "one", "--thread", "trip", "--json").json["threads"] == 1
    assert good("export", "two", "--agent", "planner", "--json").json["threads"] > 1
    bad(4, "export", "one")
    bad(3, "import", "nothing", "--store", "sqlite:///fresh.db")
    assert not (trip_store / "fresh.db").exists()
    (trip_store / "bad").write_text("not an export, but long enough to be looked at")
    bad(1, "import", "bad")


@pytest.mark.parametrize("source", ["backtrail", "langgraph"])
def test_bad_import_creates_no_store(trip_store, source):
    good("export", "all")
    whole = (trip_store / "all").read_bytes()
    (trip_store / "bad").write_bytes(whole[: len(whole) // 2])
    for url in ("sqlite:///new.db", "file:///new"):
        code = 5 if source == "backtrail" else 2
        bad(code, "import", "bad", "--from", source, "--store", url.replace("///", f"///{trip_store}/"))
    assert not list(trip_store.glob("new*"))
    good("import", "all", "--store", f"sqlite:///{trip_store}/new.db")


def test_bad_incremental_import_creates_no_store(trip_store):
    good("export", "all")
    good("save", "trip", "notes.json", "--yes")
    good("export", "more", "--since", "all")
    for url in (f"sqlite:///{trip_store}/new.db", f"file://{trip_store}/new"):
        assert "import that one first" in bad(3, "import", "more", "--store", url)
        assert not list(trip_store.glob("new*"))
    good("import", "all", "--store", "new.db")
    good("import", "more", "--store", "new.db")


def test_restore_backup_asks_only_before_it_replaces_a_store(trip_store):
    good("backup", "copy.db")
    assert good("restore-backup", "copy.db", "--store", "new.db").out == "the store is a copy of copy.db\n"
    assert "not a terminal" in bad(2, "restore-backup", "copy.db", "--store", "new.db")
    assert "; the old store is new.db" in good("restore-backup", "copy.db", "--store", "new.db", "--yes").out


@pytest.mark.parametrize("name", ["export", "backup"])
def test_stdout_is_not_a_file_name(trip_store, name):
    assert "stdout is not supported" in bad(2, name, "-")
    assert not (trip_store / "-").exists()
    good(name, "./-")
    assert (trip_store / "-").exists()


def test_diverged_thread_is_a_conflict(trip_store):
    good("export", "all")
    good("import", "all", "--store", "other.db")
    good("save", "trip", "notes.json", "--yes")
    good("save", "trip", "notes.json", "--yes", "--store", "other.db")
    good("export", "later")
    bad(4, "import", "later", "--store", "other.db")


def test_copy_copies_and_compares(trip_store, tmp_path):
    assert good("copy", docs.URL, f"file://{tmp_path}/dir", "--json").json["checkpoints"] == 13
    assert good("log", "trip", "--store", f"file://{tmp_path}/dir", "--jsonl").out == good("log", "trip", "--jsonl").out
    bad(3, "copy", "sqlite:///missing.db", "new.db")
    bad(2, "copy", "nothing://x", "new.db")


def test_a_database_of_langgraph_is_imported_by_its_adapter(trip_store, monkeypatch):
    skipped = types.SimpleNamespace(thread_id="a", reason="pickled")
    report = types.SimpleNamespace(threads=2, checkpoints=5, skipped=(skipped,) * 25)
    calls = []
    adapter = types.ModuleType("backtrail.adapters.langgraph")
    adapter.import_database = lambda path, store, progress: calls.append((path, type(store).__name__)) or report
    monkeypatch.setitem(sys.modules, "backtrail.adapters.langgraph", adapter)
    (trip_store / "graph.db").write_bytes(b"")
    done = good("import", "--from", "langgraph", "graph.db")
    assert calls == [("graph.db", "Store")]
    assert done.out == "2 threads, 5 checkpoints, 25 skipped\n"
    assert done.err.splitlines()[0] == "skipped: thread a: pickled"
    assert done.err.splitlines()[-1] == "... and 5 more"


def test_call_runs_a_builtin(trip_store):
    assert good("call", "conversation_list", '{"agent_id": "planner"}').json["conversations"][0]["message_count"] == 2
    assert good("call", "agent_load", "-", stdin='{"agent_id": "planner"}').json
    assert good("call", "persistence_stats", "--jsonl").out.count("\n") == 1
    assert len(good("call", "--jsonl").rows) == 14
    assert "agent_id" in bad(2, "call", "agent_load")
    assert "column 2" in bad(1, "call", "agent_load", "{")
    assert "there is no builtin" in bad(2, "call", "agent_loda", "{}")


def test_only_saving_builtins_create_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad(3, "call", "agent_list", "--store", "sqlite:///new.db")
    assert list(tmp_path.iterdir()) == []
    arguments = '{"agent_id": "a", "name": "A", "agent_type": "t"}'
    good("call", "agent_save", arguments, "--store", "sqlite:///new.db")
    assert good("agents", "--store", "new.db", "--jsonl").rows[0]["agent_id"] == "a"


def test_declined_upkeep_changes_nothing(trip_store, monkeypatch):
    monkeypatch.setattr(parameters, "is_terminal", lambda stream: True)
    assert run("migrate", stdin="n\n").code == 1


def test_prune_removes_idle_threads(trip_store):
    with backtrail.open() as store:
        store.thread("fresh").save({"n": 1})
        Clock(store)  # years ago
        store.thread("brief").save({"n": 1})
    assert "nothing to remove: 1 in use" in good("prune", "--idle", "30d", "--thread", "fresh", "--dry-run").err
    assert "0s" in bad(2, "prune", "--idle", "0s")
    plan = good("prune", "--idle", "30d", "--thread", "brief", "--dry-run")
    assert "idle for more than 30 days" in plan.out
    assert "1 thread to remove as a whole: 1 thread" in plan.err
    assert "1 thread removed" in good("prune", "--idle", "30d", "--thread", "brief", "--yes").err
    with backtrail.open() as store:
        assert store.info("brief") is None


def test_prune_explains_an_empty_selection(trip_store):
    said = good("prune", "--keep-last", "1000", "--dry-run").err
    assert "nothing to remove: " in said
    assert "newest 1000" in said
