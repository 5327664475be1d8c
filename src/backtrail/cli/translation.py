"""Translation of the library's messages for the command line: options for arguments, commands for calls.

A user can copy such a command: it includes the `--store` that the user passed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from backtrail.cli.parameters import Invocation

_PHRASES: Final = (
    ("pass threads= or agent=, not both", "pass --thread or --agent, not both"),
    ("export without since=", "export without --since"),
    (
        "a policy needs one of keep_last, keep_hourly, keep_daily, keep_weekly above 0",
        "pass --keep-last, --keep-hourly, --keep-daily or --keep-weekly above 0",
    ),
    (", or older_than, or idle, or the names of tags, or all", ", --older-than or --idle, or all"),
    ("with export(path, threads=[id])", "with `backtrail export FILE --thread THREAD`"),
    ("verify(repair=True) gives", "`backtrail verify --repair` gives"),
    ("force=True takes", "--force takes"),
    ("contains=True searches", "--contains searches"),
    ("schema= is for", "--schema is for"),
    ("use set()", "use --set"),
    ("verify(repair=True) makes", "`backtrail verify --repair` makes"),
    ("`reindex` rebuilds", "`backtrail reindex` rebuilds"),
    (", or give a tuple of keys and indexes", ""),
)
_COMMAND: Final = re.compile("`backtrail ([^`]*)`")


def translated(text: str, session: Invocation) -> str:
    """Return a message of the library with options and commands of the command line."""
    for library, cli in _PHRASES:
        if library in text:
            phrase = _COMMAND.sub(lambda match: f"`{session.command(*match[1].split())}`", cli)
            text = text.replace(library, phrase)
    return text
