"""Commands that keep a store in order: prune, gc, verify, migrate, backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from backtrail.cli.output import Column, Progress, clean, count, line, say, size
from backtrail.cli.terms import Duration, command, confirm, yes_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.cli.output import Output
    from backtrail.cli.terms import Session
    from backtrail.values import VerifyReport

F = TypeVar("F", bound="Callable[..., Any]")
DAMAGED: Final = 5


def _number(name: str, what: str) -> Callable[[F], F]:
    return click.option(f"--keep-{name}", type=click.IntRange(min=0), metavar="N", help=f"Keep {what}.")


@command(
    examples=(
        "backtrail prune --keep-last 2 --dry-run",
        "backtrail prune --keep-last 2 --yes",
    )
)
@_number("last", "the newest N of each thread")
@_number("hourly", "the newest of each of N hours")
@_number("daily", "the newest of each of N days")
@_number("weekly", "the newest of each of N weeks")
@click.option("--keep-tagged/--no-keep-tagged", default=True, show_default=True, help="Keep labelled and tagged ones.")
@click.option("--older-than", type=Duration(), metavar="TIME", help="Only what is older: 12h, 30d, 8w.")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and why.")
@yes_option
def prune(session: Session, *, out: Output, dry_run: bool, yes: bool, **rules: Any) -> None:
    """Hide old checkpoints of all threads.

    Heads always stay. What is hidden cannot be brought back; `backtrail gc` then gives the space back.
    """
    given = {name: value for name, value in rules.items() if value is not None}
    if not {*given} - {"keep_tagged"}:
        raise click.UsageError("say what to keep: --keep-last N, --keep-daily N ..., or --older-than TIME")
    with (session.read if dry_run else session.write)() as store:
        with Progress() as progress:
            plan = _pruned(store, given, dry_run=True, progress=progress)
        if out.human:
            _show_plan(out, plan, full=dry_run)
        if not dry_run and plan.removed:
            confirm(f"Hide {count(len(plan.removed), 'checkpoint')}?", yes=yes)
            with Progress() as progress:
                plan = _pruned(store, given, dry_run=False, progress=progress)
    if not out.human:
        out.values(_told(plan))
    elif not dry_run:
        say(f"{count(len(plan.removed), 'checkpoint')} hidden; `backtrail gc` gives the space back")


def _pruned(store: Any, rules: dict[str, Any], *, dry_run: bool, progress: Any) -> Any:
    """Return the report of a policy."""
    import backtrail

    return store.prune(backtrail.Policy(**rules), dry_run=dry_run, progress=progress)


def _told(plan: Any) -> Iterator[dict[str, Any]]:
    for checkpoint_id, reason in plan.removed:
        yield {"id": checkpoint_id, "removed": True, "reasons": [reason]}
    for checkpoint_id, thread, reasons in plan.kept:
        yield {"id": checkpoint_id, "thread_id": thread, "removed": False, "reasons": list(reasons)}


def _show_plan(out: Output, plan: Any, *, full: bool) -> None:
    rows = [("go", each[:8], "", reason) for each, reason in plan.removed]
    rows += [("keep", each[:8], thread, ", ".join(reasons)) for each, thread, reasons in plan.kept if full]
    columns = (Column("", "red"), Column("CHECKPOINT", "yellow"), Column("THREAD"), Column("WHY", wide=True))
    out.table(columns, rows)
    say(f"{count(len(plan.removed), 'checkpoint')} would go, {len(plan.kept):,} stay")


@command(examples=("backtrail gc",))
def gc(session: Session, *, out: Output) -> None:
    """Remove for good what was deleted or pruned.

    And give the space back.
    """
    with session.write() as store, Progress() as progress:
        report = store.gc(progress=progress)
    if not out.human:
        out.value(report)
        return
    line(
        f"{count(report.rows, 'row')} and {count(report.chunks, 'chunk')} ({size(report.bytes)}) removed, "
        f"{count(report.repacked, 'row')} stored anew"
    )


@command(examples=("backtrail verify",))
@click.option("--repair", is_flag=True, help="Mend what can be mended.")
@yes_option
@click.pass_context
def verify(ctx: click.Context, session: Session, *, out: Output, repair: bool, yes: bool) -> None:
    """Read and check everything.

    Exits with 5 if something is damaged.
    """
    if repair:
        confirm("Mend what is damaged?", yes=yes)
    with (session.write if repair else session.read)() as store, Progress() as progress:
        report = _verified(store, repair=repair, progress=progress)
    if out.human:
        _show_damage(out, report)
    else:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok:
        ctx.exit(DAMAGED)


def _verified(store: Any, *, repair: bool, progress: Any) -> VerifyReport:
    found: VerifyReport = store.verify(repair=True, progress=progress) if repair else store.verify(progress=progress)
    return found


def _show_damage(out: Output, report: VerifyReport) -> None:
    columns = (Column("DAMAGED", "red"), Column("THREAD", "yellow"), Column("WHY", wide=True))
    out.table(columns, ((each.checkpoint_id, each.thread_id, each.reason) for each in report.damaged))
    for fault in report.faults:
        line(f"fault: {clean(fault)}")
    for name in report.misindexed:
        line(f"search may miss messages of {clean(name)}")
    told = f"{count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}"
    line(f"{told}: {'all is well' if report.ok else count(len(report.damaged), 'checkpoint') + ' damaged'}")


@command(examples=("backtrail migrate --yes",))
@yes_option
@click.pass_context
def migrate(ctx: click.Context, session: Session, *, out: Output, yes: bool) -> None:
    """Bring agents of older versions up to date.

    States of your own classes are brought up to date by `store.migrate()`, in a program that knows them.
    """
    with session.write() as store:
        confirm("Save anew what is of an older version? Each head can be undone.", yes=yes)
        with Progress() as progress:
            report = store.migrate(progress=progress)
    if out.human:
        for kind, name, reason in report.failed:
            line(f"{kind} {clean(name)} stays as it was: {clean(reason)}")
        line(f"{count(report.threads, 'thread')} looked at, {report.migrated:,} brought up to date")
    else:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok:
        ctx.exit(1)


@command(examples=("backtrail backup backup.db",))
@click.argument("file")
def backup(session: Session, *, out: Output, file: str) -> None:
    """Copy a store in SQLite to the new file FILE.

    As it is now; others may go on writing.
    """
    with session.read() as store, Progress() as progress:
        written = store.backup(file, progress=progress)
    if out.human:
        line(f"{clean(file)}: {size(written)}")
    else:
        out.value({"path": file, "bytes": written})


COMMANDS: Final = (prune, gc, verify, migrate, backup)
