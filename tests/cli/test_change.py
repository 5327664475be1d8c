"""Commands that change threads: shown first, asked for, kept only after a yes, and taken back as they say."""

import contextlib
import json
import shlex
import sqlite3
import subprocess

import pytest

import backtrail
from backtrail.cli import parameters
from backtrail.cli.commands import edits
from tests.support.commands import bad, docs, good, run


@pytest.fixture
def asked(monkeypatch):
    """Let stdin look like a terminal."""
    monkeypatch.setattr(parameters, "is_terminal", lambda stream: True)


def state(ref):
    return good("show", ref, "--json").json["state"]


def hinted(done):
    """Run the command that a change prints for reverting it."""
    (line,) = [line for line in done.err.splitlines() if line.startswith("to revert: ")]
    name, *words = shlex.split(line.removeprefix("to revert: "))
    assert name == "backtrail"
    return good(*words, "--yes")


def test_revert_command_names_the_store_without_password(trip_store):
    url = f"sqlite:///{trip_store}/other store.db"
    done = good("save", "a b", "notes.json", "--yes", "--store", url)
    assert done.err.splitlines()[-1] == f"to revert: backtrail delete 'a b' --store '{url}'"
    hinted(done)
    bad(3, "show", "a b", "--store", url)
    hint = parameters.Invocation("postgresql://me:secret@host/db", "s").command("gc")
    assert hint == "backtrail gc --store postgresql://me@host/db --schema s"


def test_revert_command_covers_several_tags(trip_store):
    done = good("tag", "trip", "two words", "b", "--yes")
    exactly = good("log", "trip", "-n", "1", "--jsonl").json["id"][:8]
    assert done.err.splitlines()[-1] == f"to revert: backtrail tag trip@{exactly} 'two words' b --remove"
    hinted(done)


def test_revert_command_covers_only_changed_tags(trip_store):
    good("tag", "trip", "old", "--yes")
    hinted(good("tag", "trip", "old", "new", "--yes"))
    assert good("log", "trip", "-n", "1", "--jsonl").json["tags"] == ["cheap", "old"]
    assert "to revert" not in good("tag", "trip", "nope", "--remove", "--yes").err
    assert "to revert" not in good("tag", "trip", "old", "--yes").err


@pytest.mark.parametrize("name", ["-x", "--yes", "a\nb", "\x1b[31mred", "it's", "planner", "a@b", "$HOME"])
def test_revert_command_quotes_any_id(trip_store, name):
    for _ in range(2):
        done = good("save", "--yes", "--", name, "notes.json")
    (line,) = [line for line in done.err.splitlines() if "to revert" in line]
    assert line.isprintable()
    assert (line == f"to revert: backtrail undo {name} --kind thread") == (name == "planner")  # an agent, too
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line.removeprefix('to revert: ')}"], capture_output=True, check=True
    )
    _, *rest = words.stdout.decode().split("\0")[:-1]
    good(rest[0], "--yes", *rest[1:])
    with backtrail.open(docs.URL, read_only=True) as store:
        assert store.info(name).step == 1


class TestWhatOthersDoBeforeTheAnswer:
    """Another process writes while a question waits for its answer."""

    @pytest.fixture
    def late(self, asked, monkeypatch):
        def question(text, **_):
            with backtrail.open(docs.URL) as store:
                store.thread("trip").append("messages", {"role": "user", "content": "precious"}, label="precious")
            return True

        monkeypatch.setattr(parameters.click, "confirm", question)

    @pytest.mark.parametrize(
        "words",
        [
            ["delete", "trip"],
            ["prune", "--keep-last", "1", "--no-keep-labelled", "--no-keep-tagged", "--thread", "trip"],
            ["undo", "trip"],
        ],
        ids=lambda words: words[0],
    )
    def test_conflicting_save_changes_nothing(self, trip_store, late, words):
        done = run(*words)
        assert done.code == 4, done
        with backtrail.open(docs.URL, read_only=True) as store:
            assert len(store.thread("trip")) == 4
            assert store.thread("trip").latest().label == "precious"


def test_damaged_head_can_be_left(trip_store):
    with backtrail.open(docs.URL) as store:
        thread = store.thread("big")
        for n in range(3):
            thread.save({"n": n, "text": f"{n} " * 5000})
    with contextlib.closing(sqlite3.connect(docs.URL.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("UPDATE row SET payload = x'00' WHERE key = (SELECT max(key) FROM row)")
    said = bad(5, "show", "big")
    assert said.endswith("its row is damaged; `backtrail verify` lists all damage"), said
    assert "cannot be shown" in good("undo", "big", "--yes").err


@pytest.mark.parametrize("url", ["sqlite:///no.db", "file://{}/no"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, ["save", "x", "notes.json", "--append", "messages", "--yes"]),
        (4, ["save", "x", "notes.json", "--expect", "label", "--yes"]),
        (2, ["save", "x", "notes.json", "--label", "x" * 3000, "--yes"]),
        (2, ["call", "agent_save", "{}"]),
        (2, ["call", "nosuch"]),
        (2, ["save", "x", "notes.json", "--store", "", "--yes"]),
    ],
    ids=["path", "expect", "label", "call", "builtin", "empty"],
)
def test_invalid_save_creates_no_store(trip_store, url, code, words):
    there = set(trip_store.iterdir())
    done = run("--store", url.format(trip_store), *words)
    assert done.code == code, done
    assert set(trip_store.iterdir()) == there


CHANGES = {
    "save": ["save", "trip", "notes.json"],
    "set": ["save", "trip", "notes.json", "--set", "notes"],
    "append": ["save", "trip", "notes.json", "--append", "messages"],
    "new": ["save", "fresh", "notes.json"],
    "fork": ["fork", "trip@before-booking", "other"],
    "fork run": ["fork", "session-42@1", "other"],
    "rewind": ["rewind", "trip@1"],
    "rewind run": ["rewind", "session-42@1"],
    "undo": ["undo", "trip"],
    "tag": ["tag", "trip", "keep"],
    "restore": ["restore", "planner@before-lunch"],
}


def everything():
    """All that people can see of a store."""
    with backtrail.open(docs.URL, read_only=True) as store:
        kinds = ("thread", "agent", "conversation", "run")
        infos = [info for kind in kinds for info in store.threads(kind=kind)]
        tags = {
            c.id: sorted(c.tags) for info in infos if info.kind == "thread" for c in store.thread(info.id).history()
        }
        return {(info.kind, info.id): info.head_id for info in infos}, tags


@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
class TestEveryChange:
    def test_revert_command_reverts_the_change(self, trip_store, words):
        before = everything()
        done = good(*words, "--yes")
        assert everything() != before
        hinted(done)
        assert everything() == before

    def test_changes_without_a_terminal_need_yes(self, trip_store, words):
        before = everything()
        assert "--yes" in bad(2, *words)
        assert everything() == before

    def test_a_no_changes_nothing(self, trip_store, asked, words):
        before = everything()
        done = run(*words, stdin="n\n")
        assert (done.code, done.out) == (1, "")
        assert done.err.splitlines()[-1] == "backtrail: nothing was changed"
        assert everything() == before

    def test_a_yes_changes_it(self, trip_store, asked, words):
        before = everything()
        assert run(*words, stdin="y\n").code == 0
        assert everything() != before

    def test_changes_print_their_checkpoint(self, trip_store, words):
        done = good(*words, "--yes", "--json")
        assert good("show", done.json["id"], "--json").json["step"] == done.json["step"]


def test_preview_precedes_the_question(trip_store, asked):
    said = run("rewind", "trip@before-booking", stdin="n\n").err
    assert said.index("~ budget: 60 -> 120") < said.index("Rewind 'trip'?")


def test_long_changes_are_shown_in_part(trip_store):
    (trip_store / "long.json").write_text(json.dumps({f"k{n}": n for n in range(100)}))
    assert "... and 82 more changes" in good("save", "trip", "long.json", "--yes").err


def test_write_during_the_question_is_a_conflict(trip_store, asked, monkeypatch):
    def meanwhile(*_, **__):
        with backtrail.open(docs.URL) as store:
            store.thread("trip").append("messages", {"role": "user", "content": "wait"})
        return True

    monkeypatch.setattr("click.confirm", meanwhile)
    done = run("rewind", "trip@1")
    assert done.code == 4
    assert state("trip")["messages"][-1]["content"] == "wait"


def test_irreversible_calls_are_listed_before_the_question(trip_store, asked):
    said = run("restore", "planner@before-lunch", stdin="n\n").err
    assert said.index("book_table") < said.index("Restore agent 'planner'?")
    with backtrail.open(docs.URL) as store, store.run("session-42", agent="planner") as resumed:
        for _ in resumed.iterations():
            resumed.tool("book_table", lambda: "table 5", irreversible=True)  # it was done
            resumed.tool("pay", lambda: 1, irreversible=True)
            break
    said = run("rewind", "session-42@1", stdin="n\n").err
    assert said.index("pay (") < said.index("Rewind 'session-42'?")
    assert "pay (" in run("delete", "session-42", stdin="n\n").err


def test_save_reads_stdin_and_creates_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///new.db"
    good("--store", url, "save", "x", "--yes", "--label", "first", "--tag", "a", "--tag", "b", stdin='{"n": 1}')
    row = good("show", "x@first", "--json", "--store", url).json
    assert (row["state"], row["tags"], row["step"]) == ({"n": 1}, ["a", "b"], 1)


def test_declined_save_creates_no_store(tmp_path, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text("1")
    assert run("--store", "sqlite:///new.db", "save", "x", "a.json", stdin="n\n").code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_save_respects_expect(trip_store):
    good("save", "trip", "notes.json", "--expect", "fly", "--yes")
    assert "fly" not in bad(4, "save", "trip", "notes.json", "--expect", "before-booking", "--yes")
    bad(4, "save", "trip", "notes.json", "--expect", "new", "--yes")
    bad(4, "save", "nowhere", "notes.json", "--expect", "fly", "--yes")
    good("save", "nowhere", "notes.json", "--expect", "new", "--yes")


def test_undo_repeats_and_redo_reverts(trip_store):
    good("undo", "trip", "--yes")
    good("undo", "trip", "--yes")
    assert state("trip")["budget"] == 30
    good("redo", "trip", "--yes")
    good("redo", "trip", "--yes")
    assert state("trip")["budget"] == 60
    assert "redo" in bad(1, "redo", "trip", "--yes")


def test_undo_of_a_moved_restore_needs_force(trip_store):
    good("restore", "planner@before-lunch", "--yes")
    with backtrail.open(docs.URL) as store:
        store.conversations.append("lunch", backtrail.Message.user("Hello?"))
    bad(4, "undo", "planner", "--restore", "--yes")
    good("undo", "planner", "--restore", "--force", "--yes")
    assert len(state("lunch")["messages"]) == 2


def test_restore_takes_a_name_or_id(trip_store):
    (row,) = good("agents", "planner", "--jsonl").rows
    for ref in (row["id"], f"planner@{row['id'][:5]}", "planner@before-lunch"):
        good("restore", ref, "--yes")
    bad(3, "restore", "planner@nothing", "--yes")
    bad(3, "restore", "nobody@x", "--yes")
    bad(3, "restore", "f" * 24, "--yes")


def test_rewind_to_the_head_does_nothing(trip_store):
    before = everything()
    assert good("rewind", "trip").err == "this is the head of trip already\n"
    assert everything() == before


def test_an_agent_is_not_forked_by_itself(trip_store):
    said = bad(2, "fork", "planner", "other", "--yes")
    with backtrail.open(docs.URL) as store, pytest.raises(backtrail.Invalid) as error:
        store.agents.thread("planner").fork("other")
    assert said == f"backtrail: {error.value}"


def test_delete_removes_every_kind(trip_store):
    good("delete", "trip-cheap@~1", "--yes")
    rows = good("log", "trip-cheap", "--jsonl").rows
    assert [(row["thread_id"], row["step"]) for row in rows] == [("trip-cheap", 3), ("trip", 1)]
    said = good("delete", "trip@fly", "--yes").err
    assert "the new head is step 2" in said
    assert state("trip")["budget"] == 120
    assert good("delete", "trip-cheap", "--yes", "--json").json == {
        "deleted": "trip-cheap",
        "kind": "thread",
        "checkpoints": 1,
    }
    bad(3, "show", "trip-cheap")
    assert "`restore` brings it back" in good("delete", "lunch", "--yes").err
    good("delete", "session-42", "--yes")
    assert good("runs", "--jsonl").rows == []
    said = good("delete", "planner", "--yes").err
    assert "it owns: 1 thread, 1 agent checkpoint" in said
    assert good("threads", "--jsonl").rows == []
    assert good("stats", "--json").json["agents"] == 0


def test_delete_asks(trip_store, asked):
    before = everything()
    for ref in ("trip", "trip@1", "planner", "lunch", "session-42"):
        assert run("delete", ref, stdin="n\n").code == 1
    assert everything() == before


def test_delete_without_a_terminal_needs_yes(trip_store):
    before = everything()
    for ref in ("trip", "trip@1"):
        assert "--yes" in bad(2, "delete", ref)
    assert everything() == before


def test_erase_removes_every_kind(trip_store):
    assert good("erase", "trip-cheap", "--yes", "--json").json["threads"][0]["id"] == "trip-cheap"
    bad(3, "show", "trip-cheap")
    said = good("erase", "lunch", "--yes")
    assert "no longer restores it" in said.err
    assert "no byte of it is left" in said.err
    assert "1 erased" in good("agents", "planner").out
    said = good("restore", "planner@before-lunch", "--yes").err
    assert "erased since, so they do not return: lunch" in said
    good("erase", "lunch", "--kind", "conversation", "--yes")  # what is left of an interrupted call
    good("erase", "session-42", "--yes")
    assert good("runs", "--jsonl").rows == []
    good("erase", "planner", "--yes")
    assert good("threads", "--jsonl").rows == []
    bad(3, "erase", "nothing", "--yes")


def test_import_and_copy_name_what_was_erased(trip_store):
    good("export", "before")
    good("copy", "sqlite:///agents.db", "sqlite:///mirror.db")
    good("erase", "lunch", "--yes")
    assert "conversation lunch was erased here, so it was not imported" in good("import", "before").err
    said = good("copy", "sqlite:///agents.db", "sqlite:///mirror.db").err
    assert "conversation lunch was erased in the other store, and now here, too" in said
    bad(3, "show", "lunch", "--store", "sqlite:///mirror.db")


def test_erase_takes_no_checkpoint(trip_store):
    assert "not one of its checkpoints" in bad(2, "erase", "trip@1", "--yes")


def test_erase_keeps_forks_if_told(trip_store):
    assert "trip-cheap was forked from it, and stays" in good("erase", "trip", "--keep-forks", "--yes").err
    assert state("trip-cheap")


def test_erase_asks(trip_store, asked):
    before = everything()
    for name in ("trip", "planner", "lunch", "session-42"):
        assert run("erase", name, stdin="n\n").code == 1
    assert everything() == before


def test_erase_without_a_terminal_needs_yes(trip_store):
    before = everything()
    assert "--yes" in bad(2, "erase", "trip")
    assert everything() == before


def test_option_combinations_are_checked(trip_store):
    bad(2, "undo", "trip", "--force", "--yes")
    bad(2, "save", "trip", "notes.json", "--set", "a", "--append", "b", "--yes")


def test_changes_work_on_files_in_memory_and_with_kinds(tmp_path, monkeypatch):
    monkeypatch.setenv("BACKTRAIL_URL", f"file://{tmp_path}/store")
    for n in (1, 2):
        good("save", "x", "--yes", stdin=f'{{"n": {n}}}')
    hinted(good("rewind", "x@1", "--yes"))
    assert state("x") == {"n": 2}
    assert good("undo", "x", "--kind", "thread", "--yes").err.endswith("backtrail redo x\n")
    assert good("save", "x", "--yes", "--store", "memory://", "--json", stdin="1").json["step"] == 1
    assert edits.COMMANDS


def test_commands_do_not_change_ancestors_of_a_fork(trip_store):
    before = good("log", "trip", "--jsonl").rows
    for words in (["rewind", "trip-cheap@1"], ["delete", "trip-cheap@1"], ["tag", "trip-cheap@1", "x"]):
        assert "trip" in bad(3, *words, "--yes" if words[0] != "tag" else "x")
    assert good("log", "trip", "--jsonl").rows == before
