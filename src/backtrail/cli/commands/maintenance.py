"""Commands that maintain a store: prune, gc, verify, index, reindex, migrate, backup, restore-backup."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from backtrail.cli.output import Column, clean, count, say, size
from backtrail.cli.parameters import (
    DAMAGED,
    Duration,
    NewFile,
    agent_option,
    command,
    confirm,
    find_ids,
    kind_option,
    require_agent,
    threads_option,
    translated,
    yes_option,
)
from backtrail.cli.summary import progress_in
from backtrail.errors import CommitUnknown, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.cli.output import Output
    from backtrail.cli.parameters import Invocation
    from backtrail.models import VerifyReport

F = TypeVar("F", bound="Callable[..., Any]")
_SHOWN: Final = 20
"""Checkpoints in a preview."""


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
@_number("hourly", "the newest of each of the last N hours with checkpoints")
@_number("daily", "the same for days")
@_number("weekly", "the same for weeks")
@click.option("--keep-tagged/--no-keep-tagged", default=True, show_default=True, help="Keep checkpoints with a tag.")
@click.option(
    "--keep-labelled/--no-keep-labelled", default=True, show_default=True, help="Keep checkpoints with a label."
)
@click.option("--older-than", type=Duration(), metavar="TIME", help="Keep younger checkpoints: 12h, 30d, 8w.")
@click.option("--idle", type=Duration(), metavar="TIME", help="Remove whole threads without writes for this long: 30d.")
@threads_option
@kind_option
@agent_option
@click.option("--dry-run", is_flag=True, help="Only show what would be removed and kept, and why.")
@yes_option
def prune(
    session: Invocation,
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

    Checkpoints that no option keeps are removed. Heads always stay, and so do checkpoints that an agent's checkpoint
    needs. --idle removes whole threads, conversations and runs, unless one of their checkpoints is tagged, labelled or
    needed. This cannot be undone. `backtrail gc` frees the space.
    """
    from backtrail.errors import Conflict

    given = _rules(rules)
    with (session.read if dry_run else session.write)() as store:
        where = {**find_ids(store, threads, kind), "agent": agent}
        if agent is not None:
            require_agent(store, agent)
        report = _pruned(store, given, where, dry_run=True)
        if out.human:
            _show_plan(session, out, report, full=dry_run)
        if not dry_run and (report.removed or report.threads):
            confirm(f"{_question(report)}? This cannot be undone.", yes=yes)
            again = report if yes else _pruned(store, given, where, dry_run=True)
            if again.removed != report.removed or again.threads != report.threads:
                raise Conflict(
                    "another process wrote to the store, and the selection changed: nothing was removed; try again",
                    code="conflict.stale",
                )
            report = _pruned(store, given, where, dry_run=False)
    if not out.human:
        out.values(_decisions(report))
    elif not dry_run:
        whole = f", {count(len(report.threads), 'thread')} removed" if report.threads else ""
        say(f"{count(len(report.removed), 'checkpoint')} hidden{whole}; `{session.command('gc')}` frees the space")


def _rules(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a policy."""
    import datetime as dt

    given = {name: value for name, value in rules.items() if value is not None}
    if not {*given} - {"keep_tagged", "keep_labelled"}:
        raise click.UsageError("pass a rule: --keep-last N, --keep-daily N ..., --older-than TIME, or --idle TIME")
    for name in ("older_than", "idle"):
        if given.get(name) == 0:
            raise click.UsageError(f"--{name.replace('_', '-')} 0s would keep nothing: pass a longer time")
    if "idle" in given:
        given["idle"] = dt.timedelta(seconds=given["idle"])
    return given


def _question(report: Any) -> str:
    hide = f"Hide {count(len(report.removed), 'checkpoint')}"
    return f"{hide} and remove {count(len(report.threads), 'whole thread')}" if report.threads else hide


def _pruned(store: Any, rules: dict[str, Any], where: dict[str, Any], *, dry_run: bool) -> Any:
    """Return the report of a policy."""
    import backtrail

    with progress_in(store) as progress:
        return store.prune(backtrail.Policy(**rules), **where, dry_run=dry_run, progress=progress)


def _decisions(report: Any) -> Iterator[dict[str, Any]]:
    """Give the removed and the kept checkpoints of threads that lose some."""
    for (checkpoint_id, reason), (kind, name) in zip(report.removed, report.removed_from, strict=True):
        yield {"id": checkpoint_id, "thread_id": name, "kind": kind, "removed": True, "reasons": [reason]}
    for (checkpoint_id, name, reasons), kind in zip(report.kept, report.kinds, strict=True):
        yield {"id": checkpoint_id, "thread_id": name, "kind": kind, "removed": False, "reasons": list(reasons)}


def _show_plan(session: Invocation, out: Output, report: Any, *, full: bool) -> None:
    """Print the checkpoints that a prune would remove: the first ones, or with `full` all, and those that would stay.

    A column shows the kind of each thread, unless the checkpoints to remove are of plain threads only.
    """
    threads = {*report.removed_from}
    several = {kind for kind, _ in threads} - {"thread"}
    shown = [each for each in _decisions(report) if each["removed"] or full]
    rows = [
        (
            "remove" if each["removed"] else "keep",
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
    kept = f"{len(report.kept):,} of the same threads kept"
    say(f"{count(len(report.removed), 'checkpoint')} of {count(len(threads), 'thread')} to remove, {kept}")
    if report.threads:
        say(f"{count(len(report.threads), 'thread')} to remove as a whole: {_kinds(report)}")
    elif not report.removed:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in report.reasons.items())
        say(f"nothing to remove: {clean(reasons) or 'no checkpoint'}")
    for name in report.damaged:
        say(f"{clean(name)} is damaged and was skipped: `{session.command('verify')}` shows the damage")


def _kinds(report: Any) -> str:
    """Return the numbers of whole threads to remove, by kind."""
    kinds = [kind for kind, _, _ in report.threads]
    return ", ".join(count(kinds.count(kind), kind) for kind in dict.fromkeys(kinds))


@command(examples=("backtrail gc",))
@click.option("--erase", is_flag=True, help="Erase all traces in the store's files. Other writers wait.")
def gc(session: Invocation, *, out: Output, erase: bool) -> None:
    """Remove deleted and pruned data for good.

    This frees their space.
    """
    with session.write() as store, progress_in(store) as progress:
        report = store.gc(erase=erase, progress=progress)
    if not out.human:
        out.value(report)
        return
    out.tell(
        f"{count(report.rows, 'row')} and {count(report.chunks, 'chunk')} ({size(report.bytes)}) removed, "
        f"{count(report.repacked, 'row')} repacked"
    )


@command(examples=("backtrail verify",))
@click.option("--repair", is_flag=True, help="Give up unreadable data, so that everything else works.")
@click.option("--resume", is_flag=True, hidden=True)
@yes_option
@click.pass_context
def verify(ctx: click.Context, session: Invocation, *, out: Output, repair: bool, resume: bool, yes: bool) -> None:
    """Read and check everything.

    Exits with 5 if something is damaged, unless it was repaired. A repair is shown first, and cannot be undone.
    """
    if resume:
        say("warning: --resume is deprecated: verify reads everything")
    with (session.write if repair else session.read)() as store:
        report = _verified(store)
        repaired = repair and not report.ok
        if out.human:
            _show_damage(session, out, report)
        if repaired:
            for each in report.repairs:
                say(f"repair: {clean(each)}")
            confirm("Repair the store? Unreadable data are given up for good.", yes=yes)
            report = _verified(store, repair=True)
            say("repaired")
    if not out.human:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok and not repaired:
        if out.human:
            only_index = not (report.damaged or report.chunks or report.faults)
            effect = "rebuilds the search index" if only_index else "shows the repair and asks"
            say(f"`{session.command(*(['reindex'] if only_index else ['verify', '--repair']))}` {effect}")
        ctx.exit(DAMAGED)


def _verified(store: Any, **options: Any) -> Any:
    with progress_in(store) as progress:
        return store.verify(progress=progress, **options)


def _show_damage(session: Invocation, out: Output, report: VerifyReport) -> None:
    columns = (Column("DAMAGED", "red"), Column("KIND", "dim"), Column("THREAD", "yellow"))
    out.table(columns, ((each.checkpoint_id, each.kind, each.thread_id) for each in report.damaged))
    for reason in dict.fromkeys(each.reason for each in report.damaged):
        out.tell(f"damage: {translated(reason, session)}")
    for fault in report.faults:
        out.tell(f"fault: {translated(fault, session)}")
    for name in report.misindexed:
        out.tell(f"search may miss messages of {name}")
    read = f"{count(report.threads, 'thread')}, {count(report.states_read, 'state')} read"
    out.tell(f"{read}: {', '.join(_problems(report)) or 'no damage'}")


def _problems(report: VerifyReport) -> Iterator[str]:
    """Give the kinds of problems, each with a number."""
    if report.damaged:
        yield f"{count(len(report.damaged), 'checkpoint')} damaged"
    if report.chunks:
        yield f"{count(len(report.chunks), 'chunk')} damaged"
    if report.faults:
        yield count(len(report.faults), "other fault" if report.damaged or report.chunks else "fault")
    if report.misindexed:
        yield f"the search index lacks messages of {count(len(report.misindexed), 'thread')}"


@command(examples=("backtrail index",))
@click.option("--follow", is_flag=True, help="Go on until Ctrl-C: index new messages as they are saved.")
@click.option(
    "--every",
    type=Duration(),
    default="1s",
    metavar="TIME",
    show_default=True,
    help="How often --follow looks.",
)
def index(session: Invocation, *, out: Output, follow: bool, every: float) -> None:
    """Bring the search index up to date.

    A search does this, too, and waits for it. With --follow, a worker does it in the background. Several may run.
    """
    with session.write() as store:
        while True:
            try:
                number = store.index()
            except (CommitUnknown, Unavailable) as error:
                if not follow:
                    raise
                number = 0  # a long lock, or a failover: the worker goes on
                say(clean(translated(str(error), session)))
            if number or not follow:
                if out.human:
                    out.tell(f"indexed {count(number, 'thread')}")
                else:
                    out.value({"threads": number})
                sys.stdout.flush()
            if not follow:
                return
            time.sleep(every)


@command(examples=("backtrail reindex",))
def reindex(session: Invocation, *, out: Output) -> None:
    """Rebuild the search index.

    Reads the stored messages and changes nothing else. Searches wait until the index is complete.
    """
    with session.write() as store:
        with progress_in(store) as progress:
            store.reindex(progress=progress)
        stats = store.stats()
    if out.human:
        out.tell(f"{count(stats.indexed, 'message')} in the index, {size(stats.index_bytes)}")
    else:
        out.value({"indexed": stats.indexed, "index_bytes": stats.index_bytes})


@command(examples=("backtrail migrate --yes",))
@yes_option
@click.pass_context
def migrate(ctx: click.Context, session: Invocation, *, out: Output, yes: bool) -> None:
    """Migrate agents of older versions.

    `store.migrate()`, in a program that has your own classes, migrates their states.
    """
    with session.write() as store:
        confirm("Migrate agents of older versions? `undo` reverts each agent.", yes=yes)
        with progress_in(store) as progress:
            report = store.migrate(progress=progress)
    if out.human:
        for kind, name, reason in report.failed:
            out.tell(f"{kind} {name} was not migrated: {reason}")
        out.tell(f"{count(report.threads, 'thread')} checked, {report.migrated:,} migrated")
    else:
        from dataclasses import asdict

        out.value({"ok": report.ok, **asdict(report)})
    if not report.ok:
        ctx.exit(1)


@command(examples=("backtrail backup backup.db",))
@click.argument("file", type=NewFile())
def backup(session: Invocation, *, out: Output, file: str) -> None:
    """Copy the store to FILE, which is a store itself.

    Copies a snapshot; other processes may write meanwhile. FILE is an SQLite file, or, for a file store, a directory.
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
def restore_backup(session: Invocation, *, out: Output, backup: str, yes: bool) -> None:
    """Replace the store with BACKUP.

    The old store stays beside it under another name. No process may have the store open. BACKUP does not change. It is
    of the store's kind: an SQLite file, or the directory of a file store. An encrypted store keeps its keyring. If that
    is missing, the copy beside BACKUP (BACKUP.keys, by `backtrail keys backup`) is restored.
    """
    from pathlib import Path

    import backtrail
    from backtrail.archive.backup import replaces

    if replaces(session.url):
        confirm("Replace the store with the backup? The old store is kept under another name.", yes=yes)
    replaced = backtrail.restore_backup(backup, session.url)
    if out.human:
        old = f"; the old store is {Path(replaced).name}, beside it" if replaced else ""
        out.tell(f"the store is a copy of {backup}{old}")
    else:
        out.value({"backup": backup, "replaced": replaced})


COMMANDS: Final = (prune, gc, verify, index, reindex, migrate, backup, restore_backup)
