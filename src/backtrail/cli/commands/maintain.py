"""Commands that keep a store in order: prune, gc, verify, reindex, migrate, backup, restore-backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from backtrail.cli.describe import progress_in
from backtrail.cli.output import Column, clean, count, say, size
from backtrail.cli.parameters import (
    DAMAGED,
    KINDS,
    Duration,
    NewFile,
    agent_option,
    command,
    confirm,
    find_ids,
    kind_option,
    threads_option,
    yes_option,
)
from backtrail.cli.wording import spoken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Session
    from backtrail.models import VerifyReport

F = TypeVar("F", bound="Callable[..., Any]")
_SHOWN: Final = 20
"""Checkpoints that are shown before a question."""


def _number(name: str, what: str) -> Callable[[F], F]:
    return click.option(f"--keep-{name}", type=click.IntRange(min=0), metavar="N", help=f"Keep {what}.")


@command(
    examples=(
        "backtrail prune --keep-last 1 --dry-run",
        "backtrail prune --keep-last 1 --keep-daily 7 --no-keep-labelled --thread trip --yes",
        "backtrail prune --idle 30d --dry-run",
    )
)
@_number("last", "the newest N of each thread")
@_number("hourly", "the newest of each of the last N hours that have one")
@_number("daily", "the same by days")
@_number("weekly", "the same by weeks")
@click.option("--keep-tagged/--no-keep-tagged", default=True, show_default=True, help="Keep those that have a tag.")
@click.option("--keep-labelled/--no-keep-labelled", default=True, show_default=True, help="Keep those with a label.")
@click.option("--older-than", type=Duration(), metavar="TIME", help="Keep what is not older: 12h, 30d, 8w.")
@click.option("--idle", type=Duration(), metavar="TIME", help="Remove threads not written to for so long, whole: 30d.")
@threads_option
@kind_option
@agent_option
@click.option("--dry-run", is_flag=True, help="Only say what would go, what stays, and why.")
@yes_option
def prune(
    session: Session,
    *,
    out: Output,
    threads: tuple[str, ...],
    kind: str | None,
    agent: str | None,
    dry_run: bool,
    yes: bool,
    **rules: Any,
) -> None:
    """Hide old checkpoints of all threads.

    What one of the options keeps stays; all else goes. Heads always stay, and what a checkpoint of an agent holds. With
    --idle, threads, conversations and runs that are idle go as a whole, unless one of their checkpoints is tagged,
    labelled or held. What goes cannot be brought back; `backtrail gc` then gives the space back.
    """
    from backtrail.errors import Conflict

    given = _rules(rules)
    with (session.read if dry_run else session.write)() as store:
        where = {**find_ids(store, threads, kind), "agent": agent}
        if agent is not None:
            _require_agent(store, agent)
        report = _pruned(store, given, where, dry_run=True)
        if out.human:
            _show_plan(session, out, report, full=dry_run)
        if not dry_run and (report.removed or report.threads):
            confirm(f"{_deed(report)}? This cannot be taken back.", yes=yes)
            again = report if yes else _pruned(store, given, where, dry_run=True)
            if again.removed != report.removed or again.threads != report.threads:
                raise Conflict(
                    "somebody has written meanwhile, and something else would go now: nothing was changed",
                    code="conflict.stale",
                )
            report = _pruned(store, given, where, dry_run=False)
    if not out.human:
        out.values(_told(report))
    elif not dry_run:
        whole = f", {count(len(report.threads), 'thread')} removed" if report.threads else ""
        say(f"{count(len(report.removed), 'checkpoint')} hidden{whole}; `{session.command('gc')}` gives the space back")


def _rules(rules: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy is to say."""
    import datetime as dt

    given = {name: value for name, value in rules.items() if value is not None}
    if not {*given} - {"keep_tagged", "keep_labelled"}:
        raise click.UsageError("say what stays: --keep-last N, --keep-daily N ..., --older-than TIME, or --idle TIME")
    for name in ("older_than", "idle"):
        if given.get(name) == 0:
            raise click.UsageError(f"--{name.replace('_', '-')} 0s would keep nothing: say how long things stay")
    if "idle" in given:
        given["idle"] = dt.timedelta(seconds=given["idle"])
    return given


def _deed(report: Any) -> str:
    """Return what a question is about."""
    deed = f"Hide {count(len(report.removed), 'checkpoint')}"
    return f"{deed} and remove {count(len(report.threads), 'whole thread')}" if report.threads else deed


def _require_agent(store: Any, agent: str) -> None:
    """Raise `NotFound` if there is no agent of this id, and nothing that belongs to one."""
    from backtrail.errors import NotFound

    there = (info for each in KINDS for info in store.threads(kind=each, agent=agent, limit=1))
    if store.info(agent, kind="agent") is None and next(there, None) is None:
        raise NotFound(f"there is no agent {agent!r}, and nothing of it", code="not_found.agent")


def _pruned(store: Any, rules: dict[str, Any], where: dict[str, Any], *, dry_run: bool) -> Any:
    """Return the report of a policy."""
    import backtrail

    with progress_in(store) as progress:
        return store.prune(backtrail.Policy(**rules), **where, dry_run=dry_run, progress=progress)


def _told(report: Any) -> Iterator[dict[str, Any]]:
    """Give what goes and what stays, of the threads of which something goes."""
    for (checkpoint_id, reason), (kind, name) in zip(report.removed, report.removed_from, strict=True):
        yield {"id": checkpoint_id, "thread_id": name, "kind": kind, "removed": True, "reasons": [reason]}
    for (checkpoint_id, name, reasons), kind in zip(report.kept, report.kinds, strict=True):
        yield {"id": checkpoint_id, "thread_id": name, "kind": kind, "removed": False, "reasons": list(reasons)}


def _show_plan(session: Session, out: Output, report: Any, *, full: bool) -> None:
    """Show what goes; `full`: all of it, and what stays beside it. Kinds are told if there are others than threads."""
    threads = {*report.removed_from}
    several = {kind for kind, _ in threads} - {"thread"}
    shown = [each for each in _told(report) if each["removed"] or full]
    rows = [
        (
            "goes" if each["removed"] else "stays",
            each["id"][:8],
            *([each["kind"]] if several else []),
            each["thread_id"],
            ", ".join(each["reasons"]),
        )
        for each in shown[: None if full else _SHOWN]
    ]
    kind = [Column("KIND", "dim", spare=1)] if several else []
    out.table(
        (Column("", "red"), Column("CHECKPOINT", "yellow"), *kind, Column("THREAD"), Column("WHY", wide=True)), rows
    )
    rest = len(shown) - len(rows)
    if rest > 0:
        say(f"... and {rest:,} more")
    stays = f"{len(report.kept):,} of the same threads stay"
    say(f"{count(len(report.removed), 'checkpoint')} of {count(len(threads), 'thread')} would go, {stays}")
    if report.threads:
        say(f"{count(len(report.threads), 'thread')} would go as a whole: {_kinds(report)}")
    elif not report.removed:
        why = ", ".join(f"{number:,} {reason}" for reason, number in report.reasons.items())
        say(f"nothing goes: {clean(why) or 'there is nothing'}")
    for name in report.damaged:
        say(f"{clean(name)} is damaged, and left as it is: `{session.command('verify')}` says more")


def _kinds(report: Any) -> str:
    """Return how many threads go as a whole, by kind."""
    kinds = [kind for kind, _, _ in report.threads]
    return ", ".join(count(kinds.count(kind), kind) for kind in dict.fromkeys(kinds))


@command(examples=("backtrail gc",))
@click.option("--erase", is_flag=True, help="Leave no trace in any file of the store; others wait meanwhile.")
def gc(session: Session, *, out: Output, erase: bool) -> None:
    """Remove for good what was deleted or pruned.

    And give the space back.
    """
    with session.write() as store, progress_in(store) as progress:
        report = store.gc(erase=erase, progress=progress)
    if not out.human:
        out.value(report)
        return
    out.tell(
        f"{count(report.rows, 'row')} and {count(report.chunks, 'chunk')} ({size(report.bytes)}) removed, "
        f"{count(report.repacked, 'row')} stored anew"
    )


@command(examples=("backtrail verify",))
@click.option("--repair", is_flag=True, help="Give up what cannot be read, so that all else goes on.")
@click.option("--resume", is_flag=True, help="Note how far it is; go on where the last one that did was interrupted.")
@yes_option
@click.pass_context
def verify(ctx: click.Context, session: Session, *, out: Output, repair: bool, resume: bool, yes: bool) -> None:
    """Read and check everything.

    Exits with 5 if something is damaged, unless it was repaired. A repair is shown first, and cannot be taken back.
    """
    with (session.write if repair or resume else session.read)() as store:
        report = _verified(store, resume=resume)
        repaired = repair and not report.ok
        if out.human:
            _show_damage(session, out, report)
        if repaired:
            for each in report.repairs:
                say(f"repair: {clean(each)}")
            confirm("Repair it? What cannot be read is given up for good.", yes=yes)
            report = _verified(store, repair=True)
            say("repaired")
    if not out.human:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok and not repaired:
        if out.human:
            only_index = not (report.damaged or report.chunks or report.faults)
            mends = "makes the index of search anew" if only_index else "shows what a repair would do, and asks"
            say(f"`{session.command(*(['reindex'] if only_index else ['verify', '--repair']))}` {mends}")
        ctx.exit(DAMAGED)


def _verified(store: Any, **options: Any) -> Any:
    with progress_in(store) as progress:
        return store.verify(progress=progress, **options)


def _show_damage(session: Session, out: Output, report: VerifyReport) -> None:
    columns = (Column("DAMAGED", "red"), Column("KIND", "dim"), Column("THREAD", "yellow"))
    out.table(columns, ((each.checkpoint_id, each.kind, each.thread_id) for each in report.damaged))
    for reason in dict.fromkeys(each.reason for each in report.damaged):
        out.tell(f"damage: {spoken(reason, session)}")
    for fault in report.faults:
        out.tell(f"fault: {spoken(fault, session)}")
    for name in report.misindexed:
        out.tell(f"search may miss messages of {name}")
    told = f"{count(report.threads, 'thread')}, {count(report.states_read, 'state')} read"
    before = f", {count(report.skipped, 'more thread')} looked at before" if report.skipped else ""
    out.tell(f"{told}{before}: {', '.join(_wrong(report)) or 'all is well'}")


def _wrong(report: VerifyReport) -> Iterator[str]:
    """Give what is wrong, each with a number; nothing if all is well."""
    if report.damaged:
        yield f"{count(len(report.damaged), 'checkpoint')} damaged"
    if report.chunks:
        yield f"{count(len(report.chunks), 'chunk')} damaged"
    if report.faults:
        yield count(len(report.faults), "other fault" if report.damaged or report.chunks else "fault")
    if report.misindexed:
        yield f"the index of search misses messages of {count(len(report.misindexed), 'thread')}"


@command(examples=("backtrail reindex",))
def reindex(session: Session, *, out: Output) -> None:
    """Make the index of search anew.

    From what is stored, of which nothing is touched. Searches that come meanwhile wait for it.
    """
    with session.write() as store:
        with progress_in(store) as progress:
            store.reindex(progress=progress)
        held = store.stats()
    if out.human:
        out.tell(f"{count(held.indexed, 'message')} in the index, {size(held.index_bytes)}")
    else:
        out.value({"indexed": held.indexed, "index_bytes": held.index_bytes})


@command(examples=("backtrail migrate --yes",))
@yes_option
@click.pass_context
def migrate(ctx: click.Context, session: Session, *, out: Output, yes: bool) -> None:
    """Bring agents of older versions up to date.

    States of your own classes are brought up to date by `store.migrate()`, in a program that knows them.
    """
    with session.write() as store:
        confirm("Save anew what is of an older version? Each head can be undone.", yes=yes)
        with progress_in(store) as progress:
            report = store.migrate(progress=progress)
    if out.human:
        for kind, name, reason in report.failed:
            out.tell(f"{kind} {name} stays as it was: {reason}")
        out.tell(f"{count(report.threads, 'thread')} looked at, {report.migrated:,} brought up to date")
    else:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok:
        ctx.exit(1)


@command(examples=("backtrail backup backup.db",))
@click.argument("file", type=NewFile())
def backup(session: Session, *, out: Output, file: str) -> None:
    """Copy the store to FILE, which is a store then.

    As it is now; others may go on writing. It is a file of SQLite; if the
    store is one in files, a directory of them.
    """
    with session.read() as store, progress_in(store) as progress:
        written = store.backup(file, progress=progress)
    if out.human:
        out.tell(f"{file}: {size(written)}")
    else:
        out.value({"path": file, "bytes": written})


@command(
    name="restore-backup",
    examples=("backtrail backup backup.db", "backtrail restore-backup backup.db --yes"),
)
@click.argument("backup")
@yes_option
def restore_backup(session: Session, *, out: Output, backup: str, yes: bool) -> None:
    """Put BACKUP in the place of the store.

    What was there stays beside it, under another name. No process may have the store open. BACKUP stays as it is; it
    is a file of SQLite, or the directory of a store in files, as the store is.
    """
    from pathlib import Path

    import backtrail

    confirm("Put the backup in the place of the store? That one is kept under another name.", yes=yes)
    kept = backtrail.restore_backup(backup, session.url)
    if out.human:
        beside = f"; what was there is {Path(kept).name}, beside it" if kept else ""
        out.tell(f"the store is what {backup} holds{beside}")
    else:
        out.value({"backup": backup, "replaced": kept})


COMMANDS: Final = (prune, gc, verify, reindex, migrate, backup, restore_backup)
