"""The error for an import at first use that fails, for example because no file descriptor is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backtrail.errors import Unavailable

if TYPE_CHECKING:
    from types import TracebackType


class Loading:
    """`with loading:` around an import turns OSError into `Unavailable`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"a module of backtrail cannot be imported: {error.strerror or error}; close files and stores, or "
                "raise the limit of open files (ulimit -n), and try again",
                code="unavailable.open",
            ) from error


loading = Loading()
