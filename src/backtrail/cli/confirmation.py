"""Confirmation of changes: a command shows a change, asks, and prints the command that reverts it.

The command makes the change in a transaction and commits it only after a yes, so the preview is exact. If another
process writes to the thread in between, the commit raises `Conflict` and nothing changes. Calls outside of the store
that cannot be undone are listed first.
"""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.commands.inspection import change_line, field_changes
from backtrail.cli.output import clean, count, room_of, say, say_command
from backtrail.cli.parameters import KINDS, confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.parameters import Invocation, LocatedThread
    from backtrail.store import Store

_SHOWN: Final = 20
"""The number of changes in a preview."""


def confirmed(store: Store, question: str, change: Callable[[], Any], show: Callable[[Any], None], *, yes: bool) -> Any:
    """Make a change in a transaction, show it, and commit it after the user's yes; return the result of `change`."""
    from backtrail.runs.history import Irreversible

    with store.transaction():
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", Irreversible)
            result = change()
        show(result)
        list_irreversible(
            [call for each in recorded if isinstance(each.message, Irreversible) for call in each.message.calls]
        )
        confirm(question, yes=yes)
    return result


def list_irreversible(calls: Sequence[Any]) -> None:
    """Print the calls that had an effect outside of the store, which no command can undo."""
    if calls:
        say("These calls had effects outside of the store, which stay:")
    for call in calls:
        state = "" if call.ended_at else ", in doubt"
        say(f"  {call.tool_name} ({call.id}{state})")


def show_changes(lines: Iterable[str]) -> None:
    """Print the first changes, and the number of the others."""
    rest = iter(lines)
    for each in islice(rest, _SHOWN):
        say(f"  {each}")
    more = sum(1 for _ in rest)
    if more:
        say(f"  ... and {count(more, 'more change')}")


def show_move(located: LocatedThread) -> Callable[[Checkpoint[Any]], None]:
    """Return a function that prints the changes of the state for a move of the head to a checkpoint."""
    from backtrail.errors import Corrupt

    def show(to: Checkpoint[Any]) -> None:
        say(f"{name_of(located)}: step {located.head.step} ({located.head.id[:8]}) -> step {to.step} ({to.id[:8]})")
        try:
            room = (room_of(sys.stderr) or 102) - 2
            changes = field_changes(located.thread.diff(located.head, to), located.head, to)
            show_changes(change_line(each, room) for each in changes)
        except Corrupt as error:  # a user may rewind because the head is damaged
            say(f"  the changes cannot be shown: {clean(str(error))}")

    return show


def name_of(located: LocatedThread) -> str:
    """Return the id of a thread in printable form."""
    return clean(located.thread.id)


def print_revert(
    session: Invocation, store: Store, kind: str | None, thread: str, words: Sequence[str], *options: str
) -> None:
    """Print the command that reverts a change of a thread: `words`, and `--kind` if the id is ambiguous."""
    command, *rest = words
    if kind is not None and any(store.info(thread, kind=each) for each in KINDS if each != kind):
        options = (*options, "--kind", kind)
    if any(word.startswith("-") for word in rest):
        text = session.command(command, *options, last=["--", *rest])
    else:
        text = session.command(command, *rest, *options)
    say_command("to revert:", text)
