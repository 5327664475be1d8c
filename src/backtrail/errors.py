"""The error tree. Every exception that backtrail raises on purpose is one of these.

Each class stands for one reaction of a handler. Handlers distinguish errors by class and `code`, not by text:

    Error
    ├── NotFound (KeyError)     the thing does not exist: look elsewhere, or create it
    ├── Conflict                another writer was first: read again, then decide
    ├── Invalid (ValueError)    the request is wrong: change the call; nothing was written
    ├── Corrupt                 stored data is damaged: the error names it; all other data still loads
    ├── Unavailable             the storage cannot do it now (locked, full, unreachable): try later
    ├── InDoubt                 a call was started and its result is unknown: settle it
    └── CommitUnknown           the storage failed during a commit: read again what is stored

`code` is stable: "not_found.checkpoint", "conflict.stale", "invalid.value" ... Programs may rely on it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Error(Exception):
    """The root of the tree. `code` names the exact problem; `details` holds the parts of the message."""

    default_code: ClassVar[str] = "error"
    """The code of an error that names no other."""

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        """The text: the problem, its cause and what to do."""
        self.code = code or self.default_code
        """The exact problem, such as `conflict.stale`."""
        self.details = details
        """The parts of the message, by name."""

    def __str__(self) -> str:
        return self.message


class NotFound(Error, KeyError):
    """A thread, checkpoint, label or path does not exist."""

    default_code = "not_found"


class Conflict(Error):
    """Another writer was first. `expected` and `actual` are the ids of the two heads (None: no head)."""

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
    """The request is wrong. `path` names the part of a value that is wrong, if a value is."""

    default_code = "invalid"

    def __init__(self, message: str, *, code: str | None = None, path: str | None = None, **details: Any) -> None:
        super().__init__(message, code=code, path=path, **details)
        self.path = path


class Corrupt(Error):
    """Stored data is damaged. `checkpoint_id` names the checkpoint that the caller asked for."""

    default_code = "corrupt"

    def __init__(
        self, message: str, *, code: str | None = None, checkpoint_id: str | None = None, **details: Any
    ) -> None:
        super().__init__(message, code=code, checkpoint_id=checkpoint_id, **details)
        self.checkpoint_id = checkpoint_id


class Unavailable(Error):
    """The storage cannot do it now: it is locked, full, read-only, closed or unreachable."""

    default_code = "unavailable"


class InDoubt(Error):
    """A call was started, and it is unknown whether it finished.

    `details` has the `session_id` of the run, and the `call_id`, `name` and `arguments` of the call.
    """

    default_code = "in_doubt"


class CommitUnknown(Error):
    """The storage failed during a commit, and it is unknown whether the write was made."""

    default_code = "commit_unknown"
