"""Commands that change threads: save, fork, rewind, undo, redo, restore, settle, tag, delete, erase.

A command shows a change, asks, and prints the command that reverts it. It makes the change in a transaction and commits
it only after a yes, so the preview is exact. If another process writes to the thread in between, the commit raises
`Conflict` and nothing changes. Calls outside of the store that cannot be undone are listed first. `erase` cannot be in
a transaction: it asks first.
"""

from __future__ import annotations

import sys
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.commands.inspection import change_line, field_changes
from backtrail.cli.output import Column, clean, compact, count, room_of, say, say_command
from backtrail.cli.parameters import (
    KINDS,
    USAGE,
    ThreadId,
    at,
    command,
    confirm,
    find_ref,
    find_thread,
    in_memory,
    kind_option,
    look_for,
    parse_json,
    read_json,
    thread_argument,
    yes_option,
)
from backtrail.cli.summary import print_checkpoint, progress_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation, LocatedThread
    from backtrail.models import AgentCheckpoint
    from backtrail.runs.repository import RunRecord
    from backtrail.store import Store

_SHOWN: Final = 20
"""The number of changes in a preview."""


# -- confirmation -------------------------------------------------------------------------------------------


def _confirmed(
    store: Store, question: str, change: Callable[[], Any], show: Callable[[Any], None], *, yes: bool
) -> Any:
    """Make a change in a transaction, show it, and commit it after the user's yes; return the result of `change`."""
    from backtrail.agents.repository import Erased
    from backtrail.runs.history import Irreversible

    with store.transaction():
        with warnings.catch_warnings(record=True) as recorded:
            warnings.simplefilter("always", Irreversible)
            warnings.simplefilter("always", Erased)
            result = change()
        show(result)
        _list_irreversible(
            [call for each in recorded if isinstance(each.message, Irreversible) for call in each.message.calls]
        )
        confirm(question, yes=yes)
    return result


def _list_irreversible(calls: Sequence[Any]) -> None:
    """Print the calls that had an effect outside of the store, which no command can undo."""
    if calls:
        say("These calls had effects outside of the store, which stay:")
    for call in calls:
        state = "" if call.ended_at else ", in doubt"
        say(f"  {call.tool_name} ({call.id}{state})")


def _show_changes(lines: Iterable[str]) -> None:
    """Print the first changes, and the number of the others."""
    rest = iter(lines)
    for each in islice(rest, _SHOWN):
        say(f"  {each}")
    more = sum(1 for _ in rest)
    if more:
        say(f"  ... and {count(more, 'more change')}")


def _show_move(located: LocatedThread) -> Callable[[Checkpoint[Any]], None]:
    """Return a function that prints the changes of the state for a move of the head to a checkpoint."""
    from backtrail.errors import Corrupt

    def show(to: Checkpoint[Any]) -> None:
        say(f"{_name_of(located)}: step {located.head.step} ({located.head.id[:8]}) -> step {to.step} ({to.id[:8]})")
        try:
            room = (room_of(sys.stderr) or 102) - 2
            changes = field_changes(located.thread.diff(located.head, to), located.head, to)
            _show_changes(change_line(each, room) for each in changes)
        except Corrupt as error:  # a user may rewind because the head is damaged
            say(f"  the changes cannot be shown: {clean(str(error))}")

    return show


def _name_of(located: LocatedThread) -> str:
    """Return the id of a thread in printable form."""
    return clean(located.thread.id)


def _print_revert(
    session: Invocation, store: Store, kind: str | None, thread: str, words: Sequence[str], *options: str
) -> None:
    """Print the command that reverts a change of a thread: `words`, and `--kind` if the id is ambiguous."""
    command, *rest = words
    if kind is not None and any(store.info(thread, kind=each) for each in KINDS if each != kind):
        options = (*options, "--kind", kind)
    if any(word.startswith("-") for word in rest):
        text = session.command(command, *options, last=["--", *rest])
    else:
        text = session.command(command, *rest, *options)
    say_command("to revert:", text)


# -- saving -------------------------------------------------------------------------------------------------


@command(
    examples=(
        "backtrail save notes notes.json --label first --yes",
        "echo '90' | backtrail save trip --set budget --yes",
        'echo \'{"role": "user", "content": "By train"}\' | backtrail save trip --append messages --yes',
    )
)
@thread_argument
@click.argument("file", required=False, default="-")
@click.option("--set", "put", metavar="P", help="Set the value at this path of the state.")
@click.option("--append", metavar="P", help="Append the value to the list at this path of the state.")
@click.option("--label", metavar="LABEL", help="A label for the checkpoint.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A tag for the checkpoint; repeatable.")
@click.option("--expect", metavar="REF", help="Fail unless this checkpoint is the head; new: unless the thread is new.")
@yes_option
def save(
    session: Invocation,
    *,
    out: Output,
    thread: str,
    file: str,
    put: str | None,
    append: str | None,
    label: str | None,
    tags: tuple[str, ...],
    expect: str | None,
    yes: bool,
) -> None:
    """Save JSON as the state of THREAD.

    Reads FILE, or stdin. Creates a missing thread or store.
    """
    if put is not None and append is not None:
        raise click.UsageError("--set excludes --append: pass one of them")
    value = read_json(file)

    def write(store: Store, before: LocatedThread | None) -> Checkpoint[Any]:
        handle = store.thread(thread) if before is None else before.thread
        meta: dict[str, Any] = {"label": label, "tags": tags, "expect": _expected(before, expect)}
        if put is not None:
            return handle.set(put, value, **meta)
        if append is not None:
            return handle.append(append, value, **meta)
        return handle.save(value, **meta)

    new = not session.exists()
    if new:
        with in_memory() as store:
            write(store, None)  # an error must not create a store
        confirm(f"Create a new store with thread {thread!r}?", yes=yes)
    with session.write(create=True) as store:
        before = look_for(store, thread, "thread")

        def change() -> Checkpoint[Any]:
            return write(store, before)

        def show(to: Checkpoint[Any]) -> None:
            if before is not None:
                _show_move(before)(to)
            else:
                say(f"{clean(thread)}: a new thread")

        saved = _confirmed(store, f"Save to {thread!r}?", change, show, yes=yes or new)
        print_checkpoint(out, saved)
        _print_revert(session, store, "thread", thread, ["undo" if before else "delete", thread])


def _expected(before: LocatedThread | None, expect: str | None) -> Any:
    from backtrail.errors import Conflict
    from backtrail.models import NEW

    if expect is None:
        return before and before.head
    if expect == "new":
        return NEW
    if before is None:
        raise Conflict(f"the thread is new and has no checkpoint {expect!r}", code="conflict.stale")
    return at(before, expect.removeprefix("@"))


# -- time travel --------------------------------------------------------------------------------------------


@command(examples=("backtrail fork trip@before-booking trip-train --yes",))
@click.argument("ref", type=ThreadId())
@click.argument("new_id")
@kind_option
@yes_option
def fork(session: Invocation, *, out: Output, ref: str, new_id: str, kind: str | None, yes: bool) -> None:
    """Start the thread NEW_ID at REF."""
    with session.write() as store:
        located, checkpoint = find_ref(store, ref, kind)

        def show(_: Any) -> None:
            say(f"{clean(new_id)}: a new {located.kind} that continues {_name_of(located)} from step {checkpoint.step}")

        def change() -> Checkpoint[Any]:
            return located.thread.fork(new_id, checkpoint).load()

        print_checkpoint(out, _confirmed(store, f"Fork {new_id!r}?", change, show, yes=yes))
        _print_revert(session, store, located.kind, new_id, ["delete", new_id])


@command(examples=("backtrail rewind trip@before-booking --yes", "backtrail undo trip --yes"))
@click.argument("ref", type=ThreadId())
@kind_option
@yes_option
def rewind(session: Invocation, *, out: Output, ref: str, kind: str | None, yes: bool) -> None:
    """Make REF the head of its thread again.

    Later checkpoints leave the history, but are not deleted.
    """
    with session.write() as store:
        located, checkpoint = find_ref(store, ref, kind)
        if located.is_head(checkpoint):
            say(f"this is the head of {_name_of(located)} already")
            print_checkpoint(out, checkpoint)
            return
        question = f"Rewind {located.thread.id!r}?"
        print_checkpoint(
            out, _confirmed(store, question, lambda: located.thread.rewind(checkpoint), _show_move(located), yes=yes)
        )
        _print_revert(session, store, located.kind, located.thread.id, ["undo", located.thread.id])


@command(examples=("backtrail undo trip --yes", "backtrail redo trip --yes"))
@thread_argument
@click.option("--restore", is_flag=True, help="Revert the last restore of the agent with this id.")
@click.option("--force", is_flag=True, help="With --restore: even if conversations have new checkpoints.")
@kind_option
@yes_option
def undo(
    session: Invocation, *, out: Output, thread: str, restore: bool, force: bool, kind: str | None, yes: bool
) -> None:
    """Revert the last save, rewind or redo of THREAD.

    Each further undo reverts the one before.
    """
    if force and not restore:
        raise click.UsageError("--force requires --restore")
    with session.write() as store:
        if restore:
            _undo_restore(store, out, thread, force=force, yes=yes)
            return
        located = find_thread(store, thread, kind)
        print_checkpoint(
            out, _confirmed(store, f"Undo in {thread!r}?", located.thread.undo, _show_move(located), yes=yes)
        )
        _print_revert(session, store, located.kind, thread, ["redo", thread])


def _undo_restore(store: Store, out: Output, agent: str, *, force: bool, yes: bool) -> None:
    from backtrail.errors import NotFound

    if store.info(agent, kind="agent") is None and not store.agents.checkpoints(agent):
        raise NotFound(f"there is no agent {agent!r}", code="not_found.agent")
    before = _heads(store, agent)
    question = f"Revert the last restore of agent {agent!r}?"
    _confirmed(
        store,
        question,
        lambda: store.agents.undo(agent, force=force),
        lambda _: _show_agent(store, agent, before),
        yes=yes,
    )
    _print_agent(store, out, agent)


@command(examples=("backtrail undo trip --yes", "backtrail redo trip --yes"))
@thread_argument
@kind_option
@yes_option
def redo(session: Invocation, *, out: Output, thread: str, kind: str | None, yes: bool) -> None:
    """Revert the last undo of THREAD."""
    with session.write() as store:
        located = find_thread(store, thread, kind)
        print_checkpoint(
            out, _confirmed(store, f"Redo in {thread!r}?", located.thread.redo, _show_move(located), yes=yes)
        )
        _print_revert(session, store, located.kind, thread, ["undo", thread])


# -- agents -------------------------------------------------------------------------------------------------


@command(examples=("backtrail restore planner@before-lunch --yes", "backtrail undo planner --restore --yes"))
@click.argument("checkpoint")
@yes_option
def restore(session: Invocation, *, out: Output, checkpoint: str, yes: bool) -> None:
    """Restore an agent to one of its checkpoints.

    All its conversations are restored, too.

    CHECKPOINT is AGENT@NAME, AGENT@ and the first digits of an id, or a full id: `backtrail agents AGENT` lists them.
    """
    with session.write() as store:
        target = _agent_checkpoint(store, checkpoint)
        agent = target.agent_id
        before = _heads(store, agent)
        say(f"agent {clean(agent)}: back to {clean(target.name)!r}, {count(target.conversations, 'conversation')}")
        if target.erased:
            say(f"erased since, so they do not return: {', '.join(map(clean, target.erased))}")
        question = f"Restore agent {agent!r}?"
        _confirmed(
            store, question, lambda: store.agents.restore(target), lambda _: _show_agent(store, agent, before), yes=yes
        )
        _print_agent(store, out, agent)
        _print_revert(session, store, None, agent, ["undo", agent], "--restore")


def _agent_checkpoint(store: Store, text: str) -> AgentCheckpoint:
    from backtrail.errors import Invalid, NotFound

    for place in [place for place, char in enumerate(text) if char == "@" and place][::-1]:
        agent, name = text[:place], text[place + 1 :]
        listed = store.agents.checkpoints(agent)
        named = [each for each in listed if each.name == name]
        if named:
            return named[0]  # the newest
        matches = [each for each in listed if name and each.id.startswith(name)]
        if len(matches) > 1:
            ids = ", ".join(each.id[:12] for each in matches[:4])
            text = f"{len(matches)} ids begin with {name!r} ({ids}): pass more digits"
            raise Invalid(text, code="invalid.ambiguous")
        if matches:
            return matches[0]
    located = store.agents.get_checkpoint(text)
    if located is None:
        raise NotFound(f"there is no agent checkpoint {text!r}", code="not_found.checkpoint")
    return located


def _heads(store: Store, agent: str) -> dict[tuple[str, str], tuple[str, int]]:
    """Return the heads of an agent and its conversations."""
    return {
        (kind, info.id): (info.head_id, info.step)
        for kind in ("agent", "conversation")
        for info in store.threads(kind=kind, agent=agent)
    }


def _show_agent(store: Store, agent: str, before: dict[tuple[str, str], tuple[str, int]]) -> None:
    after = _heads(store, agent)
    lines = []
    for key in sorted({*before, *after}):
        was, now = before.get(key), after.get(key)
        if was != now:
            old, new = (f"step {each[1]}" if each else "hidden" for each in (was, now))
            lines.append(f"{key[0]} {clean(key[1])}: {old} -> {new}")
    _show_changes(lines)


def _print_agent(store: Store, out: Output, agent: str) -> None:
    located = look_for(store, agent, "agent")
    if located is None:
        say(f"agent {clean(agent)} has no state")
    else:
        print_checkpoint(out, located.head)


# -- runs ---------------------------------------------------------------------------------------------------


@command(
    examples=(
        "backtrail settle session-43",
        """backtrail settle session-43 1.1 --result '"table 4"' --yes""",
    )
)
@click.argument("run", type=ThreadId())
@click.argument("call", required=False)
@click.option("--result", metavar="JSON", help="The call was made and returned this; - reads stdin.")
@click.option("--not-done", is_flag=True, help="The call was not made: the run makes it when it continues.")
@yes_option
def settle(
    session: Invocation, *, out: Output, run: str, call: str | None, result: str | None, not_done: bool, yes: bool
) -> None:
    """Settle a CALL that is in doubt.

    A call is in doubt if it was started and its result was not recorded. Without CALL: list the calls of RUN that are
    in doubt. Settling cannot be undone. The run continues with the result when it is started again.
    """
    if call is None and (result is not None or not_done):
        raise click.UsageError("--result and --not-done require CALL")
    if call is not None and (result is None) != not_done:
        raise click.UsageError("CALL requires --result JSON or --not-done")
    with (session.read if call is None else session.write)() as store:
        record = store.runs.load(run)
        if call is None:
            _print_doubts(session, out, record)
            return
        known = next((each for each in record.in_doubt if each.id == call), None)
        given = {"not_done": True} if result is None else {"result": _result(result)}
        name = "" if known is None else f" of {clean(known.name)}"
        question = f"Settle call {call!r}{name} as {'not made' if not_done else 'made'}?"

        def show(_: Any) -> None:
            effect = "not made: the run will make it" if not_done else f"returned {compact(given['result'])}"
            say(f"run {run}, call {call}{name}: {effect}; this cannot be undone")

        _confirmed(store, question, lambda: store.runs.settle(run, call, **given), show, yes=yes)
        left = len(store.runs.load(run).in_doubt)
    if out.human:
        say(f"settled; {count(left, 'call')} of run {clean(run)} in doubt")
    else:
        out.value({"session_id": run, "call": call, "not_done": not_done, "in_doubt": left})


def _result(text: str) -> Any:
    return read_json("-") if text == "-" else parse_json(text, "--result", USAGE)


def _print_doubts(session: Invocation, out: Output, record: RunRecord) -> None:
    if not out.human:
        out.values({"id": each.id, "name": each.name, "arguments": each.arguments} for each in record.in_doubt)
        return
    rows = (
        (each.id, each.name, compact(each.arguments), "yes" if each.irreversible else "") for each in record.in_doubt
    )
    columns = (
        Column("CALL", "yellow"),
        Column("NAME", "green"),
        Column("ARGUMENTS", wide=True),
        Column("IRREVERSIBLE", "red", spare=1),
    )
    out.table(columns, rows)
    if record.in_doubt:
        first = record.in_doubt[0].id
        say_command("if it was made:", session.command("settle", record.session_id, first, "--result", "JSON"))
        say_command("if it was not made:", session.command("settle", record.session_id, first, "--not-done"))
    else:
        say(f"no call of run {record.session_id!r} is in doubt")


# -- tags and deletion ------------------------------------------------------------------------------------------


@command(
    examples=("backtrail tag trip@before-booking keep --yes", "backtrail tag trip@before-booking keep --remove --yes")
)
@click.argument("ref", type=ThreadId())
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove the tags.")
@kind_option
@yes_option
def tag(
    session: Invocation, *, out: Output, ref: str, tags: tuple[str, ...], remove: bool, kind: str | None, yes: bool
) -> None:
    """Add TAGS to REF, or remove them."""
    with session.write() as store:
        located, checkpoint = find_ref(store, ref, kind)

        def change() -> Checkpoint[Any]:
            do = located.thread.untag if remove else located.thread.tag
            return do(checkpoint, *tags)

        def show(to: Checkpoint[Any]) -> None:
            old, new = (" ".join(sorted(each.tags)) or "none" for each in (checkpoint, to))
            say(f"{_name_of(located)}, step {checkpoint.step}: tags {clean(old)} -> {clean(new)}")

        changed = [each for each in dict.fromkeys(tags) if (each in checkpoint.tags) == remove]
        print_checkpoint(out, _confirmed(store, f"Change the tags of {ref!r}?", change, show, yes=yes))
        if changed:
            exactly = f"{located.thread.id}@{checkpoint.id[:8]}"
            options = () if remove else ("--remove",)
            _print_revert(session, store, located.kind, located.thread.id, ["tag", exactly, *changed], *options)


@command(examples=("backtrail delete trip-cheap@~1 --yes", "backtrail delete trip-cheap --yes"))
@click.argument("ref", type=ThreadId())
@kind_option
@yes_option
def delete(session: Invocation, *, out: Output, ref: str, kind: str | None, yes: bool) -> None:
    """Delete a THREAD, or the checkpoint REF of one.

    An agent is deleted with everything that it owns. This cannot be undone: use `backtrail export` first, if in doubt.
    `backtrail gc` frees the space.
    """
    with session.write() as store:
        whole = look_for(store, ref, kind)
        if whole is None:
            _delete_checkpoint(store, out, *find_ref(store, ref, kind, prefix=False), yes=yes)
            return
        total = _delete_all(store, whole, yes=yes)
    _print_deleted(out, {"deleted": ref, "kind": whole.kind, "checkpoints": total})


def _delete_all(store: Store, whole: LocatedThread, *, yes: bool) -> int:
    """Delete a thread, or all of an agent or a run; return the number of the thread's checkpoints."""
    name, kind = whole.thread.id, whole.kind

    def change() -> int:
        total = len(whole.thread)
        say(f"{kind} {_name_of(whole)}: {count(total, 'checkpoint')}, the head at step {whole.head.step}")
        if kind == "run":
            _list_irreversible(store.runs.irreversible(name))
            store.runs.cleanup(name)
        elif kind == "agent":
            _print_belongings(store, name)
            store.agents.delete(name)
        else:
            whole.thread.delete()
        return total

    def show(_: int) -> None:
        unless = ", unless a checkpoint of its agent includes it: then `restore` brings it back"
        say(f"this cannot be undone{unless if kind == 'conversation' else ''}")

    total: int = _confirmed(store, f"Delete {kind} {name!r}?", change, show, yes=yes)
    return total


@command(examples=("backtrail erase trip-cheap --yes",))
@click.argument("thread", type=ThreadId())
@kind_option
@click.option("--keep-forks", is_flag=True, help="Keep what was forked from it. Forks hold its data.")
@click.option("--force", is_flag=True, help="Erase a run even if a worker has it.")
@yes_option
def erase(
    session: Invocation, *, out: Output, thread: str, kind: str | None, keep_forks: bool, force: bool, yes: bool
) -> None:
    """Erase a THREAD for good, with its forks.

    Checkpoints of its agent no longer hold it, and the files have no byte of it. An agent is erased with everything
    that it owns. This cannot be undone. The output is evidence: keep it.
    """
    with session.write() as store:
        whole = look_for(store, thread, kind)
        if whole is None and kind is None:
            find_ref(store, thread, prefix=False)  # raises NotFound, with a similar id
            raise click.UsageError("erase takes a thread, not one of its checkpoints; delete takes both")
        if whole is not None:
            say(f"{whole.kind} {_name_of(whole)}: {count(len(whole.thread), 'checkpoint')}; this cannot be undone")
            if whole.kind == "agent":
                _print_belongings(store, thread)
        else:  # deleted, or a call that was interrupted
            say(f"{kind} {clean(thread)}: it has no head; what is left of it is erased")
        chosen = str(kind) if whole is None else whole.kind
        confirm(f"Erase {chosen} {thread!r}?", yes=yes)
        with progress_in(store) as progress:
            report = store.erase(thread, kind=chosen, forks=not keep_forks, force=force, progress=progress)
    if not out.human:
        out.value(report.to_json())
        return
    columns = (Column("ERASED", "yellow"), Column("KIND", "dim"), Column("CHECKPOINTS"), Column("UID", "dim"))
    rows = ((out.id(each.id), each.kind, f"{each.checkpoints:,}", each.uid) for each in report.threads)
    out.table(columns, rows)
    for agent, checkpoint in report.agent_checkpoints:
        say(f"checkpoint {checkpoint} of agent {clean(agent)} no longer restores it")
    for each, name in report.kept_forks:
        say(f"{each} {clean(name)} was forked from it, and stays")
    say("no byte of it is left in the store" if report.complete else clean(str(report.remains)))


def _print_belongings(store: Store, agent: str) -> None:
    counts = {kind: sum(1 for _ in store.threads(kind=kind, agent=agent)) for kind in ("conversation", "run", "thread")}
    belongings = [count(number, kind) for kind, number in counts.items() if number]
    checkpoints = len(store.agents.checkpoints(agent))
    belongings += [count(checkpoints, "agent checkpoint")] if checkpoints else []
    if belongings:
        say(f"it owns: {', '.join(belongings)}")


def _require_own(located: LocatedThread, checkpoint: Checkpoint[Any]) -> None:
    """Raise `NotFound` if a checkpoint belongs to the thread that this thread was forked from."""
    from backtrail.errors import NotFound

    if checkpoint.thread_id != located.thread.id:
        source = checkpoint.thread_id
        raise NotFound(
            f"checkpoint {checkpoint.id} belongs to {source!r}, which {located.thread.id!r} was forked from: "
            f"pass {source}@{checkpoint.id[:8]}",
            code="not_found.checkpoint",
        )


def _delete_checkpoint(
    store: Store, out: Output, located: LocatedThread, checkpoint: Checkpoint[Any], *, yes: bool
) -> None:
    _require_own(located, checkpoint)
    say(f"{_name_of(located)}: checkpoint {checkpoint.id[:8]} of step {checkpoint.step}; this cannot be undone")

    def show(_: Any) -> None:
        head = located.thread.latest()
        if located.is_head(checkpoint):
            say(
                f"the new head is step {head.step} ({head.id[:8]})"
                if head
                else "it is the last checkpoint of the thread"
            )

    question = f"Delete checkpoint {checkpoint.id[:8]}?"
    _confirmed(store, question, lambda: located.thread.delete_checkpoint(checkpoint), show, yes=yes)
    _print_deleted(out, {"deleted": checkpoint.id, "kind": "checkpoint", "checkpoints": 1})


def _print_deleted(out: Output, data: dict[str, Any]) -> None:
    if out.human:
        say(f"deleted {data['kind']} {clean(data['deleted'])}")
    else:
        out.value(data)


COMMANDS: Final = (save, fork, rewind, undo, redo, restore, settle, tag, delete, erase)
