"""Backups: copy a store into a file or directory, and replace a store by its backup.

A restore copies and syncs the backup, then gives the copy the name of the store by one rename. The replaced store is
kept under another name. A process that is killed before the rename leaves the old store with its write-ahead log. A
process that is killed after the rename leaves the backup beside the log of the old store, and `open` refuses the two:
calling the restore again completes it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.archive.copy import copy_engine
from backtrail.atomic_file import PARTS, Access, path_of, placed, remove, sync, temporary, translated
from backtrail.backends.port import Copyable
from backtrail.engine.reader import Options
from backtrail.engine.schema.registry import Types
from backtrail.errors import Invalid, NotFound, Unavailable
from backtrail.loading import loading
from backtrail.transaction import Engine
from backtrail.urls import check_url, directory_of, file_of, in_postgres
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[str, int], None] | None

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SHARED: Final = (0x40000002, 510)
"""Offset and length of the bytes of an SQLite file that every open connection in WAL mode holds a shared lock on."""
_MAGIC: Final = b"SQLite format 3\0"
_EXCHANGE: Final = 2
_HERE: Final = -100


def backup(engine: Engine, path: Any, progress: Progress) -> int:
    """Write a backup of the whole store to a new path; return its size in bytes.

    The backup is a store of the same kind if the backend is `Copyable`, otherwise an SQLite file.
    """
    check_progress(progress)
    backend = engine.outside().backend
    target = path_of(path)
    if isinstance(backend, Copyable):
        with placed(target, beside=backend.beside) as part:
            return backend.backup(part, progress)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415 - few need it here

    with (
        placed(target, beside=SqliteBackend.beside) as part,
        temporary() as folder,
        closing(SqliteBackend(folder / "backup", durability="relaxed")) as other,
    ):
        copy_engine(engine, lambda: nullcontext(Engine(other, Types(), Options())), progress)
        return other.backup(part, progress)


# -- restoring --------------------------------------------------------------------------------------------


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
    """Raise `Invalid` if the target exists and is not a store; a damaged store passes."""
    if not target.exists():
        return
    if target.is_dir() != is_files:
        raise Invalid(f"{target}: is {'a directory' if target.is_dir() else 'no directory'}", code="invalid.store")
    with loading:
        from backtrail.backends.file.directory import is_store  # noqa: PLC0415
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415
    # Closing a file drops all POSIX locks of this process on it, also those of a connection: do not open it then.
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
def _copied(opened: Copyable, target: Path, progress: Progress) -> Iterator[Path]:
    """Copy the backup beside the target, with the target's access rights, sync it, and yield its path."""
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
    """Return an unused path beside the target, to keep the replaced store under."""
    for number in count(1):
        name = target.with_name(f"{target.name}.replaced-{number}")
        if not any(name.with_name(name.name + ending).exists() for ending in ("", *PARTS)):
            return name
    raise AssertionError


# -- a file of SQLite -----------------------------------------------------------------------------
def _restore_file(opened: Any, target: Path, progress: Progress) -> str | None:
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
    """Give a file a second name by a hard link; rename it if the file system has no hard links."""
    try:
        os.link(name, other)
    except OSError:
        name.rename(other)


@contextmanager
def _unused(target: Path) -> Iterator[None]:
    """Lock an SQLite file against other processes for the block; `Unavailable` if a process has it open."""
    with loading:
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415

    used = Unavailable(
        f"{target}: a process has it open: stop it, or close the store, and restore the backup then",
        code="unavailable.locked",
    )
    if is_open(str(target)):  # closing `fd` would drop the POSIX locks of that connection
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
def _restore_directory(opened: Any, target: Path, progress: Progress) -> str | None:
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
    """Exchange the names of two directories, atomically if the system has renameat2."""
    with suppress(OSError, AttributeError):
        rename = ctypes.CDLL(None, use_errno=True).renameat2
        if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
            return
    between = one.with_name(one.name + "-old")
    other.rename(between)
    one.rename(other)
    between.rename(one)
