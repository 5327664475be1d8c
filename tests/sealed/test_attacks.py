"""What somebody who can write to the files of an encrypted store, but has no key, can do: damage, which is found."""

import pytest

import backtrail
from backtrail import Corrupt
from backtrail.backends.port import Batch, NewThread
from backtrail.engine import log
from backtrail.engine.reader import LogReader
from backtrail.sealed import keyring
from backtrail.sealed.backend import SealedBackend
from backtrail.sealed.cipher import bound_of
from tests.support.sealing import KINDS, sealed_at

LONG = {"messages": [{"role": "user", "content": f"{n} " * 200} for n in range(300)]}


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    with sealed_at(request.param, tmp_path) as opener, opener() as store:
        yield store


def record_of(store, name):
    return store._backend.find_thread("thread", name)


def stored(store, name, seq=1):
    """A row as the backend below has it."""
    (row,) = store._backend.below.rows(record_of(store, name).no, [(seq, seq)], payload=True)
    return row


def replace(store, name, row):
    assert store._backend.below.rewrite(record_of(store, name).no, [row]) == 1


def plain(store, name, seq=1):
    (row,) = store._backend.rows(record_of(store, name).no, [(seq, seq)], payload=True)
    return row


def refused(store, name):
    """Reading fails with Corrupt, verify finds it, and other threads are sound."""
    with pytest.raises(Corrupt):
        _ = store.thread(name).load().state
    assert {damage.thread_id for damage in store.verify().damaged} == {name}
    assert store.thread("other").load().state == {"n": 0}


@pytest.fixture(autouse=True)
def _threads(store):
    store.thread("other").save({"n": 0})
    store.thread("a").save({"secret": "of a"})
    store.thread("b").save({"secret": "of b"})


def test_plain_row_in_an_encrypted_store_is_damage(store):
    """As langgraph#8938: a row without encryption must not be read."""
    row = plain(store, "a")
    assert log.is_sound(row, record_of(store, "a").uid)
    replace(store, "a", row)
    refused(store, "a")


def test_plain_payload_in_an_encrypted_store_is_damage(store):
    replace(store, "a", stored(store, "a")._replace(payload=plain(store, "a").payload))
    refused(store, "a")


def test_new_plain_row_is_damage(store):
    record, row = record_of(store, "a"), plain(store, "a")
    forged = log.checked(row._replace(seq=2, parent=1, step=2, head=2, undo=1, base=2, op_id=bytes(16)), record.uid)
    store._backend.below.commit(Batch(rows=((record.no, forged),)))
    refused(store, "a")


def test_row_moved_from_another_thread_is_damage(store):
    """As langgraph#9004: sealed bytes are bound to their place."""
    ours, theirs = stored(store, "a"), stored(store, "b")
    replace(store, "a", theirs._replace(op_id=ours.op_id))
    refused(store, "a")


def test_contents_moved_from_another_thread_are_damage(store):
    ours, theirs = stored(store, "a"), stored(store, "b")
    replace(store, "a", ours._replace(root=theirs.root, payload=theirs.payload))
    refused(store, "a")


def test_payload_moved_within_a_thread_is_damage(store):
    store.thread("a").save({"secret": "second"})
    replace(store, "a", stored(store, "a", 2)._replace(payload=stored(store, "a").payload))
    refused(store, "a")


def test_row_moved_from_another_store_is_damage(store, tmp_path):
    with sealed_at("sqlite", tmp_path / "other") as opener, opener() as other:
        other.import_(exported(store, tmp_path))  # the same threads with the same uids, other keys
        row = stored(other, "a")
    assert row.op_id == stored(store, "a").op_id
    replace(store, "a", row)
    refused(store, "a")


def exported(store, tmp_path):
    store.export(tmp_path / "export")
    return tmp_path / "export"


@pytest.mark.parametrize(
    "change",
    [
        {"created_at": 1},
        {"label": "forged"},
        {"step": 7},
        {"size": 1 << 20},
        {"kind": 1},
        {"extra": b"x"},
        {"op": log.FORK},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_plain_column_is_damage(store, change):
    replace(store, "a", stored(store, "a")._replace(**change))
    with pytest.raises(Corrupt):
        store.thread("a").load()
    assert [damage.thread_id for damage in store.verify().damaged] == ["a"]


@pytest.mark.parametrize("field", ["root", "payload"])
@pytest.mark.parametrize("cut", [1, 8, 16, -1])
def test_truncated_bytes_are_damage(store, field, cut):
    row = stored(store, "a")
    replace(store, "a", row._replace(**{field: getattr(row, field)[:-cut] if cut > 0 else b"\x01"}))
    refused(store, "a")


@pytest.mark.parametrize("field", ["root", "payload"])
def test_every_flipped_bit_of_a_row_is_damage(store, field):
    row = stored(store, "a")
    value = getattr(row, field)
    for at in range(len(value)):
        changed = value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :]
        replace(store, "a", row._replace(**{field: changed}))
        with pytest.raises(Corrupt):
            _ = store.thread("a").load().state
    replace(store, "a", row)
    assert store.verify().ok


def test_older_payload_of_a_rewritten_row_is_damage(store):
    """Maintenance rewrites a row as the same state. The parts of two versions do not fit together."""
    thread = store.thread("a")
    thread.save({"list": ["x" * 40] * 3})
    for n in range(5):
        thread.append("list", n)
    state, seq = thread.load().state, thread.latest().step
    before = stored(store, "a", seq)
    thread.prune(keep_last=1)
    store.gc()  # the row is a base now
    after = stored(store, "a", seq)
    assert (before.base, after.base) == (2, seq)
    del thread  # it has the state in memory
    replace(store, "a", after._replace(payload=before.payload))
    refused(store, "a")
    replace(store, "a", after)
    assert store.thread("a").load().state == state


def test_swapped_chunks_are_damage(store):
    store.thread("long").save(LONG)
    below = store._backend.below
    (first, _), (second, _) = store._backend.chunk_page(b"", 2)
    bodies = below.chunks([first, second])
    below.remove_chunks([first, second], 1 << 40)
    below.commit(Batch(chunks=((first, bodies[second]), (second, bodies[first]))))
    reader = LogReader(store._backend, store._engine.types, store._engine.options)  # its cache is empty
    with pytest.raises(Corrupt):
        _ = reader.nodes().load(store._engine.reader.cache._nodes)
    report = store.verify()
    assert {damage.thread_id for damage in report.damaged} == {"long"}
    assert len(report.chunks) == 2


def test_plain_chunk_is_damage(store):
    store.thread("long").save(LONG)
    cached = dict(store._engine.reader.cache._nodes)
    digest = next(iter(store._backend.present(list(cached))))
    (address,) = store._backend.addresses([digest])
    store._backend.remove_chunks([address], 1 << 40)
    node = cached[digest]
    store._backend.below.commit(Batch(chunks=((address, b"\0" + node.kind + node.data),)))
    assert {damage.thread_id for damage in store.verify().damaged} == {"long"}


def test_repair_of_damaged_rows_keeps_the_rest(store):
    store.thread("a").save({"secret": "second"})
    replace(store, "a", stored(store, "a", 2)._replace(payload=b"\x01\x01" + bytes(40)))
    assert store.verify(repair=True).repaired
    assert store.thread("a").load().state == {"secret": "of a"}
    assert store.verify().ok


# -- the table of threads ---------------------------------------------------------------------------------


def exchange_names(store, one, other):
    """Let the backend below have the names of two threads exchanged."""
    below = store._backend.below
    names = {one: other, other: one}

    def renamed(record):
        return record and record._replace(name=names.get(record.name, record.name))

    find, thread, with_uid, listed = below.find_thread, below.thread, below.thread_with_uid, below.threads
    below.find_thread = lambda space, name: renamed(find(space, names.get(name, name)))
    below.thread = lambda no: renamed(thread(no))
    below.thread_with_uid = lambda uid: renamed(with_uid(uid))
    below.threads = lambda **options: [(renamed(record), row) for record, row in listed(**options)]


def warm(store):
    """Read both threads, so that their keys are known."""
    for name in ("a", "b"):
        assert store.thread(name).load()


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_exchanged_names_of_threads_are_damage(store, is_warm):
    if is_warm:
        warm(store)
    exchange_names(store, "a", "b")
    for name in ("a", "b"):
        with pytest.raises(Corrupt):
            store.thread(name).load()
        with pytest.raises(Corrupt):
            store.thread(name).save({"n": 1})
    assert {damage.thread_id for damage in store.verify().damaged} == {"a", "b"}
    assert {info.id for info in store.threads() if info.damaged} == {"a", "b"}
    assert store.thread("other").load().state == {"n": 0}


@pytest.mark.parametrize(
    "change",
    [{"agent": "thief"}, {"created_at": 1}, {"origin": "0" * 24}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_changed_record_of_a_thread_is_damage(store, change, is_warm):
    if is_warm:
        warm(store)
    record = record_of(store, "a")
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])._replace(**change)),)))
    refused(store, "a")
    with pytest.raises(Corrupt):
        store.scoped(agent="thief").thread("a").load() if "agent" in change else store.thread("a").load()
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])),)))
    assert store.thread("a").load().state == {"secret": "of a"}
    assert store.verify().ok


def test_changed_record_gives_nothing_to_its_new_agent(store):
    thread = store.thread("long", agent="owner")
    first = thread.save({"messages": [{"role": "user", "content": "treasure"}]})
    for n in range(12):
        thread.append("messages", {"role": "user", "content": f"treasure {n}"})
    store.index()
    record = record_of(store, "long")
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])._replace(agent="thief")),)))
    thief = store.scoped(agent="thief")
    assert [*thief.search("treasure"), *thief.search("treasure", wait=False)] == []
    with pytest.raises(Corrupt):
        thief.thread("long").load(first.id)
    with pytest.raises(Corrupt):
        thief.checkpoint(first.id)
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])),)))
    assert len(store.search("treasure")) == 13
    assert thread.load(first.id).state["messages"] == [{"role": "user", "content": "treasure"}]


def test_maintenance_does_not_accept_a_changed_record(store, monkeypatch):
    monkeypatch.setattr(keyring, "FRESH", 0.0)
    record = record_of(store, "a")
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])._replace(agent="thief")),)))
    assert record_of(store, "other")  # what was read of the thread is not kept
    store.keys.rotate(data=True)
    refused(store, "a")
    store._backend.below.commit(Batch(renew=((record.no, NewThread(*record[1:])),)))
    assert store.thread("a").load().state == {"secret": "of a"}


def test_thread_that_starts_again_under_another_agent_is_sound(store):
    """Two stores have the thread open. One deletes it and starts it again; the other one goes on."""
    other = backtrail.Store(SealedBackend(store._backend.below, store._backend.keyring))
    theirs = other.thread("a")
    assert theirs.load().state == {"secret": "of a"}
    store.thread("a").delete()
    store.thread("a", agent="new").save({"n": 1})
    theirs.load()
    theirs.set("n", 2)
    assert store.thread("a").load().state == {"n": 2}
    assert store.info("a").agent == "new"
    assert store.verify().ok


def test_record_that_another_process_has_replaced_is_not_used(store):
    backend = SealedBackend(store._backend.below, store._backend.keyring)
    record = backend.find_thread("thread", "a")
    assert backend.newest(record.no)
    store.thread("a").delete()
    store.thread("a", agent="new").save({"n": 1})
    assert log.is_sound(backend.newest(record.no), record.uid)
    backend.forget_keys()  # as after a rotation
    assert backend._sealing(record.no).bound == bound_of(backend.below.thread(record.no))
