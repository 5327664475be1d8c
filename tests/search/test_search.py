"""Search: random histories against a scan of all heads, several processes, and traces in the file."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest import mock

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail import aio
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import Batch, IndexEntry, IndexState, Phrase, Splice
from backtrail.backends.postgres import search
from backtrail.backends.sqlite import schema as sqlite_schema
from backtrail.backends.sqlite import search as sqlite_search
from backtrail.engine.search import indexer, normalize, query
from tests.conformance.index import interrupted as killed_at
from tests.support.lengths import fewer
from tests.support.places import in_memory
from tests.support.processes import spawn
from tests.support.schemas import swept as postgres


@contextmanager
def in_a_file():
    directory = tempfile.mkdtemp()
    try:
        yield partial(backtrail.open, Path(directory, "store.db"), durability="relaxed")
    finally:
        shutil.rmtree(directory)


def in_postgres():
    return postgres(durability="relaxed")


# -- random histories -------------------------------------------------------------------------------

WORDS = ["a", "ab", "abc", "b", "ba", "c"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=0, max_size=4).map(" ".join)
ITEMS = st.one_of(
    TEXTS,
    st.builds(lambda text, at: {"content": text, "created_at": at}, TEXTS, st.integers(0, 3)),
    st.just(7),
)
LISTS = st.lists(ITEMS, max_size=6)
DEEDS = st.one_of(
    st.tuples(st.just("save"), LISTS),
    st.tuples(st.just("append"), st.lists(ITEMS, min_size=1, max_size=6)),
    st.tuples(st.just("set"), st.integers(0, 9), ITEMS),
    st.tuples(st.just("insert"), st.integers(0, 9), LISTS),
    st.tuples(st.just("cut"), st.integers(0, 9), st.integers(1, 5)),
    st.tuples(st.just("other"), st.integers(0, 9)),
    st.tuples(st.just("rewind"), st.integers(1, 6)),
    *[st.tuples(st.just(name)) for name in ("undo", "redo", "delete", "drop", "prune", "gc", "search", "killed")],
    st.tuples(st.just("fork"), st.integers(0, 3)),
)
HISTORIES = st.lists(st.tuples(st.integers(0, 3), DEEDS), min_size=1, max_size=25)
QUERIES = [("a", False), ("a b", False), ('"a b"', False), ("ab*", False), ("ab", True), ("a b", True), ("b a", True)]


def do(store, name, deed):  # noqa: C901 - one branch for each deed
    """Change a thread once, if the change is possible."""
    thread = store.thread(name)
    what, *given_ = deed
    if what == "save":
        thread.save({"messages": given_[0]})
    elif thread.latest() is None:
        return
    elif what == "append":
        thread.append("messages", *given_[0])
    elif what in ("set", "insert", "cut"):
        with thread.step() as state:
            listed, at = state["messages"], given_[0]
            if what == "set" and at < len(listed):
                listed[at] = given_[1]
            elif what == "insert":
                listed[at:at] = given_[1]
            elif what == "cut":
                del listed[at : at + given_[1]]
    elif what == "other":
        thread.set("n", given_[0])
    elif what == "delete":
        thread.delete()
    elif what == "drop":
        thread.delete_checkpoint("@")
    elif what == "prune":
        thread.prune(keep_last=1)
    else:
        move(store, thread, what, given_)


def move(store, thread, what, given_):
    if what == "gc":
        store.gc()
    elif what == "search":
        store.search("a")
    elif what == "killed":
        with killed_at(store, 2), suppress(KeyboardInterrupt):
            store.search("a")
    else:
        try:
            if what == "rewind":
                thread.rewind(f"@~{given_[0]}")
            elif what == "fork":
                thread.fork(f"t{given_[0]}")
            else:
                getattr(thread, what)()
        except (backtrail.NotFound, backtrail.Invalid, backtrail.Conflict):
            pass  # there is nothing to go to, or it is there


def scanned(store, text, contains):
    """The expected hits, from every message of every head."""
    found = set()
    for info in store.threads():
        state = store.thread(info.id).load().state
        for position, item in enumerate(state["messages"]):
            said = item["content"] if isinstance(item, dict) else item
            if isinstance(said, str) and matches(said, text, contains):
                found.add((info.id, position, info.head_id))
    return found


def matches(said, text, contains):
    if contains:
        return text in said
    if text.startswith('"'):
        return f" {text.strip(chr(34))} " in f" {said} "
    if text.endswith("*"):
        return any(word.startswith(text[:-1]) for word in said.split())
    return set(text.split()) <= set(said.split())


@pytest.mark.hypothesis
@pytest.mark.parametrize("place", [in_memory, in_a_file, in_postgres])
@given(history=HISTORIES)
def test_search_equals_a_scan_of_all_heads(place, history):
    with place() as opener, opener() as store, mock.patch.object(indexer, "_SLICE", 3):
        for thread, deed in history:
            do(store, f"t{thread}", deed)
        for text, contains in QUERIES:
            hits = store.search(text, contains=contains, limit=1000)
            found = [(hit.conversation_id, hit.position, hit.checkpoint_id) for hit in hits]
            assert len(found) == len(set(found))
            assert set(found) == scanned(store, text, contains), (text, contains)
            times = [(hit.created_at, int(hit.cursor.split(":")[1])) for hit in hits]
            assert times == sorted(times, reverse=True)
        assert store.verify().ok


# -- the port ---------------------------------------------------------------------------------------

ENTRIES = st.builds(
    lambda words, time, role: IndexEntry(time, role, role, words, words.encode()),
    TEXTS,
    st.integers(-2, 2),
    st.sampled_from([None, "\0", "\ud800", "x"]),
)
SPLICES = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 6), st.integers(0, 3), st.lists(ENTRIES | st.none(), max_size=4)),
    max_size=8,
)
PHRASES = st.lists(
    st.builds(
        Phrase, st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple), st.booleans(), st.booleans()
    ),
    max_size=2,
)


@pytest.mark.hypothesis
@pytest.mark.parametrize("parts", [1, 500])
@pytest.mark.parametrize(("place", "few"), [(in_a_file, 0), (in_a_file, 5000), (in_postgres, None)])
@fewer(2)
@given(splices=SPLICES, sought=st.lists(PHRASES, min_size=1, max_size=6))
def test_databases_search_like_memory(place, few, parts, splices, sought):
    with (
        mock.patch.multiple(sqlite_search, FEW=few, PARTS=parts),
        mock.patch.object(search, "PARTS", parts),
        place() as opener,
        opener() as store,
    ):
        memory, database = MemoryBackend(), store._backend
        backends = (memory, database)
        for backend in backends:
            for name in ("a", "b"):
                made = backtrail.backends.port.NewThread("thread", name, name.encode() * 8, name, 1, None)
                backend.commit(Batch(threads=(made,)))
        for thread, at, removed, entries in splices:
            was = memory.indexed(thread)
            start = min(at, was.items)
            cut = min(removed, was.items - start)
            now = IndexState(was.seq + 1, was.items + len(entries) - cut, was.as_of)
            splice = Splice(start, cut, tuple(entries))
            assert [backend.index(thread, was, now, [splice]) for backend in backends] == [True, True]
            assert [backend.index(thread, IndexState(9, 9, 9), now, [splice]) for backend in backends] == [False, False]
            assert memory.indexed(thread) == database.indexed(thread)
        for where in ({}, {"agent": "a"}, {"threads": [2]}, {"space": "run"}, {"after": (1, 4)}, {"limit": 2}):
            options = {"space": None, "agent": None, "threads": None, "after": None, "limit": 100} | where
            assert memory.find((), **options) == database.find((), **options)
        options = {"space": None, "agent": None, "threads": None, "after": None, "limit": 100}
        for phrases in sought:
            needed, there = memory.find(phrases, **options), database.find(phrases, **options)
            assert [found for found in there if found in needed] == needed
        memory.clear_index()
        database.clear_index()
        assert memory.find((), **options) == database.find((), **options) == []


def test_few_entries_match_by_words_alone(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"messages": [f"word{n} fox hen" for n in range(300)]})
        store.search("x")
        find = partial(store._backend.find, space=None, agent=None, threads=None, after=None, limit=1000)
        for phrase, count in [
            (Phrase(("word7",)), 1),
            (Phrase(("word7", "fox")), 1),
            (Phrase(("word7", "hen")), 0),
            (Phrase(("word7",), open_right=True), 11),
            (Phrase(("ord77",), open_left=True, open_right=True), 1),
            (Phrase(("rd77", "fox", "he"), open_left=True, open_right=True), 1),
            (Phrase(("nowhere",), open_left=True), 0),
        ]:
            assert len(find([phrase])) == count, phrase


# -- processes --------------------------------------------------------------------------------------


def append_and_search(path, schema, name, count):
    with backtrail.open(path, schema=schema, durability="relaxed") as store:
        thread = store.thread("shared" if name % 2 else f"own{name}")
        for n in range(count):
            thread.update(lambda state: state or {"messages": []}) if thread.latest() is None else None
            thread.append("messages", {"content": f"fox by{name} no{n}", "id": f"{name}.{n}"})
            found = [hit.message_id for hit in store.search(f"fox by{name}", limit=1000)]
            assert sorted(found) == sorted(f"{name}.{k}" for k in range(n + 1)), (name, n, found)


def search_and_be_killed(path, at):
    """Update the index, and be killed in a transaction after this many entries."""
    insert, written = sqlite_search._insert, []

    def killing(*arguments):
        insert(*arguments)
        written.append(arguments)
        if len(written) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(sqlite_search, "_insert", killing), backtrail.open(path, durability="relaxed") as store:
        store.search("fox")


@pytest.mark.parametrize("place", [in_a_file, in_postgres])
def test_concurrent_processes_see_each_message_once(place):
    with place() as opener:
        where = (opener.args[0], opener.keywords.get("schema"))
        with opener() as store:
            store.thread("shared").save({"messages": []})
        workers = [spawn.Process(target=append_and_search, args=(*where, name, 25)) for name in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(120)
        assert [worker.exitcode for worker in workers] == [0] * 4
        with opener() as store:
            hits = store.search("fox", limit=1000)
            assert len({hit.message_id for hit in hits}) == len(hits) == 100
            assert store.verify().ok


def test_killed_catch_up_is_repeated(tmp_path):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("t").save({"messages": [f"fox no{n}" for n in range(1500)]})
        store.thread("u").save({"messages": [f"fox no{n}" for n in range(1500, 1600)]})
    done = 0
    for at in (1, 100, 300, 700):
        worker = spawn.Process(target=search_and_be_killed, args=(path, at))
        worker.start()
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
        done += at // indexer._SLICE * indexer._SLICE
        assert indexed(path) == done
    with backtrail.open(path) as store:
        hits = store.search("fox", limit=10_000)
        assert sorted(int(hit.snippet.removeprefix("fox no")) for hit in hits) == list(range(1600))
        assert store.verify().ok


def indexed(path):
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)
    found = connection.execute("SELECT count(*) FROM message").get
    connection.close()
    return found


# -- the file ---------------------------------------------------------------------------------------


def traces(directory, canary):
    """How often a word occurs in the files."""
    return sum(path.read_bytes().count(canary.encode()) for path in directory.iterdir())


def words_held(store, word):
    """In how many tables of FTS5 the index still has a word."""
    with store._backend._shared.use() as connection:
        known = connection.execute("SELECT count(*) FROM vocabulary WHERE word = ?", (word.encode(),)).get
        kept = connection.execute("SELECT count(*) FROM word_data WHERE instr(block, ?)", (word.encode(),)).get
    return known, kept


def test_gc_removes_deleted_messages_from_the_index(tmp_path):
    with backtrail.open(tmp_path / "s.db", compression=False) as store:
        kept = store.thread("kept")
        kept.save({"messages": [f"plain word{n}" for n in range(600)]})
        thread = store.thread("t")
        thread.save({"messages": [{"content": "my secretcanary is", "id": "secretcanary2", "role": "secretcanary3"}]})
        kept.append("messages", "rewoundcanary")
        assert len(store.search("canary", contains=True)) == 2
        thread.delete()
        kept.rewind("@-")
        assert store.search("canary", contains=True) == []
        assert words_held(store, "rewoundcanary") == (1, 1)
        store.gc()
        assert traces(tmp_path, "secretcanary") == 0
        assert words_held(store, "rewoundcanary") == (0, 0)
        assert len(store.search("plain", limit=1000)) == 600
        assert len(store.search("word59", contains=True)) == 11
        assert store.verify().ok
        with store._backend._shared.use() as connection:
            connection.execute("INSERT INTO word (word) VALUES ('integrity-check')")


def test_a_search_in_a_read_only_store_names_the_way_out(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"messages": ["fox"]})
        store.conversations.append("c", backtrail.Message.user("fox"), agent_id="a")
    with backtrail.open(tmp_path / "s.db", read_only=True) as reader:
        with pytest.raises(backtrail.Unavailable, match="pass wait=False, or open the store for writing") as caught:
            reader.search("fox")
        assert caught.value.code == "unavailable.read_only"
        assert reader.search("fox", wait=False).behind == 2
        with pytest.raises(backtrail.Unavailable, match=r'store\.search\(query, kind="conversation", wait=False\)'):
            reader.conversations.search("fox")


def test_converted_stores_are_searchable(tmp_path):
    with mock.patch.object(sqlite_schema, "STEPS", sqlite_schema.STEPS[:2]), backtrail.open(tmp_path / "s.db") as old:
        old.thread("t").save({"messages": ["fox"]})
        old.thread("u").save({"n": 1})
    with backtrail.open(tmp_path / "s.db", read_only=True) as reader:
        with pytest.raises(backtrail.Unavailable) as caught:
            reader.search("fox")
        assert caught.value.code == "unavailable.read_only"
        assert "older format" in str(caught.value)
        assert reader.verify().ok
        assert reader.stats().indexed == 0
    with backtrail.open(tmp_path / "s.db") as store:
        assert store._backend.unindexed(0, 10) == [1, 2]
        assert len(store.search("fox")) == 1
        assert store._backend.unindexed(0, 10) == []


def test_every_new_row_marks_its_thread(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"messages": ["fox"]})
        store.search("fox")
        old = apsw.Connection(str(tmp_path / "s.db"))  # a version that knows no search, and has the file open
        columns = ", ".join(f'"{name}"' for _, name, *_ in old.execute("PRAGMA table_info(row)") if name != "key")
        old.execute(f"INSERT INTO row (key, {columns}) SELECT key + 1, {columns} FROM row")
        old.close()
        assert store._backend.unindexed(0, 10) == [1]


def test_error_of_a_damaged_index_names_reindex(tmp_path):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("t").save({"messages": [f"fox no{n}" for n in range(2000)]})
        store.search("fox")
        store.gc()
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE word_data SET block = zeroblob(length(block)) WHERE id > 10")
    connection.close()
    with backtrail.open(path) as store:
        with pytest.raises(backtrail.Corrupt) as caught:
            store.search("no77")
        assert caught.value.code == "corrupt.index"
        assert not store.verify().damaged
        store.reindex()
        assert len(store.search("no77")) == 1
        with store._backend._shared.use() as connection:
            connection.execute("UPDATE message SET text = x'01' WHERE position = 77")
        with pytest.raises(backtrail.Corrupt) as caught:
            store.search("no77")
        assert caught.value.code == "corrupt.index"
        assert store.verify().misindexed == ("t",)
        store.reindex()
        assert len(store.search("no77")) == 1


def test_repacked_rows_are_not_indexed_again(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for n in range(150):
            thread.append("messages", f"fox {n} {random.Random(n).randbytes(300).hex()}")
        store.search("fox")
        assert store.gc().repacked > 0
        assert store._backend.unindexed(0, 10) == []
        thread.append("messages", "fox")
        store.thread("u").save(1)
        assert store.gc().repacked == 0
        assert store._backend.unindexed(0, 10) == [2]


def test_thread_with_a_damaged_chunk_is_skipped(tmp_path):
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"messages": [f"fox {n} " + "x" * 100 for n in range(2000)]})
        store.thread("u").save({"messages": ["fox"]})
        store.search("hen")
        store.thread("t").append("messages", "fox")
    connection = apsw.Connection(str(tmp_path / "s.db"))
    connection.execute("DELETE FROM message; DELETE FROM indexed; INSERT OR IGNORE INTO mark VALUES (1), (2)")
    (leaf,) = next(connection.execute("SELECT max(id) FROM chunk WHERE length(payload) > 500"))
    connection.execute("DELETE FROM chunk WHERE id = ?", (leaf,))
    connection.close()
    with backtrail.open(tmp_path / "s.db") as store:
        for _ in range(2):
            assert [hit.conversation_id for hit in store.search("fox")] == ["u"]
        assert store._backend.unindexed(0, 10) == [1]
        assert {damage.thread_id for damage in store.verify().damaged} == {"t"}


# -- words ------------------------------------------------------------------------------------------

SOME_TEXT = st.text(st.characters(), max_size=40) | st.text("aÉß字が ท🙂'\u0301\u200d\ud800\0\"*", max_size=40)


@given(SOME_TEXT)
def test_words_are_free_of_whatever_could_mean_something(text):
    found = normalize.words(normalize.composed(text))
    assert all(found)
    line = " ".join(found)
    line.encode()
    assert not re.search(r"[\x00-\x1f!-/:-@\[-`{-\x7f]", line)
    assert normalize.words(line) == found


@given(SOME_TEXT, st.integers(0, 40), st.integers(1, 40))
def test_any_text_matches_its_pieces_and_words(text, start, length):
    composed = normalize.composed(text)
    piece = composed[start : start + length]
    if piece:
        sought = query.piece(piece)
        if normalize.composed(piece) == piece and sought.piece:
            assert sought.match(text) is not None
            line = f" {' '.join(normalize.words(composed))} "
            assert all(phrase.sought in line for phrase in sought.phrases)
    words = normalize.words(composed)
    if words:
        assert query.words(" ".join(words)).match(text) is not None
        assert query.words(f'"{" ".join(words)}"').match(text) is not None


@given(SOME_TEXT)
def test_positions_in_folded_text_map_back(text):
    composed = normalize.composed(text)
    for number, word in enumerate(normalize.words(composed)):
        at = normalize.word_at(composed, number)
        assert word[0] in normalize.folded(composed[at])
    folded = normalize.folded(composed)
    for place, char in enumerate(folded):
        assert char in normalize.folded(composed[normalize.char_at(composed, place)])


# -- async ------------------------------------------------------------------------------------------


def test_the_mirror_searches_beside_writes(tmp_path):
    async def work():
        async with aio.open(tmp_path / "s.db") as store:
            threads = [store.thread(f"t{n}", agent="a") for n in range(20)]
            await asyncio.gather(*[thread.save({"messages": ["fox"]}) for thread in threads])

            async def append_and_look(thread):
                await thread.append("messages", f"a hen of {thread.id}")
                return [hit.conversation_id for hit in await store.search(f'"hen of {thread.id}"', agent="a")]

            assert await asyncio.gather(*map(append_and_look, threads)) == [[thread.id] for thread in threads]
            page = await store.search("fox", limit=15)
            assert len(await store.search("fox", limit=15, after=page[-1])) == 5
            told = []
            await store.reindex(progress=lambda what, count: told.append((what, count)))
            assert told == [("index", 20)]
            assert len(await store.search("HEN OF", contains=True, order="score", limit=100)) == 20
            async with store.transaction():
                with pytest.raises(backtrail.Unavailable):
                    await store.search("fox")

    asyncio.run(work())
