"""Damage is found and contained: a flipped bit makes the checkpoints that need it `Corrupt`, and no others."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import apsw
import pytest

import backtrail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LISTED = (
    "op parent step head undo redo view base depth created_at kind label size stored root op_id extra check payload"
)
COLUMNS = _LISTED.split()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with bases, deltas, chunks, a rewind, a fork and a label."""
    path = tmp_path_factory.mktemp("damage") / "s.db"
    rng = random.Random(3)
    with backtrail.open(path) as store:
        thread = store.thread("t")
        thread.save({"messages": [], "n": 0}, label="start")
        for i in range(4):
            thread.append("messages", *(rng.randbytes(300).hex() for _ in range(20)), metadata={"i": i})
        thread.set("n", 1, tags=["tagged"])
        thread.rewind("start")
        thread.save({"messages": [], "n": 2}, label="again")
        thread.set("n", 3)
        thread.fork("other", at="tagged")
    return path


def _damage(path: Path, table: str, where: str, column: str, how: random.Random) -> None:
    connection = apsw.Connection(str(path))
    try:
        (value,) = connection.execute(f'SELECT "{column}" FROM {table} WHERE {where}').fetchone()
        if isinstance(value, bytes) and value:
            bit = how.randrange(len(value) * 8)
            flipped = bytearray(value)
            flipped[bit // 8] ^= 1 << bit % 8
            value = bytes(flipped)
        elif isinstance(value, int):
            value ^= 1 << how.randrange(8)
        else:
            value = b"\x01"
        connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', (value,))
    finally:
        connection.close()


def _states(path: Path) -> dict[str, object]:
    """Return the state of every checkpoint by id, or the exception that reading it raised."""
    found: dict[str, object] = {}
    with backtrail.open(path) as store:
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


def _keys(path: Path, table: str) -> list[int]:
    connection = apsw.Connection(str(path))
    try:
        return [key for (key,) in connection.execute(f"SELECT {'key' if table == 'row' else 'id'} FROM {table}")]
    finally:
        connection.close()


def _moves(path: Path) -> list[int]:
    connection = apsw.Connection(str(path))
    try:
        return [key for (key,) in connection.execute("SELECT key FROM row WHERE length(payload) = 0")]
    finally:
        connection.close()


def _cases(path: Path) -> Iterator[tuple[str, int, str]]:
    for key in _keys(path, "row"):
        for column in COLUMNS:
            if column != "payload" or key not in _moves(path):  # a row that moves the head has no payload
                yield "row", key, column
    for key in _keys(path, "chunk"):
        for _ in range(10):
            yield "chunk", key, "payload"


def test_a_flipped_bit_in_any_column_of_any_row_or_chunk_is_found_and_the_rest_loads(
    original: Path, tmp_path: Path
) -> None:
    whole = _states(original)
    assert len(whole) >= 9
    assert not any(isinstance(state, Exception) for state in whole.values())
    rng = random.Random(4)
    found = 0
    for table, key, column in _cases(original):
        path = tmp_path / "damaged.db"
        shutil.copy(original, path)
        _damage(path, table, f"{'key' if table == 'row' else 'id'} = {key}", column, rng)
        states = _states(path)
        for identity, state in states.items():
            if isinstance(state, backtrail.Corrupt):
                assert state.checkpoint_id is not None
                found += state.checkpoint_id == identity
            else:
                assert state == whole[identity], (table, key, column)
        with backtrail.open(path) as store:
            assert not store.verify().ok, (table, key, column)
        path.unlink()
    assert found > 0


def test_damage_in_one_delta_spares_what_stands_before_it_and_in_other_chains(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(original, path)
    whole = _states(original)
    with backtrail.open(path) as store:
        thread = store.thread("t")
        last = thread.load("@")
        first = thread.load("start")
    _damage(path, "row", f"key = {(1 << 32) + last.seq}", "payload", random.Random(5))
    states = _states(path)
    error = states[last.id]
    assert isinstance(error, backtrail.Corrupt)
    assert error.checkpoint_id == last.id
    assert last.id in str(error)
    assert states[first.id] == whole[first.id]
    assert sum(isinstance(state, Exception) for state in states.values()) == 1
    with backtrail.open(path) as store:
        assert [c.id for c in store.thread("t").history()][-1] == last.id  # it is listed, and named when read
        report = store.verify()
        assert [damage.checkpoint_id for damage in report.damaged] == [last.id]


def test_a_missing_chunk_names_the_checkpoints_that_need_it(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(original, path)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM chunk WHERE id = (SELECT min(id) FROM chunk)")
    connection.close()
    states = _states(path)
    errors = {identity: error for identity, error in states.items() if isinstance(error, Exception)}
    assert errors
    assert len(errors) < len(states)
    assert all(isinstance(e, backtrail.Corrupt) and e.checkpoint_id == i for i, e in errors.items())
    with backtrail.open(path) as store:
        assert {d.checkpoint_id for d in store.verify().damaged} == set(errors)
        with pytest.raises(backtrail.Corrupt):
            store.gc()
        thread = store.thread("fresh")  # the store is usable all the same
        assert thread.save({"a": 1}).state == {"a": 1}
