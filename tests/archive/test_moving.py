"""Exports, imports and copies: between all kinds of stores, with bad files, and killed in the middle."""

import asyncio
import datetime as dt
import errno
import itertools
import os
import random
import shutil
import signal
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import apsw
import ormsgpack
import pytest
from blake3 import blake3

import backtrail
from backtrail import Conflict, Corrupt, Invalid, NotFound, Unavailable, aio, atomic_file
from backtrail.archive import format as layout
from backtrail.archive.reader import Archive
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.port import Batch
from backtrail.engine import log
from backtrail.engine.compression import squeeze, unsqueeze
from backtrail.engine.tree import decode as unpacker
from backtrail.engine.tree import msgpack
from tests.conformance.export_import import _shown as shown
from tests.support.chunks import small_chunks
from tests.support.sample_store import everything, furnish, logs
from tests.support.servers import place

KINDS = ["memory", "sqlite", "file", "postgres"]


@dataclass(frozen=True)
class Point:
    x: int


@pytest.fixture
def opened(tmp_path):
    """Open a new store of a kind."""
    with ExitStack() as stack:

        def opened(kind):
            if kind == "memory":
                return stack.enter_context(backtrail.open("memory://"))
            if kind == "sqlite":
                return stack.enter_context(backtrail.open(tmp_path / f"{os.urandom(4).hex()}.db", durability="relaxed"))
            if kind == "file":
                return stack.enter_context(
                    backtrail.open(f"file://{tmp_path}/{os.urandom(4).hex()}", durability="relaxed")
                )
            return stack.enter_context(stack.enter_context(place())(durability="relaxed"))

        yield opened


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """An export with something of everything, as small as can be."""
    path = tmp_path_factory.mktemp("small") / "export"
    with backtrail.open("memory://") as store:
        small_store(store)
        store.export(path)
    return path


def small_store(store):
    thread = store.thread("a \0", agent="x")
    thread.save({"text": "line\n" * 2000}, label="first", tags=["t"])
    thread.set("n", 1)
    thread.rewind(1)
    store.thread("b").save([1, 2])
    store.thread("b").delete()


# -- between stores ---------------------------------------------------------------------------------


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize(
    "source", ["sqlite", *(pytest.param(kind, marks=pytest.mark.torture) for kind in KINDS if kind != "sqlite")]
)
def test_second_export_has_the_same_roots(source, target, opened, tmp_path):
    there, here = opened(source), opened(target)
    furnish(there)
    there.export(tmp_path / "1")
    here.import_(tmp_path / "1")
    here.export(tmp_path / "2")
    assert logs(here) == logs(there)
    with Archive(tmp_path / "1") as first, Archive(tmp_path / "2") as second:
        assert first.totals == second.totals
        assert first.totals.checkpoints > 50
        assert {entry.uid: entry for entry in first.entries} == {entry.uid: entry for entry in second.entries}
        assert first.known == second.known
        assert sorted(first.digests()) == sorted(second.digests())
        for entry in first.entries:
            assert [*first.rows(entry, 1, log.MAX_SEQ)] == [*second.rows(entry, 1, log.MAX_SEQ)]


@pytest.mark.parametrize(
    "value",
    [{Point(1)}, {Point(1): 1}, {(Point(1),)}, dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Lisbon"))],
    ids=["set", "keys", "tuples", "zone"],
)
@pytest.mark.parametrize("name", ["v", "\ud800"], ids=["plain", "surrogate"])
def test_metadata_need_not_be_understood_to_come(value, name, tmp_path, monkeypatch):
    with backtrail.open("memory://", types=[Point]) as store, backtrail.open("memory://", types=[Point]) as other:
        store.thread("t").save(1, metadata={name: value})
        store.export(tmp_path / "1")
        with monkeypatch.context() as patch:
            patch.setattr(unpacker.zoneinfo, "ZoneInfo", mock.Mock(side_effect=ZoneInfoNotFoundError))
            other.import_(tmp_path / "1")
        assert other.thread("t").load().metadata == {name: value}


def test_stores_may_differ_in_compression(tmp_path):
    with backtrail.open("memory://", compression=False) as store, backtrail.open("memory://") as other:
        furnish(store)
        store.export(tmp_path / "1")
        other.import_(tmp_path / "1")
        assert everything(other) == everything(store)
        assert other.stats().payload_bytes < 0.7 * store.stats().payload_bytes
        other.export(tmp_path / "2")
        assert (tmp_path / "2").stat().st_size < 1.05 * (tmp_path / "1").stat().st_size


def test_a_large_thread_is_exported_in_compressed_sections(tmp_path, memory):
    thread = memory.thread("t")
    thread.save({"messages": []})
    rng = random.Random(1)
    for n in range(700):
        content = " ".join(rng.choices(["one", "two", "three", "four", "five"], k=300))
        thread.append("messages", {"n": n, "content": content})
    report = memory.export(tmp_path / "1")
    with Archive(tmp_path / "1") as found:
        assert len(found._pages[found.entries[0].uid]) > 1
    assert report.bytes < memory.stats().payload_bytes
    with backtrail.open("memory://") as other:
        other.import_(tmp_path / "1")
        assert other.thread("t").load().state == thread.load().state
        assert other.thread("t").load(350).state == thread.load(350).state


@pytest.mark.parametrize("seed", range(10))
def test_a_mirror_fed_by_continuing_exports_is_equal(seed, tmp_path):
    rng = random.Random(seed)
    with ExitStack() as stack:
        source, mirror = (stack.enter_context(backtrail.open("memory://")) for _ in range(2))
        last = None
        for at in range(12):
            for _ in range(rng.randrange(1, 12)):
                change(rng, source)
            path = tmp_path / f"{at}"
            source.export(path, since=last)
            for _ in range(rng.choice([1, 1, 2])):
                mirror.import_(path)
            last = path
            if rng.random() < 0.3:
                mirror.gc()
            assert shown(mirror) == shown(source)
            assert mirror.verify().ok


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.torture) for n in range(4, 60))])
def test_mirrors_follow_while_both_sides_collect(seed, tmp_path):
    rng = random.Random(seed)
    words = [[f"{n} {at}" * rng.randrange(1, 9) for at in range(30)] for n in range(4)]
    few = [*words, {"all": words, "text": " ".join(words[0])}, {"one": {"two": words[1:3]}}, {"l": []}, 1]
    with small_chunks(), ExitStack() as stack:
        source, mirror, lazy = (stack.enter_context(backtrail.open("memory://")) for _ in range(3))
        source.thread("a").save(few[4])
        last = None
        for at in range(15):
            for _ in range(rng.randrange(1, 6)):
                thread = source.thread(rng.choice("abc"))
                if thread.latest() is None or rng.random() < 0.5:
                    thread.save(rng.choice(few))
                else:
                    deed = rng.choice([extend, extend, travel, drop, drop, branch, collect])
                    deed(rng, source, thread)
            path = tmp_path / f"{at}"
            source.export(path, since=last, threads=["a"] if at % 5 == 4 else None)
            for store, often in ((mirror, 0.8), (lazy, 0.2)):
                store.import_(path)
                if at % 5 != 4:
                    assert shown(store) == shown(source)
                if rng.random() < often:
                    store.gc()
                assert store.verify().ok
            last = path


def extend(rng, store, thread):
    state = thread.load().state
    if isinstance(state, list):
        thread.append((), rng.choice(["more", "and more"]))
    elif isinstance(state, dict):
        thread.set(rng.choice(["all", "one"]), rng.choice([["x" * 90] * 5, {"y": ["z" * 70] * 7}, 1]))


def save(rng, store, thread):
    states = [{"text": "x" * 1500, "n": rng.random(), "l": []}, {"l": [*range(9)]}]
    thread.save(rng.choice(states), label=rng.choice([None, "x"]))


def edit(rng, store, thread):
    thread.set(("l",), [rng.random()], tags=rng.choice([(), ("y",)]))


def travel(rng, store, thread):
    try:
        rng.choice([thread.undo, thread.redo])()
    except Invalid:
        thread.rewind(rng.choice([*thread.history()]))


def drop(rng, store, thread):
    if rng.random() < 0.5:
        thread.prune(keep_last=rng.randrange(1, 4))
    else:
        thread.delete_checkpoint(rng.choice([*thread.history()]))


def branch(rng, store, thread):
    fork = store.thread(rng.choice("cde"))
    if fork.latest() is None:
        thread.fork(fork.id, at=rng.choice([*thread.history()]))
    elif rng.random() < 0.3:
        fork.delete()


def collect(rng, store, thread):
    store.gc()


def change(rng, store):
    thread = store.thread(rng.choice("abc"))
    deed = rng.choice([save, edit, edit, travel, travel, drop, drop, branch, collect])
    (save if thread.latest() is None else deed)(rng, store, thread)


# -- bad files --------------------------------------------------------------------------------------


def refused(store, path, *kinds):
    """Import a file that cannot be: an error of one of these kinds, and nothing is written."""
    before = everything(store)
    with pytest.raises(kinds) as caught:
        store.import_(path)
    assert str(path) in str(caught.value)
    assert everything(store) == before
    assert store.stats().chunks == 0
    return caught.value


def test_a_file_that_is_cut_short_anywhere_is_refused(small, memory, tmp_path):
    data = small.read_bytes()
    path = tmp_path / "cut"
    for size in {*range(0, len(data), 7), *range(60), *range(len(data) - 60, len(data))}:
        path.write_bytes(data[:size])
        error = refused(memory, path, Corrupt, Invalid)
        assert error.code == ("corrupt.export" if size else "invalid.export"), size
    path.write_bytes(data)
    memory.import_(path)


def test_a_flipped_bit_anywhere_is_noticed(small, memory, tmp_path):
    data = bytearray(small.read_bytes())
    path = tmp_path / "flipped"
    start = len(layout.MAGIC) + 2
    for at in range(len(data)):
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        error = refused(memory, path, Corrupt, Invalid)
        assert error.code == "corrupt.export" or at < start
        data[at] ^= 1 << at % 8
    assert bytes(data) == small.read_bytes()


def test_other_files_are_not_imported(memory, tmp_path):
    path = tmp_path / "some"
    assert refused(memory, tmp_path, Invalid).code == "invalid.export"
    assert refused(memory, path, NotFound).code == "not_found.export"
    assert refused(memory, path / "below", NotFound).code == "not_found.export"
    for data in (b"", b"\0" * 1000, b"backtrail checkpoint 1\n...", b"backtrail export x\n", b"{}" * 100):
        path.write_bytes(data)
        assert refused(memory, path, Invalid).code == "invalid.export"
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save([1])
    assert refused(memory, tmp_path / "s.db", Invalid).code == "invalid.export"
    os.mkfifo(tmp_path / "pipe")
    assert refused(memory, tmp_path / "pipe", Invalid).code == "invalid.export"
    for wrong in ("", "a\0b", None, 7):
        with pytest.raises(Invalid):
            memory.import_(wrong)


def sections(data):
    """Split a file into its sections: (kind, content)."""
    at = len(layout.MAGIC) + 2
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 9], "big")
        stored = data[at + 9 : at + 9 + length]
        yield data[at : at + 1], ormsgpack.unpackb(unsqueeze(stored, limit=1 << 20))
        at += 9 + length + 32


def joined(parts, *, line=b"backtrail export 1\n"):
    """Make a file of sections, with checksums that are right."""
    made = line
    for kind, value in parts:
        stored = squeeze(msgpack.pack([value[0], blake3(made).digest()] if kind == layout.END else value))
        head = kind + len(stored).to_bytes(8, "big")
        made += head + stored + blake3(head + stored).digest()
    return made


def test_rejoined_sections_are_the_same_file(small):
    assert joined(sections(small.read_bytes())) == small.read_bytes()


def test_a_newer_format_is_refused(small, memory, tmp_path):
    path = tmp_path / "newer"
    parts = [*sections(small.read_bytes())]
    path.write_bytes(joined(parts, line=b"backtrail export 3\n"))
    error = refused(memory, path, Invalid)
    assert (error.code, error.details["format"]) == ("invalid.format", 3)
    assert "upgrade" in str(error)
    parts[0][1][0] = layout.FORMAT + 1
    path.write_bytes(joined(parts))
    assert refused(memory, path, Invalid).code == "invalid.format"


def at(parts, kind):
    """Return the places of the sections of a kind."""
    return [where for where, (each, _) in enumerate(parts) if each == kind]


def first(parts, kind):
    """Return the content of the first section of a kind."""
    return parts[at(parts, kind)[0]][1]


def without_a_chunk(parts):
    first(parts, b"C").pop()
    parts[-1][1][0][3] -= 1


def with_a_hidden_head(parts):
    first(parts, b"T")[5] = [[2, 3]]
    parts[-1][1][0][2] -= 1


def with_another_state(parts):
    delta = first(parts, b"R")[1]
    delta[-1] = delta[-1].replace(b"\x01", b"\x02")


# What a file may say although its checksums are right.
FORGERIES = {
    "an unknown section": lambda parts: parts.insert(2, (b"Z", [])),
    "no header": lambda parts: parts.pop(0),
    "two headers": lambda parts: parts.insert(1, parts[0]),
    "a header that is none": lambda parts: parts[0][1].pop(),
    "an id that is none": lambda parts: parts[0][1].__setitem__(1, "id"),
    "a thread twice": lambda parts: parts.__setitem__(at(parts, b"T")[1], parts[at(parts, b"T")[0]]),
    "rows before their thread": lambda parts: parts.insert(1, parts.pop(at(parts, b"R")[0])),
    "no row at the end": lambda parts: first(parts, b"R").pop(),
    "rows in another order": lambda parts: first(parts, b"R").reverse(),
    "a row that was changed": lambda parts: first(parts, b"R")[0].__setitem__(3, 9),
    "a row that is too short": lambda parts: first(parts, b"R")[0].pop(0),
    "another state": with_another_state,
    "a payload that is none": lambda parts: first(parts, b"R")[0].__setitem__(-1, b"\xc1"),
    "a chunk that is missing": without_a_chunk,
    "another chunk": lambda parts: first(parts, b"C").__setitem__(0, b"Tother"),
    "chunks that are numbers": lambda parts: first(parts, b"C").__setitem__(0, 7),
    "a move that was changed": lambda parts: first(parts, b"R")[2].__setitem__(3, 9),
    "a head that is hidden": with_a_hidden_head,
    "a name space of its own": lambda parts: first(parts, b"T")[0].__setitem__(0, "tests"),
    "no name": lambda parts: first(parts, b"T")[0].__setitem__(1, b""),
    "a name that is too long": lambda parts: first(parts, b"T")[0].__setitem__(1, b"x" * 513),
    "ranges that make no sense": lambda parts: first(parts, b"T").__setitem__(5, [[3, 1]]),
    "tags that are numbers": lambda parts: first(parts, b"T").__setitem__(6, [[1, [7]]]),
    "wrong numbers": lambda parts: parts[-1][1][0].__setitem__(1, 99),
    "a thread that is not known": lambda parts: first(parts, b"K").clear(),
    "half a digest": lambda parts: parts.__setitem__(at(parts, b"D")[0], (b"D", b"x" * 31)),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_file_is_refused(forge, small, memory, tmp_path):
    path = tmp_path / "forged"
    parts = [*sections(small.read_bytes())]
    forge(parts)
    path.write_bytes(joined(parts))
    assert path.read_bytes() != small.read_bytes()
    assert refused(memory, path, Corrupt).code == "corrupt.export"


def test_sections_in_another_order_or_twice_are_noticed(small, memory, tmp_path):
    parts = [*sections(small.read_bytes())]
    end = parts.pop()
    starts = [*itertools.accumulate((len(joined([part], line=b"")) for part in parts), initial=len(layout.MAGIC) + 2)]
    data = small.read_bytes()
    cut = [data[low:high] for low, high in itertools.pairwise(starts)]
    chunks = at(parts, b"C")[0]
    path = tmp_path / "moved"
    for where in (*range(1, chunks), *range(chunks + 1, len(cut))):  # chunks may be anywhere, but the others not
        moved = [*cut[:chunks], *cut[chunks + 1 :]]
        moved.insert(where, cut[chunks])
        path.write_bytes(data[: starts[0]] + b"".join(moved) + data[starts[-1] :])
        assert path.stat().st_size == len(data)
        assert refused(memory, path, Corrupt).code == "corrupt.export"
    assert end[0] == layout.END


def test_something_behind_the_end_is_refused(small, memory, tmp_path):
    path = tmp_path / "longer"
    path.write_bytes(small.read_bytes() + small.read_bytes())
    assert refused(memory, path, Corrupt).code == "corrupt.export"


def test_an_export_of_a_diverged_store_cannot_be_continued(memory, tmp_path):
    memory.thread("t").save([1])
    memory.export(tmp_path / "1")
    with backtrail.open("memory://") as other:
        other.import_(tmp_path / "1")
        memory.thread("t").save([2])
        memory.export(tmp_path / "2")
        for _ in range(2):  # it has fewer rows, and then another one in that place
            with pytest.raises(Conflict) as caught:
                other.export(tmp_path / "3", since=tmp_path / "2")
            assert caught.value.code == "conflict.export"
            other.thread("t").save([3])
    assert not (tmp_path / "3").exists()


def second_life(first, tmp_path, *, parts):
    """Export a thread of 6 rows in parts; return a store that continues from a backup at row 3, without row 6."""
    thread, last = first.thread("t"), None
    for n in range(1, 7):
        thread.save({"n": n})
        if n == 3:
            first.export(tmp_path / "backup")
        if n == 6 or (n == 5 and parts == 2):
            first.export(tmp_path / f"{n}", since=last)
            last = tmp_path / f"{n}"
    again = backtrail.open("memory://")
    again.import_(tmp_path / "backup")
    for n in range(4, 10):
        again.thread("t").save({"n": -n})
    again.thread("t").delete_checkpoint(6)
    again.gc()
    return again


def test_an_export_with_foreign_rows_cannot_be_continued(memory, tmp_path):
    with second_life(memory, tmp_path, parts=1) as again, pytest.raises(Conflict) as caught:
        again.export(tmp_path / "7", since=tmp_path / "6")
    assert caught.value.code == "conflict.export"
    assert not (tmp_path / "7").exists()


def test_diverged_logs_are_a_conflict_after_collection(memory, tmp_path):
    with second_life(memory, tmp_path, parts=2) as again, backtrail.open("memory://") as mirror:
        again.export(tmp_path / "7", since=tmp_path / "6")  # that one has nothing but the row that is gone
        mirror.import_(tmp_path / "5")
        mirror.import_(tmp_path / "6")
        before = everything(mirror)
        with pytest.raises(Conflict, match="has diverged") as caught:
            mirror.import_(tmp_path / "7")
        assert caught.value.code == "conflict.import"
        assert everything(mirror) == before


def test_an_export_does_not_continue_one_of_another_store(memory, tmp_path):
    memory.thread("t").save([1])
    memory.export(tmp_path / "1")
    with backtrail.open("memory://") as other:
        other.thread("t").save([1])
        with pytest.raises(Conflict, match="another store") as caught:
            other.export(tmp_path / "2", since=tmp_path / "1")
    assert caught.value.code == "conflict.export"
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_of_collected_threads_can_be_continued(kind, opened, tmp_path):
    store = opened(kind)
    for name in "tu":
        store.thread(name, agent="x").save([1])
    store.export(tmp_path / "1", threads=["t"])
    store.export(tmp_path / "2", agent="x", since=tmp_path / "1")
    for name in "tu":
        store.thread(name).delete()
    store.gc()
    assert store.export(tmp_path / "3", threads=["u"], since=tmp_path / "2").threads == 1
    assert store.export(tmp_path / "4", since=tmp_path / "3").threads == 1


# What a file that continues another one may say of a row before: `near` and `near_op`, then.
NEAR = {
    "behind the beginning": (3, b"x" * 16),
    "of no length": (1, b""),
    "of no row": (0, b"x" * 16),
    "no number": (b"1", b"x" * 16),
}


@pytest.mark.parametrize("near", NEAR.values(), ids=NEAR)
def test_a_forged_row_before_is_refused(near, memory, tmp_path):
    for n in (1, 2):
        memory.thread("t").save([n])
        memory.export(tmp_path / f"{n}", since=tmp_path / "1" if n == 2 else None)
    data = (tmp_path / "2").read_bytes()
    line = b"backtrail export 2\n"
    parts = [*sections(data)]
    assert joined(parts, line=line) == data
    first(parts, b"T")[-2:] = near
    (tmp_path / "3").write_bytes(joined(parts, line=line))
    with backtrail.open("memory://") as other:
        other.import_(tmp_path / "1")
        with pytest.raises(Corrupt) as caught:
            other.import_(tmp_path / "3")
        assert caught.value.code == "corrupt.export"
        other.import_(tmp_path / "2")


def with_agent(store):
    store.agents.save(backtrail.AgentState("a", "Ada", "a-model"))
    store.conversations.save(backtrail.Conversation("a", id="c").add_message(backtrail.Message.user("one")))
    store.agents.checkpoint("a", "first")


def test_agent_checkpoints_without_their_rows_are_refused(memory, tmp_path):
    with_agent(memory)
    memory.export(tmp_path / "1")
    parts = [*sections((tmp_path / "1").read_bytes())]
    gone = next(n for n in at(parts, b"T") if parts[n][1][0][0] == "conversation")
    known = first(parts, b"K")
    known[:] = [each for each in known if each[0] != parts[gone][1][0][2]]
    parts[-1][1][0][:] = [2, 2, 2, 0]
    del parts[gone : gone + 2]
    (tmp_path / "2").write_bytes(joined(parts))
    with backtrail.open("memory://") as other:
        error = refused(other, tmp_path / "2", Corrupt)
        assert error.code == "corrupt.export"
        assert "its conversation 'c' is missing" in str(error)


# -- bad stores -------------------------------------------------------------------------------------


def test_agent_with_lost_rows_is_not_exported(memory, tmp_path):
    with_agent(memory)
    backend = memory._backend
    record = backend.find_thread("conversation", "c")
    memory.conversations.append("c", backtrail.Message.user("two"))
    (holder,) = backend.pins(record.no)[1]
    backend.commit(Batch(hide=((record.no, 1),), unpin=((record.no, 1, holder),)))
    memory.gc()
    with pytest.raises(Corrupt, match="conversation 'c' is damaged: it lacks rows") as caught:
        memory.export(tmp_path / "1")
    assert caught.value.code == "corrupt.row"
    assert not [*tmp_path.iterdir()]
    memory.export(tmp_path / "1", threads=["c"])


def test_a_read_only_store_exports_and_refuses_imports(small, tmp_path):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("t").save([1])
        before = everything(store)
    with backtrail.open(path, read_only=True) as store:
        with pytest.raises(Unavailable) as caught:
            store.import_(small)
        assert caught.value.code == "unavailable.read_only"
        assert everything(store) == before
        store.export(tmp_path / "1")
        store.backup(tmp_path / "2.db")
    with backtrail.open("memory://") as store:
        store.import_(tmp_path / "1")
        assert everything(store) == before


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE row SET payload = zeroblob(length(payload)) WHERE key >> 32 = 2",
        "UPDATE row SET payload = (SELECT payload FROM row WHERE key >> 32 = 1) WHERE key >> 32 = 2",
        "UPDATE row SET step = 7 WHERE key >> 32 = 2",
        "UPDATE chunk SET payload = zeroblob(length(payload))",
        "DELETE FROM chunk",
    ],
)
def test_export_names_a_damaged_checkpoint_and_stops(damage, tmp_path):
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("good").save([1])
        made = store.thread("bad").save({"text": "line\n" * 2000})
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with backtrail.open(path) as store:
        with pytest.raises(Corrupt) as caught:
            store.export(tmp_path / "1")
        assert caught.value.checkpoint_id == made.id
        assert [each.name for each in tmp_path.iterdir() if each.suffix != ".db" and "db-" not in each.name] == []
        store.export(tmp_path / "1", threads=["good"])


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "full"), (errno.EIO, "io"), (errno.EACCES, "open")])
def test_a_failing_disk_raises_and_leaves_nothing(number, code, memory, tmp_path, monkeypatch):
    furnish(memory)
    write = layout.ArchiveWriter._write

    def fail(self, data):
        if self._file.tell() > 100:
            raise OSError(number, os.strerror(number))
        write(self, data)

    monkeypatch.setattr(layout.ArchiveWriter, "_write", fail)
    with pytest.raises(Unavailable) as caught:
        memory.export(tmp_path / "1")
    assert caught.value.code == f"unavailable.{code}"
    assert not [*tmp_path.iterdir()]


def test_a_file_is_synced_before_it_is_renamed(memory, tmp_path, monkeypatch):
    deeds = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(os, "fsync", lambda fd: (deeds.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    monkeypatch.setattr(os, "link", lambda path, to: (deeds.append("link"), link(path, to)))
    memory.export(tmp_path / "1")
    assert deeds[0].endswith(".part")
    assert deeds[1:] == ["link", str(tmp_path)]


def test_new_directories_are_synced_each_in_its_own(memory, tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    memory.export(tmp_path / "new" / "newer" / "1")
    assert synced[:2] == [tmp_path, tmp_path / "new"]
    assert synced[2].suffix == ".part"
    assert synced[3:] == [tmp_path / "new" / "newer"]


@pytest.mark.parametrize("links", [True, False])
def test_file_created_during_an_export_is_not_overwritten(links, memory, tmp_path, monkeypatch):
    def refused(part, path):
        raise PermissionError(errno.EPERM, "there are no links here")

    def meanwhile(*_):
        (tmp_path / "1").write_text("mine")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    memory.thread("t").save([1])
    with pytest.raises(Conflict) as caught:
        memory.export(tmp_path / "1", progress=meanwhile)
    assert caught.value.code == "conflict.exists"
    assert (tmp_path / "1").read_text() == "mine"
    memory.export(tmp_path / "2")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1", "2"]
    with backtrail.open("memory://") as other:
        assert other.import_(tmp_path / "2").created == 1


def test_the_second_export_to_a_path_is_a_conflict(memory, tmp_path, monkeypatch):
    memory.thread("t").save([1])
    monkeypatch.setattr(atomic_file, "_refuse_existing", lambda path: None)  # both look before either is there
    made = memory.export(tmp_path / "1")
    with pytest.raises(Conflict):
        memory.export(tmp_path / "1")
    assert [each.name for each in tmp_path.iterdir()] == ["1"]
    with backtrail.open("memory://") as other:
        assert other.import_(tmp_path / "1").id == made.id


@pytest.mark.parametrize(
    ("url", "modes", "expected"),
    [
        ("s.db", {"s.db": 0o600}, 0o600),
        ("s.db", {"s.db": 0o664}, 0o664),
        ("file:///{}/s", {"s/backtrail.store": 0o600}, 0o600),
        ("file:///{}/s", {"s/backtrail.store": 0o644, "s": 0o750}, 0o640),
        ("memory://", {}, 0o600),
    ],
)
def test_exports_keep_the_access_rights_of_the_store(url, modes, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    write = layout.ArchiveWriter.__init__

    def writing(self, file, *args):
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        write(self, file, *args)

    monkeypatch.setattr(layout.ArchiveWriter, "__init__", writing)
    umask = os.umask(0o022)
    try:
        with backtrail.open(url.format(tmp_path)) as store:
            store.thread("t").save([1])
            for name, mode in modes.items():
                Path(name).chmod(mode)
            store.export("e")
    finally:
        os.umask(umask)
    assert [*seen, stat.S_IMODE(Path("e").stat().st_mode)] == [expected, expected]


def test_the_home_of_an_unknown_user_is_invalid(memory):
    for call in (memory.export, memory.import_, memory.backup):
        with pytest.raises(Invalid) as caught:
            call("~no such user/x")
        assert caught.value.code == "invalid.argument"
    with pytest.raises(Invalid):
        memory.export("x", since="~no such user/x")
    with pytest.raises(Invalid):
        backtrail.open("~no such user/x")


# -- killed in the middle ---------------------------------------------------------------------------


def killed(path, file, at):
    """Import in a process that is killed at its `at`-th write; return whether it was."""
    child = os.fork()
    if child == 0:
        count = itertools.count(1)

        def counted(call, *args, **options):
            if next(count) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        try:
            with backtrail.open(path) as store:
                for name in ("commit", "remove_rows", "rewrite"):
                    setattr(store._backend, name, partial(counted, getattr(store._backend, name)))
                store.import_(file)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_killed_import_is_whole_or_absent(tmp_path):
    with backtrail.open("memory://") as source:
        furnish(source)
        source.export(tmp_path / "1")
        first = everything(source)
        source.thread("trip").prune(keep_last=2)
        source.gc()
        source.thread("trip").append("messages", 1)
        source.thread("new").save([1])
        source.export(tmp_path / "2")
        second = shown(source)
    with backtrail.open(tmp_path / "empty.db"):
        pass
    with backtrail.open(tmp_path / "half.db") as store:
        store.import_(tmp_path / "1")
    for name, file, before in (("empty.db", "1", {}), ("half.db", "2", first)):
        points = 0
        for at in itertools.count(1, 3):
            shutil.copy(tmp_path / name, tmp_path / "s.db")
            if not killed(tmp_path / "s.db", tmp_path / file, at):
                break
            points += 1
            with backtrail.open(tmp_path / "s.db") as store:
                assert everything(store) == before
            for beside in tmp_path.glob("s.db*"):
                beside.unlink()
        assert points > 1
        with backtrail.open(tmp_path / "s.db") as store:
            assert (everything(store) if file == "1" else shown(store)) == (first if file == "1" else second)
            assert store.verify().ok


# -- copies -----------------------------------------------------------------------------------------


def test_a_copy_in_another_backend_is_equal(opened, tmp_path):
    with backtrail.open(tmp_path / "a.db") as store:
        furnish(store)
        wanted = everything(store)
    report = backtrail.copy(tmp_path / "a.db", f"sqlite:///{tmp_path}/b.db")
    assert report.created == report.threads == len(wanted)
    assert report.checkpoints > 50
    other = opened("postgres")
    backtrail.copy(f"sqlite:///{tmp_path}/b.db", other)
    assert everything(other) == wanted
    other.thread("trip").append("messages", 1)
    other.thread("mine").save([1])
    with backtrail.open(tmp_path / "b.db") as store:
        report = backtrail.copy(other, store)
        assert (report.created, report.extended) == (1, 1)
        assert shown(store) == shown(other)
        assert backtrail.copy(other, store).created == 0


def test_a_copy_needs_two_stores(tmp_path, memory):
    with pytest.raises(NotFound):
        backtrail.copy(tmp_path / "none.db", memory)
    assert not (tmp_path / "none.db").exists()
    for wrong in (None, 7):
        with pytest.raises(Invalid):
            backtrail.copy(wrong, memory)
        with pytest.raises(Invalid):
            backtrail.copy(memory, wrong)


@pytest.mark.parametrize("copy", ["sqlite", "file"])
def test_an_unreadable_source_creates_no_copy(tmp_path, memory, copy):
    memory.thread("t").save({"n": 1})
    there = tmp_path / "copied"

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backtrail.copy(memory, f"{copy}:///{there}", progress=stop)
    record = memory._backend.find_thread("thread", "t")
    newest = memory._backend.newest(record.no)
    memory._backend.rewrite(record.no, [newest._replace(created_at=0)])
    with pytest.raises(Corrupt):
        backtrail.copy(memory, f"{copy}:///{there}")
    assert not there.exists()


def test_a_copy_with_another_root_is_corrupt(memory, monkeypatch):
    memory.thread("t").save([1])
    commit = MemoryBackend.commit

    def wrong(self, batch):
        return commit(self, batch._replace(rows=tuple((no, row._replace(root=b"x" * 32)) for no, row in batch.rows)))

    with backtrail.open("memory://") as other:
        monkeypatch.setattr(MemoryBackend, "commit", wrong)
        with pytest.raises(Corrupt) as caught:
            backtrail.copy(memory, other)
    assert caught.value.code == "corrupt.root"


def test_copy_of_a_repaired_store_extends_an_earlier_copy(memory):
    memory.agents.save(backtrail.AgentState("a", "Ada", "a-model"))
    memory.conversations.save(backtrail.Conversation("a", id="c", messages=[backtrail.Message.user("one")]))
    memory.agents.checkpoint("a", "first")
    memory.conversations.append("c", backtrail.Message.user("two"))
    with backtrail.open("memory://") as other:
        backtrail.copy(memory, other)
        backend = memory._backend
        record = backend.find_thread("conversation", "c")
        (row,) = backend.rows(record.no, [(1, 1)], payload=True)
        backend.rewrite(record.no, [row._replace(size=row.size + 1)])
        memory.verify(repair=True)
        (made,) = memory.agents.checkpoints("a")
        assert (made.conversations, memory.verify().ok) == (0, True)
        for _ in range(2):
            backtrail.copy(memory, other)
        (kept,) = other.agents.checkpoints("a")
        assert (kept.id, kept.conversations, other.verify().ok) == (made.id, 1, True)


# -- awaited ----------------------------------------------------------------------------------------


def test_all_of_it_can_be_awaited(tmp_path):
    async def go():
        seen = []
        async with aio.open(tmp_path / "s.db") as store, aio.open("memory://") as other:
            await store.thread("t").save([1])
            made = await store.export(tmp_path / "1", progress=lambda *what: seen.append(what))
            await store.thread("t").save([2])
            again = await store.export(tmp_path / "2", since=made.id, threads=["t"])
            assert (await other.import_(tmp_path / "1")).created == 1
            assert (await other.import_(tmp_path / "2", progress=lambda *what: seen.append(what))).extended == 1
            assert [c.root async for c in other.thread("t").history()] == [
                c.root async for c in store.thread("t").history()
            ]
            assert again.since == made.id
            assert await store.backup(tmp_path / "b.db") > 0
            report = await aio.copy(store, tmp_path / "c.db", progress=lambda *what: seen.append(what))
            assert report.checkpoints == 2
            report = await aio.copy(tmp_path / "c.db", other)
            assert report.checkpoints == 2
        await asyncio.sleep(0)
        assert {"threads", "rows", "bytes"} <= {what for what, _ in seen}

    asyncio.run(go())


# -- golden files: `test_golden.py` has what is in them ----------------------------------------------


def test_golden_continuing_export_is_readable(memory):
    golden = Path(__file__).parents[1] / "golden"
    with pytest.raises(NotFound):
        memory.import_(golden / "export1-since")
    memory.import_(golden / "export1")
    report = memory.import_(golden / "export1-since")
    assert (report.created, report.extended) == (1, 1)
    assert memory.thread("since").load().state == {"text": "line\n" * 3000}
    (since,) = memory.thread("counted").find(tag="since")
    assert since.state == {"n": [*range(79), "since"]}
    assert len(memory.thread("repacked")) == 79  # those with a label, and the last but one
    assert memory.verify().ok


def test_golden_continuing_export_with_near_row_is_readable(memory):
    golden = Path(__file__).parents[1] / "golden"
    memory.import_(golden / "export1")
    with Archive(golden / "export2-since") as found:
        (counted,) = [entry for entry in found.entries if entry.thread.name == "counted"]
        assert 0 < counted.near < counted.start
    report = memory.import_(golden / "export2-since")
    assert (report.created, report.extended) == (1, 1)
    assert memory.thread("counted").load().state["n"][-1] == "later"
    assert memory.verify().ok
