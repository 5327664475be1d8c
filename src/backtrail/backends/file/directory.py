"""The directory of a store in files: made, recognised, and switched to another generation.

`backtrail.store` says that the directory is ours, and which files count: a base, if there is one, and the file of the
log behind it. It is one line, written twice, each with a check of its own. It is replaced as a whole, by a rename, and
that is the moment when another generation begins; whoever has the old one open sees that another file has its name.
Whatever it does not name is left over from something that was interrupted, and removed when nobody can miss it.

A directory that is not ours, or newer than this code, is refused before anything in it is touched.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from blake3 import blake3

from backtrail.backends.file import frames
from backtrail.backends.file.disk import STORE, read_at, synced_directory, translated, write_new
from backtrail.backends.file.log import begin_file
from backtrail.backends.file.reader import LOG_NAME, Generation, log_name
from backtrail.errors import Corrupt, Invalid, NotFound, Unavailable

LOCK: Final = "backtrail.lock"
SNAPSHOT: Final = "snapshot"
NEW: Final = ".new"
"""Behind the name of a file that is not finished: it gets its name when it is."""
UID_BYTES: Final = 8
_WORD: Final = "backtrail-files"
_LINE: Final = re.compile(
    rf"{_WORD} (?P<format>\d+) uid=(?P<uid>[0-9a-f]{{16}}) generation=(?P<generation>\d+) base=(?P<base>\S+) "
    r"frames=(?P<frames>\d+) file=(?P<file>\d+) frame=(?P<frame>\d+)"
)
_BEGUN: Final = re.compile(rf"{LOCK}|{STORE}\{NEW}|log-0{{11}}1")
"""What a directory has in it when the making of a store was interrupted."""
_OURS: Final = re.compile(rf"log-\d{{12}}|base-\d{{12}}-[0-9a-f]{{8}}|{SNAPSHOT}")


def _line(generation: Generation) -> str:
    uid, number, base, count, file, frame = generation
    said = f"{_WORD} {frames.FORMAT} uid={uid.hex()} generation={number} base={base or '-'} frames={count} "
    said += f"file={file} frame={frame}"
    return f"{said} check={_check(said)}\n"


def _check(said: str) -> str:
    return blake3(said.encode()).hexdigest(length=frames.CHECK_BYTES)


def new_uid() -> bytes:
    """Return what tells a store from others."""
    return secrets.token_bytes(UID_BYTES)


def new_file(path: Path) -> int:
    """Return the number of a file of the log that comes behind all that are there. Whoever asks has the lock."""
    try:
        names = [entry.name for entry in os.scandir(path)]
    except OSError as error:
        raise translated(error, path) from error
    return max((int(name[4:]) for name in names if LOG_NAME.fullmatch(name)), default=0) + 1


def new_base(generation: int) -> str:
    """Return the name of a base that nobody else makes."""
    return f"base-{generation:012d}-{secrets.token_hex(4)}"


# -- recognised -----------------------------------------------------------------------------------
def look(path: Path) -> bool:
    """Return whether there is a store in that directory; refuse what is no place for one."""
    try:
        entries = {entry.name for entry in os.scandir(path)}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise Invalid(f"{path}: is not a directory: name another place", code="invalid.store") from error
    except OSError as error:
        raise translated(error, path) from error
    if STORE in entries:
        return True
    if all(_BEGUN.fullmatch(name) for name in entries) and not _has_frames(path / log_name(1)):
        return False
    if (path / STORE).exists():
        return True  # somebody has just made it
    if any(_OURS.fullmatch(name) for name in entries):
        raise Corrupt(
            f"{path}: the file {STORE} is missing: docs/format.md says how to make it anew", code="corrupt.store"
        )
    raise Invalid(f"{path}: has files of something else in it: name an empty directory", code="invalid.store")


def is_store(path: Path) -> bool:
    """Tell whether a directory has files of a store in it, sound or not, and nothing else."""
    names = [entry.name for entry in os.scandir(path)]
    ours = (name for name in names if _OURS.fullmatch(name) or name.startswith((STORE, LOCK, SNAPSHOT)))
    return [*ours] == names


def _has_frames(log: Path) -> bool:
    try:
        return log.stat().st_size > frames.FILE_HEADER
    except FileNotFoundError:
        return False
    except OSError as error:
        raise translated(error, log) from error


def read(path: Path) -> tuple[Generation, int]:
    """Return which files count, and the file that says so, open."""
    name = path / STORE
    try:
        fd = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path}: there is no such store", code="not_found.store") from error
    except OSError as error:
        raise translated(error, name) from error
    try:
        text = read_at(fd, 0, 4096).decode("latin-1")
        for line in (text[: len(text) // 2], text[len(text) // 2 :], text):  # the last, if somebody wrote it by hand
            said, _, check = line.rpartition(" check=")
            if said and check[:-1] == _check(said):
                return _parsed(said, path), fd
    except OSError as error:
        os.close(fd)
        raise translated(error, name) from error
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise Corrupt(f"{name}: is damaged: docs/format.md says how to make it anew", code="corrupt.store")


def _parsed(said: str, path: Path) -> Generation:
    form = int(said.split()[1])
    if form > frames.FORMAT:
        raise Invalid(
            f"{path}: has format {form}, and this version of backtrail knows formats up to {frames.FORMAT}: "
            "upgrade backtrail",
            code="invalid.format",
            format=form,
        )
    found = _LINE.fullmatch(said)
    if found is None:
        raise Corrupt(f"{path / STORE}: cannot be read", code="corrupt.store")
    base = found["base"]
    return Generation(
        bytes.fromhex(found["uid"]),
        int(found["generation"]),
        None if base == "-" else base,
        int(found["frames"]),
        int(found["file"]),
        int(found["frame"]),
    )


# -- made -----------------------------------------------------------------------------------------
def make_directory(path: Path) -> None:
    """Make a directory and those above it, so that they survive a power cut as the files in them will."""
    try:
        missing = [place for place in (path, *path.parents) if not place.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(0o700, exist_ok=True)
        for place in missing:
            synced_directory(place.parent)
    except (FileExistsError, NotADirectoryError) as error:
        raise Invalid(f"{path}: is not a directory: name another place", code="invalid.store") from error
    except OSError as error:
        raise translated(error, path) from error


def make(path: Path) -> None:
    """Make a store in an empty directory. Whoever does has its lock."""
    made = Generation(new_uid(), 1, None, 0, 1, 1)
    begin_file(path / log_name(1), made.uid, 1, 1)
    switch(path, made)


def switch(path: Path, to: Generation) -> None:
    """Let another generation begin. Whoever does has the lock; all files that it names are durable."""
    replace(path / STORE, _line(to).encode() * 2)


def replace(name: Path, data: bytes) -> None:
    """Put a file in the place of another, durably: at any moment there is one of the two."""
    new = name.with_name(name.name + NEW)
    try:
        write_new(new, os.O_TRUNC, data)
        new.replace(name)
        synced_directory(name.parent)
    except OSError as error:
        raise translated(error, name) from error


def sweep(path: Path, now: Generation) -> None:
    """Remove what older generations have left. Whoever does has the lock.

    A base of a generation to come is somebody's who is making it, or was: it goes with the generation after this one.
    """
    try:
        left = [Path(entry.path) for entry in os.scandir(path) if _is_left(entry.name, now) and not entry.is_dir()]
        if left:
            synced_directory(path)  # whoever switched to this generation may have been killed before that was on disk
        for each in left:
            each.unlink(missing_ok=True)
    except OSError as error:
        raise translated(error, path) from error


def _is_left(name: str, now: Generation) -> bool:
    """Tell whether a file is of no use in this generation."""
    if name.startswith((STORE + NEW, SNAPSHOT + NEW)):
        return True
    kind, _, rest = name.partition("-")
    if not rest or not _OURS.fullmatch(name):
        return False
    number = int(rest[:12])
    return number < now.file if kind == "log" else number <= now.generation and name != now.base


def refuse_if_full(path: Path, size: int) -> None:
    """Refuse to begin what would fill the disk: each attempt leaves a file of the log."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise translated(error, path) from error
    if found.f_bavail * found.f_frsize < size:
        raise Unavailable(
            f"{path}: there is no room for the {size} bytes that a collection needs: free some space and try again",
            code="unavailable.full",
        )


def size(path: Path) -> int:
    """Return the bytes of all files."""
    found = 0
    for entry in os.scandir(path):
        try:
            found += entry.stat().st_size
        except FileNotFoundError:
            continue
    return found
