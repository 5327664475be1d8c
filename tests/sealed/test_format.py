"""The bytes of an encrypted store, read as docs/format.md describes them, without backtrail's own code for it."""

import hashlib
import os
import sqlite3

import ormsgpack
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV

import backtrail
from backtrail.backends.port import Row
from backtrail.engine import log
from backtrail.sealed.cipher import ThreadCipher
from backtrail.testing.samples import row
from tests.support.sealing import KEY

SECRET = bytes(range(32))
ROWS = (
    "SELECT key & 4294967295, op, parent, step, head, undo, redo, view, base, depth, created_at, kind, label, size, "
    "stored, root, op_id, extra, payload FROM row WHERE key >> 32 = ? ORDER BY key"
)


def derive(secret, purpose):
    return blake3(secret, derive_key_context=f"backtrail sealed 1 {purpose}").digest()


def unwrapped(cipher, wrapped, context):
    return AESGCMSIV(cipher).decrypt(wrapped[:12], wrapped[12:], b"backtrail sealed 1 " + context)


def newest(database, space, name):
    ((no,),) = database.execute("SELECT no FROM thread WHERE space = ? AND name = ?", (space, name.encode()))
    return ormsgpack.unpackb(database.execute(ROWS, (no,)).fetchall()[-1][-1])


def store_key(keyring):
    record = newest(keyring, "keyring", "store")
    ((number, name, wrapped),) = record["keys"]
    assert (number, name, record["last"]) == (1, KEY.id, 1)
    return record["id"], unwrapped(SECRET, wrapped, record["id"] + (1).to_bytes(2, "big"))


def thread_key(keyring, store, secret, uid):
    last, ((number, by, wrapped),) = newest(keyring, "key", uid.hex())
    assert (last, number, by) == (1, 1, 1)
    return unwrapped(derive(secret, "key that wraps keys"), wrapped, store + (1).to_bytes(2, "big") + uid)


@pytest.mark.parametrize("root", [bytes(32), b""], ids=["a checkpoint", "a move of the head"])
@pytest.mark.parametrize("field", Row._fields)
def test_column_of_another_type_or_value_is_damage(field, root):
    """As a damaged database may return it: no value of any column raises an error, or changes what is read."""
    uid, cipher = b"12345678", ThreadCipher({1: bytes(32)}, 1)
    plain = log.checked(row(3, root=root, extra=b"extra", label="label", op_id=bytes(16)), uid)
    sealed = cipher.seal(plain, b"a record")
    assert cipher.open(sealed) == (plain, b"a record")
    for value in (None, "x", b"x", b"", -1, 1 << 70, 1.5, [1], True):
        opened, bound = cipher.open(sealed._replace(**{field: value}))
        assert bound == (b"a record" if opened.check == plain.check else b"")
        if field == "payload":
            assert opened.payload in (None, b"\xff")
        elif opened.check == plain.check:  # the flag, and columns that are not used
            assert opened._replace(hidden=False) == plain


def test_row_without_a_record_is_read():
    """As versions wrote it before rows were bound to the records of their threads."""
    cipher, uid = ThreadCipher({1: bytes(32)}, 1), b"12345678"
    plain = log.checked(row(3, root=bytes(32), extra=b"extra", op_id=bytes(16)), uid)
    sealed = cipher.seal(plain, b"a record")
    place, columns = (3).to_bytes(8, "big"), ormsgpack.packb((*plain[:15], plain.op_id))
    meta = bytes((32, len(plain.check))) + plain.root + plain.check + plain.extra
    older = b"\x01\x01" + AESGCMSIV(bytes(32)).encrypt(place + b"meta", meta, columns)
    assert cipher.open(sealed._replace(root=older)) == (plain, b"")
    assert not cipher.is_current(sealed._replace(root=older))
    for forged in (b"\x02" + older[1:], b"\x01" + sealed.root[1:]):
        assert not log.is_sound(cipher.open(sealed._replace(root=forged))[0], uid)


def test_store_is_read_by_hand(tmp_path):
    with backtrail.open(tmp_path / "s.db", key=KEY, compression=False) as store:
        thread = store.thread("t")
        thread.save({"text": "a small state"}, label="first", metadata={"note": 1})
        thread.save({"text": "a small state", "long": [f"{n} " * 100 for n in range(300)]})
        thread.rewind("first")
        store.thread("m").save({"messages": [{"role": "user", "content": "lisbon in may", "id": "m1"}]})
        assert store.search("lisbon")
        plain = store._backend.rows(store._backend.find_thread("thread", "t").no, [(1, 9)], payload=True)
        nodes = dict(store._engine.reader.cache._nodes)
    data, keyring = sqlite3.connect(tmp_path / "s.db"), sqlite3.connect(tmp_path / "s.db.keys")
    ((marked,),) = data.execute("SELECT payload FROM chunk WHERE digest = ?", (b"backtrail sealed store, format 1",))
    store, secret = store_key(keyring)
    assert marked == store

    ((no, uid, *record),) = data.execute(
        "SELECT no, uid, CAST(space AS BLOB), name, agent, created_at, origin FROM thread WHERE name = ?", (b"t",)
    )
    bound = blake3(ormsgpack.packb(record)).digest(length=8)
    cipher = AESGCMSIV(thread_key(keyring, store, secret, uid))
    rows = data.execute(ROWS, (no,)).fetchall()
    assert [bool(values[15]) for values in rows] == [True, True, False]
    for values, wanted in zip(rows, plain, strict=True):
        *columns, root, op_id, extra, payload = values
        place, blob = values[0].to_bytes(8, "big"), root or extra
        assert (blob[:2], payload[:2], bool(root) and bool(extra)) == (b"\x02\x01", b"\x01\x01", False)
        meta = cipher.decrypt(place + b"bind", blob[2:], ormsgpack.packb((*columns, op_id)))
        assert meta[2:10] == bound
        first, second = 10 + meta[0], 10 + meta[0] + meta[1]
        assert (meta[10:first], meta[first:second], meta[second:]) == (wanted.root, wanted.check, wanted.extra)
        assert cipher.decrypt(place + b"data", payload[2:], op_id) == wanted.payload
        assert log.is_sound(wanted, uid)

    stored = dict(data.execute("SELECT digest, payload FROM chunk"))
    read = 0
    for digest, node in nodes.items():
        address = blake3(digest, key=derive(secret, "address of a chunk")).digest()
        sealed = stored.get(address)
        if sealed is None:
            continue
        key = blake3(digest, key=derive(secret, "key of a chunk")).digest()
        opened = AESGCM(key).decrypt(sealed[2:14], sealed[14:-8], address)
        assert opened == b"\0" + node.kind + node.data
        assert sealed[2:14] == blake3(opened, key=derive(secret, "nonce of a chunk")).digest(length=12)
        check = blake3(address + sealed[:-8], key=derive(secret, "check of a chunk")).digest(length=8)
        assert (sealed[:2], sealed[-8:]) == (b"\x01\x01", check)
        read += 1
    assert read == len(stored) - 1 > 0
    data.close()
    keyring.close()


@pytest.mark.parametrize("secret", [{"key": KEY}, {"passphrase": "caf\u00e9"}], ids=["key", "passphrase"])
def test_export_is_read_by_hand(secret, tmp_path, monkeypatch):
    monkeypatch.setattr("backtrail.archive.envelope.SCRYPT_COST", 4)
    with backtrail.open("memory://") as store:
        store.thread("t").save({"bytes": os.urandom(150_000)})
        store.export(tmp_path / "plain")
        exported = store.export(tmp_path / "sealed", **secret)
    data = (tmp_path / "sealed").read_bytes()
    end = 28 + int.from_bytes(data[26:28])
    assert data[:26] == b"backtrail sealed export 1\n"
    assert data[end : end + 32] == blake3(data[:end]).digest()
    name, (kind, *slot, wrapped) = ormsgpack.unpackb(data[28:end])
    assert name.hex() == exported.id
    if kind == "key":
        assert slot == [KEY.id]
        wrapping = SECRET
    else:
        cost, salt = slot
        wrapping = hashlib.scrypt("caf\u00e9".encode(), salt=salt, n=1 << cost, r=8, p=1, dklen=32)
    context = b"backtrail sealed export 1 " + name
    file_key = AESGCMSIV(wrapping).decrypt(wrapped[:12], wrapped[12:], context)
    cipher = AESGCM(derive(file_key, "frames of an export"))
    frames = [data[at : at + 65_552] for at in range(end + 32, len(data), 65_552)]
    plain = b"".join(
        cipher.decrypt(at.to_bytes(11, "big") + bytes([at == len(frames) - 1]), frame, data[end : end + 32])
        for at, frame in enumerate(frames)
    )
    assert len(frames) == 3
    assert plain.startswith(b"backtrail export 1\n")
    assert len(plain) == (tmp_path / "plain").stat().st_size
