"""Putting a backup in the place of a store. What was there is kept under another name.

The backup is copied and synced first, and gets the store's name by one rename. A process that is killed before that
leaves the store as it was, with its log; one that is killed behind it leaves the backup, and a log that does not belong
to it, which `open` refuses. Then the same call again goes on.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.atomic_file import PARTS, Access, path_of, remove, sync, translated
from backtrail.errors import Invalid, NotFound, Unavailable
from backtrail.loading import loading
from backtrail.urls import check_url, directory_of, file_of, in_postgres
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Copyable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SHARED: Final = (0x40000002, 510)
"""The bytes of an SQLite file that each connection to it has locked, in WAL mode as long as it is open."""
_MAGIC: Final = b"SQLite format 3\0"
_EXCHANGE: Final = 2
_HERE: Final = -100


def restore_backup(
    backup: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> str | None:
    """Put a backup in the place of a store; return the name under which that one is kept, None if there was none.

    `backup` is a file of SQLite, or the directory of a store in files; `store` is the path or the URL of one of the
    same kind, which need not be there. No process may have it open. The backup stays as it is.
    """
    check_progress(progress)
    source = path_of(backup)
    url = check_url(store)
    if in_postgres(url) or url.startswith("memory:"):
        raise Invalid(
            "a backup is put in the place of a file of SQLite, or of a directory of files: "
            "copy(backup, url) copies it into another kind of store",
            code="invalid.argument",
        )
    directory = directory_of(url)
    target = Path(os.path.realpath(directory or file_of(url)))
    if target == Path(os.path.realpath(source)):
        raise Invalid(f"{source}: is the store itself, not a backup of it", code="invalid.argument")
    try:
        _refuse_other(target, is_files=directory is not None)
    except OSError as error:
        raise translated(error, target) from error
    if not source.exists():
        raise NotFound(f"{source}: there is no such backup", code="not_found.store")
    if source.is_dir() != (directory is not None):
        raise Invalid(
            f"{source} is {'a store in files' if source.is_dir() else 'a file of SQLite'}, and the store is to be "
            "another kind: copy(backup, store) copies between kinds",
            code="invalid.argument",
        )
    try:
        with closing(_opened(source)) as opened:
            if directory is not None:
                return _restore_directory(opened, target, progress)
            return _restore_file(opened, target, progress)
    except OSError as error:
        raise translated(error, target) from error


def _refuse_other(target: Path, *, is_files: bool) -> None:
    """Raise `Invalid` if what is there is no store, sound or not: it may be a slip of the pen."""
    if not target.exists():
        return
    if target.is_dir() != is_files:
        raise Invalid(f"{target}: is {'a directory' if target.is_dir() else 'no directory'}", code="invalid.store")
    with loading:
        from backtrail.backends.file.directory import is_store  # noqa: PLC0415
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415
    # To close a file that is open here would drop the locks of its connection.
    ours = is_store(target) if is_files else is_open(str(target)) or _begins(target) in (b"", _MAGIC)
    if not ours:
        raise Invalid(f"{target}: is no store: move it away, or name another place", code="invalid.store")


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def _opened(source: Path) -> Any:
    if source.is_dir():
        with loading:
            from backtrail.backends.file.backend import FileBackend  # noqa: PLC0415 - only what is used is loaded

        return FileBackend(source, read_only=True)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415

    return SqliteBackend(source, read_only=True)


@contextmanager
def _copied(opened: Copyable, target: Path, progress: Callable[[str, int], None] | None) -> Iterator[Path]:
    """Give the name of a copy beside the target, on disk, which whoever may use the target may use."""
    part = target.with_name(f".backtrail-{os.urandom(8).hex()}.part")
    try:
        opened.backup(part, progress)
        if target.exists():
            Access.to(target).give(part)
        sync(part)
        yield part
    finally:
        remove(part)


def _name_beside(target: Path) -> Path:
    """Return a name that nothing has, for what was there."""
    for number in count(1):
        name = target.with_name(f"{target.name}.replaced-{number}")
        if not any(name.with_name(name.name + ending).exists() for ending in ("", *PARTS)):
            return name
    raise AssertionError


# -- a file of SQLite -----------------------------------------------------------------------------
def _restore_file(opened: Any, target: Path, progress: Callable[[str, int], None] | None) -> str | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _copied(opened, target, progress) as part, _unused(target):
        kept = _name_beside(target)
        left = [ending for ending in ("", *PARTS) if target.with_name(target.name + ending).exists()]
        for ending in left:
            if ending != "-shm":
                _keep(target.with_name(target.name + ending), kept.with_name(kept.name + ending))
        part.replace(target)
        sync(target.parent)
        for ending in left:
            if ending:
                target.with_name(target.name + ending).unlink(missing_ok=True)
        sync(target.parent)
    return str(kept) if left else None


def _keep(name: Path, other: Path) -> None:
    """Give a file another name, and leave it the one that it has if the file system can do that."""
    try:
        os.link(name, other)
    except OSError:
        name.rename(other)


@contextmanager
def _unused(target: Path) -> Iterator[None]:
    """Keep other processes from opening a file; `Unavailable` if one has it open."""
    with loading:
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415

    used = Unavailable(
        f"{target}: a process has it open: stop it, or close the store, and restore the backup then",
        code="unavailable.locked",
    )
    if is_open(str(target)):  # to close the file here would drop the locks of that connection
        raise used
    try:
        fd = os.open(target, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        yield
        return
    try:
        if fcntl is not None:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _SHARED[1], _SHARED[0])
            except (BlockingIOError, PermissionError) as error:
                raise used from error
        yield
    finally:
        os.close(fd)


# -- a directory of files -------------------------------------------------------------------------
def _restore_directory(opened: Any, target: Path, progress: Callable[[str, int], None] | None) -> str | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _copied(opened, target, progress) as part:
        if not target.exists():
            part.rename(target)
            kept = None
        else:
            kept = _name_beside(target)
            _exchange(part, target)
            part.rename(kept)
        sync(target.parent)
    return None if kept is None else str(kept)


def _exchange(one: Path, other: Path) -> None:
    """Let two directories change their names, at once if the system can do that."""
    with suppress(OSError, AttributeError):
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
            return
    between = one.with_name(one.name + "-old")
    other.rename(between)
    one.rename(other)
    between.rename(one)
