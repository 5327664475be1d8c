"""What the library says, in the words of the command line: options instead of arguments, commands instead of calls.

A command in such words is one that can be copied: it names the store that was named.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from backtrail.cli.parameters import Session

_WORDS: Final = (
    ("say threads=, or agent=, not both", "say --thread or --agent, not both"),
    ("export without since=", "export without --since"),
    (
        "a policy needs one of keep_last, keep_hourly, keep_daily, keep_weekly above 0",
        "say --keep-last, --keep-hourly, --keep-daily or --keep-weekly above 0",
    ),
    (", or older_than, or the names of tags, or all", ", or --older-than, or all"),
    ("with export(path, threads=[id])", "with `backtrail export FILE --thread THREAD`"),
    ("verify(repair=True) gives", "`backtrail verify --repair` gives"),
    ("force=True takes", "--force takes"),
    ("contains=True looks", "--contains looks"),
    ("schema= is for", "--schema is for"),
    ("use set()", "use --set"),
    ("verify(repair=True) makes", "`backtrail verify --repair` makes"),
    ("`reindex` makes", "`backtrail reindex` makes"),
    (", or give a tuple of keys and indexes", ""),
)
_COMMAND: Final = re.compile("`backtrail ([^`]*)`")


def spoken(text: str, session: Session) -> str:
    """Return what the library says, in the words of the command line."""
    for said, meant in _WORDS:
        if said in text:
            words = _COMMAND.sub(lambda found: f"`{session.command(*found[1].split())}`", meant)
            text = text.replace(said, words)
    return text
