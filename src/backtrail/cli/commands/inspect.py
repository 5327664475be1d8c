"""Commands that look into threads: log, show, diff, search, watch. None of them makes or changes a store."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli import transcript
from backtrail.cli.describe import checkpoint_data, words
from backtrail.cli.output import (
    Column,
    Progress,
    age,
    bookkeeping,
    brief,
    can_show,
    clean,
    compact,
    cut,
    line,
    pages,
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
    thread_argument,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.graph import Node, Signs
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Found, Session
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
"""Characters of a label that is a UUID, as LangGraph's are: those that differ from one checkpoint to the next."""
_FACTS: Final = 10
"""Cells of the names of what is known of a checkpoint, at least."""


@command(examples=("backtrail log trip", "backtrail log trip --graph", "backtrail log trip -n 1 --jsonl"))
@thread_argument
@click.option("--graph", is_flag=True, help="Draw forks, and what was rewound away.")
@click.option("--before", metavar="REF", help="Only what came before this checkpoint of the thread.")
@rows_option()
@kind_option
def log(
    session: Session, *, out: Output, thread: str, graph: bool, before: str | None, rows: int, kind: str | None
) -> None:
    """Show the checkpoints of THREAD, newest first.

    Those of a fork go on with what it was forked from.
    """
    with session.read() as store:
        found = find_thread(store, thread, kind)
        until = None if before is None else at(found, before.removeprefix("@"))
        listed = found.thread.history(newest_first=True, before=until, everything=graph, ancestors=not graph)
        shown, more = pages(listed, rows)
        seen = _in_view(found, shown) if graph else {each.id for each in shown}
        if not out.human:
            out.values(
                {**checkpoint_data(each), "in_view": each.id in seen, "head": found.leads_to(each)} for each in shown
            )
        elif graph:
            out.table(_COLUMNS, _graph(store, found, shown, seen, more=more))
        else:
            out.table(_COLUMNS, _rows(found, shown))
        if out.human and not more and not graph:
            _tell_end(store, shown)
        if more:
            say(f"older ones: --before {shown[-1].id[:8]}, or -n 0 for all")


def _rows(found: Found, shown: list[Checkpoint[Any]]) -> Iterator[tuple[str, ...]]:
    """Give the rows of checkpoints, and of what they were forked from, with a line between."""
    before = found.thread.id
    for each in shown:
        if each.thread_id != before:
            yield (*[""] * (len(_COLUMNS) - 1), f"forked from {each.thread_id}, behind step {each.step}")
            before = each.thread_id
        yield ("", *_row(each))


def _tell_end(store: Store, shown: list[Checkpoint[Any]]) -> None:
    """Say that a log ends because what its thread was forked from is not there, if that is so."""
    last = shown[-1] if shown else None
    if last is not None and last.parent_id is not None and last.step > 1:
        origin = store.checkpoint(last.parent_id)
        if origin is None and last.parent_id[8:] != last.id[8:]:
            say(f"it ends here: what {last.thread_id} was forked from, {last.parent_id[:8]}, is not there any more")


def _row(checkpoint: Checkpoint[Any]) -> tuple[str, ...]:
    return (
        checkpoint.id[:8],
        str(checkpoint.step),
        age(checkpoint.created_at),
        "" if checkpoint.kind == "manual" else checkpoint.kind,
        short(checkpoint.label or "", _LABEL),
        " ".join(sorted(checkpoint.tags)),
        f"+{size(checkpoint.stored)}",
        words(checkpoint, _WORDS),
    )


def _in_view(found: Found, shown: list[Checkpoint[Any]]) -> set[str]:
    """Return the ids of those among the shown that are in view."""
    oldest = shown[-1].seq if shown else 0
    seen = set()
    for each in found.thread.history(newest_first=True):
        if each.seq < oldest:
            break
        seen.add(each.id)
    return seen


def _graph(
    store: Store, found: Found, shown: list[Checkpoint[Any]], seen: set[str], *, more: bool
) -> Iterator[tuple[str, ...]]:
    from backtrail.cli.graph import drawn

    signs = _signs()
    forks = _forks(store, found, shown)
    known = {each.id: each for each in shown}
    nothing = ("",) * (len(_COLUMNS) - 2)
    for drawing, node, place in drawn(_nodes(found, shown, seen, more=more), signs):
        if node is None:
            yield (drawing, *nothing, "")
            continue
        for fork in forks.get(node.id, ()):
            beside = drawing[:place] + signs.branch + drawing[place + len(signs.branch) :]
            yield (beside, *nothing, f"fork {fork.id}, now at step {fork.step}")
        yield (drawing, *_row(known[node.id]))
    root = shown[-1] if shown else None
    if root is not None and root.parent_id is not None and root.step > 1:
        origin = store.checkpoint(root.parent_id)
        if origin is not None and origin.thread_id != found.thread.id:
            yield (signs.line, *nothing, f"forked from {origin.thread_id}@{origin.id[:8]}, step {origin.step}")


def _nodes(found: Found, shown: list[Checkpoint[Any]], seen: set[str], *, more: bool) -> list[Node]:
    """Return what is drawn; of one whose parent is pruned, the next in view stands in for it."""
    from backtrail.cli.graph import Node

    here = {each.id for each in shown}
    nodes, below = [], None
    for each in reversed(shown):
        parent = each.parent_id
        if parent not in here:
            parent = below if each.id in seen and below is not None else parent if more else None
        nodes.append(Node(each.id, parent, each.id in seen, found.leads_to(each)))
        below = each.id if each.id in seen else below
    return nodes[::-1]


def _forks(store: Store, found: Found, shown: list[Checkpoint[Any]]) -> dict[str, list[ThreadInfo]]:
    """Return the threads that were forked from this one, by the checkpoint where they left."""
    forks: dict[str, list[ThreadInfo]] = {}
    for info in store.threads(kind=found.kind, forked_from=found.thread.id):
        place = _left_at(store, info, shown) if found.kind == "conversation" else None
        forks.setdefault(place or info.forked_from or "", []).append(info)
    return forks


def _left_at(store: Store, fork: ThreadInfo, shown: list[Checkpoint[Any]]) -> str | None:
    """Return the checkpoint in which the last message came that a conversation shares with the one it was forked from.

    It is made from the newest checkpoint, whichever message it leaves at.
    """
    from backtrail.errors import Error

    try:
        at = store.conversations.info(fork.id).forked_at
        made = next((each for each in shown if each.id == fork.forked_from), None)
        if at is None or made is None:
            return None
        ids = [message.get("id") for message in made.get("messages", ()) if isinstance(message, dict)]
        known = {each: place for place, each in enumerate(ids)}
        for each in reversed([each for each in shown if each.seq <= made.seq]):  # the oldest first
            last = each.tail("messages", 1)
            if last and known.get(last[0].get("id"), -1) >= known[at]:
                return str(each.id)
    except (Error, KeyError, AttributeError):  # it is damaged, or was written by somebody else: as far as is known
        pass
    return None


def _signs() -> Signs:
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
@click.option("--path", metavar="P", help="Only what is at this path of the state, as JSON.")
@kind_option
def show(session: Session, *, out: Output, ref: str, path: str | None, kind: str | None) -> None:
    """Show the checkpoint REF and its state.

    A conversation is shown as a transcript; --json has all that is stored.
    """
    from backtrail.errors import NotFound
    from backtrail.models import MISSING

    with session.read() as store:
        found, checkpoint = find_ref(store, ref, kind)
        if path is not None:
            value = checkpoint.get(path, MISSING)
            if value is MISSING:
                raise NotFound(f"there is nothing at {path} in {ref}", code="not_found.path")
            out.value(value)
        elif not out.human:
            out.value({**checkpoint_data(checkpoint), "of": found.kind, "state": checkpoint.state})
        else:
            state = checkpoint.state  # before anything is printed: it may be damaged
            cells = max(_FACTS, len(found.kind))
            for name, value in _facts(found, checkpoint):
                out.fact(name, value, cells)
            messages = state.get("messages") if found.kind == "conversation" and isinstance(state, dict) else None
            if isinstance(messages, list):
                for name, value in _about(state, messages):
                    out.fact(name, value, cells)
                transcript.show(out, messages)
            else:
                line("")
                out.value(state)


def _facts(found: Found, checkpoint: Checkpoint[Any]) -> Iterator[tuple[str, str]]:
    place = " (the head)" if found.leads_to(checkpoint) else ""
    yield "checkpoint", checkpoint.id + place
    yield found.kind, checkpoint.thread_id
    yield "step", str(checkpoint.step)
    yield "made", f"{checkpoint.created_at:%Y-%m-%d %H:%M:%S} UTC, {age(checkpoint.created_at)} ago"
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
    yield "size", f"{size(checkpoint.size)}, of which {size(checkpoint.stored)} were new"


def _about(state: dict[str, Any], messages: list[Any]) -> Iterator[tuple[str, str]]:
    """Give what is known of a conversation as a whole."""
    for name, field in (("agent", "agent_id"), ("title", "title"), ("forked from", "forked_from")):
        if isinstance(state.get(field), str) and state[field]:
            yield name, state[field]
    marks = [str(tag) for tag in state.get("tags") or ()]
    if marks:
        yield "marked", " ".join(marks)
    if state.get("archived") is True:
        yield "archived", "yes"
    yield "messages", f"{len(messages):,}"


@command(examples=("backtrail diff trip", "backtrail diff trip@before-booking @", "backtrail diff trip trip-cheap"))
@click.argument("a", type=ThreadId())
@click.argument("b", required=False)
@kind_option
def diff(session: Session, *, out: Output, a: str, b: str | None, kind: str | None) -> None:
    """Show what changed from REF A to REF B.

    Without B: from A to the head of its thread; if A is the head, what its last step changed. A B that begins with @ is
    one of A's thread.
    """
    with session.read() as store:
        found, old = find_ref(store, a, kind)
        if b is not None:
            _, new = find_ref(store, b, kind, near=found)
        elif found.leads_to(old):
            old, new = _before(found), found.head
        else:
            new = found.head
        print_diff(out, of_fields(found.thread.diff(old, new), old, new))


def _before(found: Found) -> Checkpoint[Any]:
    """Return the checkpoint before the head."""
    from backtrail.errors import NotFound

    before: Checkpoint[Any] | None = at(found, "-", missing=True)
    if before is None:
        raise NotFound(f"{found.thread.id!r} has one checkpoint: there is none before it", code="not_found.checkpoint")
    return before


def of_fields(changes: Iterable[Change], old: Checkpoint[Any], new: Checkpoint[Any]) -> Iterator[Change]:
    """Give changes without those that are about which fields of an instance were set: people see the fields."""
    for change in changes:
        place = next((at for at, step in enumerate(change.path) if step == ""), None)
        hidden = place is not None and _is_about_setting(change, place)
        if not (hidden and any(_is_record(each, change.path[:place]) for each in (old, new))):
            yield change


def _is_about_setting(change: Change, place: int) -> bool:
    """Tell whether a change below the key of a record that is no field can say only which fields were set."""
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
    """Print changes, one in each line."""
    if not out.human:
        out.values(map(change_data, changes))
        return
    told = False
    for change in changes:
        line(out.paint(change_line(change, out.room), _STYLES[change.op]))
        told = True
    if not told:
        say("no change")


def change_data(change: Change) -> dict[str, Any]:
    """Return a change for programs: without `old` where there was nothing, without `new` where nothing is."""
    sides = {"old": change.old, "new": change.new}
    gone = {"+": "old", "-": "new"}.get(change.op)
    return {
        "op": change.op,
        "path": str(change.path),
        **{name: plain(value) for name, value in sides.items() if name != gone},
    }


def change_line(change: Change, room: int | None) -> str:
    """Return a change for people, in one line."""
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


@command(examples=("backtrail search lisbon", 'backtrail search "window seat" --jsonl'))
@click.argument("query")
@click.option("--contains", is_flag=True, help="Look for QUERY as it is, inside of words, too.")
@click.option("--best", is_flag=True, help="The best ones first, not the newest.")
@click.option("--thread", metavar="THREAD", help="Only in the threads of this id.")
@agent_option
@click.option("--kind", type=click.Choice(KINDS), help="Only in what is of this kind.")
@rows_option()
def search(
    session: Session,
    *,
    out: Output,
    query: str,
    contains: bool,
    best: bool,
    thread: str | None,
    agent: str | None,
    kind: str | None,
    rows: int,
) -> None:
    """Find messages.

    Words must all be there, "quoted" ones in a row, and star* is the beginning of a word.
    """
    with _searched(session) as store, Progress() as progress:
        hits = store.search(
            query,
            contains=contains,
            agent=agent,
            thread=thread,
            kind=kind,
            order="score" if best else "newest",
            limit=rows + 1 if rows else sys.maxsize,
            progress=progress,
        )
    hits, more = pages(iter(hits), rows)
    if not out.human:
        out.values(hits)
    else:
        _show_hits(out, hits)
        if not hits:
            say("nothing was found" + ("" if contains else "; --contains looks inside of words, too"))
    if more:
        say("there are more: -n 0 for all")


def _show_hits(out: Output, hits: list[Hit]) -> None:
    columns = (
        Column("AGE", "dim", right=True, spare=3),
        Column("KIND", "dim", spare=2),
        Column("THREAD", "yellow"),
        Column("ROLE", "green", spare=1),
        Column("FOUND", wide=True, words=True),
    )
    out.table(
        columns,
        ((age(hit.created_at), hit.kind, out.id(hit.conversation_id), hit.role or "", hit.snippet) for hit in hits),
    )


def _searched(session: Session) -> Store:
    """Open a store to search in it: what was saved last is put into the index first, if it may be written to."""
    from backtrail.errors import Unavailable

    try:
        return session.write()
    except Unavailable:
        return session.read()


@command(examples=("backtrail watch trip --after before-booking --timeout 0s",))
@click.argument("thread", required=False, type=ThreadId())
@click.option("--after", metavar="REF", help="Begin behind this checkpoint of the thread, not now.")
@click.option("--timeout", type=Duration(), metavar="TIME", help="End when there was no news for so long: 30s, 5m, 2h.")
@agent_option
@kind_option
@click.option("-n", "rows", type=click.IntRange(min=1), metavar="N", help="End after so many.")
def watch(
    session: Session,
    *,
    out: Output,
    thread: str | None,
    after: str | None,
    timeout: float | None,
    agent: str | None,
    kind: str | None,
    rows: int | None,
) -> None:
    """Follow THREAD, or all of them, live.

    Shows each checkpoint that becomes a head, as it comes, until Ctrl-C. With --json, too, each is a line
    of its own.
    """
    if thread is None and after is not None:
        raise click.UsageError("--after is for one thread: name it")
    if thread is not None and agent is not None:
        raise click.UsageError("--agent is for all threads: name a thread, or an agent")
    with session.read() as store:
        if thread is None:
            news = store.watch(agent=agent, kind=kind, timeout=timeout)
        else:
            there = look_for(store, thread, kind)
            watched = there.thread if there else handle(store, kind or "thread", thread)
            if after is not None and there is None:
                find_thread(store, thread, kind)  # which is not there
            since = None if after is None or there is None else at(there, after.removeprefix("@"))
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
    told = "  ".join(facts)
    text = f"{told}  {out.fit(words(checkpoint, _WORDS), width(told) + 2)}".rstrip()
    text = text if out.room is None else cut(text, out.room)
    return text.replace(name, out.paint(name, "yellow"), 1)


COMMANDS: Final = (log, show, diff, search, watch)
