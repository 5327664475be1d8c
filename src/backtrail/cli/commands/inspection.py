"""Commands that read threads: log, show, diff, search, activity, watch. None of them creates or changes a store."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.output import (
    Column,
    Progress,
    age,
    bookkeeping,
    brief,
    can_show,
    clean,
    compact,
    count,
    cut,
    first_items,
    line,
    plain,
    say,
    short,
    size,
    width,
)
from backtrail.cli.parameters import (
    KINDS,
    Duration,
    ThreadId,
    agent_option,
    at,
    command,
    find_ref,
    find_thread,
    handle,
    kind_option,
    look_for,
    rows_option,
    searchable,
    thread_argument,
    time_options,
)
from backtrail.cli.summary import checkpoint_data, first_words, print_transcript

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.graph import GraphSigns
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation, LocatedThread
    from backtrail.engine.graph import GraphNode
    from backtrail.models import Change, Hit, ThreadInfo
    from backtrail.store import Store

_STYLES: Final = {"+": "green", "-": "red", "~": "yellow"}
_WORDS: Final = 200

_COLUMNS: Final = (
    Column("", "blue"),
    Column("ID", "yellow"),
    Column("STEP", right=True),
    Column("AGE", "dim", right=True, spare=2),
    Column("KIND", "dim", spare=4),
    Column("LABEL", "green", spare=1),
    Column("TAGS", "cyan", spare=3),
    Column("ADDED", "dim", right=True, spare=5),
    Column("FIRST WORDS", wide=True, words=True),
)
_LABEL: Final = 13
"""Characters of a label that is a UUID, as in LangGraph. They differ between neighbouring checkpoints."""
_FACTS: Final = 10
"""Minimal cells of the names of a checkpoint's facts."""


@command(examples=("backtrail log trip", "backtrail log trip --graph", "backtrail log trip -n 1 --jsonl"))
@thread_argument
@click.option("--graph", is_flag=True, help="Draw forks and the checkpoints that rewinds left.")
@click.option("--before", metavar="REF", help="Only checkpoints before this one.")
@time_options
@rows_option()
@kind_option
def log(
    session: Invocation,
    *,
    out: Output,
    thread: str,
    graph: bool,
    before: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
    kind: str | None,
) -> None:
    """Show the checkpoints of THREAD, newest first.

    The log of a fork continues with the thread that it was forked from.
    """
    with session.read() as store:
        located = find_thread(store, thread, kind)
        end = None if before is None else at(located, before.removeprefix("@"))
        listed = located.thread.history(
            newest_first=True, before=end, since=since, until=until, everything=graph, ancestors=not graph
        )
        shown, more = first_items(listed, rows)
        seen = _in_view(located, shown) if graph else {each.id for each in shown}
        if not out.human:
            out.values(
                {**checkpoint_data(each), "in_view": each.id in seen, "head": located.is_head(each)} for each in shown
            )
        elif graph:
            out.table(_COLUMNS, _graph(store, located, shown, seen, more=more))
        else:
            out.table(_COLUMNS, _rows(located, shown))
        if out.human and not shown and (since or until):
            say("no checkpoint was saved in that time")
        if out.human and not more and not graph and not since:
            _print_end(store, shown)
        if more:
            say(f"more with --before {shown[-1].id[:8]}, or all with -n 0")


def _rows(located: LocatedThread, shown: list[Checkpoint[Any]]) -> Iterator[tuple[str, ...]]:
    """Give the rows of checkpoints, with a line before those of the thread that this one was forked from."""
    before = located.thread.id
    for each in shown:
        if each.thread_id != before:
            yield (*[""] * (len(_COLUMNS) - 1), f"forked from {each.thread_id} after step {each.step}")
            before = each.thread_id
        yield ("", *_row(each))


def _print_end(store: Store, shown: list[Checkpoint[Any]]) -> None:
    """Print why a log ends, if the thread that it was forked from was deleted."""
    last = shown[-1] if shown else None
    if last is not None and last.parent_id is not None and last.step > 1:
        origin = store.checkpoint(last.parent_id)
        if origin is None and last.parent_id[8:] != last.id[8:]:
            say(f"the log ends here: the origin of {last.thread_id}, {last.parent_id[:8]}, was deleted")


def _row(checkpoint: Checkpoint[Any]) -> tuple[str, ...]:
    return (
        checkpoint.id[:8],
        str(checkpoint.step),
        age(checkpoint.created_at),
        "" if checkpoint.kind == "manual" else checkpoint.kind,
        short(checkpoint.label or "", _LABEL),
        " ".join(sorted(checkpoint.tags)),
        f"+{size(checkpoint.stored)}",
        first_words(checkpoint, _WORDS),
    )


def _in_view(located: LocatedThread, shown: list[Checkpoint[Any]]) -> set[str]:
    """Return the ids of the shown checkpoints that are in view."""
    oldest = shown[-1].seq if shown else 0
    seen = set()
    for each in located.thread.history(newest_first=True):
        if each.seq < oldest:
            break
        seen.add(each.id)
    return seen


def _graph(
    store: Store, located: LocatedThread, shown: list[Checkpoint[Any]], seen: set[str], *, more: bool
) -> Iterator[tuple[str, ...]]:
    from backtrail.cli.graph import graph_lines

    signs = _signs()
    forks = _forks(store, located, shown)
    known = {each.id: each for each in shown}
    nothing = ("",) * (len(_COLUMNS) - 2)
    for drawing, node, place in graph_lines(_nodes(located, shown, seen, more=more), signs):
        if node is None:
            yield (drawing, *nothing, "")
            continue
        for fork in forks.get(node.id, ()):
            beside = drawing[:place] + signs.branch + drawing[place + len(signs.branch) :]
            yield (beside, *nothing, f"fork {fork.id}, at step {fork.step}")
        yield (drawing, *_row(known[node.id]))
    root = shown[-1] if shown else None
    if root is not None and root.parent_id is not None and root.step > 1:
        origin = store.checkpoint(root.parent_id)
        if origin is not None and origin.thread_id != located.thread.id:
            yield (signs.line, *nothing, f"forked from {origin.thread_id}@{origin.id[:8]}, step {origin.step}")


def _nodes(located: LocatedThread, shown: list[Checkpoint[Any]], seen: set[str], *, more: bool) -> list[GraphNode]:
    from backtrail.engine.graph import GraphNode, connected

    return connected(
        [GraphNode(each.id, each.parent_id, each.id in seen, located.is_head(each)) for each in shown], more=more
    )


def _forks(store: Store, located: LocatedThread, shown: list[Checkpoint[Any]]) -> dict[str, list[ThreadInfo]]:
    """Return the forks of a thread, by the checkpoint where they branched off."""
    forks: dict[str, list[ThreadInfo]] = {}
    for info in store.threads(kind=located.kind, forked_from=located.thread.id):
        place = _left_at(store, info, shown) if located.kind == "conversation" else None
        forks.setdefault(place or info.forked_from or "", []).append(info)
    return forks


def _left_at(store: Store, fork: ThreadInfo, shown: list[Checkpoint[Any]]) -> str | None:
    """Return the checkpoint that added the last message that a fork shares with its conversation.

    A conversation is always forked from its newest checkpoint, even if it branches off at an older message.
    """
    from backtrail.errors import Error

    try:
        at = store.conversations.info(fork.id).forked_at
        origin = next((each for each in shown if each.id == fork.forked_from), None)
        if at is None or origin is None:
            return None
        ids = [message.get("id") for message in origin.get("messages", ()) if isinstance(message, dict)]
        known = {each: place for place, each in enumerate(ids)}
        for each in reversed([each for each in shown if each.seq <= origin.seq]):  # the oldest first
            last = each.tail("messages", 1)
            if last and known.get(last[0].get("id"), -1) >= known[at]:
                return str(each.id)
    except (Error, KeyError, AttributeError):  # damaged, or not a conversation of this package
        pass
    return None


def _signs() -> GraphSigns:
    from backtrail.cli.graph import ASCII, LINES

    return LINES if can_show("".join(LINES), sys.stdout) else ASCII


@command(
    examples=(
        "backtrail show trip@before-booking",
        "backtrail show lunch",
        "backtrail show trip --path messages[-1].content",
    )
)
@click.argument("ref", type=ThreadId())
@click.option("--path", metavar="P", help="Only the value at this path of the state, as JSON.")
@kind_option
def show(session: Invocation, *, out: Output, ref: str, path: str | None, kind: str | None) -> None:
    """Show the checkpoint REF and its state.

    A conversation is shown as a transcript; --json prints everything.
    """
    from backtrail.errors import NotFound
    from backtrail.models import MISSING

    with session.read() as store:
        located, checkpoint = find_ref(store, ref, kind)
        if path is not None:
            value = checkpoint.get(path, MISSING)
            if value is MISSING:
                raise NotFound(f"there is no value at {path} in {ref}", code="not_found.path")
            out.value(value)
        elif not out.human:
            out.value({**checkpoint_data(checkpoint), "of": located.kind, "state": checkpoint.state})
        else:
            state = checkpoint.state  # first, because it may be damaged
            cells = max(_FACTS, len(located.kind))
            for name, value in _facts(located, checkpoint):
                out.fact(name, value, cells)
            messages = state.get("messages") if located.kind == "conversation" and isinstance(state, dict) else None
            if isinstance(messages, list):
                for name, value in _about(state, messages):
                    out.fact(name, value, cells)
                print_transcript(out, messages)
            else:
                line("")
                out.value(state)


def _facts(located: LocatedThread, checkpoint: Checkpoint[Any]) -> Iterator[tuple[str, str]]:
    place = " (the head)" if located.is_head(checkpoint) else ""
    yield "checkpoint", checkpoint.id + place
    yield located.kind, checkpoint.thread_id
    yield "step", str(checkpoint.step)
    yield "saved", f"{checkpoint.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(checkpoint.created_at)} ago"
    if checkpoint.kind != "manual":
        yield "kind", checkpoint.kind
    if checkpoint.label is not None:
        yield "label", checkpoint.label
    if checkpoint.tags:
        yield "tags", " ".join(sorted(checkpoint.tags))
    if checkpoint.metadata:
        yield "metadata", compact(checkpoint.metadata)
    if checkpoint.parent_id is not None:
        yield "parent", checkpoint.parent_id
    yield "size", f"{size(checkpoint.size)}, {size(checkpoint.stored)} of it new"


def _about(state: dict[str, Any], messages: list[Any]) -> Iterator[tuple[str, str]]:
    """Give the facts of a conversation as a whole."""
    for name, field in (("agent", "agent_id"), ("title", "title"), ("forked from", "forked_from")):
        if isinstance(state.get(field), str) and state[field]:
            yield name, state[field]
    marks = [str(tag) for tag in state.get("tags") or ()]
    if marks:
        yield "tagged", " ".join(marks)
    if state.get("archived") is True:
        yield "archived", "yes"
    yield "messages", f"{len(messages):,}"


@command(examples=("backtrail diff trip", "backtrail diff trip@before-booking @", "backtrail diff trip trip-cheap"))
@click.argument("a", type=ThreadId())
@click.argument("b", required=False)
@kind_option
def diff(session: Invocation, *, out: Output, a: str, b: str | None, kind: str | None) -> None:
    """Show what changed from REF A to REF B.

    Without B: from A to the head of its thread; if A is the head, from the checkpoint before it. A B that begins with @
    is a checkpoint of A's thread.
    """
    with session.read() as store:
        located, old = find_ref(store, a, kind)
        if b is not None:
            _, new = find_ref(store, b, kind, near=located)
        elif located.is_head(old):
            old, new = _before(located), located.head
        else:
            new = located.head
        print_diff(out, field_changes(located.thread.diff(old, new), old, new))


def _before(located: LocatedThread) -> Checkpoint[Any]:
    """Return the checkpoint before the head."""
    from backtrail.errors import NotFound

    before: Checkpoint[Any] | None = at(located, "-", missing=True)
    if before is None:
        raise NotFound(f"{located.thread.id!r} has only one checkpoint: pass A and B", code="not_found.checkpoint")
    return before


def field_changes(changes: Iterable[Change], old: Checkpoint[Any], new: Checkpoint[Any]) -> Iterator[Change]:
    """Give changes without those of the lists of an instance's set fields: people want the fields."""
    for change in changes:
        place = next((at for at, step in enumerate(change.path) if step == ""), None)
        hidden = place is not None and _is_field_list(change, place)
        if not (hidden and any(_is_record(each, change.path[:place]) for each in (old, new))):
            yield change


def _is_field_list(change: Change, place: int) -> bool:
    """Tell whether a change below a record's hidden key only concerns the list of set fields."""
    from backtrail.models import MISSING

    rest = change.path[place + 1 :]
    if rest:
        return rest[0] in ("set", "unset")
    return all(each is MISSING or bookkeeping(each) for each in (change.old, change.new))


def _is_record(checkpoint: Checkpoint[Any], path: tuple[Any, ...]) -> bool:
    from backtrail.errors import Error

    try:
        return hasattr(checkpoint.get(tuple(path)) if path else checkpoint.state, "schema")
    except Error:
        return False


def print_diff(out: Output, changes: Iterable[Change]) -> None:
    """Print changes, one per line."""
    if not out.human:
        out.values(map(change_data, changes))
        return
    any_change = False
    for change in changes:
        line(out.paint(change_line(change, out.room), _STYLES[change.op]))
        any_change = True
    if not any_change:
        say("no change")


def change_data(change: Change) -> dict[str, Any]:
    """Return a change as JSON data: without `old` for an addition, without `new` for a removal."""
    sides = {"old": change.old, "new": change.new}
    gone = {"+": "old", "-": "new"}.get(change.op)
    return {
        "op": change.op,
        "path": str(change.path),
        **{name: plain(value) for name, value in sides.items() if name != gone},
    }


def change_line(change: Change, room: int | None) -> str:
    """Return a change in one line."""
    from backtrail.models import Reordered

    room = room or 2 * _WORDS
    head = f"{change.op} {cut(clean(str(change.path)) or 'state', room // 2)}: "
    left = room - width(head)
    if isinstance(change, Reordered):
        return cut(f"{head}keys in another order", room)
    if change.op == "~":
        old = brief(compact(change.old), max(left // 2 - 2, 1))
        return f"{head}{old} -> {brief(compact(change.new), max(left - width(old) - 4, 1))}"
    return head + brief(compact(change.new if change.op == "+" else change.old), left)


@command(
    examples=(
        "backtrail activity",
        "backtrail activity --agent planner --since yesterday -n 3",
        "backtrail activity --kind run --since yesterday --until today",
    )
)
@agent_option
@click.option("--kind", type=click.Choice(KINDS), help="Only of this kind.")
@time_options
@rows_option()
def activity(
    session: Invocation,
    *,
    out: Output,
    agent: str | None,
    kind: str | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
) -> None:
    """Show what was saved, in all threads, newest first.

    AGE is relative to now; --json prints times in UTC. A TIME without a zone is local: today and yesterday begin at
    midnight.
    """
    with session.read() as store:
        listed = store.activity(agent=agent, kind=kind, since=since, until=until)
        shown, more = first_items(listed, rows)
        if not out.human:
            out.values({**checkpoint_data(each), "of": each.thread_kind} for each in shown)
        else:
            out.table(
                (
                    Column("AGE", "dim", right=True),
                    Column("KIND", "dim", spare=2),
                    Column("THREAD", "yellow"),
                    Column("STEP", right=True, spare=4),
                    Column("ID", "dim", spare=3),
                    Column("LABEL", "green", spare=1),
                    Column("FIRST WORDS", wide=True, words=True),
                ),
                (
                    (
                        age(each.created_at),
                        each.thread_kind or "",
                        out.id(each.thread_id),
                        str(each.step),
                        each.id[:8],
                        short(each.label or "", _LABEL),
                        first_words(each, _WORDS),
                    )
                    for each in shown
                ),
            )
            if not shown:
                say("nothing was saved" + (" in that time" if since or until else ""))
    if more:
        say("more with -n 0, or with --until")


@command(examples=("backtrail search lisbon", 'backtrail search "window seat" --jsonl'))
@click.argument("query")
@click.option("--contains", is_flag=True, help="Search for the exact text QUERY, also inside of words.")
@click.option("--best", is_flag=True, help="Best matches first, instead of the newest.")
@click.option("--thread", metavar="THREAD", help="Only in threads with this id.")
@agent_option
@click.option("--kind", type=click.Choice(KINDS), help="Only in this kind.")
@click.option("--no-wait", is_flag=True, help="Search the index as it is, without the latest messages.")
@time_options
@rows_option()
def search(
    session: Invocation,
    *,
    out: Output,
    query: str,
    contains: bool,
    best: bool,
    thread: str | None,
    agent: str | None,
    kind: str | None,
    no_wait: bool,
    since: dt.datetime | None,
    until: dt.datetime | None,
    rows: int,
) -> None:
    """Find messages.

    A message must contain all words, "quoted" words side by side, and words that begin like star*.
    """
    with searchable(session) as store, Progress() as progress:
        found = store.search(
            query,
            contains=contains,
            agent=agent,
            thread=thread,
            kind=kind,
            since=since,
            until=until,
            order="score" if best else "newest",
            limit=rows + 1 if rows else sys.maxsize,
            wait=not no_wait,
            progress=progress,
        )
    hits, more = first_items(iter(found), rows)
    if not out.human:
        out.values(hits)
    else:
        _show_hits(out, hits)
        if not hits:
            say("no message matches" + ("" if contains else "; --contains also searches inside of words"))
    if more:
        say("more with -n 0")
    if found.behind:
        say(f"the index lacks changes of {count(found.behind, 'thread')}")


def _show_hits(out: Output, hits: list[Hit]) -> None:
    columns = (
        Column("AGE", "dim", right=True, spare=3),
        Column("KIND", "dim", spare=2),
        Column("THREAD", "yellow"),
        Column("ROLE", "green", spare=1),
        Column("TEXT", wide=True, words=True),
    )
    out.table(
        columns,
        ((age(hit.created_at), hit.kind, out.id(hit.conversation_id), hit.role or "", hit.snippet) for hit in hits),
    )


@command(examples=("backtrail watch trip --after before-booking --timeout 0s",))
@click.argument("thread", required=False, type=ThreadId())
@click.option("--after", metavar="REF", help="Start after this checkpoint of the thread, instead of now.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="Stop after this long without news: 30s, 5m, 2h.")
@agent_option
@kind_option
@click.option("-n", "rows", type=click.IntRange(min=1), metavar="N", help="Stop after N checkpoints.")
def watch(
    session: Invocation,
    *,
    out: Output,
    thread: str | None,
    after: str | None,
    timeout: float | None,
    agent: str | None,
    kind: str | None,
    rows: int | None,
) -> None:
    """Follow THREAD, or all threads, live.

    Prints each checkpoint that becomes a head, until Ctrl-C. --json prints one line per checkpoint, too.
    """
    if thread is None and after is not None:
        raise click.UsageError("--after requires THREAD")
    if thread is not None and agent is not None:
        raise click.UsageError("--agent excludes THREAD: pass one of them")
    with session.read() as store:
        if thread is None:
            news = store.watch(agent=agent, kind=kind, timeout=timeout)
        else:
            located = look_for(store, thread, kind) if after is None else find_thread(store, thread, kind)
            watched = located.thread if located else handle(store, kind or "thread", thread)
            since = None if after is None or located is None else at(located, after.removeprefix("@"))
            news = watched.watch(after=since, timeout=timeout)
        with news:
            for checkpoint in islice(news, rows):
                line(_news(out, checkpoint) if out.human else compact(checkpoint_data(checkpoint)))
                sys.stdout.flush()


def _news(out: Output, checkpoint: Checkpoint[Any]) -> str:
    name = f"{out.id(clean(checkpoint.thread_id))}@{checkpoint.id[:8]}"
    name = name if out.room is None else cut(name, out.room // 2)
    facts = [f"{checkpoint.created_at.astimezone():%H:%M:%S}", name, f"step {checkpoint.step}"]
    facts += [
        f"+{size(checkpoint.stored)}",
        *([short(clean(checkpoint.label), _LABEL)] if checkpoint.label is not None else []),
    ]
    head = "  ".join(facts)
    text = f"{head}  {out.fit(first_words(checkpoint, _WORDS), width(head) + 2)}".rstrip()
    text = text if out.room is None else cut(text, out.room)
    return text.replace(name, out.paint(name, "yellow"), 1)


COMMANDS: Final = (log, show, diff, search, activity, watch)
