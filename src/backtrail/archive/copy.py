"""Copy a store into a store of any kind: an export, an import, and a comparison of all visible checkpoints."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from backtrail.archive.export import export
from backtrail.archive.import_ import import_archive
from backtrail.archive.reader import Archive
from backtrail.atomic_file import temporary
from backtrail.backends.port import SEALED
from backtrail.engine import log, manifests
from backtrail.errors import Corrupt, Invalid
from backtrail.models import CopyReport
from backtrail.sealed.keys import Key
from backtrail.store import Store, open  # noqa: A004 - as backtrail.open
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from backtrail.archive.format import ThreadEntry
    from backtrail.backends.port import Backend
    from backtrail.transaction import Engine

    Progress = Callable[[str, int], None] | None

_PAGE_ROWS: Final = 10_000
"""Threads are compared at once as long as they do not have more rows than this together."""


def copy(
    src: Store | str | os.PathLike[str],
    dst: Store | str | os.PathLike[str],
    *,
    key: Key | None = None,
    to_key: Key | None = None,
    plain: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy a whole store into another store, and compare the root hash of every checkpoint.

    `src` and `dst` are stores or URLs. `src` must exist, and is only read. `dst` may have other threads. A second copy
    adds only what is new; see `Store.import_`. The data passes through a temporary file, which is encrypted if one of
    the two stores is.

    `key` and `to_key` are the keys of `src` and `dst`, if they are URLs of encrypted stores. An encrypted store is
    copied to the URL of a store that is not encrypted only with `plain=True`.
    """
    for given in (src, dst):
        if not isinstance(given, Store | str | os.PathLike):
            raise Invalid(f"a copy must be between stores or their URLs, not {given!r}", code="invalid.argument")
    check_progress(progress)
    with _store(src, key, read_only=True) as source:
        if is_encrypted(source) and to_key is None and not plain and not isinstance(dst, Store):
            raise Invalid(
                "the source is encrypted: pass to_key=, the key of the copy, or plain=True", code="invalid.plain_copy"
            )
        hidden = to_key is not None or (isinstance(dst, Store) and is_encrypted(dst))
        return copy_to(source, lambda: _store(dst, to_key, read_only=False), hidden=hidden, progress=progress)


def is_encrypted(store: Store) -> bool:
    """Tell whether a store is encrypted."""
    return bool(store._backend.present([SEALED]))  # noqa: SLF001 - a part of what a store does


def copy_to(
    source: Store,
    target: Callable[[], AbstractContextManager[Store]],
    *,
    hidden: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy a store. `target` opens or creates the other store; it is called after the source was read completely.

    `hidden`: the temporary file is encrypted, also if the source is not.
    """

    @contextmanager
    def opened() -> Iterator[Engine]:
        with target() as store:
            yield store._engine  # noqa: SLF001 - a part of what a store does

    return copy_engine(source._engine, opened, progress, hidden=hidden or is_encrypted(source))  # noqa: SLF001


def copy_engine(
    source: Engine, target: Callable[[], AbstractContextManager[Engine]], progress: Progress, *, hidden: bool
) -> CopyReport:
    """Copy a store through a temporary export file, and compare all visible checkpoints.

    `hidden`: the file is encrypted by a random key, which only this call has.
    """
    secret = Key.generate() if hidden else None
    with temporary() as folder:
        path = folder / "copy"
        export(source, path, secret=secret, progress=progress)
        with target() as engine, Archive(path, progress, secret=secret) as archive:
            report = import_archive(engine, archive, progress, verified=True)
            backend = engine.reader.backend
            copied = [entry for entry in archive.entries if entry.thread[:2] not in report.refused]
            count = sum(_count_equal(backend, archive, page) for page in _pages(copied))
    counts = (report.threads, report.created, report.extended, count)
    return CopyReport(*counts, report.erased, report.refused, report.remains)


def _pages(entries: list[ThreadEntry]) -> Iterator[list[ThreadEntry]]:
    page: list[ThreadEntry] = []
    rows = 0
    for entry in entries:
        if page and rows + entry.newest > _PAGE_ROWS:
            yield page
            page, rows = [], 0
        page.append(entry)
        rows += entry.newest
    if page:
        yield page


def _count_equal(backend: Backend, archive: Archive, page: Sequence[ThreadEntry]) -> int:
    """Return how many visible checkpoints of some threads the target has; `Corrupt` if one differs from the file.

    Checkpoints are compared by op_id and root. Agent checkpoints are compared by op_id only, because a repair on either
    side may have changed their content.
    """
    spaces = {entry.thread.space for entry in page}
    named = {space: [entry.thread.name for entry in page if entry.thread.space == space] for space in spaces}
    records = {space: backend.threads_named(space, names) for space, names in named.items()}
    found = [(entry, records[entry.thread.space].get(entry.thread.name)) for entry in page]
    threads = [(entry, record) for entry, record in found if record is not None]
    here = backend.rows_of([(record.no, 1, entry.newest) for entry, record in threads])
    count = 0
    for entry, record in threads:
        roots = entry.thread.space != manifests.SPACE
        for row in archive.rows(entry, 1, entry.newest):
            copied = here.get((record.no, row.seq)) if row.op in log.CHECKPOINTS and not row.hidden else None
            if copied is not None and (copied.op_id != row.op_id or (roots and copied.root != row.root)):
                name = log.checkpoint_id(entry.uid, row.seq)
                raise Corrupt(
                    f"checkpoint {name} of the target store differs from the source",
                    code="corrupt.root",
                    checkpoint_id=name,
                )
            count += copied is not None
    return count


def _store(given: Store | str | os.PathLike[str], key: Key | None, *, read_only: bool) -> AbstractContextManager[Store]:
    if not isinstance(given, Store):
        return open(given, read_only=read_only, key=key)
    if key is not None:
        raise Invalid("a store is open already: pass key= and to_key= with URLs only", code="invalid.argument")
    return nullcontext(given)
