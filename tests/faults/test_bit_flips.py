"""Single flipped bits, in every byte of SQLite's tables and of a collected file store.

Damaged data is `Corrupt`, and `verify` names it; all other data reads as before. Hidden flags and tags change often and
have no checksum, so they are not tested here.
"""

from __future__ import annotations

import random
from contextlib import closing
from functools import partial

import apsw
import pytest

import backtrail
from backtrail.engine import compression, log
from backtrail.maintenance import readable, verify
from tests.backends.file.test_crashes import states
from tests.faults.test_damage import COLUMNS, Sqlite, _fill, _states
from tests.support.lab import quick_directory
from tests.support.sealing import KEY


@pytest.fixture
def quick(tmp_path):
    with quick_directory(tmp_path) as made:
        yield made


# -- SQLite -------------------------------------------------------------------------------------------


def places(patient):
    """Yield one bit of each byte of bytes values, and the eight lowest bits of numbers."""
    rng = random.Random(1)
    for table, columns in (("row", COLUMNS), ("chunk", ["digest", "payload"])):
        for where, key in patient.keys(table):
            for column in columns:
                ((value,),) = patient.run(f'SELECT "{column}" FROM {table} WHERE {where}', key)
                if isinstance(value, int):
                    yield from ((table, (where, key), column, value, value ^ 1 << bit) for bit in range(8))
                elif value:
                    for at in range(len(value)):
                        flipped = bytearray(value)
                        flipped[at] ^= 1 << rng.randrange(8)
                        yield table, (where, key), column, value, bytes(flipped)


def means_the_same(value, flipped):
    """Tell whether a flip changed an unused bit of compressed bytes: then the content is the same."""
    packed = isinstance(value, bytes) and value[0] in (compression.ZSTD, compression.ZSTD_DICTIONARY1)
    if not packed or value[0] != flipped[0]:
        return False
    try:
        return compression.unsqueeze(value, limit=1 << 30) == compression.unsqueeze(flipped, limit=1 << 30)
    except backtrail.Corrupt:
        return False


def flip_in_sqlite(path, most, **options):
    """Flip so many bits, one after the other; return how many there were, and how many were not found."""
    opener = partial(backtrail.open, path, durability="relaxed", **options)
    _fill(opener)
    with opener() as store:
        good = _states(store)
    missed = 0
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("synchronous", "off")
        patient = Sqlite(opener, lambda text, values: connection.execute(text, values).fetchall())
        found = list(places(patient))
        found = random.Random(2).sample(found, min(most, len(found)))
        for table, (where, key), column, value, flipped in found:
            update = f'UPDATE {table} SET "{column}" = ? WHERE {where}'
            patient.run(update, (flipped, *key))
            if not is_refused(opener, options):
                missed += is_missed(opener, good, is_same=means_the_same(value, flipped))
            patient.run(update, (value, *key))
    return len(found), missed


def is_missed(opener, good, *, is_same):
    """Count what verify does not name, and states that are wrong."""
    with opener() as store:
        damaged = {damage.checkpoint_id for damage in store.verify().damaged}
        missed = int(not damaged and not is_same)
        for identity, state in _states(store).items():
            if isinstance(state, backtrail.Corrupt):
                missed += not {identity, state.checkpoint_id} & damaged
            else:
                missed += state != good[identity]
    return missed


def is_refused(opener, options):
    """Tell whether an encrypted store cannot be opened: the flip is in the mark that names its keyring."""
    try:
        opener().close()
    except (backtrail.Invalid, backtrail.Unavailable) as error:
        if not options or error.code not in ("invalid.not_encrypted", "invalid.keyring"):
            raise
        return True
    return False


@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["plain", "encrypted"])
def test_flipped_bit_in_sqlite_rows_is_found(quick, options):
    most = 15 if options else 40
    assert flip_in_sqlite(quick / "s.db", most, **options) == (most, 0)


@pytest.mark.torture
@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["plain", "encrypted"])
def test_flipped_bit_in_every_sqlite_byte_is_found(quick, options):
    flipped, missed = flip_in_sqlite(quick / "s.db", 1 << 30, **options)
    print(f"sqlite {[*options]}: {flipped} flips, {missed} missed")  # noqa: T201 - for docs/reliability.md
    assert flipped > 5000
    assert missed == 0


def flip_in_keyring(path, most):
    """Flip bits of keys; return how many flips made the store or a state unreadable. No state is wrong."""
    opener = partial(backtrail.open, path, durability="relaxed", key=KEY)
    _fill(opener)
    with opener() as store:
        good = _states(store)
    rng, hurt = random.Random(4), 0
    with closing(apsw.Connection(f"{path}.keys")) as connection:
        stored = connection.execute("SELECT key, payload FROM row").fetchall()
        found = [(key, value, at) for key, value in stored for at in range(len(value))]
        for key, value, at in rng.sample(found, min(most, len(found))):
            flipped = value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :]
            connection.execute("UPDATE row SET payload = ? WHERE key = ?", (flipped, key))
            try:
                with opener() as store:
                    seen = _states(store)
                wrong = [each for each in good if seen.get(each) != good[each]]
                assert all(isinstance(seen.get(each), backtrail.Error) for each in wrong)
                hurt += bool(wrong)
            except backtrail.Error:
                hurt += 1
            connection.execute("UPDATE row SET payload = ? WHERE key = ?", (value, key))
    with opener() as store:
        assert _states(store) == good
    return len(found), hurt


def test_flipped_bit_in_the_keyring_never_changes_a_state(quick):
    assert flip_in_keyring(quick / "s.db", 25)[1] > 20


@pytest.mark.torture
def test_every_flipped_byte_in_the_keyring_never_changes_a_state(quick):
    flipped, hurt = flip_in_keyring(quick / "s.db", 1 << 30)
    print(f"keyring: {flipped} flips, {hurt} that hurt")  # noqa: T201 - for docs/reliability.md


@pytest.mark.parametrize("column", ["row.label", "tag.tag", "thread.name"])
def test_invalid_utf8_is_reported_as_damage(column, quick):
    table, _, name = column.partition(".")
    opener = partial(backtrail.open, quick / "s.db", durability="relaxed")
    _fill(opener)
    with closing(apsw.Connection(str(quick / "s.db"))) as connection:
        connection.execute(f"UPDATE {table} SET {name} = CAST(x'ff' || {name} AS BLOB) WHERE {name} IS NOT NULL")
    with opener() as store:
        assert bool(store.verify().damaged) == (table == "row")  # the others are in no checksum
        assert list(store.threads())
        assert table != "tag" or store._backend.tags(1)


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["rows", "chunks"])
def test_seeded_faults_are_found(fault, quick, monkeypatch):
    if fault == "rows":
        monkeypatch.setattr(log, "is_sound", lambda row, uid: True)
    else:
        for module in (readable, verify):
            monkeypatch.setattr(module, "read_below", lambda heads, tree, good, weights=None: set())
    assert flip_in_sqlite(quick / "s.db", 40)[1] > 0


# -- files, collected ------------------------------------------------------------------------------------


def flip_in_files(path, most, **options):
    """Flip so many bits, one after the other; return how many checkpoints were read wrong, and how often unnoticed."""
    opener = partial(backtrail.open, path.as_uri(), **options)
    with opener() as store:
        thread = store.thread("t")
        thread.save({"messages": [], "n": 0}, label="start")
        for at in range(2):
            thread.append("messages", *(random.Random(at).randbytes(300).hex() for _ in range(12)))
        thread.set("n", 1, tags=["tagged"])
        thread.fork("other", at="tagged")
        thread.save({"n": 0})
        thread.delete_checkpoint("@")
        store.gc()
        newest = thread.set("n", 4).id
    assert {name.name.partition("-")[0] for name in path.iterdir()} >= {"base", "log"}
    with opener(read_only=True) as store:
        good = states(store)
    found = [
        (name, at) for name in sorted(path.iterdir()) for at in range(name.stat().st_size) if "lock" not in str(name)
    ]
    rng = random.Random(3)
    hurt = missed = 0
    for name, at in rng.sample(found, min(most, len(found))):
        data = name.read_bytes()
        name.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        if is_refused(partial(opener, read_only=True), options):
            hurt += 1
            name.write_bytes(data)
            continue
        with opener(read_only=True) as store:
            seen = states(store)
            wrong = {identity for identity in good if seen.get(identity) != good[identity]}
            hurt += bool(wrong)
            report = store.verify() if wrong else None
            if wrong == {newest} and newest not in seen:  # no frame is behind it to repeat what its records said
                missed += not any("was on disk" in fault for fault in report.faults)
            elif wrong:
                named = {damage.checkpoint_id for damage in report.damaged}
                missed += any(not isinstance(seen.get(each), backtrail.Corrupt) or each not in named for each in wrong)
        name.write_bytes(data)
    return hurt, missed


@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["plain", "encrypted"])
def test_flipped_bit_in_files_never_changes_a_state(quick, options):
    most = 20 if options else 60
    hurt, missed = flip_in_files(quick / "s", most, **options)
    assert hurt > most // 6
    assert missed == 0


@pytest.mark.torture
@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["plain", "encrypted"])
def test_every_flipped_byte_in_files_never_changes_a_state(quick, options):
    hurt, missed = flip_in_files(quick / "s", 1 << 30, **options)
    print(f"files {[*options]}: {hurt} flips that hurt, {missed} missed")  # noqa: T201 - for docs/reliability.md
    assert missed == 0
