"""Compression of payloads and chunks.

Stored bytes are one codec byte, then the data in the form of that codec:

    0  raw     the data itself
    1  zstd    one frame
    2  zstd    one frame that needs dictionary 1 (dictionary1.bin)
    3  beside  the number of chunks, their digests, and one frame (without its magic number) whose dictionary is the
               joined bytes of those chunks

Codec 3 is for data that repeats parts of a chunk: the frame only refers to those parts.

A frame states the size of its content. It carries no checksum and no dictionary id: the hash of the state and the codec
byte make them redundant. Codecs are only ever added, and a released dictionary never changes: old rows need them.

Always true:
- `unsqueeze(squeeze(data), limit=len(data)) == data`, and the stored bytes are at most one byte longer than the data;
- with one version of zstd, the same data gives the same stored bytes;
- malformed bytes, and content larger than `limit`, raise `Corrupt` before the content is decompressed.

Two threads must not use one zstd context at once: a thread takes a context out of a pool and puts it back. This module
takes no locks, so a child process can be forked at any moment.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Final

import zstandard

from backtrail.errors import Corrupt
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Work = Callable[[bytes | memoryview], bytes]

RAW: Final = 0
ZSTD: Final = 1
ZSTD_DICTIONARY1: Final = 2
BESIDE: Final = 3
BESIDE_MAX: Final = 4
"""The most chunks that codec 3 uses as a dictionary."""
BESIDE_LEVEL: Final = 9
"""The zstd level of codec 3. A row of 75 bytes with level 3 takes 71, in the same time; level 19 saves no more."""

_RAW: Final = bytes([RAW])
_ZSTD: Final = bytes([ZSTD])
_ZSTD_DICTIONARY1: Final = bytes([ZSTD_DICTIONARY1])

TINY: Final = 32
"""Data shorter than this stays raw: the header of a frame would outweigh the savings."""
SMALL: Final = 16 * 1024
"""Data shorter than this is compressed with dictionary 1. It saves 30 % at 1 KB; at 16 KB 10 %, in twice the time."""
LEVEL: Final = 3
"""The zstd level without the dictionary."""

_DIGEST_BYTES: Final = 32
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LOOK_TWICE: Final = 512
"""From this size on, data that compresses badly with the dictionary is also tried without it."""
_DENSEST: Final = 1 << 15
"""The most content bytes per byte of a frame: the densest zstd block holds 128 KB in four bytes."""


class _Pool:
    """Functions of idle zstd contexts of one kind. Making a context takes as long as compressing 20 small rows.

    A list's `pop` and `append` are atomic. A context whose call fails is dropped.
    """

    def __init__(self, make: Callable[[], Work]) -> None:
        self._make = make
        self._idle: list[Work] = []

    def run(self, data: bytes | memoryview) -> bytes:
        """Compress or decompress data, with a context that no other thread uses meanwhile."""
        try:
            work = self._idle.pop()
        except IndexError:
            work = self._make()
        result = work(data)
        self._idle.append(work)
        return result


def squeeze(data: bytes, *, enabled: bool = True) -> bytes:
    """Return the stored bytes of `data`: compressed, if `enabled` and if that makes them shorter."""
    size = len(data)
    if not enabled or size < TINY:
        return _RAW + data
    if size < SMALL:
        codec, frame = _ZSTD_DICTIONARY1, _small.run(data)
        if size >= _LOOK_TWICE and len(frame) * 5 > size * 3:
            alone = _large.run(data)
            if len(alone) < len(frame):
                codec, frame = _ZSTD, alone
    else:
        codec, frame = _ZSTD, _large.run(data)
    return codec + frame if len(frame) < size else _RAW + data


class Beside:
    """A compressor for codec 3. `digests` name the chunks of its dictionary, `contents` are their nodes' bytes."""

    def __init__(self, digests: Sequence[bytes], contents: Sequence[bytes]) -> None:
        self._start = bytes((BESIDE, len(digests))) + b"".join(digests)
        dictionary = zstandard.ZstdCompressionDict(b"".join(contents), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        dictionary.precompute_compress(level=BESIDE_LEVEL)
        self._compressor = zstandard.ZstdCompressor(
            level=BESIDE_LEVEL, dict_data=dictionary, write_content_size=True, write_checksum=False, write_dict_id=False
        )

    def squeeze(self, data: bytes) -> bytes:
        """Return the stored bytes of `data`, even if they are longer than the data."""
        return self._start + self._compressor.compress(data)[len(_MAGIC) :]


def stands_beside(stored: bytes) -> tuple[bytes, ...]:
    """Return the digests of the chunks that stored bytes need as a dictionary; () for other codecs than 3."""
    if stored[:1] != bytes((BESIDE,)):
        return ()
    count = stored[1] if len(stored) > 1 else 0
    end = 2 + count * _DIGEST_BYTES
    if not 0 < count <= BESIDE_MAX or len(stored) <= end:
        raise Corrupt("what stands beside chunks does not name them", code="corrupt.encoding")
    return tuple(stored[at : at + _DIGEST_BYTES] for at in range(2, end, _DIGEST_BYTES))


def unsqueeze_beside(stored: bytes, contents: Sequence[bytes], *, limit: int) -> bytes:
    """Return the data of bytes stored with codec 3. `contents` are the nodes' bytes of the chunks that they name."""
    digests = stands_beside(stored)
    frame = memoryview(_MAGIC + stored[2 + len(digests) * _DIGEST_BYTES :])
    return _read(_beside(digests, contents), frame, limit)


def unsqueeze(stored: bytes, *, limit: int) -> bytes:
    """Return the data that `squeeze` stored; `Corrupt` if the bytes are malformed or the data exceeds `limit` bytes."""
    if not stored:
        raise Corrupt("nothing is stored where data should be", code="corrupt.encoding")
    codec = stored[0]
    if codec == RAW:
        _refuse_above(limit, len(stored) - 1)
        return stored[1:]
    if codec == ZSTD_DICTIONARY1:
        return _read(_primed, memoryview(stored)[1:], limit)
    if codec == ZSTD:
        return _read(_plain, memoryview(stored)[1:], limit)
    raise Corrupt(f"unknown codec {codec}; it may come from a newer backtrail", code="corrupt.encoding")


def _read(pool: _Pool, frame: memoryview, limit: int) -> bytes:
    """Return the content of a frame. Its stated size is checked against `limit` first."""
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 < size <= len(frame) * _DENSEST:  # -1: no size is stated; 0: writers never compress empty data
            raise Corrupt("a compressed frame does not state how much is in it", code="corrupt.encoding")
        _refuse_above(limit, size)
        return pool.run(frame)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a compressed frame is damaged ({error})", code="corrupt.encoding") from error


def _refuse_above(limit: int, size: int) -> None:
    if size > limit:
        raise Corrupt(f"{size} bytes are stored where at most {limit} may be", code="corrupt.encoding")


# -- making the contexts ------------------------------------------------------------------------------


@functools.cache
def dictionary1() -> bytes:
    """Return the bytes of dictionary 1, which bench/train_dictionary.py made."""
    with loading:
        import importlib.resources  # noqa: PLC0415 - many programs read no state

        return importlib.resources.files(__package__).joinpath("dictionary1.bin").read_bytes()


def small_parameters() -> zstandard.ZstdCompressionParameters:
    """Return the zstd parameters for compression with the dictionary. They may change at any time.

    They are those of level 3, with tables of 96 KB instead of 384 KB: between two saves, a program's own work takes the
    tables out of the processor's cache. Rows of 1 KB are 1 % longer, and then take 21 us instead of 29 us to compress.
    A deeper search (strategy greedy, search_log 3) makes them 2 % smaller, in twice the time.
    """
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_DFAST,
        window_log=17,
        hash_log=14,
        chain_log=13,
        search_log=1,
        min_match=5,
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
    )


@functools.cache
def _digested() -> zstandard.ZstdCompressionDict:
    """Return the dictionary, digested for compression. Threads may share it, because compressing only reads it."""
    dictionary = zstandard.ZstdCompressionDict(dictionary1(), dict_type=zstandard.DICT_TYPE_FULLDICT)
    dictionary.precompute_compress(compression_params=small_parameters())
    return dictionary


def _decompress_with(content: bytes, kind: int) -> Work:
    # Each context needs its own dictionary object: zstandard digests it at the first decompression, without a lock.
    dictionary = zstandard.ZstdCompressionDict(content, dict_type=kind) if content else None
    return partial(zstandard.ZstdDecompressor(dict_data=dictionary).decompress, allow_extra_data=False)


def _compress_large() -> Work:
    return zstandard.ZstdCompressor(
        level=LEVEL, write_content_size=True, write_checksum=False, write_dict_id=False
    ).compress


def _compress_small() -> Work:
    return zstandard.ZstdCompressor(compression_params=small_parameters(), dict_data=_digested()).compress


_large: Final = _Pool(_compress_large)
_small: Final = _Pool(_compress_small)
_plain: Final = _Pool(lambda: _decompress_with(b"", 0))
_primed: Final = _Pool(lambda: _decompress_with(dictionary1(), zstandard.DICT_TYPE_FULLDICT))
_last_beside: tuple[tuple[bytes, ...], _Pool] = ((), _plain)
"""The chunk digests of the last read with codec 3, and its contexts. Neighbouring rows use the same chunks."""


def _beside(digests: tuple[bytes, ...], contents: Sequence[bytes]) -> _Pool:
    global _last_beside  # noqa: PLW0603 - one assignment is atomic
    last, pool = _last_beside
    if last != digests:
        pool = _Pool(partial(_decompress_with, b"".join(contents), zstandard.DICT_TYPE_RAWCONTENT))
        _last_beside = digests, pool
    return pool
