"""Deleted and collected data is in no file any more: the test searches for a word that was in every possible place.

The stores are not compressed, so that the word can be found. The names of threads and agents stay, because the store
must know that their numbers are in use; their content is removed.
"""

import contextlib
import random
from functools import partial

import apsw
import pytest

import backtrail
from backtrail.backends.file.backend import FileBackend
from backtrail.backends.sqlite.backend import SqliteBackend
from tests.support import servers

CANARY = "canarythatistobegone"


@pytest.fixture(scope="module")
def own():
    with servers.Server() as server:
        yield server


def found_in(directory):
    """Return the files that have the word in them."""
    return [path for path in sorted(directory.rglob("*")) if path.is_file() and CANARY.encode() in path.read_bytes()]


def live(store, *, rounds):
    """Write to threads that stay and to threads that go, one after the other, so that their rows lie side by side."""
    rng = random.Random(1)
    for number in range(6):
        store.thread(f"stays {number}").save({"messages": []})
        store.thread(f"goes {number}").save({"messages": [], "large": [CANARY * 500]})
    for at in range(rounds):
        number = rng.randrange(6)
        text = "".join(rng.choices("abcdefghij ", k=rng.randrange(10, 900)))
        store.thread(f"stays {number}").append("messages", {"role": "user", "content": text})
        store.thread(f"goes {number}").append(
            "messages",
            {"role": CANARY, "id": f"{CANARY}{at}", "content": f"{text} {CANARY} {text}"},
            label=f"{CANARY}{at}",
            tags=[CANARY],
            metadata={CANARY: CANARY},
        )
        if at % 40 == 20:
            store.search(CANARY, kind="thread")
            store.thread(f"goes {number}").rewind("@~3")
            store.gc()
    store.search(CANARY, kind="thread")


def erase(store):
    for number in range(6):
        assert store.thread(f"goes {number}").delete()
    store.gc(erase=True)
    assert store.search(CANARY, kind="thread") == []
    assert store.verify().ok


def test_file_store_keeps_no_trace_of_erased_text(tmp_path):
    opener = partial(backtrail.open, tmp_path.as_uri(), compression=False)
    with opener() as store:
        live(store, rounds=80)
    with opener() as store:
        assert found_in(tmp_path)
        erase(store)
        assert found_in(tmp_path) == []
        assert len(store.thread("stays 0").load().state["messages"]) > 5


def test_sqlite_keeps_no_trace_of_erased_text(tmp_path):
    """After a collection alone, it may be between the rows of a page that was split."""
    with backtrail.open(tmp_path / "s.db", compression=False) as store:
        live(store, rounds=80)
        assert found_in(tmp_path)
        erase(store)
        assert found_in(tmp_path) == []
        assert len(store.thread("stays 0").load().state["messages"]) > 5
        assert store.verify().ok


@pytest.mark.parametrize("kind", ["sqlite", "files", "pages of sqlite that are left as they are"])
def test_seeded_faults_are_found(kind, tmp_path, monkeypatch):
    """Removed text stays on disk: no space is given back, or pages are not rewritten."""
    if kind == "files":
        monkeypatch.setattr(FileBackend, "reclaim", lambda self, *, erase=False: None)
        check = test_file_store_keeps_no_trace_of_erased_text
    elif kind == "sqlite":
        monkeypatch.setattr(SqliteBackend, "reclaim", lambda self, *, erase=False: None)
        check = test_sqlite_keeps_no_trace_of_erased_text
    else:
        reclaim = SqliteBackend.reclaim
        monkeypatch.setattr(SqliteBackend, "reclaim", lambda self, *, erase=False: reclaim(self, erase=False))
        check = test_sqlite_keeps_no_trace_of_erased_text
    with pytest.raises(AssertionError, match="PosixPath"):
        check(tmp_path)


def test_erase_reports_a_long_reader_of_sqlite(tmp_path, monkeypatch):
    with backtrail.open(tmp_path / "s.db", compression=False) as store:
        store.thread("t").save({"secret": CANARY})
        monkeypatch.setattr(store._backend, "_busy_timeout", 0.05)
        with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as reader:
            reader.execute("BEGIN; SELECT count(*) FROM meta").fetchall()
            store.thread("t").delete()
            with pytest.raises(backtrail.Unavailable) as caught:
                store.gc(erase=True)
        assert caught.value.code == "unavailable.locked"
        store.gc(erase=True)
        assert found_in(tmp_path) == []


def test_erase_reports_other_collections_of_files(tmp_path, monkeypatch):
    with backtrail.open(tmp_path.as_uri(), compression=False) as store:
        store.thread("t").save({"secret": CANARY})
        store.thread("t").delete()
        monkeypatch.setattr(FileBackend, "_switch", lambda *_: False)  # another process was first, each time
        store.gc()
        assert found_in(tmp_path)
        with pytest.raises(backtrail.Unavailable, match="at the same time") as caught:
            store.gc(erase=True)
        assert caught.value.code == "unavailable.locked"
        monkeypatch.undo()
        store.gc(erase=True)
        assert found_in(tmp_path) == []


def test_postgresql_keeps_no_trace_of_erased_text(own):
    with backtrail.open(own.url, schema="erased", compression=False) as store:
        live(store, rounds=30)
        own.execute("CHECKPOINT")
        assert found_in(own.directory / "base")
        erase(store)
        own.execute("CHECKPOINT")
        assert found_in(own.directory / "base") == []
        assert store.verify().ok


# -- erase: also what agent checkpoints pin and forks share -----------------------------------------------


def live_with_agents(store):
    """Make an agent with ten conversations in a checkpoint, runs and a fork; one conversation and one run go."""
    store.agents.save(backtrail.AgentState("a", "Ada", "a-model"))
    rng = random.Random(2)
    for at in range(40):
        for number in range(10):
            text = "".join(rng.choices("abcdefghij ", k=rng.randrange(10, 400)))
            word = CANARY if number == 3 else "stays"
            message = backtrail.Message.user(f"{text} {word} {text}", metadata={"by": word})
            store.conversations.append(f"c{number}", message, agent_id="a")
        if at == 20:
            store.search(CANARY)
            store.agents.checkpoint("a", "twenty")
            store.conversations.fork("c3", new_id="fork")
            store.gc()
    for name, word in (("goes", CANARY), ("stays", "stays")):
        with store.run(name, agent="a", state={"k": word}) as run:
            for number in run.iterations():
                run.tool("look", str.upper, word.lower())
                run.tool("see", str.lower, f"{word} {number}")
                if number == 5:
                    break
    made = store.agents.checkpoint("a", "forty")
    store.conversations.append("c3", backtrail.Message.user(CANARY))
    store.search(CANARY)
    return made


def erase_one_of_ten(store, made):
    others = {f"c{n}": store.conversations.load(f"c{n}") for n in range(10) if n != 3}
    assert store.conversations.erase("c3").complete
    assert store.runs.erase("goes").complete
    for name in others:
        store.conversations.append(name, backtrail.Message.user("later"))
    with pytest.warns(backtrail.Erased, match="'c3'"):
        store.agents.restore(made)
    assert {info.id: store.conversations.load(info.id) for info in store.conversations.list("a")} == others
    assert store.verify().ok


def upper_or_lower(directory):
    words = (CANARY.encode(), CANARY.upper().encode())
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return [path for path in files if any(word in path.read_bytes() for word in words)]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_erased_conversation_and_run_leave_no_trace_in_files(tmp_path, kind):
    place = tmp_path / "store"
    url = place.as_uri() if kind == "files" else place.with_suffix(".db")
    with backtrail.open(url, compression=False) as store:
        made = live_with_agents(store)
        assert upper_or_lower(tmp_path)
        erase_one_of_ten(store, made)
        assert upper_or_lower(tmp_path) == []
        store.export(tmp_path / "export")
        store.backup(tmp_path / "backup")
        assert upper_or_lower(tmp_path) == []
        assert store.agents.erase("a").complete
        left = [path for path in tmp_path.rglob("store*") if path.is_file()] + [*place.rglob("*")]
        assert left
        assert not [path for path in left if path.is_file() and b" stays " in path.read_bytes()]


def test_erased_conversation_and_run_leave_no_trace_in_postgresql(own):
    with backtrail.open(own.url, schema="erased_for_good", compression=False) as store:
        made = live_with_agents(store)
        own.execute("CHECKPOINT")
        assert upper_or_lower(own.directory / "base")
        erase_one_of_ten(store, made)
        own.execute("CHECKPOINT")
        assert upper_or_lower(own.directory / "base") == []


def test_erase_reports_a_long_reader_and_finishes_later(tmp_path, monkeypatch):
    with backtrail.open(tmp_path / "s.db", compression=False) as store:
        store.thread("t").save({"secret": CANARY})
        monkeypatch.setattr(store._backend, "_busy_timeout", 0.05)
        with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as reader:
            reader.execute("BEGIN; SELECT count(*) FROM meta").fetchall()
            report = store.thread("t").erase()
            assert not report.complete
            assert "gc(erase=True)" in report.remains
        assert store.thread("t").erase().complete
        assert found_in(tmp_path) == []
