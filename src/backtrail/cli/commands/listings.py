"""Commands that list what a store holds: threads, agents, conversations, runs, stats, where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import Column, age, clean, count, line, pages, quoted, say, size
from backtrail.cli.parameters import KINDS, ThreadId, agent_option, command, rows_option

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Session
    from backtrail.models import AgentInfo
    from backtrail.runs.repository import RunRecord
    from backtrail.store import Store

_NEAR: Final = 100
_AGE: Final = Column("AGE", "dim", right=True, spare=2)


_COMMANDS: Final = {"thread": "threads", "agent": "agents", "conversation": "conversations", "run": "runs"}
_LOOKED: Final = 10_000
"""So many threads of each kind are looked at for the names of agents that have no state."""


def _nothing(session: Session, store: Store, what: str, kind: str, *, narrowed: bool) -> None:
    """Say that there is nothing to list, and what there is instead."""
    others = (
        [kind] if narrowed and _has(store, kind) else [each for each in _COMMANDS if each != kind and _has(store, each)]
    )
    hints = [f"`{session.command(_COMMANDS[each])}`" for each in others]
    instead = (
        f"; there {'are others' if others == [kind] else 'is something else'}: {', '.join(hints)}" if hints else ""
    )
    say(f"there are no {what}{instead or '; the store is empty'}")


def _has(store: Store, kind: str) -> bool:
    """Tell whether there is something of a kind; an agent may be known by its name only."""
    kinds = KINDS if kind == "agent" else (kind,)
    listed = (info for each in kinds for info in store.threads(kind=each, limit=1))
    return any(kind != "agent" or info.kind == "agent" or info.agent for info in listed)


def _more(more: bool, hint: str) -> None:  # noqa: FBT001 - it reads as it should: if there is more
    if more:
        say(f"there are more: {hint}")


@command(examples=("backtrail threads", "backtrail threads trip- --jsonl", "backtrail threads --kind conversation"))
@click.argument("prefix", required=False, type=ThreadId())
@click.option("--kind", type=click.Choice(KINDS), default="thread", show_default=True, help="Which kind of them.")
@agent_option
@click.option("--after", metavar="THREAD", help="Go on behind this one.")
@rows_option()
def threads(
    session: Session, *, out: Output, prefix: str | None, kind: str, agent: str | None, after: str | None, rows: int
) -> None:
    """List the threads, or those that begin with PREFIX.

    Those of the newest activity come first.
    """
    with session.read() as store:
        limit = rows + 1 if rows else None
        listed = store.threads(agent=agent, prefix=prefix, kind=kind, after=after, limit=limit)
        shown, more = pages(listed, rows)
        if out.human and not shown:
            begun = f" whose ids begin with {prefix!r}" if prefix else ""
            whose = f" of agent {agent!r}" if agent else ""
            what = f"{kind}s{whose}{begun}" + (f" behind {after!r}" if after else "")
            _nothing(session, store, what, kind, narrowed=bool(prefix or agent or after))
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("THREAD", "yellow", wide=True),
            Column("AGENT", "cyan", spare=1),
            Column("STEP", right=True),
            Column("IN VIEW", right=True, spare=4),
            _AGE,
            Column("HEAD", "dim", spare=3),
            Column("FORKED FROM", "dim", spare=5),
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    out.id(info.id),
                    info.agent or "",
                    str(info.step),
                    str(info.in_view),
                    age(info.updated_at),
                    info.head_id[:8],
                    (info.forked_from or "")[:8],
                    "its head" if info.damaged else "",
                )
                for info in shown
            ),
        )
    _more(more, f"--after {quoted(shown[-1].id)}, or -n 0 for all" if shown else "")


@command(examples=("backtrail agents", "backtrail agents planner"))
@click.argument("agent", required=False)
@rows_option()
def agents(session: Session, *, out: Output, agent: str | None, rows: int) -> None:
    """List the agents, or the checkpoints of AGENT.

    To those, `backtrail restore` can bring it back. An agent that only conversations, runs or threads name has no state
    of its own, and comes behind the others.
    """
    with session.read() as store:
        if agent is not None:
            _agent_checkpoints(session, store, out, agent, rows)
            return
        shown, more = pages(iter(store.agents.list(limit=rows + 1 if rows else None)), rows)
        named, all_seen = ({}, True) if more else _only_named(store)
        if rows and len(shown) + len(named) > rows:
            named, more = dict(list(named.items())[: rows - len(shown)]), True
        if out.human and not shown and not named:
            _nothing(session, store, "agents", "agent", narrowed=False)
    if not out.human:
        out.values([*shown, *(_name_only(name) for name in named)])
    else:
        columns = (
            Column("AGENT", "yellow"),
            Column("NAME", wide=True, spare=1),
            Column("TYPE", "cyan", spare=3),
            Column("VERSION", right=True, spare=4),
            _AGE,
            Column("NO STATE, BUT", "dim"),
            Column("DAMAGED", "red"),
        )
        stored = (
            (
                info.agent_id,
                info.name or "",
                info.agent_type or "",
                "" if info.version is None else str(info.version),
                age(info.modified_at),
                "",
                info.damaged or "",
            )
            for info in shown
        )
        by_name = ((name, "", "", "", "", _holdings(held), "") for name, held in named.items())
        out.table(columns, [*stored, *by_name])
    if not all_seen:
        say(f"agents without a state were looked for in the newest {_LOOKED:,} threads, conversations and runs")
    _more(more, "-n 0 for all")


def _only_named(store: Store) -> tuple[dict[str, dict[str, int]], bool]:
    """Return the agents that have no state, with what each has, by kind; and whether all was looked at."""
    named: dict[str, dict[str, int]] = {}
    all_seen = True
    for kind in ("conversation", "run", "thread"):
        listed, more = pages(store.threads(kind=kind, limit=_LOOKED + 1), _LOOKED)
        all_seen = all_seen and not more
        for info in listed:
            if info.agent is not None:
                held = named.setdefault(info.agent, {})
                held[kind] = held.get(kind, 0) + 1
    return {name: held for name, held in named.items() if store.info(name, kind="agent") is None}, all_seen


def _name_only(name: str) -> AgentInfo:
    from backtrail.models import AgentInfo

    return AgentInfo(name, None, None, None, None, None)


def _holdings(held: dict[str, int]) -> str:
    return ", ".join(count(number, kind) for kind, number in held.items())


def _agent_checkpoints(session: Session, store: Store, out: Output, agent: str, rows: int) -> None:
    shown, more = pages(iter(store.agents.checkpoints(agent)), rows)
    if not shown:
        require_agent(store, agent)
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("CHECKPOINT", "yellow"),
            Column("NAME", "green", wide=True),
            Column("KIND", "dim", spare=4),
            _AGE,
            Column("CONVERSATIONS", right=True, spare=1),
            Column("SIZE", "dim", right=True, spare=3),
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    each.id[:8],
                    each.name,
                    "" if each.kind == "manual" else each.kind,
                    age(each.created_at),
                    str(each.conversations),
                    size(each.size_bytes),
                    "its row" if each.damaged else "",
                )
                for each in shown
            ),
        )
        if not shown:
            state = "" if store.info(agent, kind="agent") else " and no state"
            kinds = [each for each in ("conversation", "run", "thread") if _of_agent(store, each, agent)]
            hints = [f"`{session.command(*_about_agent(each, agent))}`" for each in kinds]
            say(f"agent {agent!r} has no checkpoints{state}" + (f"; what it has: {', '.join(hints)}" if hints else ""))
    _more(more, "-n 0 for all")


def _of_agent(store: Store, kind: str, agent: str) -> bool:
    return next(iter(store.threads(kind=kind, agent=agent, limit=1)), None) is not None


def _about_agent(kind: str, agent: str) -> list[str]:
    return ["conversations", agent] if kind == "conversation" else [_COMMANDS[kind], "--agent", agent]


def require_agent(store: Store, agent: str) -> None:
    """Raise `NotFound` if there is no agent of this id, and nothing that belongs to one."""
    from difflib import get_close_matches

    from backtrail.errors import NotFound

    if store.info(agent, kind="agent") is None and not any(_of_agent(store, each, agent) for each in KINDS):
        known = sorted({info.agent or info.id for kind in KINDS for info in store.threads(kind=kind, limit=_NEAR)})
        near = get_close_matches(agent, known, n=1, cutoff=0.6)
        raise NotFound(
            f"there is no agent {agent!r}" + (f"; there is {near[0]!r}" if near else ""), code="not_found.agent"
        )


@command(examples=("backtrail conversations", "backtrail conversations planner --jsonl"))
@click.argument("agent", required=False)
@click.option("--archived/--not-archived", default=None, help="Only those that are archived, or not.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@rows_option()
def conversations(
    session: Session, *, out: Output, agent: str | None, archived: bool | None, tag: str | None, rows: int
) -> None:
    """List the conversations, or those of AGENT.

    Those of the newest activity come first.
    """
    with session.read() as store:
        whose = () if agent is None else (agent,)
        found = store.conversations.list(*whose, archived=archived, tag=tag, limit=rows + 1 if rows else None)
        shown, more = pages(iter(found), rows)
        if not shown and agent is not None:
            require_agent(store, agent)
        if out.human and not shown:
            of = f" of agent {agent!r}" if agent is not None else ""
            which = "" if archived is None else " that are archived" if archived else " that are not archived"
            what = f"conversations{of}{which}" + (f" with the tag {tag!r}" if tag is not None else "")
            narrowed = any(each is not None for each in (agent, archived, tag))
            _nothing(session, store, what, "conversation", narrowed=narrowed)
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("CONVERSATION", "yellow"),
            Column("AGENT", "cyan", spare=1),
            Column("TITLE", wide=True),
            Column("MESSAGES", right=True, spare=4),
            _AGE,
            Column("TAGS", "cyan", spare=3),
            Column("", "dim"),
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    out.id(info.id),
                    (info.agent_id or "") if agent is None else "",
                    info.title or "",
                    str(info.message_count),
                    age(info.updated_at),
                    " ".join(info.tags),
                    "archived" if info.archived else "",
                    info.damaged or "",
                )
                for info in shown
            ),
        )
    _more(more, "-n 0 for all")


@command(examples=("backtrail runs", "backtrail runs --status halted --jsonl"))
@agent_option
@click.option(
    "--status", type=click.Choice(["in_progress", "completed", "halted", "failed"]), help="Only those that stand so."
)
@rows_option()
def runs(session: Session, *, out: Output, agent: str | None, status: str | None, rows: int) -> None:
    """List the runs, and what is in doubt.

    Those of the newest activity come first.
    """
    with session.read() as store:
        listed = store.runs.list(agent=agent, status=status, limit=rows + 1 if rows else None)
        shown, more = pages(iter(listed), rows)
        if out.human and not shown:
            whose = f" of agent {agent!r}" if agent is not None else ""
            what = f"runs{whose}" + (f" with status {status}" if status is not None else "")
            _nothing(session, store, what, "run", narrowed=agent is not None or status is not None)
    if not out.human:
        out.values(map(_run_data, shown))
    else:
        columns = (
            Column("RUN", "yellow"),
            Column("AGENT", "cyan", spare=3),
            Column("STATUS", "green"),
            Column("ITERATION", right=True, spare=4),
            Column("CALLS", right=True, spare=5),
            Column("IN DOUBT", "red"),
            _AGE,
            Column("REASON", wide=True, spare=1),
        )
        out.table(
            columns,
            (
                (
                    out.id(run.session_id),
                    run.agent or "",
                    str(run.status.name),
                    str(run.iteration),
                    str(len(run.tool_calls)),
                    " ".join(f"{call.id}:{call.name}" for call in run.in_doubt),
                    age(run.created_at),
                    run.status.reason or "",
                )
                for run in shown
            ),
        )
        doubtful = next((run for run in shown if run.in_doubt), None)
        if doubtful is not None:
            say(f"calls in doubt are settled with `{session.command('settle', doubtful.session_id)}`")
    _more(more, "-n 0 for all")


def _run_data(run: RunRecord) -> dict[str, Any]:
    """Return what a listing tells of a run: the state and the messages are in its checkpoints."""
    return {
        "session_id": run.session_id,
        "agent": run.agent,
        "status": str(run.status.name),
        "reason": run.status.reason,
        "iteration": run.iteration,
        "messages": len(run.messages),
        "tool_calls": len(run.tool_calls),
        "in_doubt": [{"id": call.id, "name": call.name} for call in run.in_doubt],
        "created_at": run.created_at,
        "owner": run.owner,
        "until": run.until,
        "damaged": run.damaged,
    }


@command(examples=("backtrail stats", "backtrail stats --json"))
def stats(session: Session, *, out: Output) -> None:
    """Show what the store holds, measured."""
    with session.read() as store:
        found = store.stats()
    if not out.human:
        from dataclasses import asdict

        out.value({**asdict(found), "sharing": round(found.sharing, 3)})
        return
    things = ("threads", "agents", "conversations", "messages", "runs", "checkpoints", "agent_checkpoints", "chunks")
    facts = [(name.replace("_", " "), f"{getattr(found, name):,}") for name in things]
    facts += [
        ("states", f"{size(found.logical_bytes)}, if each checkpoint were a copy"),
        ("stored", f"{size(found.payload_bytes)} for them{_compared(found.sharing)}"),
        ("on disk", size(found.stored_bytes)),
        ("index", f"{size(found.index_bytes)} of that, for {count(found.indexed, 'message')}"),
    ]
    for name, value in facts:
        out.fact(name, value, 17)


def _compared(sharing: float) -> str:
    """Say how much less is stored than copies would take; for very small states it is more."""
    if not sharing:  # all that is stored is hidden
        return ""
    return f", {sharing:,.1f} times less" if sharing >= 1 else f", {1 / sharing:,.1f} times more"


@command(examples=("backtrail where",))
def where(session: Session, *, out: Output) -> None:
    """Print the URL of the store that is used.

    Never with its password.
    """
    from backtrail.urls import default_url, shown

    url = shown(session.url or default_url())
    if out.human:
        line(clean(url))
    else:
        out.value({"url": url})


COMMANDS: Final = (threads, agents, conversations, runs, stats, where)
