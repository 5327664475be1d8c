"""Repairing: what cannot be read is given up, and the rest is made to stand without it.

Of a thread: rows that are not as they were written go; those of them that say what is in view are made anew from the
checkpoints behind them; checkpoints that cannot be read are hidden; and if the head is one of them, a row is appended
that makes the checkpoint the head which was that last, and can be read. A run whose checkpoints these are stays where
its journal says. Of an agent: its checkpoints let go of what is lost. Damaged chunks are removed, so that whoever saves
the same content puts them again.

What is sound is not written to. What was found may be long ago, and others may have put again what was missing: each
thread, and each chunk, is looked at again just before something is done about it, and only what is still wrong is given
up. Each step is one write, made on the condition that nobody else wrote meanwhile, and a repair that was interrupted is
gone on with by another one.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from backtrail.backends.port import Batch, NewThread, Stale, Vanished
from backtrail.engine import journal, log, payload, pins, rows
from backtrail.engine.compression import squeeze
from backtrail.engine.reader import Standing
from backtrail.engine.search import indexer
from backtrail.engine.tree import edits
from backtrail.engine.tree.codec import Encoder
from backtrail.engine.writer import Expect, Key, Proposal, Writes
from backtrail.errors import Conflict, Corrupt, NotFound, Unavailable
from backtrail.maintenance import agent_pointers, gc, journal_remnants, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.pins import Manifest, Note
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.tree import Tree
    from backtrail.maintenance.agent_pointers import Held
    from backtrail.maintenance.verify import Ailing, Findings

    Progress = Callable[[str, int], None] | None

_TRIES: Final = 20
_PAGE: Final = 500
_AUTOMATIC: Final = log.AUTOMATIC
_RECORDED_ANEW: Final = "agent {!r}: how its threads stand is recorded anew, and restores of it can no longer be undone"


def steps(findings: Findings, *, reindex: bool = False) -> Iterator[str]:
    """Say what a repair of this does, or would do; `reindex` if the index is to be made anew whatever is found."""
    if findings.chunks:
        one = len(findings.chunks) == 1
        what = "1 damaged chunk is" if one else f"{len(findings.chunks)} damaged chunks are"
        yield f"{what} removed: whoever saves what {'it' if one else 'they'} held puts {'it' if one else 'them'} again"
    for ailing in findings.ailing:
        yield from _steps_of(ailing)
    for held in findings.held:
        yield from _steps_for(held)
    if findings.misindexed or reindex:
        yield "the index of search is made anew"


def _steps_of(ailing: Ailing) -> Iterator[str]:
    record = ailing.record
    what = f"{record.space} {record.name!r}"
    if ailing.lost:
        lost = "1 checkpoint or move is" if len(ailing.lost) == 1 else f"{len(ailing.lost)} checkpoints or moves are"
        stay = "1 checkpoint stays" if ailing.loads == 1 else f"{ailing.loads} checkpoints stay"
        yield f"{what}: {lost} given up, {stay}"
    for view in ailing.views:
        yield f"{what}: row {view}, which says what is in view, is made anew"
    for seq in ailing.cut:
        yield f"{what}: its history begins at {log.checkpoint_id(record.uid, seq)}: what was before it is not known"
    if ailing.born is not None:
        yield f"{what}: it counts as made when the first row was written that is left of it"
    if ailing.head_hidden:
        yield f"{what}: its head, {log.checkpoint_id(record.uid, ailing.head)}, is shown again"
    if ailing.head_lost:
        head = log.checkpoint_id(record.uid, ailing.head) if ailing.head else None
        yield f"{what}: {f'its head is {head} again' if head else 'it has no head any more'}"
        if record.space == journal.SPACE:
            since = "then" if ailing.head else "its newest checkpoint, from which it goes on,"
            yield f"run {record.name!r}: calls made since {since} may be made again: look at it before it goes on"
        if record.space == pins.SPACE:
            yield _RECORDED_ANEW.format(record.name)


def _steps_for(held: Held) -> Iterator[str]:
    agent = f"agent {held.record.name!r}"
    for seq, lost in held.lost.items():
        if seq in held.checkpoints:
            name = log.checkpoint_id(held.record.uid, seq)
            if (pins.AGENT, held.record.name) in lost:
                yield f"{agent}: its checkpoint {name} is given up, since the state of the agent in it is lost"
            else:
                told = ", ".join(sorted(repr(conversation) for _, conversation in lost))
                yield f"{agent}: its checkpoint {name} no longer holds {told}"
    if held.stale:
        yield _RECORDED_ANEW.format(held.record.name)
    if held.unpinned or held.untouched:
        pinned, touched = len(held.unpinned), len(held.untouched)
        yield f"{agent}: {pinned} pins are put again, {touched} threads are known to have changed"


def repair(heads: Heads, findings: Findings, progress: Progress = None, *, reindex: bool = False) -> None:
    """Give up what is still lost, and make the rest stand; `reindex` as for `steps`.

    Of a thread, more may be lost by now than was found: that is named in the findings then, as all that is given up.
    """
    heads = heads.anew()
    count = itertools.count(1)

    def told() -> None:
        done = next(count)
        if progress:
            progress("repairs", done)

    if findings.chunks:
        _remove(heads, findings.chunks)
        told()
    given_up: list[Ailing] = []
    more = False
    for found in findings.ailing:
        ailing = _Thread(heads, found.record).repair()
        if ailing is not None:
            more = more or not ailing.lost.keys() <= found.lost.keys()
            found.lost = ailing.lost | found.lost
            given_up.append(ailing)
        told()
    lost = {(each.record.space, each.record.name): each.lost for each in given_up}
    behind = {each.record.no for each in given_up if each.head_lost}
    held = agent_pointers.check(heads, lost) if more else findings.held
    ailing_or_held = [each.record for each in given_up] + [each.record for each in held]
    for record in {record.no: record for record in ailing_or_held}.values():
        if record.space == pins.SPACE:
            _Agent(heads, record, lost).repair(stand_anew=record.no in behind)
            told()
    _let_go(heads, given_up)
    if findings.misindexed or reindex:
        heads.backend.forget_index()
        indexer.catch_up(heads, progress=progress)


def _remove(heads: Heads, found: Sequence[bytes]) -> None:
    """Remove those of these chunks that are still damaged, until each is gone or sound.

    A new epoch is begun before they are looked at, and what was put or touched in it stays: so a chunk that was removed
    and put again since the look is not taken. One that is still damaged and was touched since, by a writer who relies
    on it, is met by the next look, under the next epoch. What that writer saved then misses a chunk, where it had a
    damaged one: who reads it, and the next `verify`, is told, and it is whole again once somebody saves the same.
    Whoever comes to commit after the removal finds the chunk missing, and puts it.
    """
    for start in range(0, len(found), _PAGE):
        page = found[start : start + _PAGE]
        for _ in range(_TRIES):
            epoch = heads.backend.next_epoch()
            page = verify.damaged_chunks(heads, page)
            if not page:
                break
            heads.backend.remove_chunks(page, epoch)
        else:
            raise Unavailable("damaged chunks are relied on without pause", code="unavailable.contended")


def _let_go(heads: Heads, ailing: list[Ailing]) -> None:
    """Take the pins off what is lost: no checkpoint points there any more. Then a collection may take it."""
    for each in ailing:
        tags = heads.backend.tags(each.record.no, each.lost)
        untag = tuple((each.record.no, seq, pin) for seq, words in tags.items() for pin in pins.pins_in(words))
        if untag:
            heads.backend.commit(Batch(untag=untag))


class _Thread:
    """Repairs one thread."""

    def __init__(self, heads: Heads, record: ThreadRecord) -> None:
        self._heads = heads
        self._record = record

    def repair(self) -> Ailing | None:
        """Look at it, and do what is to be done, which is returned; if somebody writes meanwhile, once more."""
        for _ in range(_TRIES):
            self._heads = self._heads.anew()
            ailing, _ = verify.look_at(self._heads, self._record, set())
            if ailing is None:
                return None
            try:
                self._once(ailing)
            except (Stale, Vanished):
                continue
            if self._record.space == journal.SPACE and ailing.head_lost:
                with suppress(Conflict):  # somebody has taken the run meanwhile
                    journal_remnants.let_go(self._heads, self._record)
            return ailing
        raise Unavailable(f"thread {self._record.name!r} is written to without pause", code="unavailable.contended")

    def _once(self, ailing: Ailing) -> None:
        no = self._record.no
        gone = sorted(ailing.unsound - ailing.views.keys())
        if gone:  # first: they are out of view for whoever stands behind a row that is made anew
            self._free(set(gone))
        for view, first in sorted(ailing.views.items()):  # what is in view at one may be told by the one before
            self._heads.backend.rewrite(no, [self._view(view, first)])
        firsts = [self._first(seq) for seq, view in ailing.cut.items() if view not in ailing.views]
        if firsts:
            self._heads.backend.rewrite(no, firsts)
        hide = [seq for seq in ailing.lost if seq not in ailing.views]
        move = self._move(ailing) if ailing.head_lost else None
        batch = Batch(
            newest=((no, ailing.newest.seq),),
            rows=() if move is None else ((no, move),),
            gaps=bool(ailing.last),
            renew=() if ailing.born is None else (_again(self._record._replace(created_at=ailing.born)),),
            visible=((no, ailing.head),) if move is not None and ailing.head and not ailing.head_hidden else (),
            show=((no, ailing.head),) if ailing.head_hidden else (),
            hide=tuple((no, seq) for seq in hide),
        )
        self._heads.backend.commit(batch)
        if gone:
            self._heads.backend.remove_rows(no, gone)

    def _free(self, gone: set[int]) -> None:
        """Let checkpoints stand on their own that were stored as changes of rows that go, and can be read even so."""
        for row in self._heads.backend.rows(self._record.no, [(min(gone), log.MAX_SEQ)]):
            if row.op in log.CHECKPOINTS and row.parent in gone and row.base != row.seq and row.seq not in gone:
                gc.on_its_own(self._heads, self._record, row)

    def _move(self, ailing: Ailing) -> Row:
        """Make the row that moves the head to where it can be read; to nowhere, if there is no such place.

        As when a head is deleted: a rewind would be somebody who wants the run of these checkpoints to go back.
        """
        head = self._heads.sound_row(self._record, ailing.head) if ailing.head else None
        if ailing.head and head is None:
            raise Stale
        ranges = self._heads.path(self._record, head) if head else ()
        last = max(ailing.last, ailing.newest.seq)  # no seq is given twice
        standing = Standing(self._record, ailing.newest._replace(seq=last), head)
        undo = ailing.newest.seq if head else 0
        made = rows.move(standing, log.DROP, head, ranges, undo=undo, redo=0, at=self._heads.clock())
        return log.checked(made, self._record.uid)

    def _view(self, seq: int, first: int) -> Row:
        """Make a row anew that says what is in view: what the first checkpoint behind it was made on."""
        there, behind = self._heads.row(self._record, seq), self._heads.sound_row(self._record, first)
        if there is None or behind is None:
            raise Stale
        parent = self._heads.row(self._record, behind.parent) if behind.parent else None
        known = parent is not None and parent.seq < seq and log.is_sound(parent, self._record.uid)
        head = parent if known else None
        ranges = self._heads.path(self._record, head) if head else ()
        before = Standing(self._record, there._replace(seq=seq - 1), head)
        op = log.REWIND if head else log.LEAVE
        made = rows.move(before, op, head, ranges, undo=seq - 1 if head else 0, redo=0, at=behind.created_at)
        return log.checked(made._replace(op_id=there.op_id), self._record.uid)

    def _first(self, seq: int) -> Row:
        """Make a checkpoint the first one that is known of."""
        row = self._heads.sound_row(self._record, seq)
        if row is None:
            raise Stale
        return log.checked(row._replace(parent=0), self._record.uid)


class _Agent:
    """Repairs the checkpoints of an agent."""

    def __init__(self, heads: Heads, record: ThreadRecord, lost: dict[tuple[str, str], dict[int, str]]) -> None:
        self._heads = heads
        self._backend = heads.backend
        self._record = record
        self._lost = lost

    def repair(self, *, stand_anew: bool) -> None:
        """Do it; `stand_anew` if its newest manifest was lost."""
        for _ in range(_TRIES):
            held = agent_pointers.look_at(self._heads, self._record, self._lost)
            if held is None and not stand_anew:
                return
            try:
                if held is not None:
                    self._hold(held)
                if stand_anew or (held is not None and held.stale):
                    self._stand(held)
                if held is not None:
                    self._let_go(held)
            except (Stale, Vanished, Conflict):
                continue
            stand_anew = False
        raise Unavailable(f"agent {self._record.name!r} is written to without pause", code="unavailable.contended")

    def _hold(self, held: Held) -> None:
        """Pin what has no pin, and note which threads have changed: all, if it is not known which."""
        pin = pins.pin_of(self._record.uid)
        tag = tuple((no, seq, pin) for no, seq in held.unpinned)
        if tag or held.untouched:
            self._backend.commit(Batch(tag=tag, renew=tuple(map(_again, held.untouched))))

    def _stand(self, held: Held | None) -> None:
        """Record anew how the threads of the agent stand, as what the next manifest is made from."""
        standing = self._heads.standing_of(self._record)
        stands = self._backend.standings(self._record.name, touched=False)
        self._backend.commit(Batch(renew=tuple(_again(stand.record) for stand in stands)))
        if standing is None or standing.head is None:
            return  # there is none that could be read: the next one is made from all threads
        manifest = pins.manifest_of(self._heads, self._record, standing.head)
        manifest = _without(manifest, self._record.name, held.lost.get(standing.head.seq, {}) if held else {})
        tree = edits.Replace(manifest.state(), self._heads.nodes(), pins.PLAIN)(None).tree
        note = pins.Note(pins.AFTER, size=manifest.size, held=len(manifest.conversations))
        meta = rows.Meta(_AUTOMATIC, metadata=self._packed(note))
        expect = Expect(standing.head.seq, standing.head.op_id)
        after = Writes(self._heads).save(
            Key(pins.SPACE, self._record.name), lambda _: Proposal(tree, None), meta, expect=expect
        )
        shown = self._backend.rows(self._record.no, [(1, standing.newest.seq)], visible=True)
        over = [row.seq for row in shown if self._role(row) != pins.CHECKPOINT and row.seq != after.newest.seq]
        if over:
            self._backend.commit(Batch(hide=tuple((self._record.no, seq) for seq in over)))

    def _role(self, row: Row) -> str:
        try:
            return pins.note_of(row).role
        except Corrupt:
            return ""

    def _let_go(self, held: Held) -> None:
        """Let checkpoints go that hold no state of the agent any more, and others without what is lost."""
        own = (pins.AGENT, self._record.name)
        hide = [seq for seq in held.checkpoints if own in held.lost[seq]]
        if hide:
            self._backend.commit(Batch(hide=tuple((self._record.no, seq) for seq in hide)))
        fewer = {seq: held.lost[seq] for seq in held.checkpoints if own not in held.lost[seq]}
        if not fewer:
            return
        found = self._backend.rows(self._record.no, [(min(fewer), log.MAX_SEQ)], payload=True, visible=True)
        anew = [self._fewer(row, fewer[row.seq]) if row.seq in fewer else self._alone(row) for row in found]
        changed = [(row, chunks) for each in anew if each is not None for row, chunks in [each]]
        put = {digest: stored for _, chunks in changed for digest, stored in chunks}
        self._backend.rewrite(self._record.no, [row for row, _ in changed], list(put.items()))

    def _fewer(self, row: Row, lost: dict[tuple[str, str], str]) -> tuple[Row, list[tuple[bytes, bytes]]]:
        manifest = _without(pins.manifest_of(self._heads, self._record, row), self._record.name, lost)
        tree = edits.Replace(manifest.state(), self._heads.nodes(), pins.PLAIN)(None).tree
        note = pins.note_of(row)._replace(size=manifest.size, held=len(manifest.conversations))
        extra = log.pack_extra(self._packed(note), None, None)
        return self._based(row._replace(root=tree.root, size=tree.size, extra=extra), tree)

    def _alone(self, row: Row) -> tuple[Row, list[tuple[bytes, bytes]]] | None:
        """Make a manifest stand by itself that may be stored as a change of one that is made anew."""
        if row.base == row.seq or not log.is_sound(row, self._record.uid):
            return None
        try:
            return self._based(row, self._heads.chain(self._record, row).tree)
        except (Corrupt, NotFound):
            return None

    def _based(self, row: Row, tree: Tree) -> tuple[Row, list[tuple[bytes, bytes]]]:
        compress = self._heads.options.compression
        stored = payload.base(tree, frozenset(tree.nodes.fresh), compress=compress)
        chunks = [(digest, squeeze(node.kind + node.data, enabled=compress)) for digest, node in stored.chunks.items()]
        made = row._replace(base=row.seq, depth=0, payload=stored.payload)
        return log.checked(made, self._record.uid), chunks

    def _packed(self, note: Note) -> bytes:
        return bytes(Encoder(self._heads.nodes(), pins.PLAIN, what="metadata").rep(note.metadata()))


def _again(record: ThreadRecord) -> tuple[int, NewThread]:
    """Return what makes a thread known to have changed: that it is what it is."""
    return record.no, NewThread(*record[1:])


def _without(manifest: Manifest, agent: str, lost: dict[tuple[str, str], str]) -> Manifest:
    """Return a manifest without what is lost."""
    kept = {name: at for name, at in manifest.conversations.items() if (pins.CONVERSATION, name) not in lost}
    return manifest._replace(agent=None if (pins.AGENT, agent) in lost else manifest.agent, conversations=kept)
