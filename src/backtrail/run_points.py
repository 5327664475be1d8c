"""Where a run can go on: from its beginning, from where it was cut short, and from any of its checkpoints.

A *point* is what the journal of a run has: how the iteration began that is to be run, and what was done in it. A
checkpoint shows the run as it was at its moment and has, as its `journal`, the point of that moment. So going on from a
checkpoint is what going on after a crash is: the iteration begins again, and what it had done until then is not done
again. What was done need not be asked for again, though: whoever goes back may want to try another way.

Everything here is plain data in, plain data out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.engine import journal
from backtrail.strategies import RunState

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTS: Final = ("messages", "tool_calls", "partial_results")
"""What only grows."""
OVER: Final[dict[str, Any]] = {"zero": [], "calls": [], "begun": None}
"""The `journal` of a checkpoint whose iteration is over, without that of iteration 0."""


def beginning(agent: str | None, messages: list[Any], state: Any) -> dict[str, Any]:
    """Return the point at which a new run begins."""
    return {
        "agent": agent,
        "status": [str(RunState.IN_PROGRESS), None],
        "iteration": 0,
        "messages": messages,
        "tool_calls": [],
        "partial_results": [],
        "state": state,
        "zero": [],
        "calls": [],
        "free": 0,
    }


def going_on(seen: Mapping[str, Any], *, own: bool) -> dict[str, Any]:
    """Return the point of a checkpoint: of this very run, or of the one that it was forked from.

    A fork makes its own calls: one that was on its way at that moment is not in doubt there.
    """
    kept: dict[str, Any] = seen.get("journal") or OVER
    zero, calls, begun = kept["zero"], kept["calls"], kept["begun"]
    iteration = seen["iteration"]
    point = {"agent": seen["agent"], "status": [str(RunState.HALTED), "rewound"], "free": 0}
    if begun is None:
        lists = {name: seen[name] for name in LISTS}
        return {**point, "iteration": iteration + 1, **lists, "state": seen["state"], "zero": zero, "calls": []}
    if not own:
        zero, calls = journal.finished(zero), journal.finished(calls)
    return {
        **point,
        "iteration": iteration,
        **{name: seen[name][: begun[name]] for name in LISTS},
        "state": begun["state"],
        "zero": zero,
        "calls": calls,
        "free": len(calls if iteration else zero),
    }
