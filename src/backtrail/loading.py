"""Parts of the package that are loaded when they are first used: it may be that they cannot be read just then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from types import TracebackType


class Loading:
    """`with loading:` around an import: a process that may open no more files gets `Unavailable`, not an OSError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"a part of backtrail cannot be loaded: {error.strerror or error}: close files and stores that are not "
                "needed, or let the process open more (ulimit -n), and try again",
                code="unavailable.open",
            ) from error


loading = Loading()
