"""What agents' checkpoints hold: each pointer of a manifest leads to a row that is there, is pinned, and can be read.

Also that the newest manifest of an agent knows all that has changed since: a thread that is not touched stands as the
manifest says. `pins` says what manifests and pins are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, pins, upkeep
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.heads import Heads
    from backtrail.engine.pins import Manifest, Note, Pointer

_LOOKS: Final = 5
_ALL: Final = [(1, log.MAX_SEQ)]

Names = tuple[str, str]
"""The name space and the name of a thread."""
Lost = "Mapping[Names, Mapping[int, str]]"


@dataclass(slots=True)
class Held:
    """What is wrong with the checkpoints of one agent."""

    record: ThreadRecord
    newest: Row
    lost: dict[int, dict[Names, str]] = field(default_factory=dict)
    """By the seq of a manifest, what it points at that is lost, and why."""
    checkpoints: set[int] = field(default_factory=set)
    """Those of these manifests that users asked for."""
    stale: str | None = None
    """Why the newest manifest is no longer what the next one can be made from."""
    unpinned: list[tuple[int, int]] = field(default_factory=list)
    """Rows that are pointed at and have no pin: by the thread's number and their seq."""
    untouched: list[ThreadRecord] = field(default_factory=list)
    """Threads that have changed, and are not known to have."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.stale or self.unpinned or self.untouched)


class _Pointee(NamedTuple):
    """What a pointer leads to."""

    reason: str | None
    """Why it is lost."""
    row: tuple[int, int]
    pinned: bool


def check(heads: Heads, lost: Mapping[Names, Mapping[int, str]]) -> Iterator[Held]:
    """Give the agents with whose checkpoints something is wrong, given the rows of each thread that are lost."""
    for record in upkeep.threads(heads):
        if record.space == pins.SPACE:
            held = look_at(heads, record, lost)
            if held is not None:
                yield held


def look_at(heads: Heads, record: ThreadRecord, lost: Mapping[Names, Mapping[int, str]]) -> Held | None:
    """Return what is wrong with the checkpoints of an agent; None if nothing is."""
    held: Held | None = None
    for _ in range(_LOOKS):
        newest = heads.backend.newest(record.no)
        if newest is None or not newest.head or not log.is_sound(newest, record.uid):
            return None  # it has none, or its thread is to be seen to first
        held = _Look(heads, record, newest, lost).found()
        again = heads.backend.newest(record.no)
        if held.sound:
            return None
        if again is not None and again.op_id == newest.op_id:
            break  # else somebody made one meanwhile
    return held


class _Look:
    """Looks at all manifests of an agent that are in use."""

    def __init__(
        self, heads: Heads, record: ThreadRecord, newest: Row, lost: Mapping[Names, Mapping[int, str]]
    ) -> None:
        self._heads = heads
        self._record = record
        self._lost = lost
        self._held = Held(record, newest)
        self._seen: dict[tuple[Names, Pointer], _Pointee] = {}
        self._tags: dict[int, dict[int, tuple[str, ...]]] = {}

    def found(self) -> Held:
        """Return what is wrong."""
        held, newest = self._held, self._held.newest
        rows = self._heads.backend.rows(self._record.no, _ALL, visible=True)
        read = {row.seq: (row, note, held_) for row in rows if (note := self._note(row)) for held_ in self._read(row)}
        if newest.head not in read:
            return held  # its thread is to be seen to first
        _, now, manifest = read[newest.head]
        undone = {seq for pair in now.undo for seq in pair}
        if any(self._heads.row(self._record, seq) is None or seq in self._own_lost() for seq in undone):
            held.stale = "restores that it could undo are lost"
        before = {seq for seq, _ in now.undo}
        touched = {stand.record.no for stand in self._heads.backend.standings(self._record.name, touched=True)}
        for seq, (_, note, each) in read.items():
            if note.role == pins.CHECKPOINT or seq in before or seq == newest.head:
                self._look(seq, note, each, touched if seq == newest.head and note.role == pins.AFTER else set())
        affected = (held.lost.keys() - held.checkpoints) | (held.lost.keys() & {newest.head})
        if affected and held.stale is None:
            held.stale = "it points at what is lost"
        self._see_touched(manifest, touched)
        return held

    def _own_lost(self) -> Mapping[int, str]:
        return self._lost.get((pins.SPACE, self._record.name), {})

    def _note(self, row: Row) -> Note | None:
        if row.seq in self._own_lost() or not log.is_sound(row, self._record.uid):
            return None
        try:
            return pins.note_of(row)
        except Corrupt:
            return None

    def _read(self, row: Row) -> list[Manifest]:
        try:
            return [pins.manifest_of(self._heads, self._record, row)]
        except (Corrupt, NotFound):
            return []

    def _look(self, seq: int, note: Note, manifest: Manifest, but: set[int]) -> None:
        """Follow the pointers of a manifest, but for those to threads that it is not asked for any more."""
        for names, pointer in manifest.pointers(self._record.name).items():
            if (names, pointer) not in self._seen:
                self._seen[names, pointer] = self._follow(names, pointer)
            reason, row, pinned = self._seen[names, pointer]
            if row[0] in but:
                continue
            if reason is not None:
                self._held.lost.setdefault(seq, {})[names] = reason
                if note.role == pins.CHECKPOINT:
                    self._held.checkpoints.add(seq)
            elif not pinned and row not in self._held.unpinned:
                self._held.unpinned.append(row)

    def _follow(self, names: Names, pointer: Pointer) -> _Pointee:
        record = self._heads.backend.find_thread(*names)
        if record is None:
            return _Pointee("it is missing", (0, pointer.seq), pinned=False)
        place = (record.no, pointer.seq)
        reason = self._lost.get(names, {}).get(pointer.seq)
        row = self._heads.row(record, pointer.seq)
        if row is None or row.root != pointer.root:
            reason = reason or "the checkpoint that it pointed at is missing"
        if record.no not in self._tags:
            self._tags[record.no] = self._heads.backend.tags(record.no)
        tags = self._tags[record.no].get(pointer.seq, ())
        return _Pointee(reason, place, pinned=pins.pin_of(self._record.uid) in tags)

    def _see_touched(self, manifest: Manifest, touched: set[int]) -> None:
        pointers = manifest.pointers(self._record.name)
        for stand in self._heads.backend.standings(self._record.name, touched=False):
            names = (stand.record.space, stand.record.name)
            if stand.record.no in touched or stand.record.space not in (pins.AGENT, pins.CONVERSATION):
                continue
            pointer = pointers.get(names)
            if stand.newest.head != (pointer.seq if pointer else 0):
                self._held.untouched.append(stand.record)
