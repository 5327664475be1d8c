"""Commands that change threads: save, fork, rewind, undo, redo, restore, settle, tag, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from backtrail.cli.confirm import name_of, proposed, show_changes, show_move, tell_back, told
from backtrail.cli.describe import made
from backtrail.cli.output import Column, clean, compact, count, say, say_command
from backtrail.cli.parameters import (
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

if TYPE_CHECKING:
    from backtrail.checkpoint import Checkpoint
    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Found, Session
    from backtrail.models import AgentCheckpoint
    from backtrail.runs.repository import RunRecord
    from backtrail.store import Store


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
@click.option("--set", "put", metavar="P", help="Put the value at this path of the state.")
@click.option("--append", metavar="P", help="Append the value to the list at this path of the state.")
@click.option("--label", metavar="LABEL", help="A name for the checkpoint.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A tag for it; may be repeated.")
@click.option("--expect", metavar="REF", help="Only on top of this checkpoint; new: only if there is no such thread.")
@yes_option
def save(
    session: Session,
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

    It comes from FILE, else from stdin. Makes the thread, and the store, if they are not there.
    """
    if put is not None and append is not None:
        raise click.UsageError("say --set or --append, not both")
    value = read_json(file)

    def written(store: Store, before: Found | None) -> Checkpoint[Any]:
        handle = store.thread(thread) if before is None else before.thread
        meta: dict[str, Any] = {"label": label, "tags": tags, "expect": _expected(before, expect)}
        if put is not None:
            return handle.set(put, value, **meta)
        if append is not None:
            return handle.append(append, value, **meta)
        return handle.save(value, **meta)

    new = not session.is_there()
    if new:
        with in_memory() as store:
            written(store, None)  # what cannot be saved makes no store
        confirm(f"Make a new store, and save to thread {thread!r} in it?", yes=yes)
    with session.write(create=True) as store:
        before = look_for(store, thread, "thread")

        def change() -> Checkpoint[Any]:
            return written(store, before)

        def show(to: Checkpoint[Any]) -> None:
            if before is not None:
                show_move(before)(to)
            else:
                say(f"{clean(thread)}: a new thread")

        saved = proposed(store, f"Save to {thread!r}?", change, show, yes=yes or new)
        made(out, saved)
        tell_back(session, store, "thread", thread, ["undo" if before else "delete", thread])


def _expected(before: Found | None, expect: str | None) -> Any:
    from backtrail.errors import Conflict
    from backtrail.models import NEW

    if expect is None:
        return before and before.head
    if expect == "new":
        return NEW
    if before is None:
        raise Conflict(f"there is no thread yet, so no checkpoint {expect!r} to save on top of", code="conflict.stale")
    return at(before, expect.removeprefix("@"))


# -- time travel --------------------------------------------------------------------------------------------


@command(examples=("backtrail fork trip@before-booking trip-train --yes",))
@click.argument("ref", type=ThreadId())
@click.argument("new_id")
@kind_option
@yes_option
def fork(session: Session, *, out: Output, ref: str, new_id: str, kind: str | None, yes: bool) -> None:
    """Begin the thread NEW_ID at REF."""
    with session.write() as store:
        found, checkpoint = find_ref(store, ref, kind)

        def show(_: Any) -> None:
            say(f"{clean(new_id)}: a new {found.kind} that goes on from {name_of(found)}, step {checkpoint.step}")

        def change() -> Checkpoint[Any]:
            return found.thread.fork(new_id, checkpoint).load()

        made(out, proposed(store, f"Fork {new_id!r}?", change, show, yes=yes))
        tell_back(session, store, found.kind, new_id, ["delete", new_id])


@command(examples=("backtrail rewind trip@before-booking --yes", "backtrail undo trip --yes"))
@click.argument("ref", type=ThreadId())
@kind_option
@yes_option
def rewind(session: Session, *, out: Output, ref: str, kind: str | None, yes: bool) -> None:
    """Make REF the head of its thread again.

    What came after it is out of view, not gone.
    """
    with session.write() as store:
        found, checkpoint = find_ref(store, ref, kind)
        if found.leads_to(checkpoint):
            say(f"{name_of(found)} is there already")
            made(out, checkpoint)
            return
        question = f"Rewind {found.thread.id!r}?"
        made(out, proposed(store, question, lambda: found.thread.rewind(checkpoint), show_move(found), yes=yes))
        tell_back(session, store, found.kind, found.thread.id, ["undo", found.thread.id])


@command(examples=("backtrail undo trip --yes", "backtrail redo trip --yes"))
@thread_argument
@click.option("--restore", is_flag=True, help="Take back the last restore of the agent of this id.")
@click.option("--force", is_flag=True, help="With --restore: even if conversations have moved on since.")
@kind_option
@yes_option
def undo(
    session: Session, *, out: Output, thread: str, restore: bool, force: bool, kind: str | None, yes: bool
) -> None:
    """Take back the last save, rewind or redo of THREAD.

    Again and again, if wanted.
    """
    if force and not restore:
        raise click.UsageError("--force goes with --restore")
    with session.write() as store:
        if restore:
            _undo_restore(store, out, thread, force=force, yes=yes)
            return
        found = find_thread(store, thread, kind)
        made(out, proposed(store, f"Undo in {thread!r}?", found.thread.undo, show_move(found), yes=yes))
        tell_back(session, store, found.kind, thread, ["redo", thread])


def _undo_restore(store: Store, out: Output, agent: str, *, force: bool, yes: bool) -> None:
    from backtrail.errors import NotFound

    if store.info(agent, kind="agent") is None and not store.agents.checkpoints(agent):
        raise NotFound(f"there is no agent {agent!r}", code="not_found.agent")
    before = _standing(store, agent)
    question = f"Take back the last restore of agent {agent!r}?"
    proposed(
        store,
        question,
        lambda: store.agents.undo(agent, force=force),
        lambda _: _show_agent(store, agent, before),
        yes=yes,
    )
    _agent_made(store, out, agent)


@command(examples=("backtrail undo trip --yes", "backtrail redo trip --yes"))
@thread_argument
@kind_option
@yes_option
def redo(session: Session, *, out: Output, thread: str, kind: str | None, yes: bool) -> None:
    """Take back the last undo of THREAD."""
    with session.write() as store:
        found = find_thread(store, thread, kind)
        made(out, proposed(store, f"Redo in {thread!r}?", found.thread.redo, show_move(found), yes=yes))
        tell_back(session, store, found.kind, thread, ["undo", thread])


# -- agents -------------------------------------------------------------------------------------------------


@command(examples=("backtrail restore planner@before-lunch --yes", "backtrail undo planner --restore --yes"))
@click.argument("checkpoint")
@yes_option
def restore(session: Session, *, out: Output, checkpoint: str, yes: bool) -> None:
    """Bring an agent back to one of its checkpoints.

    All of its conversations go with it.

    CHECKPOINT is AGENT@NAME, AGENT@ and the beginning of an id, or a whole id: `backtrail agents AGENT` lists them.
    """
    with session.write() as store:
        target = _agent_checkpoint(store, checkpoint)
        agent = target.agent_id
        before = _standing(store, agent)
        say(f"agent {clean(agent)}: back to {clean(target.name)!r}, {count(target.conversations, 'conversation')}")
        question = f"Restore agent {agent!r}?"
        proposed(
            store, question, lambda: store.agents.restore(target), lambda _: _show_agent(store, agent, before), yes=yes
        )
        _agent_made(store, out, agent)
        tell_back(session, store, None, agent, ["undo", agent], "--restore")


def _agent_checkpoint(store: Store, text: str) -> AgentCheckpoint:
    from backtrail.errors import Invalid, NotFound

    for place in [place for place, char in enumerate(text) if char == "@" and place][::-1]:
        agent, name = text[:place], text[place + 1 :]
        listed = store.agents.checkpoints(agent)
        named = [each for each in listed if each.name == name]
        if named:
            return named[0]  # the newest
        begun = [each for each in listed if name and each.id.startswith(name)]
        if len(begun) > 1:
            ids = ", ".join(each.id[:12] for each in begun[:4])
            raise Invalid(f"{name!r} is the beginning of {len(begun)} ids ({ids})", code="invalid.ambiguous")
        if begun:
            return begun[0]
    found = store.agents.get_checkpoint(text)
    if found is None:
        raise NotFound(f"there is no agent checkpoint {text!r}", code="not_found.checkpoint")
    return found


def _standing(store: Store, agent: str) -> dict[tuple[str, str], tuple[str, int]]:
    """Return where an agent and its conversations stand."""
    return {
        (kind, info.id): (info.head_id, info.step)
        for kind in ("agent", "conversation")
        for info in store.threads(kind=kind, agent=agent)
    }


def _show_agent(store: Store, agent: str, before: dict[tuple[str, str], tuple[str, int]]) -> None:
    after = _standing(store, agent)
    lines = []
    for key in sorted({*before, *after}):
        was, now = before.get(key), after.get(key)
        if was != now:
            old, new = (f"step {each[1]}" if each else "out of view" for each in (was, now))
            lines.append(f"{key[0]} {clean(key[1])}: {old} -> {new}")
    show_changes(lines)


def _agent_made(store: Store, out: Output, agent: str) -> None:
    found = look_for(store, agent, "agent")
    if found is None:
        say(f"agent {clean(agent)} has no state")
    else:
        made(out, found.head)


# -- runs ---------------------------------------------------------------------------------------------------


@command(
    examples=(
        "backtrail settle session-43",
        """backtrail settle session-43 1.1 --result '"table 4"' --yes""",
    )
)
@click.argument("run", type=ThreadId())
@click.argument("call", required=False)
@click.option("--result", metavar="JSON", help="It was done, and this is what it gave; - reads it from stdin.")
@click.option("--not-done", is_flag=True, help="It was not done: the run makes it when it goes on.")
@yes_option
def settle(
    session: Session, *, out: Output, run: str, call: str | None, result: str | None, not_done: bool, yes: bool
) -> None:
    """Say what became of a CALL that is in doubt.

    A call is in doubt if it was begun and no result of it was recorded. Without CALL: list those of RUN. What is said
    cannot be taken back; the run goes on with it when it is started again.
    """
    if call is None and (result is not None or not_done):
        raise click.UsageError("name the call that it is about")
    if call is not None and (result is None) != not_done:
        raise click.UsageError("say --result JSON, or --not-done")
    with (session.read if call is None else session.write)() as store:
        record = store.runs.load(run)
        if call is None:
            _show_doubts(session, out, record)
            return
        known = next((each for each in record.in_doubt if each.id == call), None)
        given = {"not_done": True} if result is None else {"result": _result(result)}
        name = "" if known is None else f" of {clean(known.name)}"
        question = f"Say that call {call!r}{name} was {'not done' if not_done else 'done'}?"

        def show(_: Any) -> None:
            told = "it was not done: it will be made again" if not_done else f"it gave {compact(given['result'])}"
            say(f"run {run}, call {call}{name}: {told}; this cannot be taken back")

        proposed(store, question, lambda: store.runs.settle(run, call, **given), show, yes=yes)
        left = len(store.runs.load(run).in_doubt)
    if out.human:
        say(
            f"settled; {count(left, 'call')} of run {clean(run)} still in doubt"
            if left
            else "settled; none is in doubt"
        )
    else:
        out.value({"session_id": run, "call": call, "not_done": not_done, "in_doubt": left})


def _result(text: str) -> Any:
    if text == "-":
        return read_json("-")
    return parse_json(text, "--result")


def _show_doubts(session: Session, out: Output, record: RunRecord) -> None:
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
        say_command("if it was done:", session.command("settle", record.session_id, first, "--result", "JSON"))
        say_command("if it was not:", session.command("settle", record.session_id, first, "--not-done"))
    else:
        say(f"no call of run {record.session_id!r} is in doubt")


# -- keeping order ------------------------------------------------------------------------------------------


@command(
    examples=("backtrail tag trip@before-booking keep --yes", "backtrail tag trip@before-booking keep --remove --yes")
)
@click.argument("ref", type=ThreadId())
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take the tags off.")
@kind_option
@yes_option
def tag(
    session: Session, *, out: Output, ref: str, tags: tuple[str, ...], remove: bool, kind: str | None, yes: bool
) -> None:
    """Put TAGS on REF, or take them off."""
    with session.write() as store:
        found, checkpoint = find_ref(store, ref, kind)

        def change() -> Checkpoint[Any]:
            do = found.thread.untag if remove else found.thread.tag
            return do(checkpoint, *tags)

        def show(to: Checkpoint[Any]) -> None:
            old, new = (" ".join(sorted(each.tags)) or "none" for each in (checkpoint, to))
            say(f"{name_of(found)}, step {checkpoint.step}: tags {clean(old)} -> {clean(new)}")

        changed = [each for each in dict.fromkeys(tags) if (each in checkpoint.tags) == remove]
        made(out, proposed(store, f"Change the tags of {ref!r}?", change, show, yes=yes))
        if changed:
            exactly = f"{found.thread.id}@{checkpoint.id[:8]}"
            options = () if remove else ("--remove",)
            tell_back(session, store, found.kind, found.thread.id, ["tag", exactly, *changed], *options)


@command(examples=("backtrail delete trip-cheap@~1 --yes", "backtrail delete trip-cheap --yes"))
@click.argument("ref", type=ThreadId())
@kind_option
@yes_option
def delete(session: Session, *, out: Output, ref: str, kind: str | None, yes: bool) -> None:
    """Delete a THREAD, or the checkpoint REF of one.

    An agent goes with all that belongs to it. This cannot be taken back: `backtrail export` first, if in doubt.
    `backtrail gc` then gives the space back.
    """
    with session.write() as store:
        whole = look_for(store, ref, kind)
        if whole is None:
            _delete_checkpoint(store, out, *find_ref(store, ref, kind, begun=False), yes=yes)
            return
        total = _delete_all(store, whole, yes=yes)
    _deleted(out, {"deleted": ref, "kind": whole.kind, "checkpoints": total})


def _delete_all(store: Store, whole: Found, *, yes: bool) -> int:
    """Delete a thread, or all of an agent or a run; return how many checkpoints the thread had."""
    name, kind = whole.thread.id, whole.kind

    def change() -> int:
        total = len(whole.thread)
        say(f"{kind} {name_of(whole)}: {count(total, 'checkpoint')}, the last of step {whole.head.step}, will go")
        if kind == "run":
            told(store.runs.irreversible(name))
            store.runs.cleanup(name)
        elif kind == "agent":
            _tell_belongings(store, name)
            store.agents.delete(name)
        else:
            whole.thread.delete()
        return total

    def show(_: int) -> None:
        unless = ", unless a checkpoint of its agent holds it: `restore` brings it back then"
        say(f"this cannot be taken back{unless if kind == 'conversation' else ''}")

    total: int = proposed(store, f"Delete {kind} {name!r}?", change, show, yes=yes)
    return total


def _tell_belongings(store: Store, agent: str) -> None:
    counts = {kind: sum(1 for _ in store.threads(kind=kind, agent=agent)) for kind in ("conversation", "run", "thread")}
    with_it = [count(number, kind) for kind, number in counts.items() if number]
    points = len(store.agents.checkpoints(agent))
    with_it += [count(points, "agent checkpoint")] if points else []
    if with_it:
        say(f"with it will go: {', '.join(with_it)}")


def _require_own(found: Found, checkpoint: Checkpoint[Any]) -> None:
    """Raise `NotFound` if a checkpoint is one of what the thread was forked from: that is not changed from here."""
    from backtrail.errors import NotFound

    if checkpoint.thread_id != found.thread.id:
        source = checkpoint.thread_id
        raise NotFound(
            f"checkpoint {checkpoint.id} is one of {source!r}, which {found.thread.id!r} was forked from; "
            f"to change that thread, say {source}@{checkpoint.id[:8]}",
            code="not_found.checkpoint",
        )


def _delete_checkpoint(store: Store, out: Output, found: Found, checkpoint: Checkpoint[Any], *, yes: bool) -> None:
    _require_own(found, checkpoint)
    say(
        f"{name_of(found)}: checkpoint {checkpoint.id[:8]} of step {checkpoint.step} will go; this cannot be taken back"
    )

    def show(_: Any) -> None:
        head = found.thread.latest()
        if found.leads_to(checkpoint):
            say(f"the head is then step {head.step} ({head.id[:8]})" if head else "nothing is left of the thread then")

    question = f"Delete checkpoint {checkpoint.id[:8]}?"
    proposed(store, question, lambda: found.thread.delete_checkpoint(checkpoint), show, yes=yes)
    _deleted(out, {"deleted": checkpoint.id, "kind": "checkpoint", "checkpoints": 1})


def _deleted(out: Output, data: dict[str, Any]) -> None:
    if out.human:
        say(f"deleted {data['kind']} {clean(data['deleted'])}")
    else:
        out.value(data)


COMMANDS: Final = (save, fork, rewind, undo, redo, restore, settle, tag, delete)
