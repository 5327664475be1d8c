"""Commands that list what a store holds: threads, agents, conversations, runs, stats, where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import Column, age, clean, count, line, pages, quoted, say, size
from backtrail.cli.terms import KINDS, ThreadId, agent_option, command, rows_option

if TYPE_CHECKING:
    from backtrail.cli.output import Output
    from backtrail.cli.terms import Session
    from backtrail.runs import RunRecord
    from backtrail.store import Store

_AGE: Final = Column("AGE", "dim", right=True)


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
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("THREAD", "yellow", wide=True),
            Column("AGENT", "cyan"),
            Column("STEP", right=True),
            Column("IN VIEW", right=True),
            _AGE,
            Column("HEAD", "dim"),
            Column("FORKED FROM", "dim"),
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    info.id,
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
        if not shown:
            say(f"there are no {kind}s" + (f" whose ids begin with {prefix!r}" if prefix else ""))
    _more(more, f"--after {quoted(shown[-1].id)}, or -n 0 for all" if shown else "")


@command(examples=("backtrail agents", "backtrail agents planner"))
@click.argument("agent", required=False)
@rows_option()
def agents(session: Session, *, out: Output, agent: str | None, rows: int) -> None:
    """List the agents, or the checkpoints of AGENT.

    To those, `backtrail restore` can bring it back.
    """
    with session.read() as store:
        if agent is not None:
            _agent_checkpoints(store, out, agent, rows)
            return
        shown, more = pages(iter(store.agents.list(limit=rows + 1 if rows else None)), rows)
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("AGENT", "yellow"),
            Column("NAME", wide=True),
            Column("TYPE", "cyan"),
            Column("VERSION", right=True),
            _AGE,
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    info.agent_id,
                    info.name or "",
                    info.agent_type or "",
                    "" if info.version is None else str(info.version),
                    age(info.modified_at),
                    info.damaged or "",
                )
                for info in shown
            ),
        )
        if not shown:
            say("there are no agents")
    _more(more, "-n 0 for all")


def _agent_checkpoints(store: Store, out: Output, agent: str, rows: int) -> None:
    from backtrail.errors import NotFound

    shown, more = pages(iter(store.agents.checkpoints(agent)), rows)
    if not shown and store.agents.get(agent) is None:
        raise NotFound(f"there is no agent {agent!r}", code="not_found.agent")
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("CHECKPOINT", "yellow"),
            Column("NAME", "green", wide=True),
            Column("KIND", "dim"),
            _AGE,
            Column("CONVERSATIONS", right=True),
            Column("SIZE", "dim", right=True),
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
            say(f"agent {agent!r} has no checkpoints")
    _more(more, "-n 0 for all")


@command(examples=("backtrail conversations planner", "backtrail conversations planner --jsonl"))
@click.argument("agent")
@click.option("--archived/--not-archived", default=None, help="Only those that are archived, or not.")
@click.option("--tag", metavar="TAG", help="Only those with this tag.")
@rows_option()
def conversations(
    session: Session, *, out: Output, agent: str, archived: bool | None, tag: str | None, rows: int
) -> None:
    """List the conversations of AGENT.

    Those of the newest activity come first.
    """
    from backtrail.errors import NotFound

    with session.read() as store:
        limit = rows + 1 if rows else None
        shown, more = pages(iter(store.conversations.list(agent, archived=archived, tag=tag, limit=limit)), rows)
        if not shown and store.info(agent, kind="agent") is None and not store.conversations.list(agent, limit=1):
            raise NotFound(f"there is no agent {agent!r}", code="not_found.agent")
    if not out.human:
        out.values(shown)
    else:
        columns = (
            Column("CONVERSATION", "yellow"),
            Column("TITLE", wide=True),
            Column("MESSAGES", right=True),
            _AGE,
            Column("TAGS", "cyan"),
            Column("", "dim"),
            Column("DAMAGED", "red"),
        )
        out.table(
            columns,
            (
                (
                    info.id,
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
        if not shown:
            say(f"agent {agent!r} has no such conversations")
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
    if not out.human:
        out.values(map(_run_data, shown))
    else:
        columns = (
            Column("RUN", "yellow"),
            Column("AGENT", "cyan"),
            Column("STATUS", "green"),
            Column("ITERATION", right=True),
            Column("CALLS", right=True),
            Column("IN DOUBT", "red"),
            _AGE,
            Column("REASON", wide=True),
        )
        out.table(
            columns,
            (
                (
                    run.session_id,
                    run.agent or "",
                    str(run.status.name),
                    str(run.iteration),
                    str(len(run.tool_calls)),
                    " ".join(call.id for call in run.in_doubt),
                    age(run.created_at),
                    run.status.reason or "",
                )
                for run in shown
            ),
        )
        if not shown:
            say("there are no such runs")
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
        line(f"{out.paint(f'{name:<17}', 'dim')} {clean(value)}")


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
