"""Threads: the handles by which users save states and travel in time.

A handle names a thread and does no I/O until it is used. It may be shared by threads and tasks: what each of them
last read or wrote through it, and so what its next save is expected to stand on, is remembered for each apart.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from backtrail.arguments import (
    check_count,
    check_kind,
    check_metadata,
    check_several,
    check_tags,
    check_text,
    check_timeout,
)
from backtrail.checkpoints import Checkpoint
from backtrail.engine import asides, changes, diff, lineage, log, pins, retention, unpacking
from backtrail.engine.codec import Decoder
from backtrail.engine.editing import Editing, Editor
from backtrail.engine.paths import parse
from backtrail.engine.retention import Sorted
from backtrail.engine.trying import ANY, ANYTHING, Unchanged
from backtrail.engine.watching import OneThread, Watch
from backtrail.errors import CommitUnknown, Conflict, Corrupt, Invalid, NotFound, Unavailable
from backtrail.handles import Handle, Ref
from backtrail.loading import loading
from backtrail.values import MISSING, NEW, Change, Diff, Reordered, Sentinel

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Collection, Iterator, Mapping

    from backtrail.backends.port import Row
    from backtrail.engine.diff import Edit
    from backtrail.engine.engine import Desk
    from backtrail.engine.heads import Standing
    from backtrail.engine.moves import Tagged
    from backtrail.engine.retention import Rules
    from backtrail.engine.tree import Tree
    from backtrail.policies import Account, Policy
    from backtrail.reports import PruneReport

S = TypeVar("S")
_PAGE: Final = 200
_FEW: Final = 16


class Thread(Handle[S]):
    """An append-only log of checkpoints; docs/threads.md is the guide."""

    def __repr__(self) -> str:
        return f"<Thread {self.id!r}>"

    # -- saving -------------------------------------------------------------------------------------

    def save(
        self,
        state: S,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
        changed: Collection[Any] | None = None,
        onto: Ref | None = None,
    ) -> Checkpoint[S]:
        """Save a state as a new checkpoint, even if nothing changed.

        It goes on top of what this handle last read or wrote in the calling thread or task, else it is a `Conflict`; a
        first write goes on top of whatever is there. `expect` says so instead: a checkpoint, its id or label, or `NEW`.
        `changed` names the keys of the state, a dict, that may have other values than before: the others are not looked
        at. `onto` makes another checkpoint the head first, in the same write: what was the head is then out of view.
        """
        meta = self._meta(label, tags, metadata, kind)
        if self._types.convert_root(state, self._type) is not state:
            name = getattr(self._type, "__name__", str(self._type))
            raise Invalid(f"this thread holds {name}, not {type(state).__name__}", code="invalid.value", path="state")
        changed = None if changed is None else check_several(changed, "changed")
        if changed is not None and type(state) is not dict:
            name = type(state).__name__
            raise Invalid(f"changed= names keys of a state that is a dict, not {name}", code="invalid.argument")
        change = changes.Replace(state, self._engine.desk.heads.nodes(), self._types, changed)
        return self._write(change, meta, expect, default=self._expectation(), onto=onto)

    def append(
        self,
        path: str | tuple[Any, ...],
        *items: Any,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Append items to the list at a path (or strings to a str). Never conflicts, unless `expect` is given."""
        meta = self._meta(label, tags, metadata, kind)
        if not items:
            raise Invalid("append needs at least one item", code="invalid.argument")
        change = changes.Append(parse(path), items, self._types, self.id)
        return self._write(change, meta, expect, default=ANYTHING)

    def set(
        self,
        path: str | tuple[Any, ...],
        value: Any,
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Put a value at a path: a key of a dict, there or new, or an index of a list."""
        meta = self._meta(label, tags, metadata, kind)
        change = changes.Put(parse(path), value, self._types, self.id)
        return self._write(change, meta, expect, default=self._expectation())

    def delete_at(
        self,
        path: str | tuple[Any, ...],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
        expect: Checkpoint[Any] | str | Sentinel | None = None,
    ) -> Checkpoint[S]:
        """Take a key out of a dict, or an item out of a list."""
        meta = self._meta(label, tags, metadata, kind)
        change = changes.Cut(parse(path), self._types, self.id)
        return self._write(change, meta, expect, default=self._expectation())

    @contextmanager
    def step(
        self,
        label: str | None = None,
        *,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Iterator[S]:
        """Give the state to be changed in place, and save what changed when the block ends.

        An exception drops all of it. The block gets plain data of its own: changing it after the block has no effect.
        """
        meta = self._meta(label, tags, metadata, kind)
        state, head = self._head_to_change()
        yield state
        change = changes.Replace(state, self._engine.desk.heads.nodes(), self._types)
        self._write(change, meta, None, default=head)

    def edit(
        self,
        fn: Callable[[Editor], object],
        *,
        label: str | None = None,
        tags: tuple[str, ...] | list[str] = (),
        metadata: Mapping[str, Any] | None = None,
        kind: str = "manual",
    ) -> Checkpoint[S]:
        """Call `fn` with an `Editor` of the head, and save the changes that it names as one checkpoint.

        Never conflicts: `fn` is called again when somebody else saved meanwhile, so it should do nothing but edit. If
        it changes nothing, nothing is written, and the head is returned.
        """
        meta = self._meta(label, tags, metadata, kind)
        change = Editing(fn, self._engine.desk.heads.nodes(), self._types, self.id)
        try:
            return self._write(change, meta, None, default=ANYTHING)
        except Unchanged as none:
            standing = none.standing
        if standing is None or standing.head is None:
            raise Invalid("edit(fn): there was no state, and fn set none", code="invalid.argument")
        return self._checkpoint(standing, standing.head)

    def update(self, fn: Callable[[Any], S | None], *, retries: int = 10) -> Checkpoint[S]:
        """Load the state (None if there is none), call `fn` with it, and save what it returns, else what it changed.

        Begins again when somebody else saved meanwhile, up to `retries` times.
        """
        for attempt in range(check_count(retries, "retries") + 1):
            head = self.latest()
            state = head.state if head else None
            result = fn(state)
            if result is None and state is None:
                raise Invalid("update(fn): there was no state, and fn returned none", code="invalid.argument")
            try:
                return self.save(state if result is None else result, expect=head or NEW)  # type: ignore[arg-type]
            except Conflict:
                if attempt == retries:
                    raise
                time.sleep(random.random() * min(0.002 * 2**attempt, 0.25))  # noqa: S311 - only to get out of step
        raise AssertionError

    # -- reading ------------------------------------------------------------------------------------

    def latest(self) -> Checkpoint[S] | None:
        """Return the head, or None if the thread does not exist."""
        standing = self._standing()
        self._expect(standing)
        return self._checkpoint(standing, standing.head) if standing and standing.head else None

    def _latest_after(self) -> tuple[Checkpoint[S] | None, frozenset[str]]:
        """Return the head, and the runs that had gone on from it before it was made the head again: see `asides`."""
        standing = self._standing()
        self._expect(standing)
        head = standing.head if standing else None
        if standing is None or head is None:
            return None, frozenset()
        moved = standing.newest.seq != head.seq
        gone = asides.used(self._engine.desk.heads, standing, head) if moved else frozenset()
        return self._checkpoint(standing, head), gone

    def load(self, ref: Ref = "@") -> Checkpoint[S]:
        """Return the checkpoint that a ref means, in this thread or in what it was forked from, or `NotFound`."""
        standing = self._require_readable()
        there, row = self._locate(standing, ref)
        if there is standing and row.seq == standing.newest.head and standing.lost is None:
            self._expect(standing)
        return self._checkpoint(there, row)

    def history(
        self,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        before: Ref | None = None,
        label: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        everything: bool = False,
        ancestors: bool = False,
    ) -> Iterator[Checkpoint[S]]:
        """Give the checkpoints from the root to the head, without loading their states.

        `before` leaves out a checkpoint and all that follow it; the others keep those that match. `everything` gives
        those that are out of view, too, all in the order in which they were saved. `ancestors` goes on into what the
        thread was forked from, and that from, as long as it is there: the first checkpoint then has a `parent_id` only
        if something is gone.
        """
        if limit is not None:
            check_count(limit, "limit")
        if kind is not None:
            check_kind(kind)
        label, tag, wanted = check_text(label, "label"), check_text(tag, "tag"), check_metadata(metadata)
        standing = self._readable()
        if standing is None or (standing.head is None and not everything):
            return iter(())
        heads = self._engine.desk.heads
        view = ((1, standing.newest.seq),) if everything else heads.view(standing)
        parts = [lineage.Part(standing, view), *(lineage.parts(heads, standing) if ancestors else ())]
        if before is not None:
            there, row = self._locate(standing, before) if ancestors else (standing, self._resolve(standing, before))
            while parts[0].standing.record.no != there.record.no:
                parts.pop(0)
            parts[0] = parts[0]._replace(ranges=log.clip(parts[0].ranges, 1, row.seq - 1))

        def matches(checkpoint: Checkpoint[S]) -> bool:
            return (
                (label is None or checkpoint.label == label)
                and (tag is None or tag in checkpoint.tags)
                and (kind is None or checkpoint.kind == kind)
                and (not wanted or _holds(checkpoint.metadata, wanted))
            )

        ordered = parts if newest_first else parts[::-1]
        found = (self._pages(part, matches, limit, newest_first=newest_first) for part in ordered)
        return islice(chain.from_iterable(found), limit)

    def _pages(
        self,
        part: lineage.Part,
        matches: Callable[[Checkpoint[S]], bool],
        limit: int | None,
        *,
        newest_first: bool,
    ) -> Iterator[Checkpoint[S]]:
        standing, ranges = part
        given = 0
        page = min(_PAGE, max(limit or 0, _FEW))  # whoever asks for all may still stop after a few
        while ranges and (limit is None or given < limit):
            rows = self._engine.desk.heads.visible(standing, ranges, newest_first=newest_first, limit=page)
            for checkpoint in self._checkpoints(standing, rows):
                if (limit is None or given < limit) and matches(checkpoint):
                    given += 1
                    yield checkpoint
            if len(rows) < page:
                return
            page = min(_PAGE, 2 * page)
            last = rows[-1].seq
            ranges = log.clip(ranges, 1, last - 1) if newest_first else log.clip(ranges, last + 1, log.MAX_SEQ)

    def find(self, *, label: str | Collection[str] | None = None, tag: str | None = None) -> list[Checkpoint[S]]:
        """Return the checkpoints in view with this label, or one of these, and this tag, oldest first."""
        if label is None and tag is None:
            raise Invalid("find needs a label or a tag", code="invalid.argument")
        one = isinstance(label, str) or not hasattr(label, "__iter__")
        given = [check_text(each, "label") for each in ([label] if one else label or ())]
        labels = {each for each in given if each is not None}
        tag = check_text(tag, "tag")
        standing = self._readable()
        if standing is None or standing.head is None:
            return []
        heads = self._engine.desk.heads
        no, view = standing.record.no, heads.view(standing)
        seqs = None if label is None else {seq for each in labels for seq in heads.backend.labelled(no, each)}
        if tag is not None:
            tagged = set(heads.backend.tagged(no, tag))
            seqs = tagged if seqs is None else seqs & tagged
        ranges = tuple((seq, seq) for seq in sorted(seqs or ()) if log.contains(view, seq))
        if not ranges:
            return []
        # those with a label are few, and looked for to be loaded
        return self._checkpoints(standing, heads.visible(standing, ranges, payload=label is not None))

    @property
    def current_step(self) -> int:
        """The head's step; 0 if the thread does not exist."""
        standing = self._standing()
        return standing.newest.step if standing else 0

    def __len__(self) -> int:
        standing = self._readable()
        if standing is None or standing.head is None:
            return 0
        return self._engine.desk.heads.count(standing)

    def __bool__(self) -> bool:
        return True  # a handle is not empty because its thread is

    def diff(self, a: Ref = "@-", b: Ref = "@") -> Diff:
        """Return what changed from one checkpoint to another."""
        old, new = self._tree_at(a), self._tree_at(b)
        unpack = unpacking.Unpacker(self._types)
        return Diff(tuple(self._change(edit, old, new, unpack) for edit in diff.edits(old, new, unpack)))

    def _change(self, edit: Edit, old: Tree, new: Tree, unpack: unpacking.Unpacker) -> Change:
        if edit.reordered is not None:
            return Reordered(
                "~", edit.path, [unpack(k) for k in edit.reordered[0]], [unpack(k) for k in edit.reordered[1]]
            )
        before = MISSING if edit.old is None else Decoder(old.nodes, self._types).value(edit.old)
        after = MISSING if edit.new is None else Decoder(new.nodes, self._types).value(edit.new)
        return Change("+" if edit.old is None else "-" if edit.new is None else "~", edit.path, before, after)

    # -- watching -------------------------------------------------------------------------------------

    def watch(self, *, after: Ref | None = None, timeout: dt.timedelta | float | None = None) -> Watch[Checkpoint[S]]:
        """Give the checkpoints that become the head from now on, as they come, whoever makes them.

        `after` begins behind a checkpoint instead. Ends when `timeout` passes without news; None: never. Reading them
        says nothing about what the next save is to stand on.
        """
        return Watch(self._watcher(after, timeout))

    def _watcher(self, after: Ref | None, timeout: dt.timedelta | float | None) -> OneThread[Checkpoint[S]]:
        name = (self._key.space, self._key.name)
        return OneThread(self._engine, name, after, check_timeout(timeout), self._checkpoints)

    # -- time travel ----------------------------------------------------------------------------------

    def fork(self, new_id: str, at: Ref = "@") -> Thread[S]:
        """Begin a new thread at a checkpoint of this one; `Conflict` if there is a thread of that id."""
        standing, row = self._locate(self._require_readable(), at)
        made: Thread[S] = Thread(self._engine, self._key.space, new_id, self._type, self._key.agent)
        if asides.left(self._engine.desk.heads, standing, row):
            made._remember(self._engine.atomic(lambda desk: self._fork(desk, made, at, notes=True)))
        else:
            made._remember(self._fork(self._engine.desk, made, at, notes=False))
        return made

    def _fork(self, desk: Desk, made: Thread[S], at: Ref, *, notes: bool) -> Standing:
        """Begin a thread with a checkpoint of this one, and with the notes on it that stand aside."""
        standing, row = self._locate(self._require_readable(), at)
        tags = pins.shown(desk.heads.backend.tags(standing.record.no, [row.seq]).get(row.seq, ()))
        after = desk.writes.fork(made._key._replace(agent=standing.record.agent), standing, row, tags)
        left = set(asides.left(desk.heads, standing, row)) if notes else set()
        if left:
            aside: Thread[Any] = Thread(self._engine, asides.ASIDE, standing.record.name)
            other: Thread[Any] = Thread(self._engine, asides.ASIDE, made.id)
            for note in aside.find(label=row.label):
                if note._row.seq in left:  # noqa: SLF001 - a handle made it
                    other.save(note.state, label=note.label, metadata=note.metadata)
        return after

    def rewind(self, ref: Ref) -> Checkpoint[S]:
        """Make an older checkpoint the head again. What came after is out of view, not gone."""
        return self._moved(self._engine.desk.moves.rewind(self._key, lambda standing: self._resolve(standing, ref)))

    def undo(self) -> Checkpoint[S]:
        """Take back the last save, rewind, restore or redo."""
        return self._moved(self._engine.desk.moves.undo(self._key))

    def redo(self) -> Checkpoint[S]:
        """Take back the last undo."""
        return self._moved(self._engine.desk.moves.redo(self._key))

    def _moved(self, standing: Standing) -> Checkpoint[S]:
        self._remember(standing)
        if standing.head is None:
            raise Corrupt(f"thread {self.id!r} has lost its head", code="corrupt.row")
        return self._written(standing, standing.head)

    def _written(self, standing: Standing, row: Row) -> Checkpoint[S]:
        """Return a checkpoint of which something was written: who is not given it must not think that nothing was."""
        try:
            return self._checkpoint(standing, row)
        except Unavailable as error:
            raise CommitUnknown(
                f"it was written, and then could not be read ({error}): read again before you repeat it",
                code="commit_unknown.read",
            ) from error

    # -- keeping order ----------------------------------------------------------------------------------

    def tag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Put tags on a checkpoint."""
        return self._tag(ref, add=check_tags(tags), remove=())

    def untag(self, ref: Ref, *tags: str) -> Checkpoint[S]:
        """Take tags off a checkpoint."""
        return self._tag(ref, add=(), remove=check_tags(tags))

    def _tag(self, ref: Ref, *, add: tuple[str, ...], remove: tuple[str, ...]) -> Checkpoint[S]:
        if not add and not remove:
            raise Invalid("name at least one tag", code="invalid.argument")
        standing = self._require_standing()
        row = self._resolve(standing, ref)
        self._engine.desk.moves.tag(standing.record, row.seq, add, remove)
        return self._written(standing, row)

    def prune(
        self,
        policy: Policy | None = None,
        *,
        keep_last: int | None = None,
        older_than: dt.timedelta | float | None = None,
        keep_tagged: bool | Collection[str] = True,
        keep: Collection[Ref] | Ref = (),
        until: Ref | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Hide the checkpoints that a `Policy` does not keep; the report says which, and why the others stay.

        Without one: those behind the newest `keep_last` and older than `older_than` (each if given), but not labelled
        and tagged ones unless `keep_tagged` is False; if it is names, what has one of these tags counts as tagged. The
        head stays, and so do those that `keep` names, all that were saved after `until`, and what a checkpoint of an
        agent holds.
        What was rewound away is counted apart: the newest `keep_last` of it stay too. Nothing that stays is harmed.
        """
        with loading:
            from backtrail.policies import Account, rules_for_one  # noqa: PLC0415 - not every program prunes

        heads = self._engine.desk.heads
        rules = rules_for_one(policy, keep_last, older_than, keep_tagged, heads.clock())
        refs = (keep,) if isinstance(keep, str | int | Checkpoint) else check_several(keep, "keep")
        holders = pins.Holders(heads)
        found = Sorted({}, [])

        def choose(standing: Standing) -> Tagged:
            nonlocal found
            named = {self._resolve(standing, ref).seq for ref in refs}
            last = log.MAX_SEQ if until is None else self._resolve(standing, until).seq
            found = retention.sort_out(heads, standing, rules, holders, named=named, until=last)
            return found.gone

        standing = self._standing()
        account = Account(rules, dry_run=dry_run)
        if standing is not None and rules.idle is not None:
            standing = self._remove_idle(standing, rules, account, dry_run=dry_run)
        if standing is not None and dry_run:
            choose(standing)
        elif standing is not None:
            hidden = self._engine.desk.moves.hide(self._key, choose)
            found = found._replace(gone=dict(sorted(hidden.items())))
        if standing is not None:
            account.add(standing.record, found)
        return account.report()

    def _remove_idle(self, standing: Standing, rules: Rules, account: Account, *, dry_run: bool) -> Standing | None:
        """Remove the thread if it is idle; return how it stands if its checkpoints are still to be pruned."""
        from backtrail.engine import idle  # noqa: PLC0415 - not every program prunes

        holders = pins.Holders(self._engine.desk.heads, of_heads=False)
        found = idle.remove(self._engine, standing.record, rules, holders, dry_run=dry_run)
        account.settle(standing.record, found, alone=not rules.prunes)
        now = self._standing()
        if found.seqs is not None and not dry_run and now is not None:
            self._remember(now)
        return now if found.why and rules.prunes else None

    def delete_checkpoint(self, ref: Ref) -> bool:
        """Delete a checkpoint and say whether there was one. If it was the head, its nearest ancestor left is now."""
        before = self._expectation()
        found: list[int] = []

        def find(standing: Standing) -> Row | None:
            try:
                row = self._resolve(standing, ref)
            except NotFound:
                return None
            found[:] = [row.seq]
            return row

        done, standing = self._engine.desk.moves.delete_checkpoint(self._key, find)
        if done and standing is not None and before.head in (ANY, *found):  # else there is a head it has not read
            self._remember(standing)
        return done

    def delete(self) -> bool:
        """Delete the thread, and what stands aside of it, and say whether there was one. It starts again at step 1."""
        done, standing = self._engine.desk.moves.delete_thread(self._key)
        if done and standing is not None:
            self._remember(standing)
        return done


def _holds(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(key in metadata and metadata[key] == value for key, value in wanted.items())
