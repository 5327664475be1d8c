"""Operations on the whole of a store, or of a scope: search, figures, pruning, verification."""

from __future__ import annotations

import datetime as dt
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.maintenance.retention import Policy
from backtrail.operations.answers import brief, decode_cursor, listed
from backtrail.operations.schema import (
    ANY,
    COUNT,
    FLAG,
    LIMIT,
    PAGE,
    PERIOD,
    TEXT,
    TIME,
    Schema,
    arguments,
    flag,
    listing,
    name,
    names,
    number,
    one_of,
    optional,
    result,
    text,
)
from backtrail.operations.table import Answer, Effect, Operation, operation
from backtrail.operations.threads import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.models import Hit
    from backtrail.store import Store

_REPORTED: Final = 500
"""The most lines of a report."""
_COUNTS: Final = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly")
_SECONDS_MAX: Final = 10**9
_STATS: Final = (
    *("agents", "conversations", "messages", "agent_checkpoints", "threads", "checkpoints"),
    *("chunks", "logical_bytes", "payload_bytes", "stored_bytes", "sharing"),
)
"""The fields of `Stats` in the answer."""


@operation(
    "GET /search",
    "Search the messages of all threads.",
    arguments(
        ("query",),
        query=text('Words, "quoted words", or the beginning of a word with a star.'),
        contains=flag("Find the query as one text, also inside words."),
        agent_id=name("Only threads of this agent."),
        thread_id=name("Only threads with this id."),
        kind=one_of(KINDS, "Only threads of this kind."),
        order=one_of(("newest", "score"), "The order of the hits.", "newest"),
        **PERIOD,
        **PAGE,
    ),
    listing(
        "hits",
        result(
            thread_id=TEXT,
            kind=one_of(KINDS, "The kind of the thread."),
            agent_id=optional(TEXT),
            checkpoint_id=TEXT,
            message_id=optional(TEXT),
            index=COUNT,
            role=optional(TEXT),
            created_at=TIME,
            score={"type": "number"},
            snippet=ANY,
        ),
    ),
)
def search(
    store: Store,
    *,
    query: str,
    contains: bool = False,
    agent_id: str | None = None,
    thread_id: str | None = None,
    kind: str | None = None,
    order: str = "newest",
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = LIMIT,
    cursor: str | None = None,
) -> Answer:
    """Search the messages of the heads of all threads."""
    (after,) = decode_cursor("search", cursor, 1)
    hits = store.search(
        query,
        contains=contains,
        agent=agent_id,
        thread=thread_id,
        kind=kind,
        order=order,
        since=since,
        until=until,
        limit=limit + 1,
        after=after,
    )
    return listed("search", "hits", hits, _hit_entry, limit)


def _hit_entry(hit: Hit) -> Answer:
    return {
        "thread_id": hit.conversation_id,
        "kind": hit.kind,
        "agent_id": hit.agent,
        "checkpoint_id": hit.checkpoint_id,
        "message_id": hit.message_id,
        "index": hit.position,
        "role": hit.role,
        "created_at": hit.created_at.isoformat(),
        "score": hit.score,
        "snippet": brief(hit.snippet),
    }


@operation(
    "GET /stats",
    "Get storage statistics.",
    arguments(),
    result(**dict.fromkeys(_STATS[:-1], COUNT), sharing={"type": "number"}),
)
def persistence_stats(store: Store) -> Answer:
    """Return the figures of the store."""
    stats = store.stats()
    return {name: getattr(stats, name) for name in _STATS}


# -- pruning ----------------------------------------------------------------------------------------------

_POLICY: Final[dict[str, Schema]] = {
    "keep_last": number("Keep this many of the newest checkpoints of each thread.", 0),
    "keep_hourly": number("Keep the newest checkpoint of each of this many hours.", 0),
    "keep_daily": number("Keep the newest checkpoint of each of this many days.", 0),
    "keep_weekly": number("Keep the newest checkpoint of each of this many weeks.", 0),
    "older_than": number("Keep checkpoints that are not older than this many seconds.", 1, _SECONDS_MAX),
    "keep_tagged": flag("Keep checkpoints that have a tag. Default: true."),
    "keep_labelled": flag("Keep checkpoints that have a label. Default: true."),
    "idle_days": number("Remove threads that were last written to longer ago than this many days.", 1, 100_000),
    "agent_id": name("Only threads of this agent."),
    "threads": names("Only threads with these ids."),
    "kind": one_of(KINDS, "With threads: only threads of this kind."),
}
_REPORT: Final = result(
    count=COUNT,
    dry_run=FLAG,
    removed={"type": "array", "items": result(checkpoint_id=TEXT, kind=TEXT, thread_id=TEXT, reason=TEXT)},
    threads={"type": "array", "items": result(kind=TEXT, thread_id=TEXT, reason=TEXT)},
    kept={"type": "object", "additionalProperties": COUNT},
    untouched=COUNT,
    damaged={"type": "array", "items": TEXT},
    truncated=FLAG,
)


@operation(
    "GET /prune",
    "Show what a prune would remove, and why the rest stays.",
    arguments(**_POLICY),
    _REPORT,
)
def prune_plan(store: Store, **policy: Any) -> Answer:
    """Return the report of a dry run."""
    return _pruned(store, policy, dry_run=True)


@operation(
    "POST /prune",
    "Remove the checkpoints that a policy does not keep.",
    arguments(**_POLICY, dry_run=flag("Change nothing; return what would be removed.")),
    _REPORT,
    effect=Effect.DESTROY,
)
def prune(store: Store, *, dry_run: bool = False, **policy: Any) -> Answer:
    """Prune the threads, and return the report."""
    return _pruned(store, policy, dry_run=dry_run)


def _pruned(store: Store, given: dict[str, Any], *, dry_run: bool) -> Answer:
    options: dict[str, Any] = {
        name: given[name] for name in (*_COUNTS, "keep_tagged", "keep_labelled") if name in given
    }
    if "older_than" in given:
        options["older_than"] = dt.timedelta(seconds=given["older_than"])
    if "idle_days" in given:
        options["idle"] = dt.timedelta(days=given["idle_days"])
    report = store.prune(
        Policy(**options),
        agent=given.get("agent_id"),
        threads=given.get("threads"),
        kind=given.get("kind"),
        dry_run=dry_run,
    )
    removed = zip(report.removed, report.removed_from, strict=True)
    return {
        "count": int(report),
        "dry_run": report.dry_run,
        "removed": [
            {"checkpoint_id": checkpoint_id, "kind": kind, "thread_id": thread_id, "reason": reason}
            for (checkpoint_id, reason), (kind, thread_id) in islice(removed, _REPORTED)
        ],
        "threads": [
            {"kind": kind, "thread_id": thread_id, "reason": reason}
            for kind, thread_id, reason in report.threads[:_REPORTED]
        ],
        "kept": dict(report.reasons),
        "untouched": report.untouched,
        "damaged": [*report.damaged[:_REPORTED]],
        "truncated": max(len(report.removed), len(report.threads), len(report.damaged)) > _REPORTED,
    }


# -- erasure ----------------------------------------------------------------------------------------------


@operation(
    "POST /erase",
    "Erase threads, conversations, runs or agents for good, also from agent checkpoints, with their forks.",
    arguments(
        ("ids", "kind"),
        ids=names("The ids to erase."),
        kind=one_of(KINDS, "The kind of all ids."),
        forks=flag("Erase what was forked from them, too. Default: true."),
        force=flag("Erase runs even if a worker has them."),
    ),
    result(
        threads={
            "type": "array",
            "items": result(
                kind=TEXT, id=TEXT, agent=optional(TEXT), uid=TEXT, checkpoints=COUNT, erased_at=TIME, fork=FLAG
            ),
        },
        agent_checkpoints={"type": "array", "items": result(agent=TEXT, checkpoint=TEXT)},
        kept_forks={"type": "array", "items": result(kind=TEXT, id=TEXT)},
        keys_destroyed=COUNT,
        complete=FLAG,
        remains=optional(TEXT),
    ),
    effect=Effect.DESTROY,
)
def erase(store: Store, *, ids: list[str], kind: str, forks: bool = True, force: bool = False) -> Answer:
    """Erase threads, and return the whole report: it is evidence."""
    return store.erase(ids, kind=kind, forks=forks, force=force).to_json()


# -- verification -----------------------------------------------------------------------------------------


@operation(
    "POST /verify",
    "Read and check everything, and report the damage.",
    arguments(),
    result(
        ok=FLAG,
        threads=COUNT,
        states_read=COUNT,
        damaged={
            "type": "array",
            "items": result(checkpoint_id=TEXT, kind=TEXT, thread_id=TEXT, reason=TEXT),
        },
        misindexed={"type": "array", "items": TEXT},
        faults={"type": "array", "items": TEXT},
        truncated=FLAG,
    ),
    job=True,
)
def verify(store: Store, *, progress: Callable[[str, int], None] | None = None) -> Answer:
    """Verify the store without repairing it."""
    report = store.verify(progress=progress)
    lists = (report.damaged, report.misindexed, report.faults)
    return {
        "ok": report.ok,
        "threads": report.threads,
        "states_read": report.states_read,
        "damaged": [
            {"checkpoint_id": each.checkpoint_id, "kind": each.kind, "thread_id": each.thread_id, "reason": each.reason}
            for each in report.damaged[:_REPORTED]
        ],
        "misindexed": [*report.misindexed[:_REPORTED]],
        "faults": [*report.faults[:_REPORTED]],
        "truncated": any(len(each) > _REPORTED for each in lists),
    }


OPERATIONS: Final[tuple[Operation, ...]] = (search, persistence_stats, prune_plan, prune, erase, verify)
