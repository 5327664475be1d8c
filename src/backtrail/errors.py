"""The error tree. Every exception that backtrail raises on purpose is one of these.

They are grouped by what a handler would do, and told apart by class and by `code`, never by text:

    Error
    ├── NotFound (KeyError)     there is no such thing: look elsewhere, or create it
    ├── Conflict                somebody else was first: read again, then decide
    ├── Invalid (ValueError)    the request itself is wrong: change the call; nothing was written
    ├── Corrupt                 stored data is damaged: it is named; all else still loads
    ├── Unavailable             the storage cannot do it now (locked, full, unreachable): try later
    ├── InDoubt                 a call was started and its result is unknown: settle it
    └── CommitUnknown           the storage went away during a commit: ask again what happened

`code` is stable: "not_found.checkpoint", "conflict.stale", "invalid.value" ... Programs may rely on it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """The root of the tree. `code` says precisely what happened; `details` carries the parts of the message."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details = details

    def __str__(self) -> str:
        return self.message


class NotFound(Error, KeyError):
    """There is no such thread, checkpoint, label, path ..."""

    default_code = "not_found"


class Conflict(Error):
    """Somebody else was first. `expected` and `actual` are the ids of the two heads (None: no head)."""

    default_code = "conflict"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        expected: str | None = None,
        actual: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, code=code, expected=expected, actual=actual, **details)
        self.expected = expected
        self.actual = actual


class Invalid(Error, ValueError):
    """The request is wrong. `path` names the culprit inside a value, if that is what is wrong."""

    default_code = "invalid"

    def __init__(self, message: str, *, code: str | None = None, path: str | None = None, **details: Any) -> None:
        super().__init__(message, code=code, path=path, **details)
        self.path = path


class Corrupt(Error):
    """Stored data does not match its hash. `checkpoint_id` names the checkpoint that was asked for."""

    default_code = "corrupt"

    def __init__(
        self, message: str, *, code: str | None = None, checkpoint_id: str | None = None, **details: Any
    ) -> None:
        super().__init__(message, code=code, checkpoint_id=checkpoint_id, **details)
        self.checkpoint_id = checkpoint_id


class Unavailable(Error):
    """The storage cannot do it now: locked, full, read-only, closed, unreachable."""

    default_code = "unavailable"


class InDoubt(Error):
    """A call was started and nobody knows whether it finished."""

    default_code = "in_doubt"


class CommitUnknown(Error):
    """The storage went away while committing; whether the write is there is not known."""

    default_code = "commit_unknown"
