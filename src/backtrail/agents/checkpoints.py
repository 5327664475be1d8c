"""The checkpoints of an agent: the thread of its manifests, and how to make, restore, undo and delete them.

`backtrail.engine.manifests` defines manifests. A new manifest is the newest one with changed pointers for the threads
that were touched since, so its cost depends on the number of touched threads. Each operation is one transaction, which
is retried if another writer was faster. It reads all threads of an agent together, so the number of statements does not
grow with the number of conversations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.port import ERASED, Batch, NewThread, Stale, Vanished
from backtrail.engine import log, manifests, rows
from backtrail.engine.bulk import BulkReader, pages
from backtrail.engine.manifests import AFTER, AGENT, BEFORE, CHECKPOINT, CONVERSATION, Manifest, ManifestInfo, Pointer
from backtrail.engine.tree import edits
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.writer import NOTHING, Expect
from backtrail.errors import Conflict, Corrupt, Invalid, NotFound
from backtrail.maintenance import readable
from backtrail.models import AgentCheckpoint
from backtrail.thread import Handle
from backtrail.validation import check_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from backtrail.backends.port import Row, ThreadRecord, ThreadTip
    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.bulk import Place
    from backtrail.engine.manifests import Names
    from backtrail.engine.reader import LogReader, Tip
    from backtrail.engine.tree.tree import Tree
    from backtrail.engine.writer import Propose
    from backtrail.transaction import Engine, Session

UNDOS: Final = 10
"""The number of restores of an agent that can be undone."""
_FEW: Final = 16
"""Up to this many pointers are looked up one by one; for more, the whole manifest is read at once."""


class AgentTip(NamedTuple):
    """The newest manifest of an agent, and the tips of the threads that were touched since."""

    manifests: Tip | None
    """The tip of the thread of manifests; None without a manifest."""
    info: ManifestInfo
    """The metadata of the newest manifest."""
    touched: list[ThreadTip]

    @property
    def tree(self) -> Tree | None:
        """The newest manifest as a tree, not yet decoded; None if there is none."""
        return self.manifests.chain.tree if self.manifests and self.manifests.chain else None

    @property
    def pointed(self) -> dict[Names, ThreadTip]:
        """The touched threads that a manifest points at: the agent's own thread and its conversations."""
        by_name = {(tip.record.space, tip.record.name): tip for tip in self.touched}
        return {names: tip for names, tip in by_name.items() if names[0] in (AGENT, CONVERSATION)}


class Manifests(Handle[Any]):
    """A handle of the thread of an agent's manifests."""

    _redacts = False  # their metadata is our own, except for names and descriptions, which `Agents` redacts

    def __init__(self, engine: Engine, agent_id: str) -> None:
        super().__init__(engine, manifests.SPACE, agent_id)

    # -- listing ------------------------------------------------------------------------------------

    def checkpoints(self) -> list[tuple[Checkpoint[Any], ManifestInfo]]:
        """Return the agent's checkpoints, oldest first, each with the metadata of its manifest.

        A damaged row is listed as a checkpoint, because its role is unknown.
        """
        tip = self._readable()
        if tip is None or tip.head is None:
            return []
        record = tip.record
        visible = self._engine.session.reader.backend.rows(record.no, [(1, tip.newest.seq)], visible=True)
        sound = {row.seq for row in visible if log.is_sound(row, record.uid)}
        infos = [manifests.info_of(row) if row.seq in sound else ManifestInfo(CHECKPOINT) for row in visible]
        rows_and_infos = [(row, info) for row, info in zip(visible, infos, strict=True) if info.role == CHECKPOINT]
        values = self._checkpoints(tip, [row for row, _ in rows_and_infos])
        return [(checkpoint, info) for checkpoint, (_, info) in zip(values, rows_and_infos, strict=True)]

    def checkpoint(self, seq: int) -> tuple[Checkpoint[Any], ManifestInfo]:
        """Return a checkpoint of the agent and the metadata of its manifest, by the seq of its row."""
        record, row = self._checkpoint_at(self._engine.session, seq)
        tip = self._require_readable()
        return self._checkpoints(tip, [row])[0], self._info(record, row)

    def pointer(self, seq: int, space: str, name: str) -> Pointer:
        """Return the pointer of a checkpoint to a thread; `NotFound` if it has none, or if the thread was erased."""
        session = self._engine.session
        record, row = self._checkpoint_at(session, seq)
        others = space == AGENT and name != self.id
        tree = None if others else session.reader.chain(record, row).tree
        pointer = manifests.pointer_to(tree, (space, name))
        if pointer is None:
            raise NotFound(f"this checkpoint of agent {self.id!r} has no {space} {name!r}", code="not_found.checkpoint")
        if not _places(session.reader, {(space, name): pointer}):
            raise NotFound(f"{space} {name!r} of this checkpoint was erased", code="not_found.erased")
        return pointer

    def _info(self, record: ThreadRecord, row: Row) -> ManifestInfo:
        self._engine.session.reader.require_sound(record, row)
        return manifests.info_of(row)

    def _checkpoint_at(self, session: Session, seq: int) -> Place:
        """Return the thread record and the row of a checkpoint, by the row's seq; `NotFound` if there is none."""
        record = session.reader.backend.find_thread(manifests.SPACE, self.id)
        visible = [] if record is None else session.reader.backend.rows(record.no, [(seq, seq)], visible=True)
        if record is None or not visible or self._info(record, visible[0]).role != CHECKPOINT:
            raise NotFound(f"agent {self.id!r} has no such checkpoint", code="not_found.checkpoint")
        return record, visible[0]

    # -- making one -----------------------------------------------------------------------------------

    def make(
        self, name: str, description: str | None, kind: str, keep: int | None
    ) -> tuple[Checkpoint[Any], ManifestInfo]:
        """Make a checkpoint: write a manifest of the heads of the agent's threads.

        With `keep`, hide all but the newest `keep` automatic checkpoints.
        """

        def work(session: Session) -> tuple[Checkpoint[Any], ManifestInfo]:
            tip = self._agent_tip(session)
            own = tip.pointed.get((AGENT, self.id))
            pointer = manifests.pointer_to(tip.tree, (AGENT, self.id))
            if own.head is None if own else pointer is None:
                text = f"there is no agent {self.id!r}: check the id, or save the agent's state first"
                raise NotFound(text, code="not_found.agent")
            checkpoint = self._record(session, tip, ManifestInfo(CHECKPOINT, name, description), kind)
            if keep is not None:
                self._retire(session, keep)
            return checkpoint

        return self._engine.atomic(work)

    def begin(self, session: Session) -> None:
        """Write an empty first manifest."""
        replace = edits.Replace(Manifest(None, {}).state(), session.reader.nodes(), self._types)
        self._put(session, replace, ManifestInfo(AFTER), "automatic", on=None)

    def _agent_tip(self, session: Session) -> AgentTip:
        """Read the newest manifest first, then the tips of touched threads: no tip is older than the manifest."""
        tip = session.reader.tip(manifests.SPACE, self.id)
        head = tip.head if tip else None
        info = ManifestInfo("") if tip is None or head is None else self._info(tip.record, head)
        tips = session.reader.backend.tips(self.id, touched=head is not None)
        touched = [each for each in tips if each.newest.check != ERASED]  # in a copy from before the erasure
        for each in touched:
            for row in (each.newest, each.head):
                if row is not None:
                    session.reader.require_sound(each.record, row)
        return AgentTip(None if tip is None or head is None else self._with_chain(session, tip), info, touched)

    def _with_chain(self, session: Session, tip: Tip) -> Tip:
        """Return the tip with the newest manifest. If this process wrote that manifest, it is in the cache."""
        known = self._engine.known_tip(self._shared)
        if known is not None and known.newest.op_id == tip.newest.op_id:
            return tip._replace(chain=known.chain)
        return session.reader.with_chain(tip)

    def _record(
        self, session: Session, tip: AgentTip, info: ManifestInfo, kind: str
    ) -> tuple[Checkpoint[Any], ManifestInfo]:
        """Write a manifest of the current heads, pin the rows that it points at, and clear the touched marks."""
        propose, size, count = self._change(session, tip)
        info = info._replace(size=size, conversations=count, undo=tip.info.undo)
        newest = tip.manifests.head if tip.manifests else None
        checkpoint = self._put(session, propose, info, kind, on=newest, known=tip.manifests)
        holder = bytes.fromhex(checkpoint.id[-2 * log.UID_BYTES :])
        heads = [(each.record.no, each.head.seq) for each in tip.pointed.values() if each.head is not None]
        if tip.info.role == AFTER and newest and newest.seq not in {after for _, after in tip.info.undo}:
            self._hide(session, [newest.seq])
        batch = Batch(
            visible=tuple(heads),
            pin=tuple((no, seq, holder) for no, seq in heads),
            untouch=tuple((each.record.no, each.newest.seq) for each in tip.touched),
        )
        try:
            session.reader.backend.commit(batch)
        except Vanished as error:
            raise Conflict(
                f"another process wrote to a thread of agent {self.id!r}; try again",
                code="conflict.transaction",
            ) from error
        return checkpoint, info

    def _put(
        self,
        session: Session,
        propose: Propose,
        info: ManifestInfo,
        kind: str,
        *,
        on: Row | None,
        known: Tip | None = None,
    ) -> Checkpoint[Any]:
        """Write a manifest on top of the manifest `on`; `Conflict` if that is no longer the newest."""
        # the proposal is a change of the manifest `on`: on top of another manifest it would be wrong
        expect = Expect(on.seq, on.op_id) if on else Expect(NOTHING)
        try:
            meta = self._meta(None, (), info.metadata(), kind)
            tip = session.writer.save(self._key, propose, meta, expect=expect, known=known)
        except (Conflict, NotFound) as error:
            raise self._overtaken() from error
        if session.overlay is not None and tip.record.no > 0:
            session.overlay.after_commit.append(lambda: self._learn(tip))
        if tip.head is None:
            raise Corrupt(
                f"the newest manifest of agent {self.id!r} is lost: verify(repair=True) makes a new one",
                code="corrupt.row",
            )
        return self._make(tip, tip.head, (), written=True)

    def _overtaken(self) -> Conflict:
        return Conflict(
            f"another process wrote checkpoints of agent {self.id!r}; try again",
            code="conflict.transaction",
        )

    def _learn(self, tip: Tip) -> None:
        """Keep the tip in the cache of this process, for the next manifest."""
        self._engine.keep_tip(self._shared, tip)

    def _change(self, session: Session, tip: AgentTip) -> tuple[Propose, int, int]:
        """Return the change from the newest manifest to one of the current heads.

        Also return the size in bytes of all states that the new manifest points at, and the number of conversations.
        """
        tree, pointed = tip.tree, tip.pointed
        if tree is None or len(pointed) > edits.OPS_MAX:
            manifest = self._present(session, tip)
            replace = edits.Replace(manifest.state(), session.reader.nodes(), self._types)
            return replace, manifest.size, len(manifest.conversations)
        if len(pointed) > _FEW:
            manifests.load_nodes(tree)
        changes: list[edits.Put | edits.Cut] = []
        size, count = tip.info.size, tip.info.conversations
        for names, each in pointed.items():
            old = manifests.pointer_to(tree, names)
            new = None if each.head is None else Pointer.to(each.head)
            if new == old:
                continue
            path = manifests.path_to(names)
            size += (new.size if new else 0) - (old.size if old else 0)
            if names[0] == CONVERSATION:
                count += (new is not None) - (old is not None)
            if new is None and names[0] == CONVERSATION:
                changes.append(edits.Cut(path, self._types, self.id))
            else:
                changes.append(edits.Assign(path, None if new is None else list(new), self._types, self.id))
        return edits.Several(changes), size, count

    def _present(self, session: Session, tip: AgentTip) -> Manifest:
        """Return the complete manifest of the current heads."""
        agent: Pointer | None = None
        conversations: dict[str, Pointer] = {}
        if tip.manifests is not None and tip.manifests.head is not None:
            agent, conversations = manifests.manifest_of(session.reader, tip.manifests.record, tip.manifests.head)
        for (space, name), each in tip.pointed.items():
            new = None if each.head is None else Pointer.to(each.head)
            if space == AGENT:
                agent = new
            elif new is None:
                conversations.pop(name, None)
            else:
                conversations[name] = new
        return Manifest(agent, conversations)

    def _retire(self, session: Session, keep: int) -> None:
        """Hide all but the newest `keep` automatic checkpoints."""
        kind = log.KINDS[log.AUTOMATIC]
        automatic = [each.seq for each, _ in self.checkpoints() if each.kind == kind and not each.damaged]
        self._hide(session, automatic[: max(len(automatic) - keep, 0)])

    def _hide(self, session: Session, seqs: list[int]) -> None:
        record = session.reader.backend.find_thread(manifests.SPACE, self.id) if seqs else None
        if record is not None:
            session.reader.backend.commit(Batch(hide=tuple((record.no, seq) for seq in seqs)))

    # -- going back -------------------------------------------------------------------------------------

    def restore(self, seq: int, check: Callable[[Any], object]) -> tuple[str, ...]:
        """Restore the agent and its conversations from a checkpoint; return the names of erased conversations.

        First read and verify all states that the checkpoint points at, and pass the agent's state to `check`, which
        may raise an error. Erased conversations are skipped.
        """

        def work(session: Session) -> tuple[str, ...]:
            record, row = self._checkpoint_at(session, seq)
            try:
                whole = manifests.manifest_of(session.reader, record, row)
                target, heads = self._verify(session, whole, check)
            except (Corrupt, NotFound):
                self._checkpoint_at(session, seq)  # NotFound, not Corrupt, if the checkpoint was deleted meanwhile
                raise
            tip = self._agent_tip(session)
            before, _ = self._record(session, tip, ManifestInfo(BEFORE), "automatic")
            self._move_heads(session, self._present(session, tip), heads)
            undo = (*tip.info.undo, (before.seq, before.seq + 1))
            on = session.reader.sound_row(record, before.seq)
            self._record_after(session, record, row, target, undo=undo[-UNDOS:], on=on, is_whole=target is whole)
            self._hide(session, [each for pair in undo[:-UNDOS] for each in pair])
            return tuple(sorted(whole.conversations.keys() - target.conversations.keys()))

        return self._engine.atomic(work)

    def undo(self, check: Callable[[Any], object], *, force: bool) -> None:
        """Undo the last restore that is not yet undone. `check` gets the agent's state, as for a restore."""

        def work(session: Session) -> None:
            tip = self._agent_tip(session)
            if tip.manifests is None or not tip.info.undo:
                raise Invalid(f"agent {self.id!r} has no restore to undo", code="invalid.undo")
            try:
                self._undo(session, tip, check, force=force)
            except (Corrupt, NotFound) as error:
                newest = session.reader.backend.newest(tip.manifests.record.no)
                if newest is None or newest.op_id != tip.manifests.newest.op_id:
                    raise self._overtaken() from error
                raise

        self._engine.atomic(work)

    def _undo(self, session: Session, tip: AgentTip, check: Callable[[Any], object], *, force: bool) -> None:
        """Move the heads back to the manifest that the last restore wrote before it began, and hide its rows."""
        if tip.manifests is None or tip.manifests.head is None:
            return
        record, newest, undo = tip.manifests.record, tip.manifests.head, tip.info.undo
        (row, whole), (_, after) = (self._manifest_at(session, record, seq) for seq in undo[-1])
        present = self._present(session, tip)
        if not force:
            self._refuse_moved(session, present, after)
        target, heads = self._verify(session, whole, check)
        self._move_heads(session, present, heads)
        self._record_after(session, record, row, target, undo=undo[:-1], on=newest, is_whole=target is whole)
        over = {*undo[-1], *([newest.seq] if tip.info.role == AFTER else [])}
        self._hide(session, sorted(over - {after for _, after in undo[:-1]}))

    def forget_undos(self) -> int:
        """Make all restores of the agent permanent; return how many could be undone before."""

        def work(session: Session) -> int:
            tip = session.reader.tip(manifests.SPACE, self.id)
            head = tip.head if tip else None
            if tip is None or head is None or not (info := self._info(tip.record, head)).undo:
                return 0
            self._record_again(session, tip.record, head, info._replace(role=AFTER, undo=()), on=head)
            over = {seq for pair in info.undo for seq in pair} | ({head.seq} if info.role == AFTER else set())
            self._hide(session, sorted(over))
            return len(info.undo)

        return self._engine.atomic(work)

    def _manifest_at(self, session: Session, record: ThreadRecord, seq: int) -> tuple[Row, Manifest]:
        row = session.reader.sound_row(record, seq)
        if row is None:
            raise session.reader.damaged(record, seq, "its row is missing")
        return row, manifests.manifest_of(session.reader, record, row)

    def _refuse_moved(self, session: Session, present: Manifest, after: Manifest) -> None:
        """Raise `Conflict` with the threads that changed since a restore; `after` is the manifest after it.

        A thread that was erased since, and not started again, has not changed: nothing of it could be overwritten.
        """
        now, then = present.pointers(self.id), after.pointers(self.id)
        moved = sorted(names for names in now.keys() | then.keys() if now.get(names) != then.get(names))
        left = {names: then[names].seq for names in moved if names not in now}
        if left:
            records = BulkReader(session.reader).records(left)
            places = {names: (records[names], seq) for names, seq in left.items() if names in records}
            erased = manifests.erased_among(session.reader, places)
            moved = [names for names in moved if names not in erased]
        if moved:
            conversations = [name for space, name in moved if space == CONVERSATION]
            parts = [f"conversation {name!r}" for name in conversations[:5]]
            parts += [f"{len(conversations) - 5} more"] if len(conversations) > len(parts) else []
            parts += ["the agent's state"] if (AGENT, self.id) in moved else []
            raise Conflict(
                f"these have changed since the restore of agent {self.id!r}: {', '.join(parts)}; "
                "force=True undoes the changes, too",
                code="conflict.moved",
                conversations=conversations,
            )

    def _verify(
        self, session: Session, whole: Manifest, check: Callable[[Any], object]
    ) -> tuple[Manifest, dict[Names, Place]]:
        """Read all states that a manifest points at, and compare them with their hashes; pass the agent's to `check`.

        Return the manifest without pointers to erased threads, the same object if there are none. Also return the row
        of each thread with its thread record. Raise `Corrupt` with the name of a damaged thread.
        """
        reader = session.reader.uncached()  # cached chunks would hide damage on the disk
        pointers, own = whole.pointers(self.id), (AGENT, self.id)
        try:
            places = _places(reader, pointers)
            tree = _read_states(reader, list(places.values()), places.get(own))
        except (Corrupt, NotFound):  # verify one by one, so that the error names the damaged thread
            reader = session.reader.uncached()
            results = {names: self._verify_one(reader, names, pointer) for names, pointer in pointers.items()}
            verified = {names: result for names, result in results.items() if result is not None}
            places = {names: place for names, (place, _) in verified.items()}
            tree = verified[own][1] if own in verified else None
        if tree is not None:
            check(Decoder(tree.nodes, self._types).value(tree.rep))
        return manifests.without(whole, self.id, pointers.keys() - places.keys()), places

    def _verify_one(self, reader: LogReader, names: Names, pointer: Pointer) -> tuple[Place, Tree] | None:
        """Read one state of a manifest; `Corrupt` with the name of its thread if it is damaged or missing.

        Return None if its thread was erased.
        """
        space, name = names
        try:
            place = _places(reader, {names: pointer}).get(names)
            if place is None:
                return None
            tree = reader.chain(*place).tree
            readable.read_below(reader, tree, ())
        except (Corrupt, NotFound) as error:
            raise Corrupt(
                f"this checkpoint of agent {self.id!r} cannot be restored, and nothing was changed: "
                f"{space} {name!r}: {error}",
                code=error.code if isinstance(error, Corrupt) else "corrupt.row",
                **{space: name},
            ) from error
        return place, tree

    def _move_heads(self, session: Session, present: Manifest, heads: dict[Names, Place]) -> None:
        """Make `heads` the heads of their threads, and take the other threads of `present` out of view, in one batch.

        Raise `Conflict` if a thread has moved since `present` was read.
        """
        now = {names: pointer.seq for names, pointer in present.pointers(self.id).items()}
        moved = {names: row for names, (_, row) in heads.items() if now.get(names) != row.seq}
        left = _without_erased(session.reader, now.keys() - heads.keys())
        bulk = BulkReader(session.reader)
        tips = bulk.tips(bulk.records([*moved, *left]))
        for names in (*moved, *left):
            if names not in tips or tips[names].newest.head != now.get(names, 0):
                raise Conflict(
                    f"another process wrote to thread {names[1]!r}; try again",
                    code="conflict.transaction",
                )
        batch = _moves(session.reader, [(tips[names], row) for names, row in moved.items()])
        clock = session.reader.clock
        leaves = [rows.move(tips[names], log.LEAVE, None, (), undo=0, redo=0, at=clock()) for names in sorted(left)]
        records = [tips[names].record for names in sorted(left)]
        away = [(each.no, log.checked(row, each.uid)) for each, row in zip(records, leaves, strict=True)]
        try:
            session.reader.backend.commit(batch._replace(rows=(*batch.rows, *away)))
        except (Stale, Vanished) as error:
            raise Conflict(
                f"another process wrote to a thread of agent {self.id!r}; try again",
                code="conflict.transaction",
            ) from error

    def _record_after(
        self,
        session: Session,
        record: ThreadRecord,
        row: Row,
        target: Manifest,
        *,
        undo: tuple[tuple[int, int], ...],
        on: Row | None,
        is_whole: bool,
    ) -> None:
        """Write the manifest of an older row as the newest one, with the role AFTER: the next manifest builds on it.

        `target` is that manifest, without its pointers to erased threads unless it `is_whole`.
        """
        info = ManifestInfo(AFTER, size=target.size, conversations=len(target.conversations), undo=undo)
        if is_whole:
            self._record_again(session, record, row, info, on=on)
        else:
            replace = edits.Replace(target.state(), session.reader.nodes(), self._types)
            self._put(session, replace, info, "automatic", on=on)

    def _record_again(
        self, session: Session, record: ThreadRecord, row: Row, info: ManifestInfo, *, on: Row | None
    ) -> None:
        """Write the manifest of an older row as the newest one, with new metadata."""
        try:
            tree = session.reader.chain(record, row).tree
            session.reader.backend.commit(Batch(visible=((record.no, row.seq),)))  # fails if the row is hidden now
        except (NotFound, Vanished) as error:
            raise self._overtaken() from error
        self._put(session, lambda _: (tree, None), info, "automatic", on=on)

    # -- deleting -----------------------------------------------------------------------------------------

    def delete(self, seq: int) -> bool:
        """Delete a checkpoint and tell whether it existed.

        If it is the newest manifest, its manifest is written again first, because the next one builds on it.
        """

        def work(session: Session) -> bool:
            try:
                record, row = self._checkpoint_at(session, seq)
            except NotFound:
                return False
            tip = session.reader.tip_of(record)
            if tip is not None and tip.newest.head == seq:
                self._record_again(session, record, row, self._info(record, row)._replace(role=AFTER), on=row)
            self._hide(session, [seq])
            return True

        return self._engine.atomic(work)


def manifests_of(engine: Engine, checkpoint: Any) -> tuple[str, int] | None:
    """Return the agent's id and the row's seq of an agent checkpoint, given as a value or an id.

    None if the id does not belong to an agent checkpoint.
    """
    text = checkpoint.id if isinstance(checkpoint, AgentCheckpoint) else checkpoint
    parsed = log.parse_id(check_id(text, "a checkpoint's id"))
    record = None if parsed is None else engine.session.reader.backend.thread_with_uid(parsed[0])
    return None if parsed is None or record is None or record.space != manifests.SPACE else (record.name, parsed[1])


def _places(reader: LogReader, pointers: dict[Names, Pointer]) -> dict[Names, Place]:
    """Return the rows that the pointers name, with their thread records; `Corrupt` if a row is missing.

    Erased threads are left out. Their rows are missing, or still hidden, so only such threads are checked.
    """
    records = BulkReader(reader).records(pointers)
    seqs = [(record.no, pointers[names].seq) for names, record in records.items()]
    stored = reader.backend.rows_of([(no, seq, seq) for no, seq in seqs])
    shown = {place for place, row in stored.items() if not row.hidden}
    hidden = {
        names: (record, pointers[names].seq)
        for names, record in records.items()
        if (record.no, pointers[names].seq) not in shown
    }
    erased = manifests.erased_among(reader, hidden)
    numbers = {record.no: names for names, record in records.items()}
    erased |= {numbers[no] for (no, _), row in stored.items() if row.check == ERASED}  # in a copy from before
    places: dict[Names, Place] = {}
    for names, pointer in pointers.items():
        if names in erased:
            continue
        row = stored.get((records[names].no, pointer.seq)) if names in records else None
        if row is None or row.root != pointer.root:
            raise Corrupt("an agent's checkpoint points at a checkpoint that is missing", code="corrupt.row")
        places[names] = records[names], row
    return places


def _without_erased(reader: LogReader, names: AbstractSet[Names]) -> AbstractSet[Names]:
    """Return the names without threads whose keys were destroyed: a restore can neither read nor move them."""
    if not names:
        return names
    records = BulkReader(reader).records(names)
    newest = reader.backend.newest_of([record.no for record in records.values()])
    gone = {no for no, row in newest.items() if row.check == ERASED}
    return {each for each in names if each not in records or records[each].no not in gone}


def _read_states(reader: LogReader, places: list[Place], target: Place | None) -> Tree | None:
    """Read the states of all rows with all their chunks; return the state of the row `target`, or None."""
    good: set[bytes] = set()
    state: Tree | None = None
    for page in pages(places):
        trees = BulkReader(reader).trees(page)
        good |= readable.read_below_all(reader, trees, good)
        state = next((tree for place, tree in zip(page, trees, strict=True) if place is target), state)
    return state


def _moves(reader: LogReader, targets: list[tuple[Tip, Row]]) -> Batch:
    """Return a batch that makes rows the heads of their threads, also in deleted threads."""
    bulk = BulkReader(reader)
    records = [tip.record for tip, _ in targets]
    paths = bulk.paths([(tip.record, row) for tip, row in targets])
    headed = [(tip.record, tip.head) for tip, _ in targets if tip.head is not None]
    begun = {record.no: path[0][0] for (record, _), path in zip(headed, bulk.paths(headed), strict=True)}
    moves: list[tuple[int, Row]] = []
    for (tip, row), path in zip(targets, paths, strict=True):
        undo = tip.newest.seq if tip.head is not None else 0
        move = rows.move(tip, log.REWIND, row, path, undo=undo, redo=0, at=reader.clock())
        moves.append((tip.record.no, log.checked(move, tip.record.uid)))
    # a thread that was deleted and started again since the checkpoint gets its former record back
    roots = {record.no: path[0][0] for record, path in zip(records, paths, strict=True)}
    other = [record for record in records if begun.get(record.no) != roots[record.no]]
    _refuse_erased(reader, [(tip, row) for tip, row in targets if begun.get(tip.record.no) != roots[tip.record.no]])
    firsts = reader.backend.rows_of([(record.no, roots[record.no], roots[record.no]) for record in other])
    renewed = [(record, _before(reader, record, firsts.get((record.no, roots[record.no])))) for record in other]
    return Batch(
        rows=tuple(moves),
        show=tuple((tip.record.no, row.seq) for tip, row in targets),
        renew=tuple((record.no, new) for record, new in renewed if new != NewThread(*record[1:])),
    )


def _refuse_erased(reader: LogReader, targets: list[tuple[Tip, Row]]) -> None:
    """Raise `Conflict` if another process erased a thread after the restore had looked at it: the restore is retried.

    An erased thread has another root now, or none, so only threads with another root are checked.
    """
    places = {(tip.record.space, tip.record.name): (tip.record, row.seq) for tip, row in targets}
    if manifests.erased_among(reader, places):
        raise Conflict("another process erased a thread of the agent; try again", code="conflict.transaction")


def _before(reader: LogReader, record: ThreadRecord, root: Row | None) -> NewThread:
    """Return the thread's record with the creation data of `root`, the first row of the restored log.

    Without the root, return the present record.
    """
    if root is None:
        return NewThread(*record[1:])
    reader.require_sound(record, root)
    return NewThread(*record[1:5], root.created_at, log.unpack_extra(root)[2])
