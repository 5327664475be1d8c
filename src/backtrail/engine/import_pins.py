"""What agents' checkpoints need that are to come: each row that one points at is in the file or here, and gets its pin.

A file has no pins of rows that did not change since the one that it continues, and a collection here may have taken
them off, because nothing needed them then. So pins are put as whoever makes a checkpoint puts them: by what it points
at. `pins` says what manifests and pins are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backtrail.backends.port import Batch, Stale
from backtrail.engine import log, pins
from backtrail.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail.backends.port import Backend, Row, ThreadRecord
    from backtrail.engine.archive_reader import Archive
    from backtrail.engine.import_plans import Plan
    from backtrail.engine.pins import Manifest, Needs, Note


class Holding:
    """What the manifests of one agent need that are to come."""

    def __init__(self, record: ThreadRecord) -> None:
        self._record = record
        self._needs: Needs = {}
        self._others: list[tuple[int, Note, Manifest]] = []
        """Those whose use is not known yet: few, beside the checkpoints."""

    def add(self, row: Row, note: Note, manifest: Manifest) -> None:
        """Take note of a manifest."""
        if note.role == pins.CHECKPOINT:
            self._need(manifest)
        else:
            self._others.append((row.seq, note, manifest))

    def end(self, head: int, newest: Note) -> None:
        """Take note of the newest one: it says which of the others are in use."""
        for seq, note, manifest in self._others:
            # one that is what the next is made from keeps nothing that was touched: all that has come is
            if note.role != pins.AFTER and pins.in_use(seq, note, head, newest):
                self._need(manifest)
        self._others.clear()

    def _need(self, manifest: Manifest) -> None:
        for names, pointer in manifest.pointers(self._record.name).items():
            self._needs.setdefault(names, {})[pointer.seq] = pointer.root

    def require(self, backend: Backend, archive: Archive, plans: dict[tuple[str, str], Plan]) -> None:
        """Raise unless each row is in the file, or here."""
        for (space, name), needs in self._needs.items():
            plan = plans.get((space, name))
            record = plan.record if plan else backend.find_thread(space, name)
            there = {} if record is None else _roots(backend, record, needs)
            if plan is not None:
                low, high = max(min(needs), plan.newest + 1), max(needs)
                there |= {row.seq: row.root for row in archive.rows(plan.entry, low, high)}
            lost = next((seq for seq, root in needs.items() if there.get(seq) != root), None)
            if lost is None:
                continue
            agent = self._record.name
            if record is None:
                raise archive.damaged(f"a checkpoint of agent {agent!r} cannot be used: it has no {space} {name!r}")
            raise Conflict(
                f"a checkpoint of agent {agent!r} holds {log.checkpoint_id(record.uid, lost)} of {space} {name!r}, "
                "which is not here any more: import it into another store",
                code="conflict.import",
                thread=name,
                kind=space,
            )

    def pin(self, backend: Backend) -> None:
        """Put the pins that are not there, once all rows are; `Stale` if one went meanwhile."""
        pin = pins.pin_of(self._record.uid)
        for names, needs in self._needs.items():
            record = backend.find_thread(*names)
            if record is None or len(_roots(backend, record, needs)) < len(needs):
                raise Stale
            tags = backend.tags(record.no, needs)
            bare = [seq for seq in sorted(needs) if pin not in tags.get(seq, ())]
            if bare:
                backend.commit(Batch(tag=tuple((record.no, seq, pin) for seq in bare)))


def _roots(backend: Backend, record: ThreadRecord, seqs: Iterable[int]) -> dict[int, bytes]:
    """Return the roots of those of these rows that are here."""
    return {row.seq: row.root for row in backend.rows(record.no, [(seq, seq) for seq in sorted(seqs)])}
