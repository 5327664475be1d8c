"""Repairs: damage that only some backends can have, and random damage compared with a model.

Memory keeps tags, names and numbers with what they belong to: there is no tag without its row, and no index that could
differ. What files can lose, and nothing else can, are frames.
"""

import itertools
import random
import uuid
from contextlib import closing, nullcontext
from unittest import mock

import apsw
import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import backtrail
from backtrail.backends.file import frames as file_frames
from backtrail.backends.port import Batch, IndexState, ThreadRecord
from backtrail.backends.tables import changes
from backtrail.engine import log
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import msgpack
from backtrail.engine.tree.decode import Unpacker
from backtrail.maintenance import gc, repair, verify
from tests.backends.sqlite.test_backend import raises
from tests.conformance.repair import furnish, loaded
from tests.support.chunks import small_chunks
from tests.support.servers import place, server

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.db"


def sqlite(path):
    return closing(apsw.Connection(str(path)))


def break_index(path, name, change):
    """Change a table while SQLite does not know of one of its indexes, and let it know again."""
    with sqlite(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        ((*entry,),) = connection.execute("SELECT * FROM sqlite_schema WHERE name = ?", (name,))
        connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (name,))
    with sqlite(path) as connection:
        connection.execute(change)
    with sqlite(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", entry)


def unplaced(store, rows):
    """Make an agent with a checkpoint and a conversation of so many rows; return the number of that."""
    store.agents.save(backtrail.AgentState("a", "Ada", "a-model"))
    store.conversations.save(backtrail.Conversation("a", id="c", messages=[backtrail.Message.user("hello")]))
    store.agents.checkpoint("a", "first")
    if rows > 1:
        store.conversations.append("c", backtrail.Message.user("more"))
    if rows > 2:
        store.conversations.delete("c")
    return store._backend.find_thread("conversation", "c").no


def go_on(store):
    """Use an agent whose conversation is lost."""
    assert store.agents.checkpoint("a", "second").conversations == 0
    first = store.agents.checkpoints("a")[-1]
    assert (first.name, first.conversations) == ("first", 0)
    store.agents.restore(first.id)
    store.conversations.save(backtrail.Conversation("a", id="c", messages=[backtrail.Message.user("again")]))
    assert store.agents.checkpoint("a", "third").conversations == 1
    assert [hit.conversation_id for hit in store.search("again")] == ["c"]
    store.gc()
    assert store.verify().ok


class TestSqlite:
    def repaired(self, path, said, *, alike=True):
        with backtrail.open(path) as store:
            before = loaded(store)
            report = store.verify()
            assert any(said in fault for fault in report.faults), report.faults
            assert report.repairs
            made = store.verify(repair=True)
            assert made.repaired
            if alike:  # else what is mended shows that more, or less, is lost
                assert (made.faults, made.repairs) == (report.faults, report.repairs)
            assert store.verify().ok
            return before, loaded(store)

    @pytest.mark.parametrize(
        ("index", "change"),
        [
            ("tag_tag", "INSERT INTO tag (thread, seq, tag) VALUES (1, 2, x'61')"),
            ("message_time", "UPDATE message SET time = time + 1"),
        ],
    )
    def test_a_wrong_sqlite_index_is_rebuilt_without_loss(self, path, index, change):
        with backtrail.open(path) as store:
            furnish(store)
        break_index(path, index, change)
        before, after = self.repaired(path, index)
        assert after == before

    def test_repair_removes_orphans(self, path):
        with backtrail.open(path) as store:
            furnish(store)
        with sqlite(path) as connection:
            connection.execute("INSERT INTO tag (thread, seq, tag) VALUES (1, 99, x'61')")
            connection.execute("UPDATE row SET key = key + (1000 << 32) WHERE key = (1 << 32) + 3")
        before, after = self.repaired(path, "1 tags belong to no checkpoint")
        assert after == before
        with sqlite(path) as connection:
            assert connection.execute("SELECT count(*) FROM row WHERE key >> 32 > 1000").get == 0

    def test_rows_without_a_thread_are_named_and_removed(self, path):
        with backtrail.open(path) as store:
            furnish(store)
        with sqlite(path) as connection:
            connection.execute("DELETE FROM thread WHERE no = 1")
        with backtrail.open(path, read_only=True) as store:
            assert [info.id for info in store.threads()] == ["large"]
        self.repaired(path, "7 rows belong to no thread: a repair removes them for good")
        with sqlite(path) as connection:
            assert connection.execute("SELECT count(*) FROM row WHERE key >> 32 = 1").get == 0

    def test_listing_goes_on_after_a_lost_thread(self, path):
        with backtrail.open(path) as store:
            for name in "abc":
                store.thread(name).save({"n": 1})
        with sqlite(path) as connection:
            connection.execute("DELETE FROM thread WHERE no = 3")
        with backtrail.open(path, read_only=True) as store:
            assert [info.id for info in store.threads(limit=1)] == ["b"]

    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_an_agent_works_on_without_a_misplaced_row(self, path, rows):
        with backtrail.open(path) as store:
            place_lost = unplaced(store, rows)
        with sqlite(path) as connection:
            connection.execute("UPDATE row SET key = key & ~0xffffffff WHERE key = ? << 32 | 1", (place_lost,))
        with backtrail.open(path) as store:
            assert rows < 3 or store.agents.checkpoint("a", "beside it").conversations == 0
        self.repaired(path, "1 rows have no place in their thread", alike=rows > 1)
        with backtrail.open(path) as store:
            go_on(store)

    def test_damaged_words_of_the_search_index_are_rebuilt(self, path):
        with backtrail.open(path) as store:
            furnish(store)
        with sqlite(path) as connection:
            connection.execute("UPDATE word_data SET block = x'0102030405' WHERE id > 10")
        before, after = self.repaired(path, "word")
        assert after == before
        with backtrail.open(path) as store:
            assert [hit.conversation_id for hit in store.search("hello")] == ["c"]

    def test_any_wrong_entry_of_the_search_index_is_rebuilt(self, path):
        with backtrail.open(path, durability="relaxed") as store:
            for name in "ce":
                said = [backtrail.Message.user("hello"), backtrail.Message.user(f"world {name}")]
                store.conversations.save(backtrail.Conversation("a", id=name, messages=said))
            store.search("hello")
            columns = {"message": ("position", "id", "role"), "indexed": ("seq", "items", "as_of")}
            for table, column in ((table, column) for table, names in columns.items() for column in names):
                for change in (f"{column} + (1 << 40)", f"{column} - (1 << 40)", f"{column} + 1"):
                    value = change if column not in ("id", "role") else "x'ff00'"
                    with sqlite(path) as connection:
                        connection.execute(f"UPDATE {table} SET {column} = {value}")
                    assert not store.verify().ok, (table, change)
                    assert store.search("hello")  # it answers
                    store.conversations.append("c", backtrail.Message.user("hello once more"))
                    assert store.search("hello")
                    store.verify(repair=True)
                    assert store.verify().ok, (table, change)
                    assert {hit.conversation_id for hit in store.search("world")} == {"c", "e"}

    def test_damaged_table_pages_are_named_and_not_changed(self, path):
        with backtrail.open(path) as store:
            furnish(store)
            for n in range(60):
                store.thread("many").save({"n": n, "text": random.Random(n).randbytes(800).hex()})
        with sqlite(path) as connection:
            leaves = "SELECT pageno FROM dbstat WHERE name = 'row' AND pagetype = 'leaf'"
            pages = [number for (number,) in connection.execute(leaves)]
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.seek((pages[len(pages) // 2] - 1) * 4096)
            file.write(b"\xff" * 4096)
        before = path.read_bytes()
        with backtrail.open(path) as store:
            report = store.verify()
            assert report.faults
            with pytest.raises(backtrail.Corrupt, match="export the readable threads") as caught:
                store.verify(repair=True)
            assert caught.value.code == "corrupt.store"
        assert path.read_bytes() == before

    def test_threads_on_sound_pages_can_be_exported(self, path, tmp_path):
        self.test_damaged_table_pages_are_named_and_not_changed(path)
        with backtrail.open(path, read_only=True) as store, backtrail.open(tmp_path / "new.db") as new:
            saved = []
            for name in ("t", "large", "many"):
                try:
                    store.export(tmp_path / name, threads=[name])
                except backtrail.Corrupt:
                    continue
                new.import_(tmp_path / name)
                saved.append(name)
            assert saved == ["t", "large"]
            assert new.thread("t").load("here").state == {"n": "other way"}
            assert new.verify().ok


def stop_at(word):
    """A progress callback that stops what calls it when it comes to a certain part."""

    def progress(what, _):
        if what == word:
            raise KeyboardInterrupt

    return progress


class TestPostgres:
    def test_repair_makes_tables_consistent(self):
        with place(durability="relaxed") as opener:
            with opener() as store:
                furnish(store)
                before = loaded(store)
            with closing(psycopg.connect(server().url, autocommit=True)) as connection:
                connection.execute(f"SET search_path = {opener.keywords['schema']}")
                connection.execute("INSERT INTO tag (thread, seq, tag) VALUES (1, 99, 'a')")
                connection.execute("UPDATE thread SET alive = false WHERE no = 1")
                connection.execute("UPDATE thread SET updated_at = 5, second = 0 WHERE no = 2")
            with opener() as store:
                faults = store.verify().faults
                assert "1 tags belong to no checkpoint" in faults
                assert "2 threads do not say which row is their newest" in faults
                assert "thread 't' is missing in listings, or listed although it has no head" in faults
                assert store.verify(repair=True).repaired
                assert store.verify().ok
                assert loaded(store) == before
                assert {info.id for info in store.threads()} == {"t", "large"}

    @pytest.mark.parametrize("rows", [1, 2, 3])
    def test_orphaned_rows_are_named_and_removed(self, rows):
        with place(durability="relaxed") as opener:
            with opener() as store:
                place_lost = unplaced(store, rows)
                store.thread("t").save({"n": 1}, tags=["kept"])
            with closing(psycopg.connect(server().url, autocommit=True)) as connection:
                connection.execute(f"SET search_path = {opener.keywords['schema']}")
                connection.execute("UPDATE row SET seq = 0 WHERE thread = %s AND seq = 1", (place_lost,))
                connection.execute("DELETE FROM thread WHERE name = 't'")
            with opener() as store:
                assert rows < 3 or store.agents.checkpoint("a", "beside it").conversations == 0
                report = store.verify()
                assert "1 rows have no place in their thread: a repair removes them for good" in report.faults
                assert "1 rows belong to no thread: a repair removes them for good" in report.faults
                store.verify(repair=True)
                assert store.verify().ok
                go_on(store)

    def lose(self, opener, change):
        with closing(psycopg.connect(server().url, autocommit=True)) as connection:
            connection.execute(f"SET search_path = {opener.keywords['schema']}")
            connection.execute(change)

    @pytest.mark.parametrize("stopped", [False, True], ids=["at once", "after a stop"])
    @pytest.mark.parametrize("searched", [False, True])
    def test_a_lost_newest_row_is_named_and_not_reused(self, searched, stopped):
        with place(durability="relaxed") as opener, opener() as store:
            made = [store.thread("t").save({"n": n, "messages": HELLO}).id for n in range(3)]
            if searched:
                store.search("hello")
            self.lose(opener, "DELETE FROM row WHERE seq = 3")
            dry = store.verify()
            assert [damage.checkpoint_id for damage in dry.damaged] == [made[2]]
            assert (dry.salvage[0].head_id, dry.salvage[0].head_lost) == (made[1], True)
            if stopped:
                with pytest.raises(KeyboardInterrupt):
                    store.verify(repair=True, progress=stop_at("checkpoints"))
                store.search("hello")  # brings the index up to date
                with raises(backtrail.Corrupt, "corrupt.row"):
                    store.thread("t").save({"n": 3})
            report = store.verify(repair=True)
            assert [damage.checkpoint_id for damage in report.damaged] == [made[2]]
            assert stopped or report.repairs == dry.repairs
            assert store.verify().ok
            thread = store.thread("t")
            assert thread.load().id == made[1]
            assert thread.save({"n": 3}).id not in made
            assert thread.undo().id == made[1]
            store.gc()
            assert store.verify().ok

    def test_an_impossible_newest_seq_is_ignored(self):
        with place(durability="relaxed") as opener, opener() as store:
            made = [store.thread("t").save({"n": n}) for n in range(3)]
            self.lose(opener, "UPDATE thread SET newest = newest + (1 << 21)")
            assert store.verify().damaged == store.verify(repair=True).damaged == ()
            assert store.verify().ok
            assert store.thread("t").load().id == made[2].id
            assert store.thread("t").save({"n": 3}).seq == 4

    def test_a_deleted_thread_stays_deleted_without_its_newest_row(self):
        with place(durability="relaxed") as opener, opener() as store:
            made = [store.thread("t").save({"n": n}).id for n in range(3)]
            store.thread("t").delete()
            self.lose(opener, "DELETE FROM row WHERE seq = 4")
            store.verify(repair=True)
            assert store.verify().ok
            assert store.thread("t").latest() is None
            assert store.thread("t").save({"n": 3}).id not in made


class TestFiles:
    def blinded(self, path):
        with backtrail.open(path.as_uri()) as store:
            furnish(store)
            uid, file = store._backend._storage.generation.uid, path / "log-000000000001"
        data = bytearray(file.read_bytes())
        with file.open("rb") as opened:
            frames = list(file_frames.Window(opened.fileno(), uid).frames_behind(file_frames.FILE_HEADER))
        for frame in frames[2:4]:
            data[frame.at : frame.at + 50] = bytes(50)
        (path / "snapshot").unlink(missing_ok=True)
        file.write_bytes(data)

    def test_store_is_writable_after_lost_frames_are_written_off(self, tmp_path):
        path = tmp_path / "files"
        self.blinded(path)
        with backtrail.open(path.as_uri()) as store:
            before = loaded(store)
            assert before
            with raises(backtrail.Corrupt, "corrupt.store"):
                store.thread("new").save({"n": 1})
            assert store.verify().faults
            report = store.verify(repair=True)
            assert report.faults
            assert store.verify().ok
            assert before.items() <= loaded(store).items()
            made = store.thread("new").save({"n": 1})
            store.gc()
        with backtrail.open(path.as_uri()) as store:
            assert store.verify().ok
            assert before.items() <= loaded(store).items()
            assert store.thread("new").load().id == made.id
            assert len({record.no for record in gc.threads(store._engine.direct.reader)}) > 5

    def test_orphans_of_a_lost_thread_do_not_break_search(self, tmp_path):
        path = tmp_path / "files"
        with backtrail.open(path.as_uri()) as store:
            store.thread("t").save({"messages": HELLO * 3}, tags=["kept"])
            store.thread("gone").save({"n": 1})
            store.thread("gone").delete()
            store.gc()  # all that is left is in a base
            store.thread("t").append("messages", {"role": "user", "content": "hello again"}, tags=["kept"])
            assert store.search("hello")
        (base,) = path.glob("base-*")
        base.write_bytes(base.read_bytes()[:120])
        with backtrail.open(path.as_uri()) as store:
            faults = store.verify().faults
            assert "1 rows belong to no thread: a repair removes them for good" in faults
            assert "1 tags belong to no checkpoint" in faults
            assert any("lists of the index belong to no thread" in fault for fault in faults)
            assert store.search("hello") == []
            made = store.verify(repair=True)
            assert made.faults == faults
            assert store.verify().ok
            store.thread("new").save({"messages": HELLO * 2})
            assert [hit.conversation_id for hit in store.search("hello")] == ["new"] * 2
            assert store.thread("new").find(tag="kept") == []
            assert store.verify().ok

    def test_repair_removes_leftovers_of_an_earlier_repair(self, tmp_path):
        path = tmp_path / "files"
        with backtrail.open(path.as_uri()) as store:
            store.thread("t").save({"messages": HELLO * 3})
            with store._backend._write() as tables:
                tables.do(changes.PutList(99, IndexState(1, 0, 1), ()))
                tables.do(changes.PutThread(ThreadRecord(7, "thread", "bare", bytes(8), "a", 1, None)))
                tables.do(changes.SetTags(1, 99, ("kept",)))
                tables.do(changes.Mark(98, marked=True))
            assert len(store.search("hello")) == 3
        with backtrail.open(path.as_uri()) as store:
            assert len(store.verify().faults) == 4
            assert store.verify(repair=True).repaired
            assert store.verify().ok
            assert len(store.search("hello")) == 3
            assert store.thread("bare").save({"n": 1}).step == 1
            store.reindex()
            assert store.verify().ok

    def test_the_number_of_a_lost_thread_is_not_reused(self, tmp_path):
        with backtrail.open("memory://") as store:
            for name in "abc":
                store.thread(name).save({"n": name})
            tables = store._backend._storage.tables
            for mapping, key in ((tables.threads, 2), (tables.logs, 2), (tables.names, ("thread", "b"))):
                del mapping[key]
            store.thread("d").save({"n": "d"})
            assert [store.thread(name).load().state for name in "acd"] == [{"n": name} for name in "acd"]


# ---- random damage ---------------------------------------------------------------------------------------------------


def harm(store, rng):
    """Damage a random row or chunk in a random way; prefer moves of the head, because there are few."""
    backend = store._backend
    records = list(gc.threads(store._engine.direct.reader))
    record = rng.choice(records)
    rows = backend.rows(record.no, [(1, log.MAX_SEQ)], payload=True)
    row = rng.choice(rows)
    digests = [digest for digest, _ in backend.chunk_page(b"", 1000)]
    way = rng.randrange(7 if digests else 4)
    if way == 6:
        found = [(r, row) for r in records for row in backend.rows(r.no, [(1, log.MAX_SEQ)], payload=True)]
        record, row = rng.choice([(r, row) for r, row in found if row.op not in log.CHECKPOINTS and r.name in "xyzt"])
        backend.rewrite(record.no, [row._replace(redo=row.redo + 1)])
    elif way == 0:
        backend.rewrite(record.no, [row._replace(size=row.size + 1)])
    elif way == 1:
        backend.rewrite(record.no, [row._replace(payload=b"\0" + rng.randbytes(9))])
    elif way == 2:
        backend.rewrite(record.no, [row._replace(view=row.view + 1, head=rng.randrange(9), base=row.base)])
    elif way == 3 and row.op in log.CHECKPOINTS:  # of a move that is gone without a trace, see docs/upkeep.md
        backend.commit(Batch(hide=((record.no, row.seq),)))
        backend.remove_rows(record.no, [row.seq])
    elif way > 3:
        digest = rng.choice(digests)
        backend.remove_chunks([digest], 1 << 40)
        if way == 5:
            backend.commit(Batch(chunks=((digest, b"\0" + rng.randbytes(20)),)))


def script(store, rng):
    """Save, append, move, fork and delete at random, in a few threads."""
    for _ in range(rng.randrange(5, 30)):
        thread = store.thread(rng.choice("xyz"))
        if len(thread) == 0:
            thread.save({"messages": [], "n": 0, "text": "some words that are there " * 9})
        does = rng.randrange(8)
        if does < 3:
            thread.append("messages", *(rng.randbytes(40).hex() for _ in range(rng.randrange(1, 6))))
        elif does == 3:
            thread.save({"messages": [rng.random()], "n": rng.random()})
        elif does == 4:
            thread.rewind(rng.choice([c.id for c in thread.history()]))
        elif does == 5 and len(thread) > 1:
            thread.prune(keep_last=2)
        elif does == 6:
            thread.delete_checkpoint(rng.choice([c.id for c in thread.history()]))
        elif rng.random() < 0.3:
            store.gc()


def check(seed):
    rng = random.Random(seed)
    small = small_chunks() if rng.random() < 0.5 else nullcontext()  # in large ones, states are changes of others
    with small, backtrail.open("memory://") as store:
        furnish(store)
        script(store, rng)
        shown = {name: [c.id for c in store.thread(name).history()] for name in "xyz"}
        for _ in range(rng.randrange(1, 4)):
            harm(store, rng)
        before = loaded(store)
        report = store.verify(repair=True)
        again = store.verify()
        assert again.ok, (report, again)
        now = loaded(store)
        for key, state in before.items():
            if key[0] != "checkpoint":
                assert now[key] == state
        for name, ids in shown.items():  # if the head is the same, so is what is in view, without what is lost
            listed = [c.id for c in store.thread(name).history()]
            if ids[-1:] == listed[-1:] and not any(
                f"thread {name!r}: a rewind or undo is lost" in s for s in report.repairs
            ):
                assert listed == [i for i in ids if i in listed or store.checkpoint(i)], report.repairs
        store.gc()
        assert store.verify().ok
        assert before.keys() - {k for k in before if k[0] == "checkpoint"} <= loaded(store).keys()
        for name in "xyz":
            saved = store.thread(name).save({"messages": [1], "n": 1})
            assert store.thread(name).load().id == saved.id


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32))
@example(37)  # a move is damaged, and what it went to
@example(132)  # a move is damaged, and the first checkpoint behind it is hidden
def test_random_repair_keeps_everything_that_loaded(seed):
    check(seed)


@pytest.mark.torture
@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 1 << 32))
def test_many_random_repairs_keep_everything_that_loaded(seed):
    check(seed)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (repair._ThreadRepair, "_make_bases"),
        (repair, "_unpin"),
        (verify._ThreadScan, "_check_head"),
        (repair._AgentRepair, "_write_off"),
    ],
)
def test_random_damage_test_finds_an_incomplete_repair(module, name):
    """Seeded faults: without one of its parts, some damage is not found, or not repaired."""
    with mock.patch.object(module, name, return_value=None), pytest.raises((AssertionError, backtrail.Error)):
        for seed in range(60):
            check(seed)


class TestInterrupts:
    """Ctrl-C just when a hook of the decoder is called: ormsgpack tells only that it failed."""

    @staticmethod
    def interrupted(at, call):
        """Do something, with Ctrl-C at the call of a hook with this number; tell whether it came so far."""
        real, calls = Unpacker._ext, itertools.count(1)

        def ext(self, code, payload):
            if next(calls) == at:
                raise KeyboardInterrupt
            return real(self, code, payload)

        with mock.patch.object(Unpacker, "_ext", ext):
            try:
                call()
            except KeyboardInterrupt:
                return True
        assert next(calls) <= at
        return False

    @pytest.mark.parametrize("what", ["load", "repair", "diff"])
    def test_verify_reports_no_sound_data(self, what):
        for at in itertools.count(1):
            with backtrail.open("memory://") as store:
                thread = store.thread("t")
                for n in range(3):
                    thread.save({"n": n, "l": [(n, uuid.UUID(int=n), {"deeper": (n,)})]}, metadata={"m": (n,)})
                thread.save({"n": (3, (4,))})
                states = [checkpoint.state for checkpoint in thread.history()]
                calls = {
                    "load": lambda: [store.thread("t").load(step).state for step in range(1, 5)],
                    "repair": lambda: store.verify(repair=True),
                    "diff": lambda: store.thread("t").diff(1, 2),
                }
                came = self.interrupted(at, calls[what])
                assert [checkpoint.state for checkpoint in store.thread("t").history()] == states
                assert store.verify().ok
            if not came:
                break
        assert at > 2

    def test_damaged_data_is_corrupt_in_any_case(self):
        for data in (b"\xd4\x07", b"\xd4\x0a\x01", b"\xd4\x63\x01", b"\xd4\x02\x91"):
            with pytest.raises(backtrail.Corrupt):
                Unpacker(Types())(data)

    def test_references_are_looked_for_and_nothing_is_damaged(self):
        def interrupt(*_, **__):
            raise ValueError("ext_hook failed")

        with mock.patch.object(msgpack, "unpackb", interrupt):
            for call in (msgpack.refs_in, msgpack.split_ext):
                with pytest.raises(KeyboardInterrupt):
                    call(b"\xd4\x07\x01")
