"""Snapshots: the tables at one place of the log, so that opening a store need not read all of it.

A snapshot is made from the log and can be made again. It counts if it is whole, of the present generation, and if the
log has the frame behind which it was made: in a copy of the store, the log may have gone on in another way. What it
covers was on disk before it was written. Bodies stay where they are: it says where.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, Final

import ormsgpack
from blake3 import blake3

from backtrail.backends.file.directory import NEW, SNAPSHOT
from backtrail.backends.file.disk import created, remove, translated, write_at
from backtrail.backends.file.frames import FORMAT
from backtrail.backends.file.records import fields_of, unpack
from backtrail.backends.tables.changes import Place
from backtrail.backends.tables.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail.backends.file.log import Log
    from backtrail.backends.file.reader import Generation
    from backtrail.backends.tables.changes import Body

MAGIC: Final = b"BTRLSNAP"
_DIGEST: Final = 32


def _wire(body: Body) -> list[int]:
    return [0, 0, 0] if isinstance(body, bytes) else list(body)  # of a lost row: there is nothing to keep


def prepare(path: Path, generation: Generation, log: Log, tables: Tables) -> Path:
    """Write what the tables are where the log stands, under another name yet. All of the log up to there is on disk."""
    of = [FORMAT, generation.uid, generation.generation, generation.base]
    where = [log.file, log.at, log.number, log.sealed, log.echo, log.last]
    records = [fields_of(change, _wire) for change in tables.whole()]
    content = ormsgpack.packb([of, where, tables.wasted, records])
    name = path / f"{SNAPSHOT}{NEW}-{secrets.token_hex(4)}"
    try:
        fd = created(name, os.O_WRONLY | os.O_EXCL)
        try:
            write_at(fd, 0, MAGIC + blake3(content).digest() + content)
        finally:
            os.close(fd)
    except OSError as error:
        remove(name)
        raise translated(error, name) from error
    return name


def put(path: Path, prepared: Path | None) -> None:
    """Let a snapshot be the one that counts, or none. Whoever does has the lock."""
    try:
        if prepared is None:
            (path / SNAPSHOT).unlink(missing_ok=True)
        else:
            prepared.replace(path / SNAPSHOT)
    except OSError as error:
        raise translated(error, path / SNAPSHOT) from error


def read(path: Path, generation: Generation, log: Log) -> Tables | None:
    """Return the tables of the snapshot and let the log stand where it was made; None if there is none that counts."""
    try:
        data = (path / SNAPSHOT).read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + _DIGEST
    content = data[start:]
    if data[: len(MAGIC)] != MAGIC or blake3(content).digest() != data[len(MAGIC) : start]:
        return None
    try:
        of, where, wasted, records = ormsgpack.unpackb(content)
        if of != [FORMAT, generation.uid, generation.generation, generation.base]:
            return None
        tables = Tables()
        for record in records:
            tables.do(unpack(record, _place))
        tables.wasted = wasted
        file, at, frame, sealed, echo, last = where
        log.stand(file, at, frame, sealed=sealed, echo=echo, last=None if last is None else tuple(last))
    except Exception:  # noqa: BLE001 - another version made it, or a file is not there: it only saves time
        return None
    return tables


def _place(wire: Any) -> Place:
    return Place(*wire)
