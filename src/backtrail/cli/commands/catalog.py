"""Commands that list the contents of a store: threads, agents, conversations, runs, stats, where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import Column, age, clean, count, first_items, line, quoted, say, size
from backtrail.cli.parameters import (
    KINDS,
    ThreadId,
    agent_option,
    command,
    owns,
    require_agent,
    rows_option,
    time_options,
)

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation
    from backtrail.models import AgentInfo
    from backtrail.runs.repository import RunRecord
    from backtrail.store import Store

_AGE: Final = Column("AGE", "dim", right=True, spare=2)


_COMMANDS: Final = {"thread": "threads", "agent": "agents", "conversation": "conversations", "run": "runs"}
_SCANNED: Final = 10_000
"""Threads of each kind that are searched for names of agents without a state."""


def _nothing(session: Invocation, store: Store, what: str, kind: str, *, narrowed: bool) -> None:
    """Print that a list is empty, and which lists are not."""
    others = (
        [kind] if narrowed and _has(store, kind) else [each for each in _COMMANDS if each != kind and _has(store, each)]
    )
    hints = [f"`{session.command(_COMMANDS[each])}`" for each in others]
    instead = f"; see {', '.join(hints)}" if hints else "; the store is empty"
    say(f"there are no {what}{instead}")


def _has(store: Store, kind: str) -> bool:
    """Tell whether the store has something of a kind. An agent may exist only as the owner of threads."""
    kinds = KINDS if kind == "agent" else (kind,)
    listed = (info for each in kinds for info in store.threads(kind=each, limit=1))
    return any(kind != "agent" or info.kind == "agent" or info.agent for info in listed)


def _in_period(since: object, until: object) -> str:
    return " in that time" if since or until else ""


def _more(more: bool, hint: str = "-n 0") -> None:  # noqa: FBT001 - its name is the argument's
    if more:
        say(f"more with {hint}")


@command(examples=("backtrail threads", "backtrail threads trip- --jsonl", "backtrail threads --kind conversation"))
@click.argument("prefix", required=False, type=ThreadId())
@click.option("--kind", type=click.Choice(KINDS), default="thread", show_default=True, help="The kind of threads.")
@agent_option
@time_options
@click.option("--after", metavar="THREAD", help="Start after this thread.")
@rows_option()
def threads(
    session: Invocation,
    *,
    out: Output,
    prefix: str | None,
    kind: str,
    agent: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    after: str | None,
    rows: int,
) -> None:
    """List the threads, or those that begin with PREFIX.

    The latest activity comes first.
    """
    with session.read() as store:
        limit = rows + 1 if rows else None
        listed = store.threads(
            agent=agent, prefix=prefix, kind=kind, since=since, until=until, after=after, limit=limit
        )
        shown, more = first_items(listed, rows)
        if out.human and not shown:
            prefixed = f" whose ids begin with {prefix!r}" if prefix else ""
            owned = f" of agent {agent!r}" if agent else ""
            what = f"{kind}s{owned}{prefixed}" + (f" after {after!r}" if after else "") + _in_period(since, until)
            _nothing(session, store, what, kind, narrowed=bool(prefix or agent or after or since or until))
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
                    "head" if info.damaged else "",
                )
                for info in shown
            ),
        )
    _more(more, f"--after {quoted(shown[-1].id)}, or all with -n 0" if shown else "")


@command(examples=("backtrail agents", "backtrail agents planner"))
@click.argument("agent", required=False)
@time_options
@rows_option()
def agents(
    session: Invocation,
    *,
    out: Output,
    agent: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
) -> None:
    """List the agents, or the checkpoints of AGENT.

    `backtrail restore` restores a checkpoint. An agent that only owns conversations, runs or threads has no state, and
    comes after the others; --since and --until list only agents whose state was last saved in that time.
    """
    in_period = since is not None or until is not None
    if agent is not None and in_period:
        raise click.UsageError("--since and --until are for the list of agents: omit AGENT")
    with session.read() as store:
        if agent is not None:
            _agent_checkpoints(session, store, out, agent, rows)
            return
        listed = store.agents.list(since=since, until=until, limit=rows + 1 if rows else None)
        shown, more = first_items(iter(listed), rows)
        named, is_complete = ({}, True) if more or in_period else _without_state(store)
        if rows and len(shown) + len(named) > rows:
            named, more = dict(list(named.items())[: rows - len(shown)]), True
        if out.human and not shown and not named:
            _nothing(session, store, "agents" + _in_period(since, until), "agent", narrowed=in_period)
    if not out.human:
        out.values([*shown, *(_name_only(name) for name in named)])
    else:
        columns = (
            Column("AGENT", "yellow"),
            Column("NAME", wide=True, spare=1),
            Column("TYPE", "cyan", spare=3),
            Column("VERSION", right=True, spare=4),
            _AGE,
            Column("NO STATE, OWNS", "dim"),
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
        by_name = (
            (name, "", "", "", "", ", ".join(count(number, kind) for kind, number in owned.items()), "")
            for name, owned in named.items()
        )
        out.table(columns, [*stored, *by_name])
    if not is_complete:
        say(f"only the latest {_SCANNED:,} threads, conversations and runs were searched for agents without a state")
    _more(more)


def _without_state(store: Store) -> tuple[dict[str, dict[str, int]], bool]:
    """Return the agents without a state, with the numbers of what each owns; and whether the search was complete."""
    named: dict[str, dict[str, int]] = {}
    is_complete = True
    for kind in ("conversation", "run", "thread"):
        listed, more = first_items(store.threads(kind=kind, limit=_SCANNED + 1), _SCANNED)
        is_complete = is_complete and not more
        for info in listed:
            if info.agent is not None:
                numbers = named.setdefault(info.agent, {})
                numbers[kind] = numbers.get(kind, 0) + 1
    without = {name: numbers for name, numbers in named.items() if store.info(name, kind="agent") is None}
    return without, is_complete


def _name_only(name: str) -> AgentInfo:
    from backtrail.models import AgentInfo

    return AgentInfo(name, None, None, None, None, None)


def _agent_checkpoints(session: Invocation, store: Store, out: Output, agent: str, rows: int) -> None:
    shown, more = first_items(iter(store.agents.checkpoints(agent)), rows)
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
                    str(each.conversations) + (f", {len(each.erased)} erased" if each.erased else ""),
                    size(each.size_bytes),
                    "row" if each.damaged else "",
                )
                for each in shown
            ),
        )
        if not shown:
            state = "" if store.info(agent, kind="agent") else " and no state"
            kinds = [each for each in ("conversation", "run", "thread") if owns(store, agent, each)]
            hints = [f"`{session.command(*_about_agent(each, agent))}`" for each in kinds]
            say(f"agent {agent!r} has no checkpoints{state}" + (f"; see {', '.join(hints)}" if hints else ""))
    _more(more)


def _about_agent(kind: str, agent: str) -> list[str]:
    return ["conversations", agent] if kind == "conversation" else [_COMMANDS[kind], "--agent", agent]


@command(examples=("backtrail conversations", "backtrail conversations planner --jsonl"))
@click.argument("agent", required=False)
@click.option("--archived/--not-archived", default=None, help="Only archived conversations, or only others.")
@click.option("--tag", metavar="TAG", help="Only conversations with this tag.")
@time_options
@rows_option()
def conversations(
    session: Invocation,
    *,
    out: Output,
    agent: str | None,
    archived: bool | None,
    tag: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
) -> None:
    """List the conversations, or those of AGENT.

    The latest activity comes first.
    """
    with session.read() as store:
        owner = () if agent is None else (agent,)
        filters: dict[str, Any] = {"archived": archived, "tag": tag, "since": since, "until": until}
        listed = store.conversations.list(*owner, **filters, limit=rows + 1 if rows else None)
        shown, more = first_items(iter(listed), rows)
        if not shown and agent is not None:
            require_agent(store, agent)
        if out.human and not shown:
            of = f" of agent {agent!r}" if agent is not None else ""
            which = "" if archived is None else " that are archived" if archived else " that are not archived"
            what = f"conversations{of}{which}" + (f" with the tag {tag!r}" if tag is not None else "")
            what += _in_period(since, until)
            narrowed = any(each is not None for each in (agent, *filters.values()))
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
    _more(more)


@command(examples=("backtrail runs", "backtrail runs --status halted --jsonl"))
@agent_option
@click.option(
    "--status", type=click.Choice(["in_progress", "completed", "halted", "failed"]), help="Only runs with this status."
)
@time_options
@rows_option()
def runs(
    session: Invocation,
    *,
    out: Output,
    agent: str | None,
    status: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
) -> None:
    """List the runs and their calls in doubt.

    The latest activity comes first.
    """
    with session.read() as store:
        limit = rows + 1 if rows else None
        listed = store.runs.list(agent=agent, status=status, since=since, until=until, limit=limit)
        shown, more = first_items(iter(listed), rows)
        if out.human and not shown:
            owned = f" of agent {agent!r}" if agent is not None else ""
            what = f"runs{owned}" + (f" with status {status}" if status is not None else "") + _in_period(since, until)
            _nothing(session, store, what, "run", narrowed=bool(agent is not None or status or since or until))
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
            say(f"settle calls in doubt with `{session.command('settle', doubtful.session_id)}`")
    _more(more)


def _run_data(run: RunRecord) -> dict[str, Any]:
    """Return a run as JSON data, without its state and messages, which are in its checkpoints."""
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
def stats(session: Invocation, *, out: Output) -> None:
    """Show the contents and sizes of the store."""
    with session.read() as store:
        figures = store.stats()
    if not out.human:
        from dataclasses import asdict

        out.value({**asdict(figures), "sharing": round(figures.sharing, 3)})
        return
    things = ("threads", "agents", "conversations", "messages", "runs", "checkpoints", "agent_checkpoints", "chunks")
    facts = [(name.replace("_", " "), f"{getattr(figures, name):,}") for name in things]
    facts += [
        ("states", f"{size(figures.logical_bytes)} if each checkpoint were a copy"),
        ("stored", f"{size(figures.payload_bytes)} for them{_compared(figures.sharing)}"),
        ("on disk", size(figures.stored_bytes)),
        ("index", f"{size(figures.index_bytes)} of that, for {count(figures.indexed, 'message')}"),
    ]
    for name, value in facts:
        out.fact(name, value, 17)


def _compared(sharing: float) -> str:
    """Return how much less is stored than copies would take. For very small states it is more."""
    if not sharing:  # all checkpoints are hidden
        return ""
    return f", {sharing:,.1f} times less" if sharing >= 1 else f", {1 / sharing:,.1f} times more"


@command(examples=("backtrail where",))
def where(session: Invocation, *, out: Output) -> None:
    """Print the URL of the store.

    The password is left out.
    """
    from backtrail.urls import default_url, shown

    url = shown(session.url or default_url())
    if out.human:
        line(clean(url))
    else:
        out.value({"url": url})


COMMANDS: Final = (threads, agents, conversations, runs, stats, where)
