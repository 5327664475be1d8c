"""How changes are made: shown, asked for, and told how to take back.

A change is made in a transaction, shown, and kept only if whoever asked for it says yes: so what is shown is what will
be. What somebody else writes meanwhile is a `Conflict`, and nothing was changed. What was done outside of the store is
told before.
"""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.cli.commands.inspect import change_line, of_fields
from backtrail.cli.output import clean, count, room_of, say, say_command
from backtrail.cli.parameters import KINDS, confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.parameters import Found, Session
    from backtrail.store import Store

_SHOWN: Final = 20
"""Changes that are shown before a question."""


def proposed(store: Store, question: str, change: Callable[[], Any], show: Callable[[Any], None], *, yes: bool) -> Any:
    """Make a change, show what came of it, and keep it if that is what was meant."""
    from backtrail.runs.history import Irreversible

    with store.transaction():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", Irreversible)
            result = change()
        show(result)
        told([call for each in caught if isinstance(each.message, Irreversible) for call in each.message.calls])
        confirm(question, yes=yes)
    return result


def told(calls: Sequence[Any]) -> None:
    """Tell which calls stay done outside, whatever the store goes back to."""
    if calls:
        say("These calls stay done outside, whatever the store goes back to:")
    for call in calls:
        state = "" if call.ended_at else ", in doubt"
        say(f"  {call.tool_name} ({call.id}{state})")


def show_changes(lines: Iterable[str]) -> None:
    """Show the first changes, and that there are more."""
    rest = iter(lines)
    for each in islice(rest, _SHOWN):
        say(f"  {each}")
    more = sum(1 for _ in rest)
    if more:
        say(f"  ... and {count(more, 'more change')}")


def show_move(found: Found) -> Callable[[Checkpoint[Any]], None]:
    """Return what shows how the state changes when the head moves."""
    from backtrail.errors import Corrupt

    def show(to: Checkpoint[Any]) -> None:
        say(f"{name_of(found)}: step {found.head.step} ({found.head.id[:8]}) -> step {to.step} ({to.id[:8]})")
        try:
            room = (room_of(sys.stderr) or 102) - 2
            changes = of_fields(found.thread.diff(found.head, to), found.head, to)
            show_changes(change_line(each, room) for each in changes)
        except Corrupt as error:  # a head that cannot be read is what one wants to get away from
            say(f"  what changes cannot be told: {clean(str(error))}")

    return show


def name_of(found: Found) -> str:
    """Return the id of a thread, for a line."""
    return clean(found.thread.id)


def tell_back(
    session: Session, store: Store, kind: str | None, thread: str, words: Sequence[str], *options: str
) -> None:
    """Say how to take a change back: a command, and the words behind it. They are about this thread, of this kind."""
    command, *rest = words
    if kind is not None and any(store.info(thread, kind=each) for each in KINDS if each != kind):
        options = (*options, "--kind", kind)
    if any(word.startswith("-") for word in rest):
        told = session.command(command, *options, last=["--", *rest])
    else:
        told = session.command(command, *rest, *options)
    say_command("to take it back:", told)
