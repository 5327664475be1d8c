"""Damage is found and contained: a flipped bit makes the checkpoints that need it `Corrupt`, and no others."""

from __future__ import annotations

import random
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import apsw
import psycopg
import pytest

import backtrail
from tests.support.servers import place, server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LISTED = (
    "op parent step head undo redo view base depth created_at kind label size stored root op_id extra check payload"
)
COLUMNS = _LISTED.split()
LONG = pytest.mark.torture


class Patient:
    """A store, and a way to its tables; `run` runs a statement with its parameters and returns rows."""

    def __init__(self, opener: Callable[..., backtrail.Store], run: Callable[..., list[tuple[Any, ...]]]) -> None:
        self.open = opener
        self.run = run

    def keys(self, table: str) -> list[tuple[str, tuple[Any, ...]]]:
        """What names a row of a table: a condition, and its parameters."""
        raise NotImplementedError

    @contextmanager
    def damaged(self, table: str, key: tuple[str, tuple[Any, ...]], column: str, how: random.Random) -> Iterator[None]:
        """Flip a bit of one value for a while."""
        where, values = key
        ((value,),) = self.run(f'SELECT "{column}" FROM {table} WHERE {where}', values)
        update = f'UPDATE {table} SET "{column}" = {self.mark} WHERE {where}'
        self.run(update, (_flipped(value, how), *values))
        try:
            yield
        finally:
            self.run(update, (value, *values))

    @contextmanager
    def renamed(self, table: str, key: tuple[str, tuple[Any, ...]]) -> Iterator[None]:
        """Let a chunk be missing for a while: under another name, no read finds it."""
        where, values = key
        ((name,),) = self.run(f"SELECT digest FROM {table} WHERE {where}", values)
        rename = f"UPDATE {table} SET digest = {self.mark} WHERE digest = {self.mark}"
        self.run(rename, (b"another", name))
        try:
            yield
        finally:
            self.run(rename, (name, b"another"))


class Sqlite(Patient):
    mark = "?"

    def keys(self, table: str) -> list[tuple[str, tuple[Any, ...]]]:
        column = "key" if table == "row" else "id"
        return [(f"{column} = ?", key) for key in self.run(f"SELECT {column} FROM {table} ORDER BY 1", ())]

    def row(self, seq: int) -> tuple[str, tuple[Any, ...]]:
        return "key = ?", ((1 << 32) + seq,)


class Postgres(Patient):
    mark = "%s"

    def keys(self, table: str) -> list[tuple[str, tuple[Any, ...]]]:
        columns = ("thread", "seq") if table == "row" else ("digest",)
        where = " AND ".join(f"{column} = %s" for column in columns)
        return [(where, key) for key in self.run(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1", ())]

    def row(self, seq: int) -> tuple[str, tuple[Any, ...]]:
        return "thread = %s AND seq = %s", (1, seq)


def _flipped(value: Any, how: random.Random) -> Any:
    if isinstance(value, bytes) and value:
        bit = how.randrange(len(value) * 8)
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)
    return value ^ 1 << how.randrange(8) if isinstance(value, int) else b"\x01"


@pytest.fixture(params=["sqlite", "postgres"], scope="module")
def patient(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """A store with bases, deltas, chunks, a rewind, a fork and a label."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("damage") / "s.db"
        opener = partial(backtrail.open, path, durability="relaxed")
        _fill(opener)
        with closing(apsw.Connection(str(path))) as connection:
            yield Sqlite(opener, lambda text, values: connection.execute(text, values).fetchall())
        return
    with place(durability="relaxed") as opener, closing(psycopg.connect(server().url, autocommit=True)) as connection:
        _fill(opener)
        connection.execute(f"SET search_path = {opener.keywords['schema']}")

        def run(text: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(text, values)
            return cursor.fetchall() if cursor.description else []

        yield Postgres(opener, run)


def _fill(opener: Callable[..., backtrail.Store]) -> None:
    rng = random.Random(3)
    with opener() as store:
        thread = store.thread("t")
        thread.save({"messages": [], "n": 0}, label="start")
        for i in range(4):
            thread.append("messages", *(rng.randbytes(300).hex() for _ in range(20)), metadata={"i": i})
        thread.set("n", 1, tags=["tagged"])
        thread.rewind("start")
        thread.save({"messages": [], "n": 2}, label="again")
        thread.set("n", 3)
        thread.fork("other", at="tagged")


def _states(store: backtrail.Store) -> dict[str, object]:
    """Return the state of every checkpoint by id, or the exception that reading it raised."""
    found: dict[str, object] = {}
    for name in ("t", "other"):
        record = store._backend.find_thread("thread", name)
        assert record is not None
        for seq in range(1, 12):
            identity = backtrail.engine.log.checkpoint_id(record.uid, seq)
            try:
                checkpoint = store.thread(name).load(identity)
                found[identity] = checkpoint.state
            except backtrail.NotFound:
                continue
            except backtrail.Error as error:
                found[identity] = error
    return found


def _cases(patient: Patient) -> Iterator[tuple[str, tuple[str, tuple[Any, ...]], str]]:
    for key in patient.keys("row"):
        ((size,),) = patient.run(f"SELECT length(payload) FROM row WHERE {key[0]}", key[1])
        for column in COLUMNS:
            if column != "payload" or size:  # a row that moves the head has no payload
                yield "row", key, column
    for key in patient.keys("chunk"):
        for _ in range(10):
            yield "chunk", key, "payload"


@pytest.mark.parametrize("every", [pytest.param(False, id="short"), pytest.param(True, id="long", marks=LONG)])
def test_flipped_bit_in_any_column_is_found(patient: Patient, *, every: bool) -> None:
    with patient.open() as store:
        whole = _states(store)
    assert len(whole) >= 9
    assert not any(isinstance(state, Exception) for state in whole.values())
    rng = random.Random(4)
    found = 0
    cases = list(_cases(patient))
    # Of every row some columns, and of every column some rows.
    chosen = cases if every else cases[::4]
    assert {(table, column) for table, _, column in chosen} == {(table, column) for table, _, column in cases}
    assert {(table, key) for table, key, _ in chosen} == {(table, key) for table, key, _ in cases}
    for table, key, column in chosen:
        with patient.damaged(table, key, column, rng), patient.open() as store:
            for identity, state in _states(store).items():
                if isinstance(state, backtrail.Corrupt):
                    assert state.checkpoint_id is not None
                    found += state.checkpoint_id == identity
                else:
                    assert state == whole[identity], (table, key, column)
            assert not store.verify().ok, (table, key, column)
    assert found > 0
    with patient.open() as store:
        assert store.verify().ok


def test_damaged_delta_spares_earlier_rows(patient: Patient) -> None:
    with patient.open() as store:
        whole = _states(store)
        thread = store.thread("t")
        last = thread.load("@")
        first = thread.load("start")
    with patient.damaged("row", patient.row(last.seq), "payload", random.Random(5)), patient.open() as store:
        states = _states(store)
        error = states[last.id]
        assert isinstance(error, backtrail.Corrupt)
        assert error.checkpoint_id == last.id
        assert last.id in str(error)
        assert states[first.id] == whole[first.id]
        assert sum(isinstance(state, Exception) for state in states.values()) == 1
        assert [c.id for c in store.thread("t").history()][-1] == last.id  # it is listed, and named when read
        report = store.verify()
        assert [damage.checkpoint_id for damage in report.damaged] == [last.id]


def test_a_missing_chunk_names_the_checkpoints_that_need_it(patient: Patient) -> None:
    where, key = patient.keys("chunk")[0]
    with patient.renamed("chunk", (where, key)), patient.open() as store:
        states = _states(store)
        errors = {identity: error for identity, error in states.items() if isinstance(error, Exception)}
        assert errors
        assert len(errors) < len(states)
        assert all(isinstance(e, backtrail.Corrupt) and e.checkpoint_id == i for i, e in errors.items())
        assert {d.checkpoint_id for d in store.verify().damaged} == set(errors)
        with pytest.raises(backtrail.Corrupt):
            store.gc()
        thread = store.thread("fresh")  # the store is usable all the same
        assert thread.save({"a": 1}).state == {"a": 1}


def test_a_damaged_payload_is_read_again() -> None:
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save({"n": 1}, label="x")
        thread.save({"n": 2})
        backend = store._backend
        for damage in (lambda row: row, lambda row: row._replace(payload=b"?"), lambda row: row._replace(payload=b"")):
            with mock.patch.object(backend, "rows", side_effect=partial(_each, backend.rows, damage)):
                (found,) = thread.find(label="x")
            assert found.state == {"n": 1}


def _each(read: Callable[..., list[Any]], change: Callable[[Any], Any], *args: Any, **options: Any) -> list[Any]:
    return [change(row) for row in read(*args, **options)]
