"""Verifying a store, and repairing it: what is found as a report, and in which order things are mended.

A repair mends files, tables and indexes first: what cannot be found because of them is not lost. Then everything is
read, and only what cannot be read even so is given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.engine import log, pins
from backtrail.errors import Corrupt, Unavailable
from backtrail.maintenance import repair as repairing
from backtrail.maintenance import verify as verifying
from backtrail.models import Damage, Salvage, VerifyReport
from backtrail.validation import check_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Backend
    from backtrail.engine.reader import Heads
    from backtrail.maintenance.agent_pointers import Held
    from backtrail.maintenance.verify import Ailing, Findings
    from backtrail.transaction import Engine


_MENDED: Final = (
    "what is wrong with files, tables and indexes is mended, and what belongs to nothing is removed for good; "
    "if that cannot be done in place, nothing is changed"
)


def verify(engine: Engine, *, repair: bool, resume: bool, progress: Callable[[str, int], None] | None) -> VerifyReport:
    """Read and check everything; repair it, if that is asked for."""
    check_progress(progress)
    heads = engine.desk.heads
    backend = heads.backend
    if repair and backend.read_only:
        raise Unavailable(
            "this store was opened read-only: open it for writing to repair it", code="unavailable.read_only"
        )
    faults = list(backend.check(progress))
    if repair and faults:
        _mend(engine, backend)
    findings = _found(heads, progress, resume=resume)
    faults += findings.faults
    if repair and findings.faults:  # threads are not found, or not listed: mended, they may have all that they need
        _mend(engine, backend)
        findings = _found(heads, progress, resume=False)
    steps = (
        *([_MENDED] if faults else []),
        *repairing.steps(findings, reindex=bool(faults)),
    )
    if repair:
        repairing.repair(heads, findings, progress, reindex=bool(faults))
    return _report(findings, faults, steps, repaired=repair and bool(steps))


def _mend(engine: Engine, backend: Backend) -> None:
    """Mend the storage itself. Nobody is to go on from what was known of it before."""
    if engine.opened:
        raise Unavailable(
            "transactions are open in this store: end them before it is repaired", code="unavailable.transaction"
        )
    try:
        backend.mend()
    finally:
        engine.forget()


def _found(heads: Heads, progress: Callable[[str, int], None] | None, *, resume: bool) -> Findings:
    """Return what is found; if the storage cannot even be read, that is what is."""
    try:
        return verifying.verify(heads, progress, resume=resume)
    except Corrupt as error:
        if error.code != "corrupt.store":
            raise
        return verifying.Findings(faults=[str(error)])


def _report(findings: Findings, faults: list[str], steps: tuple[str, ...], *, repaired: bool) -> VerifyReport:
    threads = [text for ailing in findings.ailing for text in _wrong_with_thread(ailing)]
    agents = [text for held in findings.held for text in _wrong_with(held)]
    return VerifyReport(
        threads=findings.threads,
        checkpoints=findings.checkpoints,
        damaged=(
            *(damage for ailing in findings.ailing for damage in _damage(ailing)),
            *(damage for held in findings.held for damage in _held_damage(held)),
        ),
        misindexed=tuple(record.name for record in findings.misindexed),
        faults=(*faults, *threads, *agents),
        chunks=tuple(digest.hex() for digest in findings.chunks),
        salvage=tuple(_salvage(ailing) for ailing in findings.ailing),
        repairs=steps,
        repaired=repaired,
        skipped=findings.skipped,
    )


def _damage(ailing: Ailing) -> Iterator[Damage]:
    record = ailing.record
    reasons = dict(ailing.lost)
    for seq, view in ailing.cut.items():
        how = "damaged" if view in ailing.unsound else "missing"
        reasons.setdefault(seq, f"it loads; but row {view}, which says what is in view before it, is {how}")
    if ailing.head_hidden:
        reasons.setdefault(ailing.head, "it loads; but it is the head, and counts as deleted")
    for seq, reason in sorted(reasons.items()):
        yield Damage(log.checkpoint_id(record.uid, seq), record.name, reason, record.space)


def _wrong_with_thread(ailing: Ailing) -> Iterator[str]:
    record = ailing.record
    if ailing.born is not None:
        yield f"{record.space} {record.name!r}: the time at which it was made is damaged"


def _held_damage(held: Held) -> Iterator[Damage]:
    for seq in sorted(held.checkpoints):
        told = "; ".join(f"{space} {name!r}: {why}" for (space, name), why in sorted(held.lost[seq].items()))
        name = log.checkpoint_id(held.record.uid, seq)
        yield Damage(name, held.record.name, f"what it holds is lost: {told}", pins.SPACE)


def _wrong_with(held: Held) -> Iterator[str]:
    agent = f"agent {held.record.name!r}"
    if held.stale:
        yield f"{agent}: the record of how its threads stand cannot be gone on from: {held.stale}"
    if held.unpinned:
        yield f"{agent}: {len(held.unpinned)} checkpoints that its own hold are not kept from being collected"
    if held.untouched:
        names = ", ".join(repr(record.name) for record in held.untouched[:5])
        yield f"{agent}: changes of {names} are not known to its next checkpoint"


def _salvage(ailing: Ailing) -> Salvage:
    record = ailing.record
    head = log.checkpoint_id(record.uid, ailing.head) if ailing.head else None
    return Salvage(record.name, record.space, len(ailing.lost), ailing.loads, head, ailing.head_lost)
