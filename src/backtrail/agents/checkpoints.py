"""The checkpoints of an agent: the thread of its manifests, and how one is made, restored, undone and deleted.

`backtrail.engine.pins` says what a manifest is. Making one costs what changed: it is the last one, with the threads
that were touched since. Everything here is one transaction, which is done again if somebody else was faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.port import Batch, Vanished
from backtrail.engine import log, pins
from backtrail.engine.pins import AFTER, AGENT, BEFORE, CHECKPOINT, CONVERSATION, CONVERSATIONS, Manifest, Note, Pointer
from backtrail.engine.tree import edits as changes
from backtrail.engine.tree.codec import Decoder
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.engine.writer import NOTHING, Expect, Key, Proposal
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.maintenance import readable
from backtrail.models import AgentCheckpoint
from backtrail.thread import Handle
from backtrail.validation import check_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from backtrail.backends.port import Row, Stand, ThreadRecord
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.reader import Standing
    from backtrail.engine.tree.tree import Tree
    from backtrail.engine.writer import Propose
    from backtrail.transaction import Desk, Engine

UNDOS: Final = 10
"""So many restores of an agent can be undone."""


class Present(NamedTuple):
    """How an agent's threads stand: its newest manifest, and the threads that were touched since."""

    manifests: Standing | None
    note: Note
    """Of the newest manifest."""
    moved: list[Stand]

    @property
    def tree(self) -> Tree | None:
        """The newest manifest, unread."""
        return self.manifests.chain.tree if self.manifests and self.manifests.chain else None

    @property
    def pointed(self) -> list[Stand]:
        """Those of the touched threads that manifests point at."""
        return [stand for stand in self.moved if stand.record.space in (AGENT, CONVERSATION)]


class Manifests(Handle[Any]):
    """The thread of an agent's manifests."""

    def __init__(self, engine: Engine, agent_id: str) -> None:
        super().__init__(engine, pins.SPACE, agent_id)

    # -- listing ------------------------------------------------------------------------------------

    def listed(self) -> list[tuple[Checkpoint[Any], Note]]:
        """Return the agent's checkpoints, oldest first, each with what its row says beside its manifest.

        Of a damaged row nobody knows whether it was a checkpoint: it is given as one.
        """
        standing = self._readable()
        if standing is None or standing.head is None:
            return []
        record = standing.record
        rows = self._engine.desk.heads.backend.rows(record.no, [(1, standing.newest.seq)], visible=True)
        sound = {row.seq for row in rows if log.is_sound(row, record.uid)}
        noted = [(row, pins.note_of(row) if row.seq in sound else Note(CHECKPOINT)) for row in rows]
        shown = [(row, note) for row, note in noted if note.role == CHECKPOINT]
        made = self._checkpoints(standing, [row for row, _ in shown])
        return [(checkpoint, note) for checkpoint, (_, note) in zip(made, shown, strict=True)]

    def _note(self, record: ThreadRecord, row: Row) -> Note:
        self._engine.desk.heads.require_sound(record, row)
        return pins.note_of(row)

    def found(self, seq: int) -> tuple[Checkpoint[Any], Note]:
        """Return a checkpoint of the agent, and what its row says beside its manifest."""
        record, row = self._found(self._engine.desk, seq)
        standing = self._require_readable()
        return self._checkpoints(standing, [row])[0], self._note(record, row)

    def pointer(self, seq: int, space: str, name: str) -> Pointer:
        """Return where a checkpoint of the agent points, for one of the threads that it holds."""
        desk = self._engine.desk
        record, row = self._found(desk, seq)
        others = space == AGENT and name != self.id
        found = None if others else _pointer(desk.heads.chain(record, row).tree, _path(space, name))
        if found is None:
            raise NotFound(
                f"this checkpoint of agent {self.id!r} holds no {space} {name!r}", code="not_found.checkpoint"
            )
        return found

    def _found(self, desk: Desk, seq: int) -> tuple[ThreadRecord, Row]:
        """Return a checkpoint of the agent, by the seq of its row."""
        record = desk.heads.backend.find_thread(pins.SPACE, self.id)
        rows = [] if record is None else desk.heads.backend.rows(record.no, [(seq, seq)], visible=True)
        if record is None or not rows or self._note(record, rows[0]).role != CHECKPOINT:
            raise NotFound(f"agent {self.id!r} has no such checkpoint", code="not_found.checkpoint")
        return record, rows[0]

    # -- making one -----------------------------------------------------------------------------------

    def make(self, name: str, description: str | None, kind: str, keep: int | None) -> tuple[Checkpoint[Any], Note]:
        """Record how the agent's threads stand; of automatic checkpoints, keep the newest `keep`."""

        def work(desk: Desk) -> tuple[Checkpoint[Any], Note]:
            present = self._present(desk)
            own = next((stand for stand in present.moved if stand.record.space == AGENT), None)
            there = own.head is not None if own else _pointer(present.tree, (AGENT,)) is not None
            if not there:
                raise NotFound(f"there is no agent {self.id!r}: save its state first", code="not_found.agent")
            made = self._record(desk, present, Note(CHECKPOINT, name, description), kind)
            if keep is not None:
                self._retire(desk, keep)
            return made

        return self._engine.atomic(work)

    def begin(self, desk: Desk) -> None:
        """Write an empty manifest as the first one."""
        replace = changes.Replace(Manifest(None, {}).state(), desk.heads.nodes(), self._types)
        self._put(desk, replace, Note(AFTER), "automatic", on=None)

    def _present(self, desk: Desk) -> Present:
        """Look at how things stand: at the manifest first, so that what was touched is at least as new."""
        manifests = desk.heads.standing(pins.SPACE, self.id)
        head = manifests.head if manifests else None
        note = Note("") if manifests is None or head is None else self._note(manifests.record, head)
        moved = desk.heads.backend.standings(self.id, touched=head is not None)
        for stand in moved:
            for row in (stand.newest, stand.head):
                if row is not None:
                    desk.heads.require_sound(stand.record, row)
        return Present(None if manifests is None or head is None else self._opened(desk, manifests), note, moved)

    def _opened(self, desk: Desk, manifests: Standing) -> Standing:
        """Return the standing with the newest manifest, which need not be read if it was made here."""
        known = self._known
        if known is not None and known.newest.op_id == manifests.newest.op_id:
            return manifests._replace(chain=known.chain)
        return desk.heads.with_chain(manifests)

    def _record(self, desk: Desk, present: Present, note: Note, kind: str) -> tuple[Checkpoint[Any], Note]:
        """Write the manifest of the present, pin what it points at, and note that none of it is touched any more."""
        propose, size, count = self._change(desk, present)
        note = note._replace(size=size, held=count, undo=present.note.undo)
        newest = present.manifests.head if present.manifests else None
        made = self._put(desk, propose, note, kind, on=newest, known=present.manifests)
        pin = pins.pin_of(bytes.fromhex(made.id[-2 * log.UID_BYTES :]))
        heads = [(stand.record.no, stand.head.seq) for stand in present.pointed if stand.head is not None]
        if present.note.role == AFTER and newest and newest.seq not in {after for _, after in present.note.undo}:
            self._hide(desk, [newest.seq])
        batch = Batch(
            visible=tuple(heads),
            tag=tuple((no, seq, pin) for no, seq in heads),
            untouch=tuple((stand.record.no, stand.newest.seq) for stand in present.moved),
        )
        try:
            desk.heads.backend.commit(batch)
        except Vanished as error:
            raise Conflict(f"a thread of agent {self.id!r} moved on meanwhile", code="conflict.transaction") from error
        return made, note

    def _put(
        self, desk: Desk, propose: Propose, note: Note, kind: str, *, on: Row | None, known: Standing | None = None
    ) -> Checkpoint[Any]:
        # what is proposed was derived from this manifest: on another one it would be wrong
        expect = Expect(on.seq, on.op_id) if on else Expect(NOTHING)
        try:
            meta = self._meta(None, (), note.metadata(), kind)
            standing = desk.writes.save(self._key, propose, meta, expect=expect, known=known)
        except (Conflict, NotFound) as error:
            raise self._overtaken() from error
        if desk.overlay is not None and standing.record.no > 0:
            desk.overlay.after_commit.append(lambda: self._learn(standing))
        if standing.head is None:
            raise Corrupt(f"the checkpoints of agent {self.id!r} have lost their head", code="corrupt.row")
        return self._make(standing, standing.head, (), written=True)

    def _overtaken(self) -> Conflict:
        return Conflict(f"the checkpoints of agent {self.id!r} moved on meanwhile", code="conflict.transaction")

    def _learn(self, standing: Standing) -> None:
        self._known = standing

    def _change(self, desk: Desk, present: Present) -> tuple[Propose, int, int]:
        """Return what makes the newest manifest that of the present, the bytes it points at, and its conversations."""
        tree = present.tree
        if tree is None or len(present.pointed) > changes.OPS_MAX:
            manifest = self._now(desk, present)
            replace = changes.Replace(manifest.state(), desk.heads.nodes(), self._types)
            return replace, manifest.size, len(manifest.conversations)
        edits: list[changes.Put | changes.Cut] = []
        size, count = present.note.size, present.note.held
        for stand in present.pointed:
            path = _path(stand.record.space, stand.record.name)
            old = _pointer(tree, path)
            new = None if stand.head is None else Pointer.to(stand.head)
            if new != old:
                size += (new.size if new else 0) - (old.size if old else 0)
                if stand.record.space == CONVERSATION:
                    count += (new is not None) - (old is not None)
                if new is None and stand.record.space == CONVERSATION:
                    edits.append(changes.Cut(path, self._types, self.id))
                else:
                    value = None if new is None else list(new)
                    edits.append(changes.Assign(path, value, self._types, self.id))
        return changes.Several(edits), size, count

    def _now(self, desk: Desk, present: Present) -> Manifest:
        """Return the manifest of the present, all of it."""
        agent: Pointer | None = None
        listed: dict[str, Pointer] = {}
        if present.manifests is not None and present.manifests.head is not None:
            agent, listed = pins.manifest_of(desk.heads, present.manifests.record, present.manifests.head)
        for stand in present.pointed:
            new = None if stand.head is None else Pointer.to(stand.head)
            if stand.record.space == AGENT:
                agent = new
            elif new is None:
                listed.pop(stand.record.name, None)
            else:
                listed[stand.record.name] = new
        return Manifest(agent, listed)

    def _retire(self, desk: Desk, keep: int) -> None:
        """Hide all but the newest automatic checkpoints."""
        kind = log.KINDS[log.AUTOMATIC]
        automatic = [each.seq for each, _ in self.listed() if each.kind == kind and not each.damaged]
        self._hide(desk, automatic[: max(len(automatic) - keep, 0)])

    def _hide(self, desk: Desk, seqs: list[int]) -> None:
        record = desk.heads.backend.find_thread(pins.SPACE, self.id)
        if record is not None and seqs:
            desk.heads.backend.commit(Batch(hide=tuple((record.no, seq) for seq in seqs)))

    # -- going back -------------------------------------------------------------------------------------

    def restore(self, seq: int, check: Callable[[Any], object]) -> None:
        """Bring the agent and its conversations back to a checkpoint.

        All that it points at is verified first, and the agent's state is given to `check`, which may refuse it.
        """

        def work(desk: Desk) -> None:
            record, row = self._found(desk, seq)
            try:
                target = pins.manifest_of(desk.heads, record, row)
                rows = self._verified(desk, target, check)
            except (Corrupt, NotFound):
                self._found(desk, seq)  # NotFound if it was deleted meanwhile: then it is no damage
                raise
            present = self._present(desk)
            before, _ = self._record(desk, present, Note(BEFORE), "automatic")
            self._go(desk, self._now(desk, present), target, rows)
            undo = (*present.note.undo, (before.seq, before.seq + 1))
            on = desk.heads.sound_row(record, before.seq)
            self._stand(desk, record, row, target, undo=undo[-UNDOS:], on=on)
            self._hide(desk, [each for pair in undo[:-UNDOS] for each in pair])

        self._engine.atomic(work)

    def undo(self, check: Callable[[Any], object], *, force: bool) -> None:
        """Take back the last restore that was not undone; `check` as for a restore."""

        def work(desk: Desk) -> None:
            present = self._present(desk)
            if present.manifests is None or not present.note.undo:
                raise Invalid(f"agent {self.id!r} has no restore to undo", code="invalid.undo")
            try:
                self._undo(desk, present, check, force=force)
            except (Corrupt, NotFound) as error:
                newest = desk.heads.backend.newest(present.manifests.record.no)
                if newest is None or newest.op_id != present.manifests.newest.op_id:
                    raise self._overtaken() from error
                raise

        self._engine.atomic(work)

    def _undo(self, desk: Desk, present: Present, check: Callable[[Any], object], *, force: bool) -> None:
        if present.manifests is None or present.manifests.head is None:
            return
        record, newest = present.manifests.record, present.manifests.head
        (row, target), (_, after) = (self._manifest_at(desk, record, seq) for seq in present.note.undo[-1])
        now = self._now(desk, present)
        if not force:
            self._refuse_moved(now, after)
        rows = self._verified(desk, target, check)
        self._go(desk, now, target, rows)
        self._stand(desk, record, row, target, undo=present.note.undo[:-1], on=newest)
        over = {*present.note.undo[-1], *([newest.seq] if present.note.role == AFTER else [])}
        self._hide(desk, sorted(over - {after for _, after in present.note.undo[:-1]}))

    def forget_undos(self) -> int:
        """Let go of what the restores of the agent could be undone to; return how many there were."""

        def work(desk: Desk) -> int:
            standing = desk.heads.standing(pins.SPACE, self.id)
            head = standing.head if standing else None
            if standing is None or head is None or not (note := self._note(standing.record, head)).undo:
                return 0
            self._again(desk, standing.record, head, note._replace(role=AFTER, undo=()), on=head)
            over = {seq for pair in note.undo for seq in pair} | ({head.seq} if note.role == AFTER else set())
            self._hide(desk, sorted(over))
            return len(note.undo)

        return self._engine.atomic(work)

    def _manifest_at(self, desk: Desk, record: ThreadRecord, seq: int) -> tuple[Row, Manifest]:
        row = desk.heads.sound_row(record, seq)
        if row is None:
            raise desk.heads.damaged(record, seq, "its row is missing")
        return row, pins.manifest_of(desk.heads, record, row)

    def _refuse_moved(self, now: Manifest, after: Manifest) -> None:
        ours, theirs = now.pointers(self.id), after.pointers(self.id)
        moved = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if moved:
            conversations = [name for space, name in moved if space == CONVERSATION]
            parts = [f"conversation {name!r}" for name in conversations[:5]]
            parts += [f"{len(conversations) - 5} more"] if len(conversations) > len(parts) else []
            parts += ["the agent's state"] if (AGENT, self.id) in moved else []
            raise Conflict(
                f"since the restore of agent {self.id!r}, others have changed: {', '.join(parts)}; "
                "force=True takes that out of view, too",
                code="conflict.moved",
                conversations=conversations,
            )

    def _verified(self, desk: Desk, target: Manifest, check: Callable[[Any], object]) -> dict[tuple[str, str], Row]:
        """Read all that a manifest points at, and hold it against its hashes; return the rows."""
        heads = desk.heads.anew()  # what was read before a damage must not speak for it
        good: set[bytes] = set()
        found: dict[tuple[str, str], Row] = {}
        for (space, name), pointer in target.pointers(self.id).items():
            record = heads.backend.find_thread(space, name)
            row = None if record is None else heads.row(record, pointer.seq)
            try:
                if record is None or row is None or row.root != pointer.root:
                    raise Corrupt("what it points at is missing", code="corrupt.row")  # noqa: TRY301
                tree = heads.chain(record, row).tree
                good |= readable.read_below(heads, tree, good)
            except (Corrupt, NotFound) as error:
                raise Corrupt(
                    f"this checkpoint of agent {self.id!r} cannot be restored, and nothing was changed: "
                    f"{space} {name!r}: {error}",
                    code=error.code if isinstance(error, Corrupt) else "corrupt.row",
                    **{space: name},
                ) from error
            found[space, name] = row
            if space == AGENT:
                check(Decoder(tree.nodes, self._types).value(tree.rep))
        return found

    def _go(self, desk: Desk, now: Manifest, target: Manifest, rows: dict[tuple[str, str], Row]) -> None:
        """Make the rows the heads of their threads, and take all others out of view."""
        ours = now.pointers(self.id)
        for (space, name), pointer in target.pointers(self.id).items():
            row = rows[space, name]
            current = ours.pop((space, name), None)
            if current is None or current.seq != pointer.seq:
                desk.moves.bring_back(Key(space, name, self.id), row, current.seq if current else 0)
        for (space, name), pointer in ours.items():
            desk.moves.leave(Key(space, name), pointer.seq)

    def _stand(
        self,
        desk: Desk,
        record: ThreadRecord,
        row: Row,
        target: Manifest,
        *,
        undo: tuple[tuple[int, int], ...],
        on: Row | None,
    ) -> None:
        """Write how things stand now, as the manifest that the next one is made from: as in this row."""
        note = Note(AFTER, size=target.size, held=len(target.conversations), undo=undo)
        self._again(desk, record, row, note, on=on)

    def _again(self, desk: Desk, record: ThreadRecord, row: Row, note: Note, *, on: Row | None) -> None:
        """Write the manifest of an older row as the newest one."""
        try:
            tree = desk.heads.chain(record, row).tree
            desk.heads.backend.commit(Batch(visible=((record.no, row.seq),)))  # what it stands on is still there
        except (NotFound, Vanished) as error:
            raise self._overtaken() from error
        self._put(desk, lambda _: Proposal(tree, None), note, "automatic", on=on)

    # -- deleting -----------------------------------------------------------------------------------------

    def delete(self, seq: int) -> bool:
        """Delete a checkpoint and say whether there was one. The newest manifest stays, as the next one's beginning."""

        def work(desk: Desk) -> bool:
            try:
                record, row = self._found(desk, seq)
            except NotFound:
                return False
            standing = desk.heads.standing_of(record)
            if standing is not None and standing.newest.head == seq:
                self._again(desk, record, row, self._note(record, row)._replace(role=AFTER), on=row)
            self._hide(desk, [seq])
            return True

        return self._engine.atomic(work)


def manifests_of(engine: Engine, checkpoint: Any) -> tuple[str, int] | None:
    """Return the agent that a checkpoint, given as itself or by its id, is one of, and its seq; None if it is none."""
    text = checkpoint.id if isinstance(checkpoint, AgentCheckpoint) else checkpoint
    parsed = log.parse_id(check_id(text, "a checkpoint's id"))
    record = None if parsed is None else engine.desk.heads.backend.thread_with_uid(parsed[0])
    return None if parsed is None or record is None or record.space != pins.SPACE else (record.name, parsed[1])


def _path(space: str, name: str) -> Path:
    """Return where a manifest has its pointer to a thread."""
    return Path((AGENT,) if space == AGENT else (CONVERSATIONS, pins.bucket_of(name), name))


def _pointer(tree: Tree | None, path: tuple[str, ...]) -> Pointer | None:
    """Return the pointer at a place of a manifest, None if there is none."""
    types = pins.PLAIN
    if tree is None:
        return None
    try:
        rep, _ = locate(tree, Path(path), types)
    except NotFound:
        return None
    found = Decoder(tree.nodes, types).value(rep)
    return None if found is None else Pointer(*found)
