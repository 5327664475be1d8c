"""The port: all that backtrail asks of a place to keep things.

A backend keeps four things and knows nothing of what they mean:

- **threads**: a number, a name space (`space`), a name, a random `uid`; numbers are never reused.
- **rows**: the log of each thread, keyed by (thread number, seq), seq counting up from 1. Apart from
  its `hidden` mark and, in upkeep, its payload, a row never changes. The newest row of a thread is
  never removed.
- **chunks**: bytes under a 32-byte digest, each with the epoch in which it was last put or touched.
- **tags**: words on rows.

There is one way to write, `commit(batch)`: all of it, or none and an exception; when it returns, it is
durable. What a batch requires is checked inside the same transaction, against the store as it was before the
batch, so two writers never both extend the same row. A batch committed twice (its threads with the same uid, its rows
with the same `op_id`) counts once, whatever else has happened since.

Commits may share what it costs to make them durable: `with backend.group():`. Each commit of the calling thread inside
the block is taken or refused by itself. Until the block ends only that thread sees what was taken; then all of it is
durable, or none of it happened: because the end failed, or because an exception left the block.

Who wants to hear of commits listens: `with backend.listen(wake) as interval:`. `wake` says that something may have
happened, `moved` what it was. What is committed through this very backend is always told by `wake`, with its threads,
before the commit (or its group) returns; what others commit is noticed by looking every `interval` seconds, or sooner.

Reads are single calls, never open cursors: nothing is held between two calls. A backend is safe to
share between threads and survives `os.fork()`. Driver exceptions never leave it: they become
`backtrail.errors`, with the driver's own as the `__cause__`. `Stale`, `Vanished`, `MissingChunks` and
`Undone`, below, are answers for the engine: nothing was written.

Beside all this there is an **index** of texts, for search. It is made from the rows and can be made again. It has a
list of entries for each thread: what the engine wants to be found of the state of one of the thread's rows. A commit
does not change the lists: it *marks* the threads that it adds rows to, in the same transaction.

A thread may belong to an **agent**. A commit that adds a row to such a thread, or renews it, *touches* it, in the same
transaction: `standings` then lists it among those of its agent that are touched, until a batch says `untouch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail.atomic_file import Access


REMOVED = ": a repair removes them for good"
"""What `check` says behind what `mend` removes."""
JUMP = 1 << 20
"""No more rows than these are taken to have been lost behind the newest: else it is what says so that is damaged."""


class Row(NamedTuple):
    """One row of a thread's log. `engine.log` gives the fields their meaning."""

    seq: int
    op: int
    parent: int
    step: int
    head: int
    undo: int
    redo: int
    view: int
    base: int
    depth: int
    created_at: int
    """Microseconds since 1970, UTC, by the writer's clock."""
    kind: int
    label: str | None
    size: int
    stored: int
    root: bytes
    op_id: bytes
    extra: bytes
    check: bytes
    payload: bytes | None
    """None when the read did not ask for it, b"" when there is none."""
    hidden: bool


class ThreadRecord(NamedTuple):
    """A thread as the backend knows it."""

    no: int
    space: str
    """The name space: "thread", "agent", "conversation", "run"."""
    name: str
    uid: bytes
    """8 random bytes, unique in the store."""
    agent: str | None
    created_at: int
    origin: str | None
    """The id of the checkpoint this thread was forked from."""


class NewThread(NamedTuple):
    """A thread that a batch creates."""

    space: str
    name: str
    uid: bytes
    agent: str | None
    created_at: int
    origin: str | None


class Batch(NamedTuple):
    """One atomic write. Threads are named by number; -1, -2 ... are those that the batch creates, in order."""

    threads: tuple[NewThread, ...] = ()
    """A name that is taken already in its space, or a uid that is taken, is `Stale`. A batch names the threads it
    creates by -1, -2 ... only, never by the numbers it thinks they will get."""
    renew: tuple[tuple[int, NewThread], ...] = ()
    """(thread, what it becomes): a deleted thread begins again; its agent, created_at and origin are replaced, its
    number, name and uid stay."""
    rows: tuple[tuple[int, Row], ...] = ()
    """Each row's predecessor (seq - 1) must be the newest row of its thread, else `Stale` (but see `gaps`); the first
    row of a thread has seq 1. Rows of one thread come in ascending order. A row may be hidden from its beginning."""
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    """(digest, stored bytes): put if absent; either way its epoch becomes the current one."""
    touch: tuple[bytes, ...] = ()
    """Digests that must be there, else `MissingChunks`; their epoch becomes the current one."""
    visible: tuple[tuple[int, int], ...] = ()
    """(thread, seq) that must exist already and not be hidden, else `Vanished`."""
    newest: tuple[tuple[int, int], ...] = ()
    """(thread, seq) that must be the newest row of its thread before the batch, else `Stale`; seq 0: no row yet."""
    tags: tuple[tuple[int, int, tuple[str, ...]], ...] = ()
    """(thread, seq, the tags that this row must have), else `Stale`; what the batch itself tags and untags does not
    count. Only rows that it hides are named: who tags what is `visible`, and who hides it, wait for each other."""
    hide: tuple[tuple[int, int], ...] = ()
    """Rows to hide. Hiding, tagging or renewing what is not there is passed over. First hide, then tag, then untag."""
    show: tuple[tuple[int, int], ...] = ()
    """(thread, seq) that must exist already, hidden or not, else `Vanished`; they are hidden no more."""
    tag: tuple[tuple[int, int, str], ...] = ()
    untag: tuple[tuple[int, int, str], ...] = ()
    untouch: tuple[tuple[int, int], ...] = ()
    """(thread, seq): it is touched no more, if seq is its newest row once the batch is written; else passed over."""
    gaps: bool = False
    """Seqs may be left out, as if there had been rows that were removed: a row must only come behind the newest one."""


class Stale(Exception):  # noqa: N818 - an answer, not a failure
    """Somebody else wrote first: read again."""


class Vanished(Exception):  # noqa: N818 - an answer, not a failure
    """A row that the batch points at is hidden or gone."""

    def __init__(self, thread: int, seq: int) -> None:
        super().__init__(thread, seq)
        self.thread = thread
        self.seq = seq


class MissingChunks(Exception):  # noqa: N818 - an answer, not a failure
    """Chunks to be touched are gone: send their bytes."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        super().__init__(f"{len(digests)} chunks are gone")
        self.digests = digests


class Undone(Exception):  # noqa: N818 - an answer, not a failure
    """A group was given up because of others, and nothing of it happened: do its writes again, one by one.

    Of a group without a row in it, it may not be known whether it happened; what else may be in one counts once.
    """


class Entry(NamedTuple):
    """One text in the index."""

    time: int
    """Microseconds since 1970: what comes first in a search is what is newest."""
    message_id: str | None
    role: str | None
    words: str
    """The words to find it by, with single spaces between them; no other character of it is a space."""
    text: bytes
    """What the engine wants to have back: a byte that says how it is compressed, 0 for not at all, then the text."""


class Splice(NamedTuple):
    """A change of a thread's list: `entries` stand in the place of the `removed` ones that stood at `at` and behind.

    None stands for what nobody looks for: it has a place in the list, and that is all.
    """

    at: int
    removed: int
    entries: tuple[Entry | None, ...]


class Indexed(NamedTuple):
    """What a thread's list is: the first `items` of those of the row `seq`; both are 0 if there is no list."""

    seq: int
    items: int
    as_of: int
    """The newest row of the thread when `seq` was its head. It only rises, so nobody takes a list back to what was."""


class Phrase(NamedTuple):
    """Words that stand one after the other; to the left or to the right, their ends may be inside of a longer word.

    A backend may cut long words short, those of entries and those that are looked for: it then finds more, not less.
    """

    words: tuple[str, ...]
    open_left: bool = False
    open_right: bool = False

    @property
    def sought(self) -> str:
        """What is in the words of an entry, with a space before and behind them, if the phrase is."""
        return f"{'' if self.open_left else ' '}{' '.join(self.words)}{'' if self.open_right else ' '}"


class Found(NamedTuple):
    """An entry that was found, and where."""

    record: ThreadRecord
    seq: int
    """The row whose list the index had of the thread."""
    position: int
    """The place of the entry in that list."""
    no: int
    """The entry's number. Later entries have higher ones, and none is used again."""
    entry: Entry
    """Without its words: they are empty."""


class Stand(NamedTuple):
    """How a thread stands. The rows are without payload."""

    record: ThreadRecord
    newest: Row
    head: Row | None
    """The row that `newest.head` names; None if that is 0, or gone."""


class Usage(NamedTuple):
    """What a store holds, counted. What is counted by name space names only those that have something to count."""

    threads: Mapping[str, int]
    """How many threads each name space has whose newest row has a head."""
    rows: int
    checkpoints: Mapping[str, int]
    """Rows that are visible checkpoints, by name space."""
    logical_bytes: Mapping[str, int]
    """The sizes of the visible checkpoints' states, added up, by name space."""
    items: Mapping[str, int]
    """The `items` of the lists of threads that have a head and are not marked, added up, by name space."""
    chunks: int
    payload_bytes: int
    """Bytes of rows' payloads and of chunks as they are stored."""
    stored_bytes: int
    """Bytes on disk (for memory: payload_bytes and index_bytes)."""
    entries: int = 0
    """Entries of the index."""
    index_bytes: int = 0
    """Bytes of the index, its own overhead not counted."""


@runtime_checkable
class Copyable(Protocol):
    """A backend whose store can be copied as it is, to a file or a directory that can be opened like it."""

    beside: tuple[str, ...]
    """Endings of the names of files beside such a file that would be taken for a part of it."""

    def access(self) -> Access | None:
        """Return who may use it, and so what is made of it; None if that cannot be told."""

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        """Copy the store as it is now to where nothing is yet, while others write; return its size in bytes."""


class Backend(Protocol):
    """Where rows and chunks live. See the module's text for what always holds."""

    shows_texts: bool
    """Whether people read the index, too: its texts are then not to be compressed."""
    undoes_groups: bool
    """Whether a group may be `Undone`. What cannot be done twice is then not to be a part of one."""
    read_only: bool
    """Whether it was opened only to be read."""

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        """Return the thread of that name, or None."""

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        """Return the thread with that uid, or None."""

    def threads(
        self,
        *,
        space: str | None,
        agent: str | None,
        prefix: str | None,
        origin: bytes | None = None,
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[tuple[ThreadRecord, Row]]:
        """Return up to `limit` threads that have a head, each with its newest row (without payload).

        Ordered by the newest row's created_at, then by number, both descending; `after` is the
        (created_at, number) to go on behind; `origin` the uid of a thread that they were forked from. `None` means any.
        """

    def standings(self, agent: str, *, touched: bool) -> list[Stand]:
        """Return how the threads of an agent stand, in every name space, by number, in one view of the store.

        `touched`: only those that are touched. They need not have a head.
        """

    # -- rows ---------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        """Return the newest row of a thread, without payload, or None if there is no such thread."""

    def rows(
        self,
        thread: int,
        ranges: Sequence[tuple[int, int]],
        *,
        payload: bool = False,
        visible: bool = False,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Row]:
        """Return the rows whose seq lies in one of the ranges (both ends included), in order of seq.

        `visible` keeps only checkpoints, which have a root, that are not hidden.
        """

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Return how many visible checkpoints have their seq in one of the ranges."""

    def labelled(self, thread: int, label: str) -> list[int]:
        """Return the seqs of visible rows with this label, ascending."""

    # -- tags ---------------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        """Return the tags of a thread's rows (of these seqs, or of all), in the order they were given."""

    def tagged(self, thread: int, tag: str) -> list[int]:
        """Return the seqs of visible rows with this tag, ascending."""

    # -- chunks -------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored bytes of those chunks that are there."""

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        """Return which of these chunks are there."""

    # -- the one way to write -------------------------------------------------------------------
    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Write all of it or nothing; return the numbers of the threads it created."""

    def group(self) -> AbstractContextManager[None]:
        """Make what the calling thread writes in the block durable together, when it ends; see the module's text.

        Nothing is taken from others before the first write. A write that fails because the store does (not one that
        is refused) takes the whole group with it: all writes after it, and the end, raise that error, too, or `Undone`
        if the writes may simply be done again. A group inside a group is `Invalid`, and so are calls that cannot be
        part of one (`reclaim`, `close`).
        """

    # -- one moment -----------------------------------------------------------------------------
    def snapshot(self) -> AbstractContextManager[Backend]:
        """Give the store as it is now, to be read in the block by the calling thread; others go on writing meanwhile.

        Nothing may be written to what is given. Inside a group it is `Invalid`.
        """

    # -- hearing of commits ---------------------------------------------------------------------
    def listen(self, wake: Callable[[Collection[int]], None]) -> AbstractContextManager[float]:
        """Call `wake` when something may have been committed, from any thread, as long as the block lasts.

        It is given the numbers of the threads that were written to, as far as they are known, and returns at once.
        Gives the seconds after which to look for what others did even without a call. The block may end in another
        thread, and after `close`.
        """

    def moved(
        self, mark: object | None, told: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        """Return the threads that have a newer row than when `mark` was given, and a new mark.

        Each comes with the seq of the newest row that it had then, 0 if it had none. A mark is the backend's own: it is
        handed back once, unless the call fails. None begins: nothing has moved yet.

        `told` are threads that `wake` named since; they are always looked at. If somebody else may have written, so are
        new threads and `others`: those that matter now, or None for all there are. More threads may be given than were
        asked for, and one that the mark did not know also if it has not moved.
        """

    # -- the index ------------------------------------------------------------------------------
    def marked(self, after: int, limit: int) -> list[int]:
        """Return the numbers of marked threads above `after`, ascending."""

    def indexed(self, thread: int) -> Indexed:
        """Return what a thread's list is now; all zeros if nothing is known of it."""

    def index(self, thread: int, was: Indexed, now: Indexed, splices: Sequence[Splice]) -> bool:
        """Change a thread's list by these splices, one after the other, all or none; False if it is not what it `was`.

        Afterwards it is what `now` says. If `as_of` is then still the newest row of the thread, its mark is taken off:
        a row that is being committed at the same moment leaves its mark behind, whichever of the two comes first.

        Entries that stay keep their numbers; new ones get higher numbers than all before, in their order.
        """

    def find(
        self,
        phrases: Sequence[Phrase],
        *,
        space: str | None,
        agent: str | None,
        threads: Sequence[int] | None,
        without: Sequence[int] = (),
        after: tuple[int, int] | None,
        limit: int,
    ) -> list[Found]:
        """Return entries in which all of the phrases are, newest first, in one view of the index.

        Ordered by time, then by the entry's number, both descending; `after` is the (time, number) to go on behind.
        `None` means any; threads in `without` are left out. There may be others between them that do not match: the
        engine looks at each. None that does may be left out, and fewer than `limit` mean that there are no more.
        """

    def forget_index(self) -> None:
        """Empty the index, and mark every thread."""

    # -- upkeep -------------------------------------------------------------------------------
    def thread_numbers(self, after: int, limit: int) -> list[int]:
        """Return the numbers of threads above `after`, ascending, deleted ones included."""

    def thread(self, no: int) -> ThreadRecord | None:
        """Return the thread with this number, or None."""

    def next_epoch(self) -> int:
        """Begin a new epoch and return its number; every later commit stamps its chunks with it or a newer one."""

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return up to `limit` (digest, epoch) with digests above `after`, ascending."""

    def remove_chunks(self, digests: Sequence[bytes], before_epoch: int) -> int:
        """Remove those of these chunks whose epoch is below `before_epoch`; return their stored bytes."""

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        """Remove rows (and their tags) that are hidden and not the newest; return how many went."""

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Replace rows that still have the same op_id, and put the chunks that the new ones need; return how many were.

        The stored `hidden` mark stays as it is; a row whose payload is None keeps the stored payload. A row that is a
        base (`base` is its own seq) is not replaced by one that is none: what that would stand on may be gone.
        """

    def reclaim(self, *, erase: bool = False) -> None:
        """Give freed space back to the operating system, as far as the backend can.

        What was taken out of the index is then gone from its pages, too. `erase` leaves no trace of what was removed in
        any file of the store: others wait meanwhile. `Unavailable` if they keep that from being done.
        """

    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        """Return what is wrong with the files, tables and indexes themselves, in words; what rows hold is not read."""

    def mend(self) -> None:
        """Mend what `check` finds, from what is there; what cannot be had back is given up for good.

        Where a thread itself says that its newest row is lost, one that is not sound is put in its place, unless it
        would be more than `JUMP` away: it is found damaged then, and its seq is not given again.
        `Corrupt`, and nothing has changed, if that cannot be done in place. Not in a group.
        """

    def last_seq(self, thread: int) -> int:
        """Return the highest seq that a thread has had, by what is kept beside its rows; 0 if nothing tells.

        It is never above that of the newest row, unless that is lost: the index tells (`as_of`), or what else there is.
        """

    def recall(self, name: str) -> int:
        """Return the number that upkeep has noted under a name, 0 if there is none."""

    def note(self, name: str, value: int) -> None:
        """Note a number under a name, of which backends need to know only "verified"."""

    def usage(self) -> Usage:
        """Count what is there."""

    def now(self) -> int:
        """Return the time in microseconds since 1970, by a clock that all who use the store share."""

    def close(self) -> None:
        """Release everything; closing twice is allowed."""


def as_tagged(batch: Batch, tags: Callable[[int, int], Iterable[str]]) -> bool:
    """Tell whether rows have the tags that a batch requires; `tags` gives those of a row, before the batch or after."""
    for no, seq, known in batch.tags:
        differing = set(known).symmetric_difference(tags(no, seq))
        if not {(no, seq, tag) for tag in differing}.issubset((*batch.tag, *batch.untag)):
            return False
    return True


def written(batch: Batch, created: Sequence[int]) -> set[int]:
    """Return the numbers of the threads that a batch wrote rows to; `created` are those of the threads it made."""
    return {created[-no - 1] if no < 0 else no for no, _ in batch.rows if no > 0 or created}
