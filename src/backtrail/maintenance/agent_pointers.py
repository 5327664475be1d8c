"""What agents' checkpoints hold: each pointer of a manifest leads to a row that is there, is pinned, and can be read.

Also that the newest manifest of an agent knows all that has changed since: a thread that is not touched stands as the
manifest says. `pins` says what manifests and pins are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from backtrail.engine import log, pins
from backtrail.errors import Corrupt, NotFound
from backtrail.maintenance import gc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from backtrail.backends.port import Row, Stand, ThreadRecord
    from backtrail.engine.pins import Manifest, Note, Pointer
    from backtrail.engine.reader import Heads

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
    for record in gc.threads(heads):
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
        look = _Look(heads, record, newest, lost)
        held = look.found()
        if held.sound:
            return None
        if look.holds():
            break  # else somebody made or deleted one meanwhile
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
        self._rows: list[int] = []
        self._seen: dict[tuple[Names, Pointer], _Pointee] = {}
        self._tags: dict[int, dict[int, tuple[str, ...]]] = {}

    def found(self) -> Held:
        """Return what is wrong."""
        held, newest, agent = self._held, self._held.newest, self._record.name
        stands = self._heads.backend.standings(agent, touched=False)
        rows = self._heads.backend.rows(self._record.no, _ALL, visible=True)
        self._rows = [row.seq for row in rows]
        read = {row.seq: (row, note, held_) for row in rows if (note := self._note(row)) for held_ in self._read(row)}
        if newest.head not in read:
            return held  # its thread is to be seen to first
        _, now, manifest = read[newest.head]
        if not {seq for pair in now.undo for seq in pair} <= set(self._rows) - self._own_lost().keys():
            held.stale = "restores that it could undo are lost"
        used = {seq: (note, each) for seq, (_, note, each) in read.items() if pins.in_use(seq, note, newest.head, now)}
        self._follow_all(each for _, each in used.values())
        # last, so that what was written to while all else was read is among them
        touched = {stand.record.no for stand in self._heads.backend.standings(agent, touched=True)}
        for seq, (note, each) in used.items():
            self._look(seq, note, each, touched if seq == newest.head and note.role == pins.AFTER else set())
        affected = (held.lost.keys() - held.checkpoints) | (held.lost.keys() & {newest.head})
        if affected and held.stale is None:
            held.stale = "it points at what is lost"
        self._see_touched(manifest, [stand for stand in stands if stand.record.no not in touched])
        return held

    def holds(self) -> bool:
        """Tell whether the manifests are still those that were looked at."""
        newest = self._heads.backend.newest(self._record.no)
        rows = self._heads.backend.rows(self._record.no, _ALL, visible=True)
        same = newest is not None and newest.op_id == self._held.newest.op_id
        return same and [row.seq for row in rows] == self._rows

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
        """See to the pointers of a manifest, but for those to threads that it is not asked for any more."""
        for names, pointer in manifest.pointers(self._record.name).items():
            reason, row, pinned = self._seen[names, pointer]
            if row[0] in but:
                continue
            if reason is not None:
                self._held.lost.setdefault(seq, {})[names] = reason
                if note.role == pins.CHECKPOINT:
                    self._held.checkpoints.add(seq)
            elif not pinned and row not in self._held.unpinned:
                self._held.unpinned.append(row)

    def _follow_all(self, manifests: Iterable[Manifest]) -> None:
        for manifest in manifests:
            for names, pointer in manifest.pointers(self._record.name).items():
                if (names, pointer) not in self._seen:
                    self._seen[names, pointer] = self._follow(names, pointer)

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

    def _see_touched(self, manifest: Manifest, untouched: list[Stand]) -> None:
        pointers = manifest.pointers(self._record.name)
        for stand in untouched:
            if stand.record.space in (pins.AGENT, pins.CONVERSATION):
                pointer = pointers.get((stand.record.space, stand.record.name))
                if stand.newest.head != (pointer.seq if pointer else 0):
                    self._held.untouched.append(stand.record)
