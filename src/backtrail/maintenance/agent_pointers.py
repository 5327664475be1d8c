"""Verify agent checkpoints: each pointer of a manifest must lead to a pinned row that can be read.

The newest manifest of an agent must be up to date: it points at the head of each untouched thread.
`backtrail.engine.manifests` explains manifests and pins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, manifests
from backtrail.engine.bulk import BulkReader
from backtrail.engine.manifests import AFTER, AGENT, CHECKPOINT, CONVERSATION, SPACE
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance import gc

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from backtrail.backends.port import Row, ThreadRecord, ThreadTip
    from backtrail.engine.manifests import Manifest, ManifestInfo, Names, Pointer
    from backtrail.engine.reader import LogReader

_TRIES: Final = 5
_ALL: Final = [(1, log.MAX_SEQ)]


@dataclass(slots=True)
class AgentDamage:
    """The damage of the checkpoints of one agent."""

    record: ThreadRecord
    newest: Row
    lost: dict[int, dict[Names, str]] = field(default_factory=dict)
    """For each manifest, by seq: the threads for which it points at a lost row, with the reasons."""
    checkpoints: set[int] = field(default_factory=set)
    """The seqs in `lost` that are checkpoints of the user, not internal manifests."""
    stale: str | None = None
    """Why the next manifest cannot build on the newest one, or None."""
    unpinned: list[tuple[int, int]] = field(default_factory=list)
    """(thread number, seq) of rows that a manifest points at and that have no pin."""
    untouched: list[ThreadRecord] = field(default_factory=list)
    """Threads whose head differs from the newest manifest, but that are not marked as touched."""

    @property
    def sound(self) -> bool:
        """Whether the checkpoints are undamaged."""
        return not (self.lost or self.stale or self.unpinned or self.untouched)


class _Pointee(NamedTuple):
    """The row that a pointer leads to."""

    reason: str | None
    """Why the row is lost, or None."""
    row: tuple[int, int]
    """(thread number, seq); number 0 if the thread is missing."""
    is_pinned: bool


def check(reader: LogReader, lost: Mapping[Names, Mapping[int, str]]) -> Iterator[AgentDamage]:
    """Yield the damage of each agent with damaged checkpoints. `lost` has the lost rows of each thread, by seq."""
    for record in gc.threads(reader):
        if record.space == SPACE:
            damage = check_agent(reader, record, lost)
            if damage is not None:
                yield damage


def check_agent(reader: LogReader, record: ThreadRecord, lost: Mapping[Names, Mapping[int, str]]) -> AgentDamage | None:
    """Return the damage of one agent's checkpoints, or None."""
    damage: AgentDamage | None = None
    for _ in range(_TRIES):
        newest = reader.backend.newest(record.no)
        if newest is None or not newest.head or not log.is_sound(newest, record.uid):
            return None  # it has no manifest, or its thread must be repaired first
        one = _ManifestCheck(reader, record, newest, lost)
        damage = one.damage()
        if damage.sound:
            return None
        if one.is_current():
            break  # else check again: another writer has made or deleted a manifest
    return damage


class _ManifestCheck:
    """Checks all manifests of an agent that are in use."""

    def __init__(
        self, reader: LogReader, record: ThreadRecord, newest: Row, lost: Mapping[Names, Mapping[int, str]]
    ) -> None:
        self._reader = reader
        self._backend = reader.backend
        self._record = record
        self._lost = lost
        self._own_lost = lost.get((SPACE, record.name), {})
        self._damage = AgentDamage(record, newest)
        self._seqs: list[int] = []

    def damage(self) -> AgentDamage:
        """Check the manifests and return their damage."""
        damage, head, agent = self._damage, self._damage.newest.head, self._record.name
        tips = self._backend.tips(agent, touched=False)
        rows = self._backend.rows(self._record.no, _ALL, visible=True)
        self._seqs = [row.seq for row in rows]
        read = {row.seq: each for row in rows if (each := self._read(row)) is not None}
        if head not in read:
            return damage  # its thread must be repaired first
        newest, manifest = read[head]
        if not {seq for pair in newest.undo for seq in pair} <= set(self._seqs) - self._own_lost.keys():
            damage.stale = "the data to undo its restores is lost"
        infos = {seq: info for seq, (info, _) in read.items() if manifests.in_use(seq, info, head, newest)}
        pointers = {seq: read[seq][1].pointers(agent) for seq in infos}
        pointees = self._follow({pointer for each in pointers.values() for pointer in each.items()})
        # Read this last, so that it includes threads that were written to during the check.
        touched = {tip.record.no for tip in self._backend.tips(agent, touched=True)}
        for seq, info in infos.items():
            exempt = touched if seq == head and info.role == AFTER else set()
            for names, pointer in pointers[seq].items():
                pointee = pointees[names, pointer]
                if pointee.row[0] not in exempt:
                    self._note(seq, info, names, pointee)
        affected = (damage.lost.keys() - damage.checkpoints) | (damage.lost.keys() & {head})
        if affected and damage.stale is None:
            damage.stale = "it points at lost data"
        damage.untouched = _changed(manifest.pointers(agent), [tip for tip in tips if tip.record.no not in touched])
        return damage

    def is_current(self) -> bool:
        """Tell whether the manifests are still those that were checked."""
        newest = self._backend.newest(self._record.no)
        rows = self._backend.rows(self._record.no, _ALL, visible=True)
        same = newest is not None and newest.op_id == self._damage.newest.op_id
        return same and [row.seq for row in rows] == self._seqs

    def _read(self, row: Row) -> tuple[ManifestInfo, Manifest] | None:
        """Return the info and the content of a manifest; None if its row is damaged or lost, which `verify` reports."""
        if row.seq in self._own_lost or not log.is_sound(row, self._record.uid):
            return None
        try:
            return manifests.info_of(row), manifests.manifest_of(self._reader, self._record, row)
        except (Corrupt, NotFound):
            return None

    def _follow(self, pointers: Collection[tuple[Names, Pointer]]) -> dict[tuple[Names, Pointer], _Pointee]:
        records = BulkReader(self._reader).records({names for names, _ in pointers})
        spans = [(records[names].no, at.seq, at.seq) for names, at in pointers if names in records]
        rows = self._backend.rows_of(spans)
        pins = {record.no: self._backend.pins(record.no) for record in records.values()}
        pointees: dict[tuple[Names, Pointer], _Pointee] = {}
        for names, at in pointers:
            record = records.get(names)
            if record is None:
                pointees[names, at] = _Pointee("its thread is missing", (0, at.seq), is_pinned=False)
                continue
            place = record.no, at.seq
            reason = self._lost.get(names, {}).get(at.seq)
            if place not in rows or rows[place].root != at.root:
                reason = reason or "its checkpoint is missing"
            is_pinned = self._record.uid in pins[record.no].get(at.seq, ())
            pointees[names, at] = _Pointee(reason, place, is_pinned=is_pinned)
        return pointees

    def _note(self, seq: int, info: ManifestInfo, names: Names, pointee: _Pointee) -> None:
        if pointee.reason is not None:
            self._damage.lost.setdefault(seq, {})[names] = pointee.reason
            if info.role == CHECKPOINT:
                self._damage.checkpoints.add(seq)
        elif not pointee.is_pinned and pointee.row not in self._damage.unpinned:
            self._damage.unpinned.append(pointee.row)


def _changed(pointers: Mapping[Names, Pointer], tips: list[ThreadTip]) -> list[ThreadRecord]:
    """Return the agent and conversation threads whose head differs from the manifest's pointer."""
    changed: list[ThreadRecord] = []
    for tip in tips:
        pointer = pointers.get((tip.record.space, tip.record.name))
        if tip.record.space in (AGENT, CONVERSATION) and tip.newest.head != (pointer.seq if pointer else 0):
            changed.append(tip.record)
    return changed
