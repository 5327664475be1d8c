"""Bad input on every command: one clear line, the right exit code, nothing made, no secret shown."""

import re
import sqlite3
from pathlib import Path

import apsw
import pytest

import backtrail
from backtrail.backends.file import storage
from backtrail.backends.sqlite import maintenance
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.cli.main import exit_code, sections
from backtrail.cli.parameters import Invocation, translated
from tests.support.commands import bad, docs, good, run
from tests.support.servers import server

SECRET = "s3cret-Zq7"

# Each command as it is right, but for what a test makes wrong.
LINES = {
    "log": "log trip",
    "show": "show trip",
    "diff": "diff trip",
    "search": "search lisbon",
    "activity": "activity",
    "watch": "watch trip --timeout 0s",
    "threads": "threads",
    "agents": "agents",
    "conversations": "conversations planner",
    "runs": "runs",
    "stats": "stats",
    "save": "save trip notes.json --yes",
    "fork": "fork trip other --yes",
    "rewind": "rewind trip@1 --yes",
    "undo": "undo trip --yes",
    "redo": "redo trip --yes",
    "restore": "restore planner@before-lunch --yes",
    "settle": "settle session-42 1.1 --not-done --yes",
    "tag": "tag trip keep --yes",
    "delete": "delete trip --yes",
    "erase": "erase trip --yes",
    "prune": "prune --keep-last 1 --yes",
    "gc": "gc",
    "verify": "verify",
    "index": "index",
    "reindex": "reindex",
    "migrate": "migrate --yes",
    "backup": "backup copy.db",
    "keys": "keys status",
    "export": "export all",
    "import": "import notes.json",
    "call": "call persistence_stats",
    "serve": "serve --dry-run",
    "mcp": "mcp --dry-run",
}
WITHOUT_STORE = {"where", "copy", "restore-backup", "doctor"}  # no store, two stores, or a store that may be missing
MAKES = {"save", "import", "mcp"}
NAMES_A_THREAD = {"log", "show", "diff", "fork", "rewind", "undo", "redo", "tag", "delete", "erase"}
NAMES_A_CHECKPOINT = {"show", "diff", "fork", "rewind", "tag", "delete"}


def words(name):
    return LINES[name].split()


def test_every_command_is_tried():
    assert set(LINES) | WITHOUT_STORE == {c.name for cs in sections().values() for c in cs}


@pytest.mark.parametrize("name", sorted(set(LINES) - MAKES))
@pytest.mark.parametrize("url", ["sqlite:///no.db", "file:///{}/no"])
def test_missing_store_is_an_error_and_not_created(tmp_path, monkeypatch, name, url):
    monkeypatch.chdir(tmp_path)
    said = bad(3, *words(name), "--store", url.format(tmp_path))
    assert "store does not exist" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    "url", ["mysql://me:s3cret-Zq7@host/db", "sqlite://x", "file://x", "memory://x", "postgresql://:s3cret-Zq7@/@"]
)
def test_wrong_url_error_hides_the_password(trip_store, name, url):
    assert SECRET not in bad(2, *words(name), "--store", url)


@pytest.mark.parametrize("name", LINES)
def test_other_file_is_not_a_store(trip_store, name):
    (trip_store / "plain.db").write_bytes(b"not a database at all, whatever its name says" * 200)
    assert "plain.db" in bad(1, *words(name), "--store", "plain.db")


@pytest.mark.parametrize("name", sorted(NAMES_A_THREAD))
def test_missing_thread_suggests_a_similar_one(trip_store, name):
    line = LINES[name].replace("trip", "tripp", 1)
    assert bad(3, *line.split()) == "backtrail: there is no thread 'tripp'; there is 'trip'"


@pytest.mark.parametrize("name", sorted(NAMES_A_CHECKPOINT))
@pytest.mark.parametrize(
    ("ref", "code", "said"),
    [
        ("trip@99", 3, "no step 99"),
        ("trip@nothing", 3, "'nothing'"),
        ("trip@~50", 3, "only 3 checkpoints"),
        ("f" * 24, 3, "there is no thread"),
        ("@", 3, "there is no thread '@'"),
    ],
)
def test_missing_checkpoint_is_not_found(trip_store, name, ref, code, said):
    first, _, *rest = words(name)
    assert said in bad(code, first, ref, *rest)


@pytest.mark.parametrize("name", sorted(NAMES_A_CHECKPOINT))
def test_ambiguous_ref_lists_candidates(trip_store, name):
    with backtrail.open(docs.URL) as store:
        ids = [store.thread("many").save(n).id for n in range(40)]
    digit = next(c for c in "abcdef" if sum(each.startswith(c) for each in ids) > 1)
    first, _, *rest = words(name)
    said = bad(1, first, f"many@{digit}", *rest)
    assert sum(each[:12] in said for each in ids) >= 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": ', "line 1, column 7"),
        ('{\n  "a": 1,\n  b\n}', "line 3, column 3"),
        ("", "line 1, column 1"),
        ("NaN", "JSON has no number NaN"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1e999}', "1e999 is too large"),
        ("9" * 5000, "too many digits"),
    ],
)
def test_invalid_json_is_reported_with_its_position(trip_store, text, said):
    (trip_store / "bad.json").write_text(text)
    assert said in bad(1, "save", "trip", "bad.json", "--yes")
    assert said in bad(1, "save", "trip", "--yes", stdin=text)
    assert said in bad(1, "call", "agent_save", "-", stdin=text)


def test_unreadable_input_files_are_errors(trip_store):
    (trip_store / "bad.json").write_bytes(b'"\xff"')
    assert "bad.json" in bad(1, "save", "trip", "bad.json", "--yes")
    assert "there is no file" in bad(3, "save", "trip", "none.json", "--yes")
    assert "directory" in bad(1, "save", "trip", ".", "--yes").lower()


def test_missing_paths_are_not_found(trip_store):
    bad(3, "show", "trip", "--path", "nothing")
    bad(1, "show", "trip", "--path", "a[")
    bad(3, "save", "trip", "notes.json", "--append", "nothing", "--yes")
    bad(3, "conversations", "planner", "--store", "sqlite:///no.db")
    bad(3, "agents", "nobody")


@pytest.mark.parametrize("name", ["save", "fork", "rewind", "undo", "tag", "delete", "erase", "restore", "gc"])
def test_locked_store_is_an_error(trip_store, monkeypatch, name):
    monkeypatch.setitem(SqliteBackend.__init__.__kwdefaults__, "busy_timeout", 0.05)
    other = apsw.Connection("agents.db")
    other.execute("BEGIN IMMEDIATE")
    assert "another" in bad_but_told(1, *words(name))
    other.close()


def bad_but_told(code, *line):
    """Run a command that prints its plan before it fails."""
    done = run(*line)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.splitlines()[-1].startswith("backtrail: ")
    return done.err.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(set(LINES) - {"import", "prune", "watch", "call", "redo"}))
def test_a_damaged_file_exits_with_5(trip_store, name):
    good("verify")
    sqlite3.connect("agents.db").execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    data = bytearray((trip_store / "agents.db").read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    (trip_store / "agents.db").write_bytes(data)
    done = run(*words(name))
    assert done.code == 5, done
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 2


def test_debug_shows_the_stack_trace(trip_store):
    for line in (["--debug", "show", "nothing"], ["show", "nothing", "--debug"]):
        done = run(*line)
        assert done.code == 3
        assert "Traceback" in done.err


def test_unexpected_error_is_one_line(trip_store, monkeypatch):
    monkeypatch.setattr(backtrail.Store, "stats", lambda self: 1 / 0)
    assert bad(1, "stats") == "backtrail: ZeroDivisionError: division by zero; --debug shows the stack trace"


def test_ctrl_c_exits_with_130(trip_store, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(backtrail.Store, "stats", stop)
    assert bad(130, "stats") == "backtrail: interrupted"


def test_usage_is_2(trip_store):
    for line in (
        ["nothing"],
        ["log"],
        ["log", "trip", "-n", "-1"],
        ["log", "trip", "--json", "--jsonl"],
        ["show", "a", "b"],
    ):
        assert run(*line).code == 2
    assert run("watch", "trip", "--agent", "a").code == 2
    assert run("watch", "--after", "x").code == 2
    assert run("log", "trip", "--kind", "tree").code == 2
    assert "512" in bad(2, "show", "x" * 513)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (backtrail.NotFound("x"), 3),
        (backtrail.Conflict("x"), 4),
        (backtrail.Corrupt("x"), 5),
        (backtrail.Invalid("x", code="invalid.url"), 2),
        (backtrail.Invalid("x", code="invalid.undo"), 1),
        (backtrail.Unavailable("x"), 1),
        (backtrail.InDoubt("x"), 1),
        (backtrail.CommitUnknown("x"), 1),
    ],
)
def test_exit_codes_of_errors(error, code):
    assert exit_code(error) == code


def test_unreachable_server_shows_no_password(tmp_path):
    assert SECRET not in bad(1, "threads", "--store", f"postgresql://me:{SECRET}@127.0.0.1:1/db")


def test_the_default_store_is_that_of_the_library(tmp_path, monkeypatch):
    monkeypatch.delenv("BACKTRAIL_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert bad(3, "threads").endswith("this store does not exist; name another with --store or BACKTRAIL_URL")
    assert bad(3, "threads", "--store", tmp_path / "no.db").endswith("this store does not exist")
    assert bad(3, "--store", tmp_path / "no.db", "threads").endswith("this store does not exist")
    good("save", "x", "--yes", stdin="1")
    assert good("where").out == f"{tmp_path}/backtrail/backtrail.db\n"
    assert [row["id"] for row in good("threads", "--jsonl").rows] == ["x"]


@pytest.mark.parametrize("kind", ["sqlite", "file", "postgresql"])
def test_every_kind_of_store(kind, tmp_path, request):
    where = {"sqlite": [f"{tmp_path}/a.db"], "file": [f"file://{tmp_path}/dir"]}.get(kind)
    if where is None:
        where = [server().url, "--schema", "cli_smoke"]
        request.addfinalizer(lambda: server().drop_schema("cli_smoke"))
    store = ["--store", *where]
    for n in range(3):
        good(
            "save",
            "x",
            "--yes",
            "--label",
            f"n{n}",
            *store,
            stdin=f'{{"messages": [{{"role": "user", "content": "word{n}"}}]}}',
        )
    good("copy", where[0], f"{tmp_path}/copied.db", *where[1:])
    if kind == "postgresql":
        request.addfinalizer(lambda: server().drop_schema("cli_copied"))
        good("copy", f"{tmp_path}/copied.db", where[0], "--schema", "cli_copied")
        again = good("copy", where[0], where[0], "--schema", "cli_smoke", "--to-schema", "cli_copied").out
        assert again == "0 new threads, 0 extended, 3 checkpoints compared\n"
        assert len(good("log", "x", "--store", where[0], "--schema", "cli_copied", "--jsonl").rows) == 3
    good("rewind", "x@n1", "--yes", *store)
    good("fork", "x", "y", "--yes", *store)
    assert [row["in_view"] for row in good("log", "x", "--graph", "--jsonl", *store).rows] == [False, True, True]
    assert [row["id"] for row in good("threads", "--jsonl", *store).rows] == ["y", "x"]
    assert good("search", "word1", "--jsonl", *store).out.count("\n") == 2
    assert good("stats", "--json", *store).json["checkpoints"] == 4
    assert good("verify", "--json", *store).json["ok"]
    good("delete", "y", "--yes", *store)
    good("gc", *store)
    good("export", tmp_path / "all", *store)
    good("import", tmp_path / "all", "--store", f"{tmp_path}/other.db")
    assert good("log", "x", "--json", "--store", f"{tmp_path}/other.db").out == good("log", "x", "--json", *store).out
    bad(3, "show", "y", *store)


@pytest.mark.parametrize("option", ["--store", "--schema"])
def test_empty_option_is_an_error(trip_store, option):
    for words in (["where"], ["log", "trip"], ["save", "trip", "notes.json", "--yes"]):
        assert f"{option} is empty" in bad(2, option, "", *words)
        assert f"{option} is empty" in bad(2, *words, option, " ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["copy", docs.URL, "b.db", "--schema", "x"], "--schema is for PostgreSQL"),
        (["search", ""], "--contains searches"),
        (["save", "trip", "notes.json", "--append", "budget", "--yes"], "use --set"),
        (["prune", "--keep-last", "1", "--thread", "trip", "--agent", "planner"], "pass --thread or --agent, not both"),
        (["export", "x", "--thread", "trip", "--agent", "planner"], "pass --thread or --agent, not both"),
        (
            ["prune", "--keep-last", "0", "--yes"],
            "pass --keep-last, --keep-hourly, --keep-daily or --keep-weekly above 0,",
        ),
        (["import", "."], "backtrail: . is a directory: pass a file"),
    ],
    ids=["schema", "contains", "set", "prune-both", "export-both", "keep-nothing", "import-directory"],
)
def test_library_errors_are_translated(trip_store, words, said):
    done = run(*words)
    assert done.code in (1, 2)
    assert said in done.err
    assert not re.search(r"\w=|keep_|\w\(", done.err.splitlines()[-1])


def test_foreign_since_export_error_is_translated(trip_store):
    good("save", "x", "--yes", "--store", "other.db", stdin="1")
    good("export", "theirs", "--store", "other.db")
    assert bad(4, "export", "ours", "--since", "theirs").endswith("export without --since")


def test_stale_restore_error_names_force(trip_store):
    good("restore", "planner@before-lunch", "--yes")
    with backtrail.open(docs.URL) as store:
        store.conversations.append("lunch", backtrail.Message.user("more"), agent_id="planner")
    assert bad(4, "undo", "planner", "--restore", "--yes").endswith("; --force undoes the changes, too")


def test_lease_errors_name_no_python(trip_store):
    with backtrail.open(docs.URL) as store, store.run("busy") as busy:
        for _ in busy.iterations():
            busy.checkpoint()
            break
        erasing = bad(4, "erase", "busy", "--kind", "run", "--yes")
        assert erasing.endswith("; wait until it ends, or erase it with --force")
        assert bad(4, "settle", "busy", "1.1", "--not-done", "--yes").endswith(" UTC at least; wait until it is free")


def test_storage_errors_name_commands(trip_store):
    session = Invocation("my agents.db")
    for module, said in (
        (maintenance, "one by one, with `backtrail export FILE --thread THREAD --store 'my agents.db'`, and import"),
        (storage, "`backtrail verify --repair --store 'my agents.db'` gives up the lost data"),
    ):
        source = re.sub(r'"\s*\n\s*f?"', "", Path(module.__file__).read_text())  # texts that are written in pieces
        assert said in translated(source, session)
