"""Copying a store into another one, whatever kinds of store they are: an export, an import, and a comparison."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from backtrail.archive import transfer
from backtrail.errors import Invalid
from backtrail.store import Store, open  # noqa: A004 - as backtrail.open
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from backtrail.models import CopyReport
    from backtrail.transaction import Engine


def copy(
    src: Store | str | os.PathLike[str],
    dst: Store | str | os.PathLike[str],
    *,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy all of a store into another one, and compare the root of every checkpoint.

    Both are stores, or URLs; `src` is only read, and must be there. `dst` may have other threads, and those of an
    earlier copy, which go on; see `Store.import_`. What is copied lies in a temporary file meanwhile.
    """
    for given in (src, dst):
        if not isinstance(given, Store | str | os.PathLike):
            raise Invalid(f"a copy is between stores or their URLs, not {given!r}", code="invalid.argument")
    check_progress(progress)
    with _store(src, read_only=True) as source:
        return copy_to(source, lambda: _store(dst, read_only=False), progress=progress)


def copy_to(
    source: Store,
    target: Callable[[], AbstractContextManager[Store]],
    *,
    progress: Callable[[str, int], None] | None = None,
) -> CopyReport:
    """Copy a store to one that is opened, and perhaps made, only when all of the other has been read."""

    @contextmanager
    def opened() -> Iterator[Engine]:
        with target() as store:
            yield store._engine  # noqa: SLF001 - a part of what a store does

    return transfer.copy(source._engine, opened, progress)  # noqa: SLF001


def _store(given: Store | str | os.PathLike[str], *, read_only: bool) -> AbstractContextManager[Store]:
    return nullcontext(given) if isinstance(given, Store) else open(given, read_only=read_only)
