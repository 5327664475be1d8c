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
from backtrail.runs.calls import as_record
from backtrail.runs.strategies import RunState
from backtrail.validation import EPOCH

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTS: Final = ("messages", "tool_calls", "partial_results")
"""What only grows."""
OVER: Final[dict[str, Any]] = {"zero": [], "calls": [], "begun": None, "past": []}
"""The `journal` of a checkpoint whose iteration is over, without what other iterations leave in it."""


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
        "own": False,
        "past": [],
    }


def forked(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of a checkpoint, for another run that goes on from there.

    It makes its own calls: one that was on its way at that moment is not in doubt there.
    """
    point = _point(seen)
    zero, calls = journal.finished(point["zero"]), journal.finished(point["calls"])
    return _free({**point, "zero": zero, "calls": calls, "past": [], "own": False}, seen, "forked")


def rewound(seen: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the point of a checkpoint of this very run, which was at `data`.

    What came of calls that were on their way at that moment is known, if it was recorded since. Calls that cannot be
    undone stay listed, in `past`, although the run goes back behind them.
    """
    point = _point(seen)
    if point["iteration"] == data["iteration"]:
        point["zero"] = journal.known(point["zero"], data["zero"])
        point["calls"] = journal.known(point["calls"], data["calls"])
    elif point["iteration"] < data["iteration"]:  # that iteration had come to its end, and so had its calls
        point["zero"], point["calls"] = (_ended(point[name], data["tool_calls"]) for name in ("zero", "calls"))
    kept = {name: data[name] for name in ("agent", "lease", "created_at", "conversation") if name in data}
    there = {known_as(each) for each in irreversible({**point, "past": (seen.get("journal") or OVER).get("past", ())})}
    past = [each for each in irreversible(data) if known_as(each) not in there]
    return _free({**point, **kept, "past": past, "own": True}, seen, "rewound")


def _point(seen: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = seen.get("journal") or OVER
    iteration, begun = seen["iteration"], kept["begun"]
    if begun is None:
        lists = {name: seen[name] for name in LISTS}
        entries = {"zero": kept["zero"], "calls": []}
        return {"agent": seen["agent"], "iteration": iteration + 1, **lists, "state": seen["state"], **entries}
    lists = {name: seen[name][: begun[name]] for name in LISTS}
    entries = {"zero": kept["zero"], "calls": kept["calls"]}
    return {"agent": seen["agent"], "iteration": iteration, **lists, "state": begun["state"], **entries}


def _free(point: dict[str, Any], seen: Mapping[str, Any], why: str) -> dict[str, Any]:
    entries = point["calls"] if point["iteration"] else point["zero"]
    over = point["iteration"] != seen["iteration"]
    return {**point, "status": [str(RunState.HALTED), why], "free": 0 if over else len(entries)}


def _ended(entries: list[Any], calls: list[dict[str, Any]]) -> list[Any]:
    """Return entries with calls in doubt as what is recorded of them; answers of models are not, and asked for anew."""
    found = list(entries)
    for call in journal.Journal(entries).in_doubt():
        same = [each for each in calls if (each["id"], each["arguments"]) == (call.id, call.arguments)]
        found.append(result_entry(same[0]) if same else [journal.NOT_DONE, call.id])
    return found


def result_entry(record: Mapping[str, Any]) -> list[Any]:
    """Return the entry of what came of a call, by its record."""
    value = record["result"] if record["success"] else ["CallError", None, record["result"]]
    when = int((record["ended_at"] - EPOCH).total_seconds() * 1_000_000) if record.get("ended_at") else 0
    return [journal.RESULT, record["id"], record["success"], value, when]


# -- what cannot be undone ------------------------------------------------------------------------------


def irreversible(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of the calls of a run that cannot be undone outside: those in doubt, too."""
    found = [each for each in data["tool_calls"] if each["irreversible"]]
    found += data.get("past", ())
    there = {known_as(each) for each in found}
    entries = data["calls"] if data["iteration"] else data["zero"]
    return found + [each for each in left(journal.Journal(entries).recorded()) if known_as(each) not in there]


def left(calls: list[journal.Recorded]) -> list[dict[str, Any]]:
    """Return the records of those of some calls that cannot be undone."""
    return [as_record(call, result) for call, result in calls if call.irreversible]


def known_as(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells a call from any other, of other runs, too."""
    return record["id"], record["tool_name"], record.get("ended_at")
