"""Compression: what is stored is one codec byte, then the data as that codec keeps it.

    0  raw     the data itself
    1  zstd    one frame
    2  zstd    one frame that needs dictionary 1 (dictionary1.bin)
    3  beside  how many chunks, their digests, and one frame (without its magic number) that needs those chunks' bytes,
               joined, as its dictionary

What of some data stands in a chunk already is, beside that chunk, a few bytes that say where.

A frame states the size of its content. It carries no checksum and no dictionary id: a hash and the codec byte say
both already. Codecs are only ever added, and a released dictionary never changes: old rows need them.

Always true here:
- `unsqueeze(squeeze(data), limit=len(data)) == data`, and what is stored is at most one byte longer than the data;
- with one version of zstd, the same data gives the same stored bytes;
- what is malformed, or larger than `limit`, raises `Corrupt`, and its content is not unpacked first.

zstd's contexts must not be used by two threads at once, so each thread has its own. Nothing here takes a lock, so
a child that is forked at any moment has what it needs.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Final

import zstandard

from backtrail.errors import Corrupt
from backtrail.loading import loading

if TYPE_CHECKING:
    from collections.abc import Sequence

RAW: Final = 0
ZSTD: Final = 1
ZSTD_DICTIONARY1: Final = 2
BESIDE: Final = 3
BESIDE_MAX: Final = 4
"""Beside this many chunks, at most."""
BESIDE_LEVEL: Final = 9
"""How hard zstd tries there: 4 bytes less in 75 than with level 3, for the same time; level 19 finds no more."""

_RAW: Final = bytes([RAW])
_ZSTD: Final = bytes([ZSTD])
_ZSTD_DICTIONARY1: Final = bytes([ZSTD_DICTIONARY1])

TINY: Final = 32
"""Data below this stays raw: a frame's own header eats what could be saved."""
SMALL: Final = 16 * 1024
"""Data below this is compressed with the dictionary: 30 % smaller at 1 KB; at 16 KB 10 %, for twice the time."""
LEVEL: Final = 3
"""How hard zstd tries without the dictionary."""

_DIGEST_BYTES: Final = 32
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_LOOK_TWICE: Final = 512
"""From this size on, zstd may do better alone with what is not at all like the dictionary."""
_DENSEST: Final = 1 << 15
"""No frame holds more than this for a byte of its own: the densest block says 128 KB in four bytes."""


class _Contexts(threading.local):
    """The contexts of one thread, each made when the thread first needs it."""

    large: zstandard.ZstdCompressor
    small: zstandard.ZstdCompressor
    plain: zstandard.ZstdDecompressor
    primed: zstandard.ZstdDecompressor
    beside: tuple[tuple[bytes, ...], zstandard.ZstdDecompressor]
    """The chunks that something was read beside last: rows that follow each other stand beside the same ones."""


_contexts: Final = _Contexts()


def squeeze(data: bytes, *, enabled: bool = True) -> bytes:
    """Return `data` as it is stored: compressed, if `enabled` and if that makes it smaller."""
    size = len(data)
    if not enabled or size < TINY:
        return _RAW + data
    if size < SMALL:
        codec, frame = _ZSTD_DICTIONARY1, _small().compress(data)
        if size >= _LOOK_TWICE and len(frame) * 5 > size * 3:
            alone = _large().compress(data)
            if len(alone) < len(frame):
                codec, frame = _ZSTD, alone
    else:
        codec, frame = _ZSTD, _large().compress(data)
    return codec + frame if len(frame) < size else _RAW + data


class Beside:
    """Stores data beside chunks: `digests` name them, `contents` are their nodes' bytes."""

    def __init__(self, digests: Sequence[bytes], contents: Sequence[bytes]) -> None:
        self._start = bytes((BESIDE, len(digests))) + b"".join(digests)
        dictionary = zstandard.ZstdCompressionDict(b"".join(contents), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        dictionary.precompute_compress(level=BESIDE_LEVEL)
        self._compressor = zstandard.ZstdCompressor(
            level=BESIDE_LEVEL, dict_data=dictionary, write_content_size=True, write_checksum=False, write_dict_id=False
        )

    def squeeze(self, data: bytes) -> bytes:
        """Return the data as it is stored beside the chunks, whether or not that is smaller."""
        return self._start + self._compressor.compress(data)[len(_MAGIC) :]


def stands_beside(stored: bytes) -> tuple[bytes, ...]:
    """Return the digests of the chunks that stored data needs to be read."""
    if stored[:1] != bytes((BESIDE,)):
        return ()
    count = stored[1] if len(stored) > 1 else 0
    end = 2 + count * _DIGEST_BYTES
    if not 0 < count <= BESIDE_MAX or len(stored) <= end:
        raise Corrupt("what stands beside chunks does not name them", code="corrupt.encoding")
    return tuple(stored[at : at + _DIGEST_BYTES] for at in range(2, end, _DIGEST_BYTES))


def unsqueeze_beside(stored: bytes, contents: Sequence[bytes], *, limit: int) -> bytes:
    """Return the data that is stored beside chunks with these contents."""
    digests = stands_beside(stored)
    frame = memoryview(_MAGIC + stored[2 + len(digests) * _DIGEST_BYTES :])
    return _read(_beside(digests, contents), frame, limit)


def unsqueeze(stored: bytes, *, limit: int) -> bytes:
    """Return the data that `squeeze` stored; `Corrupt` if this is no such thing, or more than `limit` bytes."""
    if not stored:
        raise Corrupt("nothing is stored where data should be", code="corrupt.encoding")
    codec = stored[0]
    if codec == RAW:
        _refuse_above(limit, len(stored) - 1)
        return stored[1:]
    if codec == ZSTD_DICTIONARY1:
        return _read(_primed(), memoryview(stored)[1:], limit)
    if codec == ZSTD:
        return _read(_plain(), memoryview(stored)[1:], limit)
    raise Corrupt(f"unknown codec {codec}; it may come from a newer backtrail", code="corrupt.encoding")


def _read(decompressor: zstandard.ZstdDecompressor, frame: memoryview, limit: int) -> bytes:
    """Return the content of a frame, after a look at the size that it states."""
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 < size <= len(frame) * _DENSEST:  # -1: none is stated; 0: nobody compresses nothing
            raise Corrupt("a compressed frame does not state how much is in it", code="corrupt.encoding")
        _refuse_above(limit, size)
        return decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"a compressed frame is damaged ({error})", code="corrupt.encoding") from error


def _refuse_above(limit: int, size: int) -> None:
    if size > limit:
        raise Corrupt(f"{size} bytes are stored where at most {limit} may be", code="corrupt.encoding")


# -- what the contexts are made of --------------------------------------------------------------------


@functools.cache
def dictionary1() -> bytes:
    """Return dictionary 1. bench/train_dictionary.py tells how it was made."""
    with loading:
        import importlib.resources  # noqa: PLC0415 - who reads no state does without

        return importlib.resources.files(__package__).joinpath("dictionary1.bin").read_bytes()


def small_parameters() -> zstandard.ZstdCompressionParameters:
    """Return how hard zstd tries with the dictionary: as level 3 does. This is no part of the format.

    Knowing eight earlier places for each string instead of one (greedy, search_log 3) makes rows of 1 KB 2 % smaller,
    and takes 15 us instead of 7.5.
    """
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_DFAST,
        window_log=17,
        hash_log=16,
        chain_log=15,
        search_log=1,
        min_match=5,
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
    )


@functools.cache
def _digested() -> zstandard.ZstdCompressionDict:
    """Return the dictionary ready for compression. It is only read from then on: threads may share it."""
    dictionary = zstandard.ZstdCompressionDict(dictionary1(), dict_type=zstandard.DICT_TYPE_FULLDICT)
    dictionary.precompute_compress(compression_params=small_parameters())
    return dictionary


def _large() -> zstandard.ZstdCompressor:
    try:
        return _contexts.large
    except AttributeError:
        _contexts.large = zstandard.ZstdCompressor(
            level=LEVEL, write_content_size=True, write_checksum=False, write_dict_id=False
        )
        return _contexts.large


def _small() -> zstandard.ZstdCompressor:
    try:
        return _contexts.small
    except AttributeError:
        _contexts.small = zstandard.ZstdCompressor(compression_params=small_parameters(), dict_data=_digested())
        return _contexts.small


def _plain() -> zstandard.ZstdDecompressor:
    try:
        return _contexts.plain
    except AttributeError:
        _contexts.plain = zstandard.ZstdDecompressor()
        return _contexts.plain


def _primed() -> zstandard.ZstdDecompressor:
    try:
        return _contexts.primed
    except AttributeError:
        # A dictionary of its own: zstandard digests it for reading at the first use, which is no moment to share it.
        dictionary = zstandard.ZstdCompressionDict(dictionary1(), dict_type=zstandard.DICT_TYPE_FULLDICT)
        _contexts.primed = zstandard.ZstdDecompressor(dict_data=dictionary)
        return _contexts.primed


def _beside(digests: tuple[bytes, ...], contents: Sequence[bytes]) -> zstandard.ZstdDecompressor:
    last = getattr(_contexts, "beside", None)
    if last is None or last[0] != digests:
        dictionary = zstandard.ZstdCompressionDict(b"".join(contents), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        _contexts.beside = last = (digests, zstandard.ZstdDecompressor(dict_data=dictionary))
    return last[1]
