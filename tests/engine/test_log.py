"""The log: ids, checksums, views, undo and redo; damage names the checkpoints that it affects."""

import contextlib
import random

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import backtrail
from backtrail.backends.port import Row
from backtrail.checkpoint import _MAGIC
from backtrail.engine import log
from backtrail.engine.compression import squeeze, unsqueeze
from backtrail.errors import Corrupt, Error
from backtrail.store import Store
from tests.support.strategies import same, sizes

UID = b"\x01\x02\x03\x04\x05\x06\x07\x08"
uids = st.binary(min_size=8, max_size=8)
seqs = st.one_of(st.integers(1, 300), st.integers(1, log.MAX_SEQ))

# ---- ids ------------------------------------------------------------------------------------------------------------


@given(uids, seqs)
def test_an_id_names_its_thread_and_its_place(uid, seq):
    name = log.checkpoint_id(uid, seq)
    assert len(name) == log.ID_LENGTH
    assert log.parse_id(name) == (uid, seq)


@given(uids)
def test_two_hundred_ids_differ_in_four_digits(uid):
    assert len({log.checkpoint_id(uid, seq)[:4] for seq in range(1, 201)}) == 200


@given(uids, st.lists(seqs, unique=True, min_size=2, max_size=30))
def test_ids_of_one_thread_differ_in_eight_digits(uid, some):
    assert len({log.checkpoint_id(uid, seq)[:8] for seq in some}) == len(some)


@given(st.one_of(st.text(max_size=30), st.text("0123456789abcdefABCDEFx_ ", min_size=24, max_size=24)))
def test_what_is_no_id_is_none(text):
    found = log.parse_id(text)
    if found is not None:
        assert log.checkpoint_id(*found) == text


@pytest.mark.parametrize(
    "text", ["", "0" * 23, "0" * 25, "0" * 23 + "G", "0" * 23 + "A", "0" * 22 + "_1", "٣" * 24, " " * 24]
)
def test_ids_are_twenty_four_small_hexadecimal_digits(text):
    assert log.parse_id(text) is None


# ---- rows -----------------------------------------------------------------------------------------------------------


def a_row(**columns):
    plain = Row(
        seq=5,
        op=log.SAVE,
        parent=4,
        step=3,
        head=5,
        undo=4,
        redo=0,
        view=0,
        base=2,
        depth=3,
        created_at=1_700_000_000_000_000,
        kind=0,
        label="é\ud800",
        size=10,
        stored=20,
        root=b"r" * 32,
        op_id=b"o" * 16,
        extra=log.pack_extra(b"", None, None),
        check=b"",
        payload=b"p",
        hidden=False,
    )
    return log.checked(plain._replace(**columns), UID)


def test_a_row_is_sound_until_a_column_changes():
    row = a_row()
    assert log.is_sound(row, UID)
    assert log.is_sound(row._replace(hidden=True, payload=None), UID)
    assert not log.is_sound(row, UID[::-1])
    for column in Row._fields[:19]:
        value = getattr(row, column)
        others = [value + 1] if type(value) is int else [value + value[:1], value[:-1], None]
        for other in [*others, "x", b"x", 7.5, [], {}, object()]:
            if other != value:
                assert not log.is_sound(row._replace(**{column: other}), UID), (column, other)


def test_row_with_impossible_columns_is_not_sound():
    for column in Row._fields[:18]:
        for other in (None, "x", b"x", 7.5, [], {}, True):
            if type(other) is type(getattr(a_row(), column)) or (column == "label" and other is None):
                continue
            with contextlib.suppress(TypeError, AttributeError):
                assert not log.is_sound(a_row(**{column: other}), UID), (column, other)
    for columns in ({"seq": 0}, {"seq": -1}, {"seq": 2**32}, {"parent": 5}, {"parent": -1}, {"created_at": 2**62}):
        assert not log.is_sound(a_row(**columns), UID)
    for op_id in (b"", b"o" * 15, b"o" * 17):
        assert not log.is_sound(a_row(op_id=op_id), UID)


ranges = st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), max_size=5).map(tuple)


@given(st.binary(max_size=20), st.one_of(st.none(), ranges), st.one_of(st.none(), st.just("ab" * 12)))
def test_what_a_row_carries_comes_back(metadata, moved, origin):
    assert log.unpack_extra(a_row(extra=log.pack_extra(metadata, moved, origin))) == (metadata, moved, origin)


@given(
    st.one_of(
        st.binary(max_size=30),
        st.recursive(
            st.one_of(st.none(), st.integers(0, 9), st.text(max_size=3), st.binary(max_size=3), st.floats()),
            lambda inner: st.lists(inner, max_size=4),
        ).map(ormsgpack.packb),
    )
)
def test_what_a_damaged_row_carries_is_corrupt(extra):
    try:
        metadata, moved, origin = log.unpack_extra(a_row(extra=extra))
    except Corrupt:
        return
    assert type(metadata) is bytes
    assert log.contains(moved or (), 3) in (True, False)
    assert origin is None or type(origin) is str


# ---- views, undo and redo -------------------------------------------------------------------------------------------


class Model:
    """A log, and its model: stacks and parents."""

    def __init__(self):
        self.rows = {}
        self.parents = {}
        self.tips = {}  # by seq: (head, the seqs to undo to, the seqs to redo to)

    def read(self, seq):
        return self.rows.get(seq)

    def nearest(self, seq):
        return self.rows[max(at for at in self.rows if at <= seq)] if any(at <= seq for at in self.rows) else None

    @property
    def newest(self):
        return self.rows[max(self.rows)] if self.rows else None

    def add(self, op, head, undo, redo, stacks):
        newest = self.newest
        seq = newest.seq + 1 if newest else 1
        head = head or seq
        view = seq if op not in log.CHECKPOINTS else log.view_for(newest) if newest else 0
        moved = None if op in log.CHECKPOINTS else log.path_of(self.rows[head], self.read)
        parent = (newest.head if newest else 0) if op in log.CHECKPOINTS else 0
        self.rows[seq] = a_row(
            seq=seq,
            op=op,
            parent=parent,
            head=head,
            undo=undo,
            redo=redo,
            view=view,
            extra=log.pack_extra(b"", moved, None),
        )
        if op in log.CHECKPOINTS:
            self.parents[seq] = parent
        self.tips[seq] = (head, *stacks)

    def save(self):
        last = self.newest.seq if self.rows else 0
        before = (*self.tips[last][1], last) if last else ()
        self.add(log.SAVE, 0, last, 0, (before, ()))

    def rewind(self, to):
        last = self.newest.seq
        self.add(log.REWIND, to, last, 0, ((*self.tips[last][1], last), ()))

    def undo(self):
        last = self.newest
        to = log.undo_target(self.nearest, self.read, head=last.head, start=last.undo)
        if to is not None:
            redo = (*self.tips[last.seq][2], last.seq)
            self.add(log.UNDO, to.head, to.undo, last.seq, (self.tips[to.seq][1], redo))
        return to

    def redo(self):
        last = self.newest
        to = log.redo_target(self.read, head=last.head, start=last.redo)
        if to is not None:
            before = (*self.tips[last.seq][1], last.seq)
            self.add(log.REDO, to.head, last.seq, to.redo, (before, self.tips[to.seq][2]))
        return to

    def hidden(self, seq):
        return seq not in self.rows or self.rows[seq].hidden

    def expected(self, which):
        """The model's head and view after an undo (1) or redo (2)."""
        passed = False
        for seq in reversed(self.tips[self.newest.seq][which]):
            head = self.tips[seq][0]
            if not self.hidden(head) and not (passed and head == self.newest.head):
                return seq
            passed = True
        return None

    def ancestors(self, seq):
        found = []
        while seq:
            found.append(seq)
            seq = self.parents[seq]
        return found


def act(model, action, number):
    """Make one change to a log, and compare it with the model."""
    newest = model.newest
    alive = [seq for seq in model.parents if not model.hidden(seq)]
    chosen = alive[number % len(alive)]
    if action == "save":
        model.save()
    elif action == "rewind":
        model.rewind(chosen)
    elif action in ("undo", "redo"):
        wanted = model.expected(1 if action == "undo" else 2)
        to = model.undo() if action == "undo" else model.redo()
        assert (to.seq if to else None) == wanted
    elif action == "hide" and chosen != newest.head:
        model.rows[chosen] = model.rows[chosen]._replace(hidden=True)
    elif action == "remove":  # what upkeep does to the row of a hidden checkpoint
        gone = [seq for seq in model.parents if seq in model.rows and model.rows[seq].hidden and seq != newest.seq]
        if gone:
            del model.rows[gone[number % len(gone)]]
    head = model.rows[model.newest.head]
    view = log.path_of(head, model.read)
    line = set(model.ancestors(head.seq))
    assert all(log.contains(view, seq) == (seq in line) for seq in model.parents)


def run_scripts(seeds):
    actions = ["save"] * 3 + ["rewind"] * 3 + ["undo"] * 4 + ["redo"] * 3 + ["hide"] * 2 + ["remove"]
    for seed in seeds:
        rng = random.Random(seed)
        model = Model()
        model.save()
        for _ in range(rng.randrange(30)):
            act(model, rng.choice(actions), rng.randrange(100))


def test_undo_redo_and_views_match_the_model():
    run_scripts(range(1000))


@pytest.mark.torture
def test_undo_redo_and_views_match_the_model_in_scripts():
    run_scripts(range(1000, 60_000))


def test_undo_and_redo_skip_hidden_and_empty_moves():
    model = Model()
    model.save()
    model.save()
    model.rewind(1)
    model.rows[2] = model.rows[2]._replace(hidden=True)
    assert model.undo() is None  # what is left has the present head
    model = Model()
    model.save()
    model.save()
    model.rewind(1)
    model.undo()
    model.undo()
    assert model.newest.head == 1
    model.rows[2] = model.rows[2]._replace(hidden=True)
    assert model.redo() is None


def test_an_undo_that_was_undone_is_the_beginning_again():
    model = Model()
    for _ in range(3):
        model.save()
    heads = [model.newest.head]
    for action in (model.undo, model.undo, model.undo, model.redo, model.redo, model.redo):
        action()
        heads.append(model.newest.head)
    assert heads == [3, 2, 1, 1, 2, 3, 3]


def test_a_save_after_an_undo_leaves_nothing_to_redo():
    model = Model()
    model.save()
    model.save()
    model.undo()
    model.save()
    assert model.redo() is None
    assert model.ancestors(model.newest.head) == [4, 1]


def test_rows_that_undo_themselves_are_corrupt():
    rows = {n: a_row(seq=n, parent=0, head=9, undo=n, redo=n) for n in (1, 2, 3)}
    rows[4] = a_row(seq=4, parent=0, head=9, undo=6, redo=6)
    rows[6] = a_row(seq=6, parent=0, head=9, undo=4, redo=4)
    for start in (3, 6, 4):
        with pytest.raises(Corrupt):
            log.undo_target(rows.get, rows.get, head=1, start=start)
        with pytest.raises(Corrupt):
            log.redo_target(rows.get, head=1, start=start)


def test_view_without_its_row_is_corrupt():
    with pytest.raises(Corrupt):
        log.path_of(a_row(view=3), lambda _: None)
    with pytest.raises(Corrupt):
        log.path_of(a_row(view=3), lambda _: a_row())
    assert log.path_of(a_row(), None) == ((1, 5),)


@given(ranges, st.integers(1, 99), st.integers(1, 99))
def test_clipped_ranges_hold_the_seqs_between_the_ends(some, low, high):
    clipped = log.clip(some, low, high)
    for seq in range(1, 100):
        assert log.contains(clipped, seq) == (log.contains(some, seq) and low <= seq <= high)


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40), max_size=5))
def test_shortened_ranges_keep_their_distance_from_the_end(path, others):
    some = tuple((seq, seq) for seq in sorted(path))
    left = sorted(others)
    short = log.shortened(some, left)
    assert (short[:1], short[-1:]) == (some[:1], some[-1:])
    for seq in left:
        assert log.contains(short, seq) == log.contains(some, seq)
        if log.contains(some, seq):
            assert short[short.index((seq, seq)) :] == some[some.index((seq, seq)) :]
    gone = [pair for pair in some[:-1] if pair[0] < min(path.intersection(left), default=99)]
    assert len(short) == len(some) - max(len(gone) - 1, 0)


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored():
    """A backend with bases, deltas, chunks, a rewind and a fork, and the state of each of its checkpoints."""
    rng = random.Random(8)
    with sizes("small"):
        store = backtrail.open("memory://")
        thread = store.thread("t")
        state = {"messages": [], "text": "", "n": 0}
        thread.save(state, metadata={"a": 1})
        for n in range(25):
            thread.append("messages", *(rng.randbytes(rng.randrange(40)).hex() for _ in range(4)), metadata={"n": n})
            if n % 3 == 0:
                thread.append("text", "line\n" * 30)
            if n == 12:
                thread.rewind("@~5")
        thread.set("n", (1, b"x"))
        store.thread("t").fork("f", at="@~2")
        store.thread("f").set("n", {2, 3})
        backend = store._backend
        whole = {}
        for name in ("t", "f"):
            record = backend.find_thread("thread", name)
            for row in backend.rows(record.no, [(1, 999)], visible=True):
                identity = log.checkpoint_id(record.uid, row.seq)
                whole[identity] = (name, record.no, row, Store(backend).thread(name).load(identity).state)
        assert len(whole) > 30
        assert len(backend._storage.tables.chunks) > 10
        yield backend, whole


def read_all(backend, whole):
    """Load every checkpoint again; return the ids of the corrupt ones."""
    corrupt = set()
    store = Store(backend)
    for identity, (name, _, _, state) in whole.items():
        try:
            assert same(store.thread(name).load(identity).state, state)
        except Corrupt as error:
            assert error.checkpoint_id == identity  # noqa: PT017
            corrupt.add(identity)
    return corrupt


def flipped(data, rng):
    changed = bytearray(data)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_flipped_bit_in_a_payload_damages_only_its_dependents(stored):
    backend, whole = stored
    rng = random.Random(1)
    assert read_all(backend, whole) == set()
    hurt = 0
    for _, no, row, _ in list(whole.values())[::2]:
        kept = backend._storage.tables.payloads[no, row.seq]
        standing_on_it = {i for i, (_, other, r, _) in whole.items() if other == no and r.base <= row.seq <= r.seq}
        backend._storage.tables.payloads[no, row.seq] = flipped(kept, rng)
        try:
            corrupt = read_all(backend, whole)
        finally:
            backend._storage.tables.payloads[no, row.seq] = kept
        assert corrupt <= standing_on_it
        hurt += bool(corrupt)
    assert hurt > 10
    assert read_all(backend, whole) == set()


def test_flipped_bit_in_a_chunk_damages_only_its_users(stored):
    backend, whole = stored
    rng = random.Random(2)
    for digest in sorted(backend._storage.tables.chunks)[:12]:
        kept = backend._storage.tables.chunks[digest]
        del backend._storage.tables.chunks[digest]
        try:
            needing = read_all(backend, whole)
            backend._storage.tables.chunks[digest] = (flipped(kept[0], rng), kept[1])
            assert read_all(backend, whole) <= needing
        finally:
            backend._storage.tables.chunks[digest] = kept
    assert read_all(backend, whole) == set()


@pytest.mark.torture
def test_every_flipped_bit_is_detected(stored):
    backend, whole = stored
    rng = random.Random(3)
    for _, no, row, _ in whole.values():
        kept = backend._storage.tables.payloads[no, row.seq]
        for _ in range(40):
            backend._storage.tables.payloads[no, row.seq] = flipped(kept, rng)
            read_all(backend, whole)
        backend._storage.tables.payloads[no, row.seq] = kept


# ---- checkpoints as bytes ------------------------------------------------------------------------------------------


def touch_everything(checkpoint):
    for name in ("seq", "step", "label", "kind", "metadata", "created_at", "size", "stored", "root", "state", "tags"):
        with contextlib.suppress(Error):
            getattr(checkpoint, name)
    repr(checkpoint)
    with contextlib.suppress(Error):
        checkpoint.to_bytes()


@pytest.fixture(scope="module")
def alone():
    with backtrail.open("memory://") as store:
        saved = store.thread("t").save({"a": [1], "b": "x" * 9000}, label="l", tags=["x"], metadata={"k": 1})
        return ormsgpack.unpackb(unsqueeze(saved.to_bytes()[len(_MAGIC) :], limit=1 << 30))


JUNK = [None, -1, 0, 2**63, 1.5, float("nan"), "s", b"b", b"", [], {}, True, [1], [[1, 2]], {"a": 1}, [None] * 30]


def forge(body, change):
    """Changed bytes of a checkpoint with a matching checksum."""
    body = ormsgpack.unpackb(ormsgpack.packb(body))
    with contextlib.suppress(IndexError, TypeError, ValueError, KeyError):
        change(body)
        fields = body[2]
        label = fields[12].decode("utf-8", "surrogatepass") if type(fields[12]) is bytes else fields[12]
        row = Row(*fields[:12], label, *fields[13:19], payload=None, hidden=False)
        with contextlib.suppress(AttributeError):
            fields[18] = log.check_of(row[:18], body[1])
    return _MAGIC + squeeze(ormsgpack.packb(body))


def test_forged_checkpoint_bytes_are_corrupt_or_load(alone):
    assert backtrail.Checkpoint.from_bytes(forge(alone, lambda _: None)).state["a"] == [1]

    def changes(junk):
        for at in range(len(alone)):
            yield lambda body, at=at: body.__setitem__(at, junk)
        for at in range(19):
            yield lambda body, at=at: body[2].__setitem__(at, junk)
        yield lambda body: body[2].__setitem__(17, ormsgpack.packb(junk))
        for at in range(3):
            parts = ormsgpack.unpackb(alone[2][17])
            parts[at] = junk
            yield lambda body, parts=parts: body[2].__setitem__(17, ormsgpack.packb(parts))
        yield lambda body: body.__setitem__(3, [junk])
        yield lambda body: body.__setitem__(5, [junk])
        yield lambda body: body.__setitem__(5, [[junk, junk]])
        yield lambda body: body.__setitem__(5, [[b"S", junk]])
        yield lambda body: body.append(junk)

    for junk in JUNK:
        for change in changes(junk):
            data = forge(alone, change)
            with contextlib.suppress(Error):
                touch_everything(backtrail.Checkpoint.from_bytes(data))


@given(st.binary(max_size=60))
def test_random_bytes_are_no_checkpoint(data):
    for bytes_ in (data, _MAGIC + data, _MAGIC + b"\0" + data, _MAGIC + squeeze(data)):
        with contextlib.suppress(Error):
            touch_everything(backtrail.Checkpoint.from_bytes(bytes_))
