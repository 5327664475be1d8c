"""Backups: copy a store to a file or directory, and replace a store by its backup.

A restore copies and syncs the backup, then renames the copy to the name of the store, in one step. The replaced store
is kept under another name. If the process is killed before the rename, the old store stays with its write-ahead log. If
it is killed after the rename, the backup is next to the log of the old store, and `open` refuses to use the two;
call the restore again to complete it.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backtrail.archive.copy import copy_engine
from backtrail.atomic_file import PARTS, FileAccess, path_of, placed, remove, sync, temporary, translated
from backtrail.backends.port import KEYRING, SEALED, Copyable
from backtrail.engine.reader import Options
from backtrail.engine.schema.registry import Types
from backtrail.errors import Error, Invalid, NotFound, Unavailable
from backtrail.loading import loading
from backtrail.transaction import Engine
from backtrail.urls import KEYS, check_url, directory_of, file_of, in_postgres
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Backend

    Progress = Callable[[str, int], None] | None

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SHARED: Final = (0x40000002, 510)
"""Offset and length of the bytes that each open connection to an SQLite file in WAL mode locks (a shared lock)."""
_MAGIC: Final = b"SQLite format 3\0"
_EXCHANGE: Final = 2
_HERE: Final = -100


def backup(engine: Engine, path: Any, progress: Progress) -> int:
    """Write a backup of the whole store to a new path; return its size in bytes.

    The backup is a store of the same kind if the backend is `Copyable`, otherwise an SQLite file. The backup of an
    encrypted store is encrypted, and does not have the keyring.
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
        if backend.present([SEALED]):
            _copy_sealed(backend, other, progress)
        else:
            copy_engine(engine, lambda: nullcontext(Engine(other, Types(), Options())), progress, hidden=False)
        return other.backup(part, progress)


def backup_keyring(backend: Backend, path: Any) -> int:
    """Write a backup of a keyring to a new path; return its size in bytes."""
    target = path_of(path)
    if isinstance(backend, Copyable):
        with placed(target, beside=backend.beside) as part:
            return backend.backup(part, None)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415 - few need it here
        from backtrail.sealed.replica import replicate  # noqa: PLC0415

    with (
        placed(target, beside=SqliteBackend.beside) as part,
        temporary() as folder,
        closing(SqliteBackend(folder / "backup", durability="relaxed")) as other,
    ):
        with backend.snapshot() as view:
            replicate(view, other, None)
        return other.backup(part, None)


def _copy_sealed(backend: Any, other: Backend, progress: Progress) -> None:
    """Copy an encrypted store as it is: its backup is encrypted by the same keys."""
    if not hasattr(backend, "copy_to"):
        raise Unavailable(
            "a backup of an encrypted store needs the whole store: use a store without a scope",
            code="unavailable.scope",
        )
    backend.copy_to(other, progress)


# -- restoring --------------------------------------------------------------------------------------------


def restore_backup(
    backup: str | os.PathLike[str],
    store: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> str | None:
    """Replace a store by a backup; return the new path of the replaced store, or None if there was none.

    `backup` is an SQLite file or the directory of a file store. `store` is the path or URL of a store of the same kind;
    it need not exist. No process may have the store open. The backup does not change. If a keyring is beside the backup
    of an encrypted store, and the store has lost its own, the keyring is restored, too.
    """
    check_progress(progress)
    source = path_of(backup)
    url = check_url(store)
    if in_postgres(url) or url.startswith("memory:"):
        raise Invalid(
            "a backup can only replace an SQLite file or the directory of a file store; "
            "use copy(backup, url) for another kind of store",
            code="invalid.argument",
        )
    directory, target = directory_of(url), _target(url)
    if target == Path(os.path.realpath(source)):
        raise Invalid(
            f"{source}: is the store itself, not a backup; pass the path of the backup", code="invalid.argument"
        )
    try:
        _refuse_other(target, is_files=directory is not None)
    except OSError as error:
        raise translated(error, target) from error
    if not source.exists():
        raise NotFound(f"{source}: this backup does not exist; check the path", code="not_found.store")
    if source.is_dir() != (directory is not None):
        raise Invalid(
            f"{source} is {'a file store' if source.is_dir() else 'an SQLite file'}, but the store is of another kind; "
            "use copy(backup, store) to copy between kinds",
            code="invalid.argument",
        )
    try:
        _restore_keyring(source, Path(directory or file_of(url)))
        return _restore(source, target, progress)
    except OSError as error:
        raise translated(error, target) from error


def replaces(store: str | os.PathLike[str] | None) -> bool:
    """Tell whether `restore_backup` would replace a file or directory: whether there is one where the store is kept."""
    url = check_url(store)
    return not in_postgres(url) and not url.startswith("memory:") and _target(url).exists()


def _target(url: str) -> Path:
    """Return the real path of an SQLite store or a file store."""
    return Path(os.path.realpath(directory_of(url) or file_of(url)))


def _restore(source: Path, target: Path, progress: Progress) -> str | None:
    with closing(_open(source)) as backend:
        return (_restore_directory if source.is_dir() else _restore_file)(backend, target, progress)


def _restore_keyring(source: Path, target: Path) -> None:
    """Copy the keyring beside an encrypted backup to the place beside the store, unless the store's own is there.

    The store's own keyring is as new as the backup or newer. It knows which keys were destroyed since. A keyring of
    another store is kept under another name.
    """
    kept, place = (path.with_name(path.name + KEYS) for path in (source, target))
    store_id = _id_in(source, SEALED) if kept.exists() else None
    if store_id is not None and _id_in(place, KEYRING) != store_id == _id_in(kept, KEYRING):
        _restore(kept, place, None)


def _id_in(path: Path, mark: bytes) -> bytes | None:
    """Return the id of an encrypted store that the mark in a store or keyring has; None if there is none."""
    with suppress(Error), closing(_open(path)) as backend:
        found: bytes | None = backend.chunks([mark]).get(mark)
        return found
    return None


def _refuse_other(target: Path, *, is_files: bool) -> None:
    """Raise `Invalid` if the target exists and is not a store. A damaged store is accepted."""
    if not target.exists():
        return
    if target.is_dir() != is_files:
        kind = "a directory" if target.is_dir() else "not a directory"
        raise Invalid(f"{target}: is {kind}, so this backup cannot replace it", code="invalid.store")
    with loading:
        from backtrail.backends.file.directory import is_store  # noqa: PLC0415
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415
    # Do not open the file if a connection is open: closing it drops all POSIX locks of this process on the file.
    is_ours = is_store(target) if is_files else is_open(str(target)) or _first_bytes(target) in (b"", _MAGIC)
    if not is_ours:
        raise Invalid(f"{target}: is not a store: move it away, or pass another path", code="invalid.store")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def _open(source: Path) -> Any:
    if source.is_dir():
        with loading:
            from backtrail.backends.file.backend import FileBackend  # noqa: PLC0415 - only what is used is loaded

        return FileBackend(source, read_only=True)
    with loading:
        from backtrail.backends.sqlite.backend import SqliteBackend  # noqa: PLC0415

    return SqliteBackend(source, read_only=True)


@contextmanager
def _temporary_copy(backend: Copyable, target: Path, progress: Progress) -> Iterator[Path]:
    """Copy the backup to a file next to the target, with the target's access rights; sync it and yield its path."""
    part = target.with_name(f".backtrail-{os.urandom(8).hex()}.part")
    try:
        backend.backup(part, progress)
        if target.exists():
            FileAccess.to(target).give(part)
        sync(part)
        yield part
    finally:
        remove(part)


def _name_beside(target: Path) -> Path:
    """Return an unused path next to the target, for the replaced store."""
    for number in count(1):
        name = target.with_name(f"{target.name}.replaced-{number}")
        if not any(name.with_name(name.name + ending).exists() for ending in ("", *PARTS)):
            return name
    raise AssertionError


# -- an SQLite file -----------------------------------------------------------------------------
def _restore_file(backend: Any, target: Path, progress: Progress) -> str | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_copy(backend, target, progress) as part, _exclusive_lock(target):
        replaced = _name_beside(target)
        endings = [ending for ending in ("", *PARTS) if target.with_name(target.name + ending).exists()]
        for ending in endings:
            if ending != "-shm":
                _keep(target.with_name(target.name + ending), replaced.with_name(replaced.name + ending))
        part.replace(target)
        sync(target.parent)
        for ending in endings:
            if ending:
                target.with_name(target.name + ending).unlink(missing_ok=True)
        sync(target.parent)
    return str(replaced) if endings else None


def _keep(name: Path, other: Path) -> None:
    """Give a file a second name by a hard link; rename it if the file system has no hard links."""
    try:
        os.link(name, other)
    except OSError:
        name.rename(other)


@contextmanager
def _exclusive_lock(target: Path) -> Iterator[None]:
    """Lock an SQLite file against other processes for the block; `Unavailable` if a process has it open."""
    with loading:
        from backtrail.backends.sqlite.connection import is_open  # noqa: PLC0415

    in_use = Unavailable(
        f"{target}: a process has this store open: stop the process or close the store, then restore again",
        code="unavailable.locked",
    )
    if is_open(str(target)):  # closing `fd` would drop the POSIX locks of that connection
        raise in_use
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
                raise in_use from error
        yield
    finally:
        os.close(fd)


# -- the directory of a file store -------------------------------------------------------------------------
def _restore_directory(backend: Any, target: Path, progress: Progress) -> str | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_copy(backend, target, progress) as part:
        if not target.exists():
            part.rename(target)
            replaced = None
        else:
            replaced = _name_beside(target)
            _exchange(part, target)
            part.rename(replaced)
        sync(target.parent)
    return None if replaced is None else str(replaced)


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
