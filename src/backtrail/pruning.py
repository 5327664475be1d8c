"""Pruning a store: its threads one after the other. Each is a write by itself; called again, it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backtrail.arguments import check_id, check_ids, check_kind_of_ids, check_progress
from backtrail.engine import idle, journal, pins, retention, upkeep
from backtrail.engine.trying import Key
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.policies import Account, rules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import ThreadRecord
    from backtrail.engine.engine import Engine
    from backtrail.engine.heads import Heads, Standing
    from backtrail.engine.moves import Tagged
    from backtrail.policies import Policy
    from backtrail.reports import PruneReport


def prune(
    engine: Engine,
    policy: Policy,
    spaces: tuple[str, ...],
    *,
    agent: Any = None,
    threads: Any = None,
    kind: Any = None,
    dry_run: bool = False,
    progress: Callable[[str, int], None] | None = None,
) -> PruneReport:
    """Prune the threads of some name spaces: all, those of an agent, or those of these ids, of a kind or of any."""
    check_progress(progress)
    spaces = check_kind_of_ids(kind, threads, spaces)
    heads = engine.desk.heads
    rules = rules_of(policy, heads.clock())
    account = Account(rules, dry_run=dry_run)
    holders, keepers = pins.Holders(heads), pins.Holders(heads, of_heads=False)
    if rules.idle is not None and journal.RUN in spaces:
        spaces = (*spaces, journal.SPACE)  # a run without checkpoints is known by its journal alone
    for count, record in enumerate(_chosen(heads, spaces, agent, threads), 1):
        try:
            _prune(engine, record, rules, account, holders=holders, keepers=keepers, dry_run=dry_run)
        except Corrupt:  # it is not known where its head is
            account.leave(record)
        if progress:
            progress("threads", count)
    return account.report()


def _prune(
    engine: Engine,
    record: ThreadRecord,
    rules: retention.Rules,
    account: Account,
    *,
    holders: pins.Holders,
    keepers: pins.Holders,
    dry_run: bool,
) -> None:
    """Prune one thread, or remove it."""
    if rules.idle is not None:
        found = idle.remove(engine, record, rules, keepers, dry_run=dry_run)
        alone = record.space == journal.SPACE or not rules.prunes
        account.settle(record, found, alone=alone)
        if not found.why or alone:
            return
    few = retention.few(engine.desk.heads, record, rules)
    pruned = None if few is not None else _pruned(engine, record, rules, holders, dry_run=dry_run)
    if pruned is not None and pruned.gone:
        account.add(record, pruned)
    else:
        account.pass_over(pruned, why=f"newest {rules.keep_last}", count=few or 0)


# -- checkpoints ----------------------------------------------------------------------------------------


def _pruned(
    engine: Engine, record: ThreadRecord, rules: retention.Rules, holders: pins.Holders, *, dry_run: bool
) -> retention.Sorted | None:
    """Prune one thread; return what became of it, None if there is none any more."""
    heads = engine.desk.heads
    found: retention.Sorted | None = None

    def choose(standing: Standing) -> Tagged:
        nonlocal found
        found = retention.sort_out(heads, standing, rules, holders)
        return found.gone

    if dry_run:
        standing = heads.standing_of(record)
        if standing is not None:
            choose(standing)
    else:
        hidden = engine.desk.moves.hide(Key(record.space, record.name, record.agent), choose)
        found = found and found._replace(gone=dict(sorted(hidden.items())))
    return found


def _chosen(heads: Heads, spaces: tuple[str, ...], agent: Any, threads: Any) -> Iterator[ThreadRecord]:
    if agent is not None and threads is not None:
        raise Invalid("say threads=, or agent=, not both", code="invalid.argument")
    if agent is not None:
        stands = heads.backend.standings(check_id(agent, "an agent's id"), touched=False)
        return (stand.record for stand in stands if stand.record.space in spaces)
    if threads is not None:
        return iter(_named(heads, spaces, check_ids(threads)))
    return (record for record in upkeep.threads(heads) if record.space in spaces)


def _named(heads: Heads, spaces: tuple[str, ...], names: tuple[str, ...]) -> list[ThreadRecord]:
    found: list[ThreadRecord] = []
    for name in names:
        there = [record for space in spaces if (record := heads.backend.find_thread(space, name)) is not None]
        if not there:
            what = spaces[0] if len(spaces) == 1 else "thread"
            raise NotFound(f"there is no {what} {name!r}", code="not_found.thread")
        found += there
    return found
