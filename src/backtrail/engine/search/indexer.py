"""When the messages of a thread came: the time of the checkpoint with which the list last grew past each of them.

That is told by the length of the list at each checkpoint on the way to the head, from the head backwards. A change says
by how much the list grew, so states are not read for it, but for those that are stored whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.backends.port import Entry, Indexed, Splice, Undone
from backtrail.engine import journal, payload, throttle
from backtrail.engine.compression import squeeze, stands_beside, unsqueeze
from backtrail.engine.schema.registry import Types
from backtrail.engine.search import extract, normalize
from backtrail.engine.tree import diff, packer
from backtrail.engine.tree import spine as spines
from backtrail.engine.tree.nodes import as_ref
from backtrail.engine.tree.tree import CUT, SET, SPLICE
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backtrail.backends.port import Backend, Found, Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.nodes import Nodes
    from backtrail.engine.tree.spine import Spine
    from backtrail.engine.tree.tree import Op, Tree


_KEY: Final = packer.atom("messages", Types())


class Arrivals:
    """When the messages of a head came, from the one at `lowest` on, as far as it is behind the row `since`."""

    def __init__(self, heads: Heads, record: ThreadRecord, head: Row, *, lowest: int, since: int) -> None:
        found: list[tuple[int, int]] = []  # from here on, they came then; from the right
        low: int | None = None  # the least length of the list so far
        time = head.created_at
        for row, length in _lengths(heads, record, head):
            if low is None:
                low = length
            elif length < low:
                found.append((length, time))
                low = length
            if row.seq == since:
                break
            time = row.created_at
            if low <= lowest:
                break
        found.append((0, time))
        self._starts = [start for start, _ in reversed(found)]
        self._times = [time for _, time in reversed(found)]

    def __call__(self, position: int) -> int:
        """Return when the message at this place came."""
        return self._times[bisect_right(self._starts, position) - 1]


def _lengths(heads: Heads, record: ThreadRecord, head: Row) -> Iterator[tuple[Row, int]]:
    """Give the checkpoints on the way to a head, the newest first, each with the length of its list of messages.

    It ends where checkpoints were removed, or cannot be read.
    """
    row: Row | None = head
    while row is not None:
        try:
            rows = heads.chain_rows(record, row)
            yield from reversed(_along(heads, record, rows))
        except (Corrupt, NotFound):
            return
        row = heads.row(record, rows[0].parent) if rows[0].parent else None


def _along(heads: Heads, record: ThreadRecord, rows: list[Row]) -> list[tuple[Row, int]]:
    """Return the lengths along a base and the changes behind it."""
    nodes = heads.nodes()
    nodes.load([digest for row in rows for digest in stands_beside(row.payload or b"")])  # in one read
    tree, _ = payload.read_base(rows[0].payload or b"", nodes)
    found = [(rows[0], _length(tree))]
    for row in rows[1:]:
        length: int | None = found[-1][1]
        for op in payload.read_delta(row.payload or b"", nodes):
            length = None if length is None else _grown(length, op, nodes)
        found.append((row, _length(heads.chain(record, row).tree) if length is None else length))
    return found


def _length(tree: Tree) -> int:
    listed = extract.listed(tree)
    return 0 if listed is None else listed.length


def _grown(length: int, op: Op, nodes: Nodes) -> int | None:
    """Return the length of the list after a change; None if that takes a look at the state."""
    kind, path, *arguments = op
    if not path:
        return None
    if path[0] != _KEY:
        return length
    if len(path) == 1:
        if kind == SPLICE:
            _, removed, entries = arguments
            return length + len(entries) - int(removed)
        return _length_of(arguments[0], nodes) if kind == SET else None
    return length - 1 if kind == CUT and len(path) == 2 else length  # noqa: PLR2004 - an item of the list


def _length_of(rep: Any, nodes: Nodes) -> int | None:
    ref = as_ref(rep)
    listed = spines.open_rep(rep, nodes) if ref is None else None
    return ref.length if ref is not None else listed.length if listed is not None else None


_PAGE: Final = 500
_LOOKS: Final = 3
"""What was deleted while it was looked at is looked at again, so many times."""
_GROUP: Final = 64
"""So many threads are brought up to date at a time, at most."""
_SLICE: Final = 128
"""So many messages are added at a time ..."""
_SLICE_BYTES: Final = 1024 * 1024
"""... or so many bytes of them, and one more."""
_MOST: Final = 1 << 24
"""No thread has more messages: what says so is damaged."""


def catch_up(heads: Heads, *, known: bool = False, progress: Callable[[str, int], None] | None = None) -> None:
    """Bring the index up to date with every marked thread; if `known`, only with those that it has a list of."""
    backend = heads.backend
    after = count = 0
    while numbers := backend.marked(after, _PAGE):
        after = numbers[-1]
        queue: deque[_Catching] = deque()
        for number in numbers:
            record = backend.thread(number)
            if record is not None and not (known and backend.indexed(number).seq == 0):
                queue.append(_Catching(heads, record))
        _work_off(backend, queue)
        count += len(numbers)
        if progress:
            progress("index", count)


def _work_off(backend: Backend, queue: deque[_Catching]) -> None:
    """Do what is to be done, in groups of about one slice: what is durable together costs less."""
    while queue:
        begun: list[tuple[_Catching, _Change]] = []
        size = 0
        while queue and size < _SLICE and len(begun) < _GROUP:
            catching = queue.popleft()
            change = catching.next_change()
            if change is not None:
                begun.append((catching, change))
                size += sum(len(splice.entries) for splice in change.splices)
        if begun:
            try:
                with backend.group():
                    taken = [backend.index(each.record.no, *change) for each, change in begun]
            except Undone:  # one by one: a change that was made all the same is not taken again, and looked at anew
                taken = [backend.index(each.record.no, *change) for each, change in begun]
            for (each, change), good in zip(reversed(begun), reversed(taken), strict=True):
                each.settle(change, taken=good)
                queue.appendleft(each)


class _Listed(NamedTuple):
    """The list of messages of a checkpoint."""

    row: Row
    spine: Spine
    nodes: Nodes


class _Change(NamedTuple):
    """What `Backend.index` is to do."""

    was: Indexed
    now: Indexed
    splices: list[Splice]


class _Catching:
    """Brings the list of one thread up to date, change by change."""

    def __init__(self, heads: Heads, record: ThreadRecord) -> None:
        self.record = record
        self._heads = heads
        self._was: Indexed | None = None
        """What the list is, once that was read."""
        self._seq = 0
        """The head."""
        self._target: _Listed | None = None
        """Its list."""
        self._newest: int | None = None
        """The thread's newest row, None if it cannot be read."""
        self._arrivals: Callable[[int], int] = int
        self._done = False

    def next_change(self) -> _Change | None:
        """Return what to do next, None if nothing is left. It counts when `settle` has been told that it is done."""
        if self._done:
            return None
        was = self._was or self._heads.backend.indexed(self.record.no)  # first: what is looked at is newer then
        with suppress(Corrupt, NotFound):
            if self._was is not None and self._target is not None:
                return self._slice(self._target, was, [], was.items)
            self._look()
            if self._target is not None:
                return self._slice(self._target, was, *self._plan(was, self._target))
        if self._target is not None:  # a part of the list cannot be read, or not any more
            self._seq, self._target, self._newest = 0, None, None
        now = Indexed(0, 0, 0) if self._newest is None else Indexed(self._seq, 0, self._newest)
        if now == was and self._newest is None:
            return None
        return _Change(was, now, [Splice(0, was.items, ())] if was.items else [])

    def _slice(self, target: _Listed, was: Indexed, splices: list[Splice], start: int) -> _Change:
        """Return the splices, and what adds the next slice of the target behind them."""
        entries = self._entries(target, start)
        if entries:
            splices = [*splices, Splice(start, 0, tuple(entries))]
        end = start + len(entries)
        newest = self._newest if end == target.spine.length else None
        return _Change(was, Indexed(self._seq, end, was.as_of if newest is None else newest), splices)

    def settle(self, change: _Change, *, taken: bool) -> None:
        """Go on from what a change has made of the list; if somebody else was faster, from what is there."""
        self._was = change.now if taken else None
        self._done = taken and (self._target is None or change.now.items == self._target.spine.length)

    def _look(self) -> None:
        """See how the thread stands. If that cannot be read, nothing of it is found, and it stays marked."""
        self._seq, self._target, self._newest = 0, None, None
        for _ in range(_LOOKS):
            with suppress(Corrupt, NotFound):
                standing = self._heads.standing_of(self.record)
                head = standing.head if standing else None
                self._target = None if head is None else self._listed(head)
                self._seq = head.seq if head else 0
                self._newest = standing.newest.seq if standing else 0
                return

    def _listed(self, row: Row) -> _Listed | None:
        if self.record.space == journal.SPACE:  # its messages are those of the run's checkpoints
            return None
        tree = self._heads.chain(self.record, row).tree
        if self.record.space == journal.RUN and extract.has(tree, "conversation"):  # they are found there
            return None
        spine = extract.listed(tree)
        return None if spine is None else _Listed(row, spine, tree.nodes)

    # -- what differs ---------------------------------------------------------------------------

    def _plan(self, was: Indexed, target: _Listed) -> tuple[list[Splice], int]:
        """Return what makes the index's list the beginning of the target's, and how long that beginning is."""
        if not 0 < was.items <= _MOST:
            self._arrivals = Arrivals(self._heads, self.record, target.row, lowest=0, since=0)
            return [Splice(0, was.items, ())] if was.items else [], 0
        before: _Listed | None = None
        with suppress(Corrupt, NotFound):
            row = self._heads.sound_row(self.record, was.seq)
            before = None if row is None else self._listed(row)
        if before is None or before.spine.length < was.items:
            length, blocks = was.items, self._by_content(was, target)
        else:
            length = before.spine.length
            blocks = diff.blocks(before.spine, target.spine, before.nodes, target.nodes)
        inner, cut, start = _divided(blocks, was.items, was.items + target.spine.length - length)
        lowest = min([start, *(block.to for block in inner[:1])])
        if lowest < target.spine.length:
            self._arrivals = Arrivals(self._heads, self.record, target.row, lowest=lowest, since=was.seq)
        splices = [Splice(cut, was.items - cut, ())] if cut < was.items else []
        for block in reversed(inner):  # from the right, so that places further left stay what they are
            entries = tuple(self._entry(target.nodes, rep, block.to + at) for at, rep in enumerate(block.new))
            splices.append(Splice(block.at, len(block.old), entries))
        return splices, start

    def _by_content(self, was: Indexed, target: _Listed) -> list[diff.Block]:
        """Align what the index holds with the head: the checkpoint that the list is of is gone."""
        indexed: list[Any] = [None] * was.items
        for found in _held(self._heads, self.record):
            if 0 <= found.position < was.items:
                indexed[found.position] = _held_content(found.entry)
        reps = spines.entries(target.nodes, target.spine)
        held = [_content(extract.read(target.nodes, rep)) for rep in reps]
        blocks = diff.aligned_blocks(0, 0, indexed, held)
        return [block._replace(new=reps[block.to : block.to + len(block.new)]) for block in blocks]

    # -- entries --------------------------------------------------------------------------------

    def _entries(self, target: _Listed, start: int) -> list[Entry | None]:
        """Return the next slice of the target's messages."""
        found: list[Entry | None] = []
        size = 0
        for rep in spines.entries(target.nodes, target.spine, start, min(start + _SLICE, target.spine.length)):
            entry = self._entry(target.nodes, rep, start + len(found))
            found.append(entry)
            size += 0 if entry is None else len(entry.words)
            if size > _SLICE_BYTES:
                break
        return found

    def _entry(self, nodes: Nodes, rep: bytes, position: int) -> Entry | None:
        throttle.rest()
        message = extract.read(nodes, rep)
        if message is None:
            return None
        words = " ".join(normalize.words(normalize.composed(message.text)))
        time = self._arrivals(position) if message.time is None else message.time
        text = message.text.encode("utf-8", "surrogatepass")
        compress = self._heads.options.compression and not self._heads.backend.shows_texts
        return Entry(time, message.id, message.role, words, squeeze(text, enabled=compress))


def _divided(blocks: list[diff.Block], items: int, end: int) -> tuple[list[diff.Block], int, int]:
    """Tell what is changed in place from what is cut off and added anew, given that the first items are indexed.

    Returns the blocks that are changed in place, where the index's list is cut off then, and the place in the target's
    list that this is (`end`, if nothing differs there). The cut is where a block begins that reaches the end of what is
    indexed, or that adds too much for one slice.
    """
    inner: list[diff.Block] = []
    added = 0
    for block in blocks:
        added += len(block.new)
        if block.at > items:
            return inner, items, items + block.to - block.at
        if block.at + len(block.old) >= items or added > _SLICE:
            return inner, block.at, block.to
        inner.append(block)
    return inner, items, end


def is_true(heads: Heads, record: ThreadRecord) -> bool:
    """Tell whether a thread's list is what it says that it is, as far as that can be read."""
    indexed = heads.backend.indexed(record.no)
    if indexed.seq == 0:
        return True
    try:
        row = heads.sound_row(record, indexed.seq)
        tree = None if row is None else heads.chain(record, row).tree
        spine = None if tree is None else extract.listed(tree)
        if row is not None and not 0 <= indexed.items <= (0 if spine is None else spine.length):
            return heads.backend.indexed(record.no) != indexed
        reps = spines.entries(tree.nodes, spine, 0, indexed.items) if tree is not None and spine is not None else []
        expected = [_content(extract.read(tree.nodes, rep)) for rep in reps] if tree is not None else []
    except (Corrupt, NotFound):
        return True
    held: list[Any] = [None] * len(expected)
    try:
        for found in _held(heads, record):
            if 0 <= found.position < len(expected):
                held[found.position] = _held_content(found.entry)
            else:
                held.append(found)
    except Corrupt:
        return False
    return row is None or held == expected or heads.backend.indexed(record.no) != indexed


def _held(heads: Heads, record: ThreadRecord) -> Iterator[Found]:
    """Give what the index holds of a thread, newest first."""
    after: tuple[int, int] | None = None
    while page := heads.backend.find((), space=None, agent=None, threads=[record.no], after=after, limit=_PAGE):
        yield from page
        after = (page[-1].entry.time, page[-1].no)


def _content(message: extract.Message | None) -> Any:
    """Return what an entry of the index is known by."""
    throttle.rest()
    return None if message is None else (message.id, message.role, message.text.encode("utf-8", "surrogatepass"))


def _held_content(entry: Entry) -> Any:
    return entry.message_id, entry.role, text_of(entry).encode("utf-8", "surrogatepass")


def text_of(entry: Entry) -> str:
    """Return the text of an entry."""
    try:
        return unsqueeze(entry.text, limit=extract.TEXT_MAX).decode("utf-8", "surrogatepass")
    except (Corrupt, UnicodeDecodeError) as error:
        text = f"the index of search is damaged ({error}): `reindex` makes it anew"
        raise Corrupt(text, code="corrupt.index") from error
