"""Encrypted exports: what opens them, what is found if their bytes change, and what is in files while stores move."""

import asyncio
import os
import tempfile
from pathlib import Path
from unittest import mock

import ormsgpack
import pytest
from blake3 import blake3

import backtrail
from backtrail import Corrupt, Invalid, Key, Unavailable, aio
from backtrail.archive import envelope
from backtrail.archive.envelope import FRAME, LINE, TAG
from backtrail.archive.reader import head_of
from tests.sealed.test_canaries import CANARIES, fill, found
from tests.support.sealing import KEY, KINDS, sealed_at

OTHER = Key(bytes(32))


@pytest.fixture(autouse=True)
def _cheap_passphrases(monkeypatch):
    monkeypatch.setattr(envelope, "SCRYPT_COST", 4)


@pytest.fixture
def store(tmp_path):
    """A store whose export has several frames: random bytes cannot be compressed."""
    with backtrail.open(tmp_path / "store", key=KEY) as store:
        store.thread("t").save({"0": "first"})
        for n in range(1, 5):
            store.thread("t").set(str(n), os.urandom(60_000))
        yield store


@pytest.fixture
def empty():
    with backtrail.open("memory://") as store:
        yield store


@pytest.fixture
def sealed_file(store, tmp_path):
    store.export(tmp_path / "export", key=KEY)
    return tmp_path / "export"


def refused(store, path, error, code, **secret):
    """The import fails with this error, and nothing is written."""
    with pytest.raises(error) as caught:
        store.import_(path, **secret)
    assert caught.value.code == code
    assert str(path) in str(caught.value)
    assert list(store.threads()) == []


def state(store):
    return store.thread("t").load().state


@pytest.mark.parametrize("kind", KINDS)
def test_sealed_export_moves_any_store(kind, tmp_path, empty):
    with sealed_at(kind, tmp_path) as opener, opener() as store:
        fill(store)
        threads = sorted(info.id for info in store.threads())
        backtrail.Store.export(store, tmp_path / "moved", key=OTHER)
    assert found(tmp_path) == []
    empty.import_(tmp_path / "moved", key=OTHER)
    assert sorted(info.id for info in empty.threads()) == threads
    assert empty.search(CANARIES[-1])
    assert empty.verify().ok


@pytest.mark.parametrize("secret", [{"key": OTHER}, {"passphrase": "correct horse"}], ids=["key", "passphrase"])
def test_plain_store_makes_sealed_exports(secret, tmp_path, empty):
    with backtrail.open(tmp_path / "plain.db") as store:
        store.thread("t").save({"text": CANARIES[0]})
        report = store.export(tmp_path / "export", **secret)
    assert CANARIES[0].encode() not in (tmp_path / "export").read_bytes()
    assert report.bytes == (tmp_path / "export").stat().st_size
    empty.import_(tmp_path / "export", **secret)
    assert state(empty) == {"text": CANARIES[0]}


def test_wrong_and_missing_secrets_are_named(sealed_file, store, tmp_path, empty):
    refused(empty, sealed_file, Unavailable, "unavailable.encrypted")
    refused(empty, sealed_file, Unavailable, "unavailable.encrypted", passphrase="x")
    refused(empty, sealed_file, Unavailable, "unavailable.key", key=OTHER)
    store.export(tmp_path / "other", passphrase="caf\u00e9")
    refused(empty, tmp_path / "other", Unavailable, "unavailable.encrypted")
    refused(empty, tmp_path / "other", Unavailable, "unavailable.encrypted", key=KEY)
    refused(empty, tmp_path / "other", Unavailable, "unavailable.key", passphrase="cafe")
    empty.import_(tmp_path / "other", passphrase="cafe\u0301")  # as another system types it
    assert state(empty) == state(store)


def test_plain_export_is_refused_if_a_secret_is_given(store, tmp_path, empty):
    """As langgraph#8938: a forged plain file must not take the place of an encrypted one."""
    store.export(tmp_path / "plain", plain=True)
    refused(empty, tmp_path / "plain", Invalid, "invalid.not_encrypted", key=KEY)
    refused(empty, tmp_path / "plain", Invalid, "invalid.not_encrypted", passphrase="x")
    with pytest.raises(Invalid, match="not encrypted"):
        store.export(tmp_path / "next", key=KEY, since=tmp_path / "plain")
    assert not (tmp_path / "next").exists()


def test_arguments_are_checked(store, tmp_path):
    for wrong in ({"key": KEY, "passphrase": "x"}, {"key": KEY, "plain": True}, {"passphrase": ""}, {"key": b"x" * 32}):
        with pytest.raises(Invalid):
            store.export(tmp_path / "export", **wrong)
    assert not (tmp_path / "export").exists()
    assert "horse" not in repr(envelope.Passphrase("horse"))


def split(data):
    """The head of a file, and its frames."""
    start = len(LINE) + 2 + int.from_bytes(data[len(LINE) : len(LINE) + 2]) + 32
    body = data[start:]
    return data[:start], [body[at : at + FRAME + TAG] for at in range(0, len(body), FRAME + TAG)]


def test_changed_frames_are_found(sealed_file, store, tmp_path, empty):
    good = sealed_file.read_bytes()
    head, frames = split(good)
    assert len(frames) >= 4
    store.export(tmp_path / "twin", key=KEY)
    other_head, others = split((tmp_path / "twin").read_bytes())
    changes = {
        "swapped": [frames[1], frames[0], *frames[2:]],
        "left out": [*frames[:1], *frames[2:]],
        "repeated": [*frames[:1], *frames],
        "of another file": [*frames[:1], others[1], *frames[2:]],
        "first left out": frames[1:],
        "last only": frames[-1:],
        "cut at a frame": frames[:-1],
        "one frame": frames[:1],
        "no frame": [],
        "extended": [*frames, b"x"],
        "extended by a frame": [*frames[:-1], frames[-1].ljust(FRAME + TAG, b"\0"), frames[0]],
    }
    for what, changed in changes.items():
        sealed_file.write_bytes(head + b"".join(changed))
        refused(empty, sealed_file, Corrupt, "corrupt.export", key=KEY)
        assert what
    sealed_file.write_bytes(other_head + b"".join(frames))
    refused(empty, sealed_file, Corrupt, "corrupt.export", key=KEY)
    sealed_file.write_bytes(good)
    empty.import_(sealed_file, key=KEY)
    assert state(empty) == state(store)


def test_truncation_at_a_frame_is_found_at_once(sealed_file):
    head, frames = split(sealed_file.read_bytes())
    sealed_file.write_bytes(head + b"".join(frames[:2]))
    with sealed_file.open("rb") as file, pytest.raises(Corrupt, match="truncated"):
        envelope.FrameReader(file, sealed_file, envelope.read_head(file, sealed_file), KEY)


def test_every_cut_and_every_flipped_byte_is_found(tmp_path, empty):
    with backtrail.open("memory://") as store:
        store.thread("t").save({"n": 1})
        store.export(tmp_path / "export", key=KEY)
    good = (tmp_path / "export").read_bytes()
    assert len(good) < 1500
    for at in range(len(good)):
        for changed in (good[:at], good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]):
            (tmp_path / "export").write_bytes(changed)
            with pytest.raises((Corrupt, Invalid)) as caught:
                empty.import_(tmp_path / "export", key=KEY)
            other_file = not changed or (len(changed) == len(good) and at < len(LINE))
            assert other_file or caught.value.code == "corrupt.export"
    assert list(empty.threads()) == []


@pytest.mark.parametrize(
    "slot",
    [
        ["key", KEY.id, bytes(60)],
        ["scrypt", 60, bytes(16), bytes(60)],
        ["scrypt", -1, bytes(16), bytes(60)],
        ["none", b""],
        ["key"],
        [],
        "key",
    ],
    ids=repr,
)
def test_forged_heads_are_refused(slot, tmp_path, empty):
    packed = ormsgpack.packb([bytes(16), slot])
    head = LINE + len(packed).to_bytes(2, "big") + packed
    (tmp_path / "forged").write_bytes(head + blake3(head).digest() + bytes(100))
    for secret in ({"key": KEY}, {"passphrase": "x"}):
        with pytest.raises((Corrupt, Unavailable)):
            empty.import_(tmp_path / "forged", **secret)


def test_newer_format_asks_for_an_upgrade(sealed_file, empty):
    sealed_file.write_bytes(sealed_file.read_bytes().replace(b"export 1\n", b"export 2\n", 1))
    refused(empty, sealed_file, Invalid, "invalid.format", key=KEY)


def test_sealed_exports_continue_each_other(sealed_file, store, tmp_path, empty):
    first = backtrail.Store.export(store, tmp_path / "first", key=KEY)
    store.thread("t").set("0", "later")
    new = Key.generate()
    with pytest.raises(Unavailable):
        store.export(tmp_path / "second", key=new, since=first.id)
    renewed = Key(new._secret, previous=[KEY])
    second = store.export(tmp_path / "second", key=renewed, since=first.id)
    assert (second.since, second.bytes < 5_000) == (first.id, True)
    empty.import_(tmp_path / "first", key=renewed)
    empty.import_(tmp_path / "second", key=renewed)
    assert state(empty) == state(store)


def id_of(path):
    return head_of(path).id


def test_key_management_service_wraps_the_key_of_a_file(store, tmp_path, empty):
    wrapped = []

    def wrap(secret):
        wrapped.append(secret)
        return secret[::-1]

    key = Key.from_callbacks(wrap, lambda secret: secret[::-1], "service")
    store.export(tmp_path / "export", key=key)
    empty.import_(tmp_path / "export", key=key)
    assert state(empty) == state(store)
    assert len(wrapped) == 1
    head, frames = split((tmp_path / "export").read_bytes())
    forged = head[:-32].replace(id_of(tmp_path / "export"), bytes(16))
    (tmp_path / "forged").write_bytes(forged + blake3(forged).digest() + b"".join(frames))
    assert id_of(tmp_path / "forged") == bytes(16)
    with pytest.raises(Corrupt):  # the service does not bind what it wraps, but the frames are bound to the head
        empty.import_(tmp_path / "forged", key=key)
    failing = Key.from_callbacks(wrap, lambda _: b"short", "service")
    with pytest.raises(Unavailable):
        backtrail.open("memory://").import_(tmp_path / "export", key=failing)


def test_memory_holds_one_frame(tmp_path):
    """The writer and the reader never ask for more than a frame."""
    sizes = []

    class File:
        def write(self, data):
            sizes.append(len(data))

    with envelope.sealing(File(), KEY, bytes(16)) as frames:
        for _ in range(50):
            frames.write(bytes(100_000))
            assert len(frames._waiting) <= FRAME
    assert max(sizes) == FRAME + TAG
    assert sum(sizes) > 5_000_000


def test_async_stores_move_sealed_exports(store, tmp_path, empty):
    store.export(tmp_path / "one", key=KEY)

    async def moved():
        async with aio.open("memory://") as other:
            await other.import_(tmp_path / "one", key=KEY)
            await other.export(tmp_path / "two", passphrase="two")

    asyncio.run(moved())
    empty.import_(tmp_path / "two", passphrase="two")
    assert state(empty) == state(store)


# -- copies ---------------------------------------------------------------------------------------------


def written(folder):
    """Yield what is written to temporary files, as a list that fills."""
    taken = []
    remove = tempfile.TemporaryDirectory.cleanup

    def look(self):
        taken.extend(path.read_bytes() for path in Path(self.name).rglob("*") if path.is_file())
        remove(self)

    return taken, mock.patch.multiple(tempfile.TemporaryDirectory, cleanup=look)


@pytest.mark.parametrize(("key", "to_key"), [(KEY, OTHER), (KEY, None), (None, OTHER)], ids=["both", "from", "to"])
def test_copies_of_encrypted_stores_leave_nothing_plain(tmp_path, key, to_key):
    with backtrail.open(tmp_path / "source", key=key) as store:
        store.thread("t").save({"text": CANARIES[0]})
    taken, looking = written(tmp_path)
    with looking:
        backtrail.copy(tmp_path / "source", tmp_path / "target", key=key, to_key=to_key, plain=True)
    assert [data[: len(LINE)] for data in taken] == [LINE]
    assert CANARIES[0].encode() not in taken[0]
    with backtrail.open(tmp_path / "target", key=to_key) as store:
        assert state(store) == {"text": CANARIES[0]}


def test_copy_of_plain_stores_needs_no_key(tmp_path):
    with backtrail.open(tmp_path / "source") as store:
        store.thread("t").save({"text": CANARIES[0]})
    taken, looking = written(tmp_path)
    with looking:
        backtrail.copy(tmp_path / "source", tmp_path / "target")
    assert taken[0].startswith(b"backtrail export 1\n")
