"""Compression round trips, refuses foreign data, and its format is stable."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import tracemalloc
import uuid
from string import ascii_lowercase

import blake3
import ormsgpack
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from backtrail.engine import compression as module
from backtrail.engine.compression import (
    RAW,
    SMALL,
    TINY,
    ZSTD,
    ZSTD_DICTIONARY1,
    dictionary1,
    small_parameters,
    squeeze,
    unsqueeze,
)
from backtrail.errors import Corrupt

DICTIONARY1_DIGEST = "6d4e90965baa6c9da7b14c06afb1fd12dc01bc2214211366b452477e5e6c6dd1"

TEXT = (
    "We moved the workshop into the old dairy last autumn. It took four weekends, two vans and more tea than I care to "
    "remember, and we still cannot find the good chisels. The floor slopes toward the drain, so everything on wheels "
    "wanders off by itself unless you chock it. Otherwise it is a splendid room: tall windows to the north, thick "
    "walls, and a door wide enough for a boat. If you come on Saturday, bring your plane and we will see whether the "
    "bench is level yet. Nobody here believes that it is, but nobody has dared to put a marble on it either."
)
MESSAGE = {
    "role": "assistant",
    "content": TEXT,
    "id": "0f8d3a52-91c7-4e0b-a6d4-5be2f7c8901d",
    "timestamp": "2025-03-14T09:26:53.589793+00:00",
    "metadata": {"model": "gpt-4o", "latency_ms": 1840},
}
ROW = ormsgpack.packb([[2, [ormsgpack.packb("messages")], 10, 0, [ormsgpack.packb(MESSAGE)]]])

PLAIN_FRAME = zstandard.ZstdCompressor(level=3).compress(ROW * 3)
LIMIT = 1 << 20

texts = st.text(alphabet="abcdefghij klmnop.\n", min_size=0, max_size=4000).map(str.encode)
blobs = st.one_of(
    st.binary(max_size=4000),
    texts,
    st.builds(lambda part, times: part * times, st.binary(min_size=1, max_size=80), st.integers(1, 2000)),
)


@given(blobs)
@example(b"")
@example(bytes(TINY - 1))
@example(bytes(TINY))
@example(ROW)
@example(bytes(SMALL - 1))
@example(bytes(SMALL))
@example(random.Random(1).randbytes(SMALL - 1))
@example(random.Random(1).randbytes(SMALL))
def test_compressed_data_is_at_most_one_byte_longer(data):
    stored = squeeze(data)
    assert unsqueeze(stored, limit=len(data)) == data
    assert len(stored) <= len(data) + 1
    assert squeeze(data) == stored


def test_what_is_far_larger_than_its_frame_comes_back():
    data = bytes(1 << 26)
    stored = squeeze(data)
    assert len(stored) < len(data) // 10_000
    assert unsqueeze(stored, limit=len(data)) == data


def test_what_is_larger_than_any_window_comes_back():
    rng = random.Random(2)
    words = [rng.randbytes(40) for _ in range(500)]
    data = b"".join(rng.choices(words, k=300_000))
    stored = squeeze(data)
    assert stored[0] == ZSTD
    assert len(stored) < len(data) // 4
    assert unsqueeze(stored, limit=len(data)) == data


@pytest.mark.parametrize(
    ("data", "codec"),
    [
        pytest.param(b"", RAW, id="nothing"),
        pytest.param(b"a" * (TINY - 1), RAW, id="tiny"),
        pytest.param(b"a" * TINY, ZSTD_DICTIONARY1, id="small"),
        pytest.param(ROW, ZSTD_DICTIONARY1, id="a row"),
        pytest.param(b"a" * SMALL, ZSTD, id="large"),
        pytest.param(random.Random(3).randbytes(1000), RAW, id="small and random"),
        pytest.param(random.Random(3).randbytes(SMALL), RAW, id="large and random"),
    ],
)
def test_codec_depends_on_size_and_gain(data, codec):
    assert squeeze(data)[0] == codec


def test_small_data_unlike_the_dictionary_is_compressed_without_it():
    rng = random.Random(4)
    words = ["".join(rng.choices(ascii_lowercase, k=rng.randint(2, 9))) for _ in range(200)]
    data = " ".join(rng.choices(words, k=160)).encode()
    with_dictionary = zstandard.ZstdCompressor(compression_params=small_parameters(), dict_data=_dictionary())
    assert squeeze(data)[0] == ZSTD
    assert len(squeeze(data)) < len(with_dictionary.compress(data))


@pytest.mark.parametrize("data", [b"", ROW, bytes(SMALL)], ids=["nothing", "small", "large"])
def test_data_is_stored_plain_without_compression(data):
    stored = squeeze(data, enabled=False)
    assert stored == bytes([RAW]) + data
    assert unsqueeze(stored, limit=len(data)) == data


# -- the format -----------------------------------------------------------------------------------


def _dictionary():
    return zstandard.ZstdCompressionDict(dictionary1())


def test_the_dictionary_is_the_released_one():
    assert blake3.blake3(dictionary1()).hexdigest() == DICTIONARY1_DIGEST


@pytest.mark.parametrize(
    ("stored", "data"),
    [
        pytest.param("00 68 69", b"hi", id="raw"),
        pytest.param("01 28 b5 2f fd 60 20 4d 4d 00 00 10 78 78 01 00 1b ce 0e b0", b"x" * 20_000, id="zstd"),
        pytest.param(
            "0228b52ffd602c003d040003840b1f56b2bff071a65d76a3c6e13ff53bfbc1d186387c4c41cfbbeef957177530f5d182f893"
            "6ce08a25d0b09132831320fc38e9a0c43e62c1f35c313594b2a405d395e6c0dea89363cb1704df82bcfd3e1111c50c37ab0a"
            "9cc13707948a44697500acf6878a162ebc42ac33608811ce3eb426df4dbfd85e12d9740a6a52b4b206116f8d00e0",
            ROW[:300],
            id="zstd with dictionary 1",
        ),
    ],
)
def test_what_the_first_release_stored_can_be_read(stored, data):
    assert unsqueeze(bytes.fromhex(stored), limit=len(data)) == data


@pytest.mark.parametrize("data", [ROW, ROW * 20], ids=["small", "large"])
def test_frame_states_its_size_and_has_no_checksum(data):
    parameters = zstandard.get_frame_parameters(squeeze(data)[1:])
    assert parameters.content_size == len(data)
    assert not parameters.has_checksum
    assert parameters.dict_id == 0


def test_the_dictionary_is_worth_its_bytes():
    alone = len(zstandard.ZstdCompressor(level=3).compress(ROW))
    assert len(ROW) / len(squeeze(ROW)) > 1.8
    assert alone / len(squeeze(ROW)) > 1.25


# -- what is malformed ----------------------------------------------------------------------------


def _frame(data, **options):
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


def _header(size):
    """The header of a frame that states `size`, and a last block of one repeated byte."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + ((100 << 3) | 0b011).to_bytes(3, "little") + b"a"


MALFORMED = {
    "nothing at all": b"",
    "an unknown codec": b"\x03" + PLAIN_FRAME,
    "a codec of the far future": b"\xff",
    "a codec and no frame": bytes([ZSTD]),
    "the dictionary's codec and no frame": bytes([ZSTD_DICTIONARY1]),
    "no frame but text": bytes([ZSTD]) + b"this is not a frame at all",
    "half a magic number": bytes([ZSTD]) + PLAIN_FRAME[:3],
    "half a frame": bytes([ZSTD]) + PLAIN_FRAME[: len(PLAIN_FRAME) // 2],
    "a frame without its last byte": bytes([ZSTD]) + PLAIN_FRAME[:-1],
    "a byte after the frame": bytes([ZSTD]) + PLAIN_FRAME + b"\0",
    "two frames": bytes([ZSTD]) + PLAIN_FRAME * 2,
    "a frame that does not state its size": bytes([ZSTD]) + _frame(ROW, write_content_size=False),
    "a frame of nothing": bytes([ZSTD]) + _frame(b""),
    "a frame to be skipped": bytes([ZSTD]) + b"\x50\x2a\x4d\x18\x04\0\0\0skip",
    "a frame that holds less than it states": bytes([ZSTD]) + _header(101),
    "a frame that holds more than it states": bytes([ZSTD]) + _header(99),
    "a frame that needs the dictionary, read without": bytes([ZSTD]) + squeeze(ROW)[1:],
    "a frame that names another dictionary": bytes([ZSTD_DICTIONARY1])
    + b"\x28\xb5\x2f\xfd\x21\x07" + b"\x64" + ((100 << 3) | 0b011).to_bytes(3, "little") + b"a",
}  # fmt: skip


@pytest.mark.parametrize("stored", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_malformed_is_corrupt(stored):
    with pytest.raises(Corrupt) as caught:
        unsqueeze(stored, limit=LIMIT)
    assert caught.value.code == "corrupt.encoding"


def test_the_well_formed_twins_of_the_malformed_are_read():
    assert unsqueeze(bytes([ZSTD]) + PLAIN_FRAME, limit=LIMIT) == ROW * 3
    assert unsqueeze(bytes([ZSTD]) + _header(100), limit=LIMIT) == b"a" * 100


def _outcome(stored):
    """The data, or the code of a backtrail error."""
    try:
        return unsqueeze(stored, limit=LIMIT)
    except Corrupt as error:
        return error.code


@given(st.sampled_from([squeeze(ROW), squeeze(ROW * 30), squeeze(b"a" * 1000)]), st.data())
def test_changed_byte_is_corrupt_or_other_data(stored, data):
    changed = bytearray(stored)
    changed[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    outcome = _outcome(bytes(changed))
    assert outcome == "corrupt.encoding" or (isinstance(outcome, bytes) and len(outcome) <= LIMIT)


@given(st.integers(0, 3), st.binary(max_size=300))
def test_random_bytes_are_corrupt_unless_they_are_raw(codec, rest):
    assert _outcome(bytes([codec]) + rest) == (rest if codec == RAW else "corrupt.encoding")


@pytest.mark.parametrize("data", [b"hello", ROW, bytes(SMALL)], ids=["raw", "small", "large"])
def test_more_than_the_limit_is_corrupt(data):
    stored = squeeze(data)
    assert unsqueeze(stored, limit=len(data)) == data
    with pytest.raises(Corrupt):
        unsqueeze(stored, limit=len(data) - 1)


@pytest.mark.parametrize(
    ("stored", "limit"),
    [
        pytest.param(squeeze(bytes(1 << 26)), LIMIT, id="larger than the limit"),
        pytest.param(bytes([ZSTD]) + _header(1 << 30), 1 << 40, id="larger than any frame of its length"),
        pytest.param(bytes([ZSTD_DICTIONARY1]) + _header(1 << 30), 1 << 40, id="the same with the dictionary"),
    ],
)
def test_a_bomb_is_refused_without_memory_for_it(stored, limit):
    unsqueeze(squeeze(ROW), limit=LIMIT)  # what is kept for the next time is there already
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            unsqueeze(stored, limit=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


# -- threads and processes ------------------------------------------------------------------------


def _exact(seed):
    """Compress and read rows of every size for a while; return whether all round trip."""
    rng = random.Random(seed)
    for _ in range(150):
        data = (uuid.UUID(int=rng.getrandbits(128)).bytes + ROW * rng.choice((1, 2, 30)))[
            : rng.choice((40, 900, 60_000))
        ]
        if unsqueeze(squeeze(data), limit=len(data)) != data:
            return False
    return True


def test_eight_threads_at_once_are_exact():
    results = []
    start = threading.Barrier(8)

    def work(seed):
        start.wait()
        results.append(_exact(seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def test_no_two_calls_share_a_context():
    used = []

    def make():
        context = object()

        def work(data):
            used.append(context)
            if len(data) > 1:
                pool.run(data[1:])  # as another thread would, in the middle of this call
            return b""

        return work

    pool = module._Pool(make)
    pool.run(b"abc")
    assert len(set(used)) == 3
    pool.run(b"abc")
    assert len(set(used)) == 3


def test_context_of_a_failed_call_is_dropped():
    made = []

    def make():
        made.append(make)

        def fail(data):
            raise ZeroDivisionError

        return fail

    pool = module._Pool(make)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            pool.run(b"")
    assert len(made) == 2


def test_new_threads_make_no_new_contexts(monkeypatch):
    made = []
    make = module._small._make
    monkeypatch.setattr(module._small, "_make", lambda: made.append(1) or make())
    monkeypatch.setattr(module._small, "_idle", [])
    for _ in range(3):
        thread = threading.Thread(target=squeeze, args=(ROW,))
        thread.start()
        thread.join()
    assert made == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("used", [True, False], ids=["after use", "before use"])
def test_forked_child_compresses_while_its_parent_does(used, monkeypatch):
    if used:
        assert _exact(0)
    else:
        for pool in (module._small, module._large, module._plain, module._primed):
            monkeypatch.setattr(pool, "_idle", [])
        module.dictionary1.cache_clear()
        module._digested.cache_clear()
    done = threading.Event()

    def work():
        while not done.is_set():
            _exact(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if _exact(seed) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert _exact(2)


def test_importing_reads_no_dictionary_and_makes_no_context():
    code = (
        "import backtrail.engine.compression as m; "
        "assert m.dictionary1.cache_info().misses == 0; "
        "assert not m._small._idle + m._large._idle + m._plain._idle + m._primed._idle; "
        "m.squeeze(b'a' * 100); "
        "assert m.dictionary1.cache_info().misses == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
