"""Forged files: their checksums are right, and their content is not. An import takes over nothing of them.

Each field of a file is forged here in turn.
"""

import os
import tracemalloc
from contextlib import ExitStack, closing

import apsw
import ormsgpack
import pytest
from blake3 import blake3

import backtrail
from backtrail import Corrupt, checkpoint
from backtrail.archive import format as layout
from backtrail.archive.format import ArchiveWriter, KnownThread
from backtrail.archive.reader import Archive
from backtrail.engine import log
from backtrail.engine.compression import squeeze, unsqueeze
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import chunked as spine
from backtrail.engine.tree import msgpack
from backtrail.engine.tree import nodes as nodes_of
from backtrail.engine.tree.encode import Encoder
from backtrail.engine.tree.nodes import Cache, Nodes
from tests.support.effort import at_most
from tests.support.sample_store import everything
from tests.support.servers import place

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
    """Export a store with changed rows, threads or known threads, and correct checksums."""
    original = path.with_name(f"original {os.urandom(4).hex()}")
    store.export(original)
    with Archive(original) as found, path.open("xb") as file:
        writer = ArchiveWriter(file, found.header, None)
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
            knows[changed.uid] = KnownThread(changed.newest, changed.newest_op, changed.marks(), 0)
        for digest in found.digests():
            writer.chunk(found.chunks([digest])[digest][1:])
        writer.end(known(knows), found.digests())
    original.unlink()
    return path


def test_unchanged_file_is_imported(memory, tmp_path):
    memory.thread("t").save({"text": "line\n" * 2000}, label="l", tags=["t"])
    memory.thread("t").set("n", 1)
    memory.thread("t").rewind(1)
    with backtrail.open("memory://") as other:
        other.import_(remade(memory, tmp_path / "1"))
        assert everything(other) == everything(memory)


# -- gaps -------------------------------------------------------------------------------------------


MANY = 500_000
"""Calls: far fewer than there are seqs in the gaps, or items in the bombs, of these files."""


@pytest.mark.parametrize("kind", KINDS)
def test_large_gaps_between_seqs_cost_nothing(kind, opened, memory, tmp_path):
    for n in range(3):
        memory.thread("t").save({"n": n}, label=f"l{n}")

    def far(row):
        seq = (1, 1_000_000, 2_000_000_000)[row.seq - 1]
        return row._replace(seq=seq, head=seq, base=seq, depth=0, parent=0, undo=0)

    remade(memory, tmp_path / "gaps", row=far)
    store = opened(kind)
    before = store.stats().stored_bytes
    with at_most(MANY):
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
    if kind != "postgres":
        assert store.stats().stored_bytes - before < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_thread_is_imported_with_its_gaps(kind, opened, memory, tmp_path):
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


def test_a_conversation_without_an_agent_is_imported(memory, tmp_path):
    memory.thread("c").save({"messages": []})
    path = remade(memory, tmp_path / "export", entry=thread(space="conversation"))
    with backtrail.open("memory://") as other:
        other.import_(path)
        assert other.conversations.thread("c").load().state == {"messages": []}
        assert other.conversations.thread("c").save({"messages": ["line\n" * 5000]}).step == 2
        assert other.verify().ok
        assert backtrail.copy(other, "memory://").checkpoints == 2


# -- every field ------------------------------------------------------------------------------------


def source(store):
    """Fill a store with a thread of three rows, and more of other kinds."""
    thread = store.thread("t", agent="a")
    thread.save({"n": 1}, label="l", tags=["x"], metadata={"by": "me"})
    thread.set("n", 2)
    thread.rewind("l")
    thread.fork("forked")


def refused(store, path):
    """Import a forged file: it is refused at once, and the store is unchanged."""
    before = everything(store)
    with at_most(MANY), pytest.raises(Corrupt) as caught:
        store.import_(path)
    assert caught.value.code == "corrupt.export"
    assert str(path) in str(caught.value)
    assert everything(store) == before


NOWHERE = ormsgpack.packb(ormsgpack.Ext(msgpack.DATETIME, ormsgpack.packb([2026, 1, 1, 0, 0, 0, 0, 0, "No/Where"])))


def extra(*parts):
    return ormsgpack.packb([*parts])


def first(**fields):
    """Change the first row of each thread."""
    return lambda row: row._replace(**fields) if row.seq == 1 else row


def moved(**fields):
    """Change the rows that move the head."""
    return lambda row: row._replace(**fields) if row.op == log.REWIND else row


ROWS = {
    "an op that there is not": first(op=8),
    "an op below 0": first(op=-1),
    "a move of a kind that there is not": moved(op=99),
    "a kind that there is not": first(kind=4),
    "a kind below 0": first(kind=-1),
    "a step that is too large": first(step=1 << 63),
    "a step below 0": first(step=-5),
    "a size that is too large": first(size=(1 << 64) - 1),
    "a size below 0": first(size=-1),
    "stored bytes below 0": first(stored=-1),
    "stored bytes that are too many": first(stored=1 << 63),
    "a time that there is not": first(created_at=1 << 61),
    "a time before all times": first(created_at=-(1 << 61)),
    "a parent that comes later": first(parent=2),
    "a checkpoint that has another head": first(head=0),
    "an undo of itself": first(undo=1),
    "an undo of what comes later": moved(undo=1 << 40),
    "a redo of a checkpoint": first(redo=1),
    "a redo of itself": moved(redo=3),
    "a view of itself": first(view=1),
    "a view that comes later": first(view=99),
    "a view that is none": lambda row: row._replace(view=1) if row.seq == 2 else row,
    "a move without a view": moved(view=0),
    "no base": first(base=0),
    "a base that comes later": first(base=77),
    "a depth below 0": first(depth=-3),
    "a depth that is too large": first(depth=1 << 62),
    "a label that is too long": first(label="x" * 513),
    "a label that is empty": first(label=""),
    "a label that is a ref": first(label="@"),
    "a label of a move": moved(label="l"),
    "no root": first(root=b""),
    "a root of a move": moved(root=bytes(32)),
    "no op_id": first(op_id=b""),
    "an op_id that is too long": first(op_id=bytes(1000)),
    "a head that is no checkpoint": moved(head=3),
    "a head below 0": moved(head=-1),
    "a head that is not in view": moved(head=2),
    "an extra that is none": first(extra=b"\xc1"),
    "no extra": first(extra=b""),
    "metadata that is none": first(extra=extra(b"\xc1", None, None)),
    "metadata that is a list": first(extra=extra(b"\x90", None, None)),
    "metadata with numbers for names": first(extra=extra(b"\x81\x01\x01", None, None)),
    "metadata that is a list with a zone that is not known": first(extra=extra(b"\x91" + NOWHERE, None, None)),
    "metadata with a zone that is not known, and no end": first(extra=extra(b"\x82\xa1t" + NOWHERE, None, None)),
    "an origin of what is no fork": first(extra=extra(b"", None, "0" * 24)),
    "ranges of a checkpoint": first(extra=extra(b"", [[1, 1]], None)),
    "ranges that end nowhere": moved(extra=extra(b"", [[1, 1 << 32]], None)),
    "ranges that are none": moved(extra=extra(b"", [["a", None]], None)),
    "no ranges": moved(extra=extra(b"", None, None)),
    "a payload of nothing": first(payload=b"\0"),
}


def thread(**fields):
    return lambda entry: entry._replace(thread=entry.thread._replace(**fields))


ENTRIES = {
    "two threads of one name": thread(name="same"),
    "a name that is too long": thread(name="x" * 513),
    "an agent without a name": thread(agent=""),
    "an agent whose name is too long": thread(agent="x" * 513),
    "an agent of another name": thread(space="agent"),
    "checkpoints of an agent that belong to one": thread(space="checkpoint"),
    "checkpoints of an agent that are none": thread(space="checkpoint", agent=None, name="c"),
    "a journal that is none": thread(space="journal"),
    "a name space of its own": thread(space="x"),
    "a time that there is not": thread(created_at=1 << 61),
    "a time before all times": thread(created_at=-(1 << 61)),
    "an origin that is none": thread(origin="zzz"),
    "a uid that is too long": thread(uid=bytes(9)),
    "a tag that is empty": lambda entry: entry._replace(tags={1: ("",)}),
    "a tag that is too long": lambda entry: entry._replace(tags={1: ("x" * 513,)}),
    "a tag twice": lambda entry: entry._replace(tags={1: ("x", "x")}),
    "a tag that is a ref": lambda entry: entry._replace(tags={1: ("@",)}),
    "a pin that is none": lambda entry: entry._replace(tags={1: ("@deadbeef",)}),
    "a tag of what is not there": lambda entry: entry._replace(tags={99: ("x",)}),
    "nothing that is shown": lambda entry: entry._replace(visible=()),
}


@pytest.mark.parametrize("forge", ROWS.values(), ids=ROWS)
def test_a_forged_row_is_refused(forge, memory, tmp_path):
    with backtrail.open("memory://") as store:
        source(store)
        refused(memory, remade(store, tmp_path / "1", row=forge))


@pytest.mark.parametrize("forge", ENTRIES.values(), ids=ENTRIES)
def test_a_forged_thread_is_refused(forge, memory, tmp_path):
    with backtrail.open("memory://") as store:
        source(store)
        refused(memory, remade(store, tmp_path / "1", entry=forge))


KNOWN = {
    "texts": KnownThread("x", 5, None, "y"),
    "numbers below 0": KnownThread(-1, bytes(16), bytes(16), 0),
    "a base that comes later": KnownThread(3, bytes(16), bytes(16), 4),
    "another row": KnownThread(2, bytes(16), bytes(16), 0),
}


@pytest.mark.parametrize("forge", KNOWN.values(), ids=KNOWN)
def test_forged_list_of_known_threads_is_refused(forge, memory, tmp_path):
    source(memory)
    path = remade(memory, tmp_path / "1", known=lambda known: dict.fromkeys(known, forge))
    with backtrail.open("memory://") as other:
        refused(other, path)
    with pytest.raises(Corrupt) as caught:
        memory.export(tmp_path / "2", since=path)
    assert caught.value.code == "corrupt.export"
    assert not (tmp_path / "2").exists()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("forge", ["a step that is too large", "a size that is too large", "a time that there is not"])
def test_numbers_beyond_the_columns_are_refused(kind, forge, opened, memory, tmp_path):
    source(memory)
    refused(opened(kind), remade(memory, tmp_path / "1", row=ROWS[forge]))


# -- states -----------------------------------------------------------------------------------------


def holding(rep):
    """Make the state of each checkpoint this representation."""
    root = blake3(b"V" + rep).digest()

    def change(row):
        return row._replace(root=root, size=len(rep), payload=b"\0" + ormsgpack.packb([rep, []]))

    return change


def repeated(levels, width, *, said=None):
    """A state of a few bytes that repeat: lists of lists of one text; `said`: how large each list says it is."""
    nodes = Nodes(lambda _: {}, Cache(0))
    rep = Encoder(nodes, Types()).rep("x" * 5000)
    for _ in range(levels):
        rep = spine.build(nodes, msgpack.LIST, None, [rep] * width).close(nodes)
        if said is not None:
            rep = nodes_of.encode_ref(*nodes_of.as_ref(rep)._replace(size=said))
    return rep, [[node.kind, node.data] for node in nodes.fresh.values()]


def as_bomb(rep, listed, size=None):
    def change(row):
        payload = b"\0" + ormsgpack.packb([bytes(rep), listed])
        size_ = nodes_of.size_of(rep) if size is None else size
        return row._replace(root=blake3(b"V" + rep).digest(), size=size_, payload=payload)

    return change


REPEATED = {
    "that says so": (repeated(6, 100), None),
    "that says it is small": (repeated(6, 100), 100),
    "of which no list says so": (repeated(6, 100, said=5005), None),
}


@pytest.mark.parametrize(("made", "size"), REPEATED.values(), ids=REPEATED)
def test_a_state_of_few_bytes_that_repeat_is_refused(made, size, memory, tmp_path):
    with backtrail.open("memory://") as store:
        store.thread("t").save([1])
        store.export(tmp_path / "sound")
        path = remade(store, tmp_path / "1", row=as_bomb(*made, size))
        assert path.stat().st_size < 5000
        refused(memory, path)


@pytest.mark.parametrize(("made", "size"), [REPEATED["that says it is small"], REPEATED["of which no list says so"]])
def test_a_stored_bomb_is_not_decoded(made, size, tmp_path):
    """As if another program had written it into a store, with all checksums right."""
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save([1])
        record = store._backend.find_thread("thread", "t")
        row = log.checked(as_bomb(*made, size)(store._backend.rows(record.no, [(1, 1)], payload=True)[0]), record.uid)
    with closing(apsw.Connection(str(tmp_path / "s.db"))) as database:
        database.execute(
            'UPDATE row SET root = ?, size = ?, payload = ?, "check" = ?', (row.root, row.size, row.payload, row.check)
        )
    with backtrail.open(tmp_path / "s.db") as store:
        with at_most(MANY), pytest.raises(Corrupt) as caught:
            store.thread("t").load().state  # noqa: B018
        assert caught.value.code == "corrupt.encoding"


@pytest.mark.parametrize(("made", "size"), REPEATED.values(), ids=REPEATED)
def test_bytes_of_a_checkpoint_that_repeat_are_refused(made, size, memory):
    data = memory.thread("t").save([1]).to_bytes()
    name, uid, fields, tags, _, _ = ormsgpack.unpackb(unsqueeze(data[len(checkpoint._MAGIC) :], limit=1 << 20))
    rep, listed = made
    row = checkpoint._row_from(fields)
    row = row._replace(size=nodes_of.size_of(rep) if size is None else size, root=blake3(b"V" + rep).digest())
    row = log.checked(row, uid)
    forged = checkpoint._MAGIC + squeeze(
        msgpack.pack([name, uid, checkpoint._plain_row(row), tags, bytes(rep), listed])
    )
    assert len(forged) < 5000
    with pytest.raises(Corrupt):
        backtrail.Checkpoint.from_bytes(forged).state  # noqa: B018


def test_a_repetitive_state_is_moved_unchanged(memory, tmp_path):
    state = [["y" * 5000] * 50] * 20
    with backtrail.open("memory://") as store:
        store.thread("t").save(state)
        store.export(tmp_path / "1")
        assert backtrail.Checkpoint.from_bytes(store.thread("t").latest().to_bytes()).state == state
    memory.import_(tmp_path / "1")
    assert memory.thread("t").load().state == state


@pytest.mark.parametrize("levels", [500, 1500, 200_000])
def test_a_state_nested_too_deeply_is_refused(levels, memory, tmp_path):
    with backtrail.open("memory://") as store:
        store.thread("t").save([1])
        refused(memory, remade(store, tmp_path / "1", row=holding(b"\x91" * levels + b"\x01")))


def test_undecodable_states_are_refused_and_deep_ones_are_not(memory, tmp_path):
    with backtrail.open("memory://") as store:
        store.thread("t").save([1])
        for at, rep in enumerate((b"\x92\x01", b"\xc1", b"\xc7\x01\x63\x00")):
            refused(memory, remade(store, tmp_path / f"{at}", row=holding(rep)))
        memory.import_(remade(store, tmp_path / "deep", row=holding(b"\x91" * 200 + b"\x01")))
    assert memory.verify().ok
    assert len(memory.thread("t").load().state) == 1


def test_a_journal_that_is_none_harms_no_other_run(memory):
    with memory.run("good") as run:
        run.message(backtrail.Message.user("hello"))
    backtrail.Thread(memory._engine, "journal", "bad").save({"no": "journal"})
    assert {run.session_id: bool(run.damaged) for run in memory.runs.list()} == {"good": False, "bad": True}
    with pytest.raises(Corrupt):
        memory.runs.load("bad")


# -- bombs ------------------------------------------------------------------------------------------


def bomb(kind, plain):
    """Make a file with one section that says this."""
    data = layout.MAGIC + b"1\n"
    header = ormsgpack.packb([layout.FORMAT, os.urandom(16), 1, None, None])
    for each, content in ((layout.HEADER, header), (kind, plain)):
        stored = squeeze(content)
        head = each + len(stored).to_bytes(8, "big")
        data += head + stored + blake3(head + stored).digest()
    return data


BOMBS = {
    "chunks that are empty lists": (b"C", lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\x90" * n),
    "rows that are empty lists": (b"R", lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\x90" * n),
    "ranges that are empty lists": (b"T", lambda n: b"\x97\xc0\0\0\0\0\xdd" + n.to_bytes(4, "big") + b"\x90" * n),
    "threads that are empty maps": (b"K", lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\x80" * n),
    "lists in lists": (b"T", lambda n: b"\x91" * n),
    "digests that are a list": (b"D", lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\xc0" * n),
    "chunks that are empty": (b"C", lambda n: b"\xdd" + n.to_bytes(4, "big") + b"\xc4\0" * n),
}


@pytest.mark.parametrize(("kind", "plain"), BOMBS.values(), ids=BOMBS)
def test_a_small_file_does_not_take_much_memory(kind, plain, memory, tmp_path):
    count = 4_000_000
    (tmp_path / "bomb").write_bytes(bomb(kind, plain(count)))
    assert (tmp_path / "bomb").stat().st_size < 2000
    tracemalloc.start()
    try:
        refused(memory, tmp_path / "bomb")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * count


def test_a_chunk_or_a_digest_twice_is_refused(memory, tmp_path):
    memory.thread("t").save({"text": "line\n" * 20000})
    chunk = ArchiveWriter.chunk

    def twice(self, plain):
        chunk(self, plain)
        chunk(self, plain)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ArchiveWriter, "chunk", twice)
        memory.export(tmp_path / "1")
    end = ArchiveWriter.end
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ArchiveWriter, "end", lambda self, known, digests: end(self, known, [*digests, *digests]))
        memory.export(tmp_path / "2")
    with backtrail.open("memory://") as other:
        refused(other, tmp_path / "1")
    with pytest.raises(Corrupt):
        memory.export(tmp_path / "3", since=tmp_path / "2")


def test_large_state_is_exported_and_imported(memory, tmp_path):
    memory.thread("t").save({"x" * 5_000_000: 1})
    for n in range(1200):
        memory.thread("many").save({"n": n}, tags=["\U0001f600" * 512])
    memory.export(tmp_path / "1")
    with backtrail.open("memory://") as other:
        other.import_(tmp_path / "1")
        assert everything(other) == everything(memory)
