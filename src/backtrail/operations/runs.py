"""Operations on runs: their status, and calls whose results are unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import Invalid
from backtrail.models import MISSING
from backtrail.operations.answers import brief, damage, decode_cursor, encode_cursor, page, plain, whole_number
from backtrail.operations.schema import (
    ANY,
    COUNT,
    FLAG,
    LIMIT,
    PAGE,
    PERIOD,
    TEXT,
    TIME,
    arguments,
    flag,
    listing,
    name,
    one_of,
    optional,
    result,
    value,
)
from backtrail.operations.table import Answer, Effect, Operation, operation
from backtrail.runs.strategies import RunState

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.engine.journal import Call
    from backtrail.runs.repository import RunRecord
    from backtrail.runs.strategies import ToolCallRecord
    from backtrail.store import Store

_CALLS: Final = 100
_RUN: Final = name("The run's id.")
_ENTRY: Final = {
    "run_id": TEXT,
    "agent_id": optional(TEXT),
    "status": TEXT,
    "reason": ANY,
    "iteration": COUNT,
    "messages": COUNT,
    "tool_calls": COUNT,
    "in_doubt": COUNT,
    "created_at": TIME,
    "owner": ANY,
    "lease_until": optional(TIME),
    "conversation_id": optional(TEXT),
    "damaged": ANY,
}
_CALL: Final = result(
    ("iteration", "success", "result", "ended_at"),
    call_id=TEXT,
    tool=ANY,
    arguments=ANY,
    irreversible=FLAG,
    iteration=COUNT,
    success=FLAG,
    result=ANY,
    ended_at=optional(TIME),
)


@operation(
    "GET /runs",
    "List runs, newest activity first.",
    arguments(
        (),
        agent_id=name("Only runs of this agent."),
        status=one_of(RunState, "Only runs with this status."),
        **PERIOD,
        **PAGE,
    ),
    listing("runs", result(("damaged",), **_ENTRY)),
)
def run_list(
    store: Store,
    *,
    agent_id: str | None = None,
    status: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """List runs. A cursor names the last run: a run that becomes active meanwhile may be listed twice."""
    last, place = decode_cursor("run_list", cursor, 2)
    skip = whole_number(place) or 0
    runs = store.runs.list(agent=agent_id, status=status, since=since, until=until, limit=skip + limit + 1)
    at = next((at + 1 for at, run in enumerate(runs) if run.session_id == last), skip)
    entries, more = page(map(_run_entry, runs[at:]), limit)
    end = encode_cursor("run_list", entries[-1]["run_id"], str(at + len(entries))) if more else None
    return {"runs": entries, "next_cursor": end}


def _run_entry(run: RunRecord) -> Answer:
    return {
        "run_id": run.session_id,
        "agent_id": run.agent,
        "status": run.status.name,
        "reason": brief(run.status.reason),
        "iteration": run.iteration,
        "messages": len(run.messages),
        "tool_calls": len(run.tool_calls),
        "in_doubt": len(run.in_doubt),
        "created_at": run.created_at.isoformat(),
        "owner": brief(run.owner),
        "lease_until": plain(run.until),
        "conversation_id": run.conversation,
        **damage(run.damaged),
    }


@operation(
    "GET /runs/{run_id}",
    "Show the status of a run, its newest calls, and the calls in doubt.",
    arguments(("run_id",), run_id=_RUN),
    result(
        ("damaged",),
        **_ENTRY,
        calls={"type": "array", "items": _CALL},
        calls_in_doubt={"type": "array", "items": _CALL},
        state=ANY,
    ),
)
def run_status(store: Store, *, run_id: str) -> Answer:
    """Return a run with its newest calls, oldest first, and all calls in doubt."""
    run = store.runs.load(run_id)
    return {
        **_run_entry(run),
        "calls": [_call_entry(call) for call in run.tool_calls[-_CALLS:]],
        "calls_in_doubt": [_doubt_entry(call) for call in run.in_doubt],
        "state": brief(run.state),
    }


def _call_entry(call: ToolCallRecord) -> Answer:
    return {
        "call_id": call.id,
        "tool": brief(call.tool_name),
        "arguments": brief(call.arguments),
        "irreversible": call.irreversible,
        "iteration": call.iteration,
        "success": call.success,
        "result": brief(call.result),
        "ended_at": plain(call.ended_at),
    }


def _doubt_entry(call: Call) -> Answer:
    return {
        "call_id": call.id,
        "tool": brief(call.name),
        "arguments": brief(call.arguments),
        "irreversible": call.irreversible,
    }


@operation(
    "POST /runs/{run_id}/settle",
    "Settle a call of a run that is in doubt: with its result, or as not done.",
    arguments(
        ("run_id", "call_id"),
        run_id=_RUN,
        call_id=name("The id of the call, from run_status."),
        result=value("The result of the call, if it was made."),
        not_done=flag("The call was not made: the run makes it again."),
    ),
    result(run_id=TEXT, call_id=TEXT, settled=FLAG, in_doubt=COUNT),
    effect=Effect.WRITE,
)
def run_settle(store: Store, *, run_id: str, call_id: str, result: Any = MISSING, not_done: bool = False) -> Answer:
    """Record what became of a call."""
    if (result is MISSING) != not_done:
        raise Invalid("pass result, or not_done: true, and not both", code="invalid.argument", path="result")
    store.runs.settle(run_id, call_id, result=result, not_done=not_done)
    left = len(store.runs.load(run_id).in_doubt)
    return {"run_id": run_id, "call_id": call_id, "settled": True, "in_doubt": left}


OPERATIONS: Final[tuple[Operation, ...]] = (run_list, run_status, run_settle)
