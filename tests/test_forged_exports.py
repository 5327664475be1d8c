"""Files that are made up: their checksums are right, and what they say is not. Nothing of them comes into a store.

What an import takes over is as sound as what a writer makes; so each field of a file is forged here in turn.
"""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import backtrail
from backtrail import Corrupt
from backtrail.engine import log
from backtrail.engine.archive import Known, Writer
from backtrail.engine.archive_reader import Archive
from backtrail.testing.furnishing import everything
from tests.servers import place

KINDS = ["memory", "sqlite", "file", "postgres"]


@pytest.fixture
def opened(tmp_path):
    """Open a new store of a kind."""
    with ExitStack() as stack:

        def opened(kind):
            if kind == "postgres":
                return stack.enter_context(stack.enter_context(place())(durability="relaxed"))
            urls = {"memory": "memory://", "sqlite": tmp_path / "s.db", "file": f"file://{tmp_path}/s"}
            return stack.enter_context(backtrail.open(urls[kind], durability="relaxed"))

        yield opened


@pytest.fixture
def memory():
    with backtrail.open("memory://") as store:
        yield store


def same(value):
    return value


def remade(store, path, *, row=same, entry=same, known=same):
    """Export a store, with rows, threads, and what is known of them, changed; all checksums are right."""
    original = path.with_name(f"original {os.urandom(4).hex()}")
    store.export(original)
    with Archive(original) as found, path.open("xb") as file:
        writer = Writer(file, found.header, None)
        knows = {}
        for each in found.entries:
            changed = entry(each)
            rows = [log.checked(row(one), changed.uid) for one in found.rows(each, 1, log.MAX_SEQ)]
            shown = {one.seq for one in rows if not one.hidden}
            if changed.visible == each.visible:
                changed = changed._replace(visible=tuple((seq, seq) for seq in sorted(shown)))
            changed = changed._replace(newest=rows[-1].seq, newest_op=rows[-1].op_id)
            writer.thread(changed)
            for one in rows:
                writer.row(one, (one.payload or b"\0")[1:])
            knows[changed.uid] = Known(changed.newest, changed.newest_op, changed.marks(), 0)
        for digest in found.digests():
            writer.chunk(found.chunks([digest])[digest][1:])
        writer.end(known(knows), found.digests())
    original.unlink()
    return path


def test_what_is_not_changed_is_imported(memory, tmp_path):
    memory.thread("t").save({"text": "line\n" * 2000}, label="l", tags=["t"])
    memory.thread("t").set("n", 1)
    memory.thread("t").rewind(1)
    with backtrail.open("memory://") as other:
        other.import_(remade(memory, tmp_path / "1"))
        assert everything(other) == everything(memory)


# -- gaps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_kept_busy_by_rows_that_are_not_there(kind, opened, memory, tmp_path):
    for n in range(3):
        memory.thread("t").save({"n": n}, label=f"l{n}")

    def far(row):
        seq = (1, 1_000_000, 2_000_000_000)[row.seq - 1]
        return row._replace(seq=seq, head=seq, base=seq, depth=0, parent=0, undo=0)

    remade(memory, tmp_path / "gaps", row=far)
    store = opened(kind)
    before = store.stats().stored_bytes
    clock = time.process_time()
    assert store.import_(tmp_path / "gaps").rows == 3
    thread = store.thread("t")
    made = [*thread.history()]
    assert [each.label for each in made] == ["l0", "l1", "l2"]
    assert [thread.load(each.id[:digits]) for each in made for digits in (3, 6, 12)] == [
        each for each in made for _ in range(3)
    ]
    assert [thread.save({"n": 4}).seq, thread.undo().seq] == [2_000_000_001, 2_000_000_000]
    store.gc()
    store.export(tmp_path / "again")
    assert store.verify().ok
    assert time.process_time() - clock < 2
    if kind != "postgres":
        assert store.stats().stored_bytes - before < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_of_which_little_is_left_comes_with_its_gaps(kind, opened, memory, tmp_path):
    thread = memory.thread("t")
    for n in range(60):
        thread.save({"n": n}, label=f"l{n}" if n % 7 == 0 else None)
    thread.prune(keep_last=1)
    memory.gc()
    memory.export(tmp_path / "1")
    store = opened(kind)
    store.import_(tmp_path / "1")
    assert everything(store) == everything(memory)
    for n in range(60, 80):
        thread.save({"n": n}, label=f"l{n}" if n % 7 == 0 else None)
    memory.export(tmp_path / "2", since=tmp_path / "1")
    thread.prune(keep_last=1)
    memory.gc()
    memory.export(tmp_path / "3", since=tmp_path / "1")
    store.import_(tmp_path / "3")
    assert [c.label for c in store.thread("t").history()] == [c.label for c in thread.history()]
    assert store.thread("t").save({}).seq == thread.save({}).seq
    assert store.verify().ok
