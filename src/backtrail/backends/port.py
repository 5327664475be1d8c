"""The port: the protocols that every storage backend implements.

A backend stores five kinds of data. It does not know what they mean.

- **Threads.** A thread has a number, a name in a name space, and a random `uid`. Numbers are never reused.
- **Rows.** Each thread has a log of rows, keyed by (thread number, seq); seq counts up from 1. A row never changes,
  apart from its `hidden` flag and, during maintenance, its payload. The newest row of a thread is never removed.
- **Tags and pins** on rows. A tag is a word. A pin is the uid of a thread, its holder, for which the row is kept.
- **Chunks.** A chunk is bytes under a 32-byte digest, with the epoch of the last commit that put or touched it.
  Maintenance names a chunk by its address, which is the digest itself, except in an encrypted store.
- **Index entries.** An entry is a text to search for. The engine makes entries from rows, and can make them again.

Five protocols say what a backend does. `Backend` is all of them, with groups, snapshots and `close`.

| protocol      | the backend                                             | used by                       |
|---------------|---------------------------------------------------------|-------------------------------|
| `Reader`      | answers questions about threads, rows, tags and chunks  | every read                    |
| `Writer`      | commits batches                                         | every write                   |
| `SearchIndex` | keeps index entries and finds them by their words       | `store.search`                |
| `ChangeFeed`  | says which threads have new rows                        | `store.watch`, `thread.watch` |
| `Maintenance` | removes, rewrites, checks and counts                    | `gc`, `verify`, `stats`       |

**One way to write.** `commit(batch)` writes all of a batch, or raises and writes nothing. When it returns, the batch is
durable. The backend checks the requirements of the batch in the same transaction, against the store before the batch.
So two writers never both extend the same row.

**A batch counts once.** A caller that lost the reply commits the same batch again. The backend recognises it by the
uids of its threads and the `op_id`s of its rows, and returns the same answer, even if other batches came in between.

**Reads are single calls.** No cursor stays open between two calls. A call that begins after a commit has returned sees
that commit, even if another process made it.

**Threads and processes.** Threads may share a backend; the backend has the locks. A backend survives `os.fork()`.

**Errors.** A driver's exception never leaves the backend: the backend raises one of `backtrail.errors` instead, with
the driver's exception as its `__cause__`. `Stale`, `Vanished`, `MissingChunks` and `Undone` are answers for the engine:
nothing was written.

`backtrail.testing.BackendConformance` tests this in one process; docs/backends.md shows how to write a backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from backtrail.atomic_file import FileAccess


ERASED: Final = b"erased"
"""The checksum of a row that cannot be read because its key was destroyed."""

SEALED: Final = b"backtrail sealed store, format 1"
"""The address of a chunk that every encrypted store has, and no other: its bytes are the store's id."""

KEYRING: Final = b"backtrail keyring store format 1"
"""The address of a chunk that every keyring of an encrypted store has, and no other store."""

new_tuple: Final = tuple.__new__
"""Makes a named tuple from all its fields, in a quarter of the time of its class: every write makes several."""

# -- threads and rows ---------------------------------------------------------------------------------


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
    """Empty, unless the row is a checkpoint."""
    op_id: bytes
    extra: bytes
    check: bytes
    payload: bytes | None
    """None if the read did not ask for it, b"" if the row has none."""
    hidden: bool


class ThreadRecord(NamedTuple):
    """A thread in the store."""

    no: int
    space: str
    """The name space: "thread", "agent", "conversation", "run" ..."""
    name: str
    uid: bytes
    """8 random bytes, unique in the store."""
    agent: str | None
    """The owner of the thread, for listings. None means no owner, and differs from an empty string."""
    created_at: int
    origin: str | None
    """The id of the checkpoint that this thread was forked from."""


class NewThread(NamedTuple):
    """A thread that a batch creates."""

    space: str
    name: str
    uid: bytes
    agent: str | None
    created_at: int
    origin: str | None


class ThreadTip(NamedTuple):
    """A thread with its newest row and its head, both without payload."""

    record: ThreadRecord
    newest: Row
    head: Row | None
    """The row with the seq `newest.head`; None if that is 0, or the row was removed."""


class Reader(Protocol):
    """Answers questions about threads, rows, tags and chunks. Each call is one view of the store."""

    # -- threads ------------------------------------------------------------------------------
    def find_thread(self, space: str, name: str) -> ThreadRecord | None:
        """Return the thread with this name, or None."""

    def thread_with_uid(self, uid: bytes) -> ThreadRecord | None:
        """Return the thread with this uid, or None."""

    def thread(self, no: int) -> ThreadRecord | None:
        """Return the thread with this number, or None."""

    def thread_numbers(self, after: int, limit: int) -> list[int]:
        """Return up to `limit` numbers of threads above `after`, ascending; deleted threads are included."""

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
        """Return up to `limit` threads that have a head, each with its newest row, without payload.

        `prefix` is the beginning of the name, `origin` the uid of the thread that they were forked from. None means
        any. Threads are sorted by (created_at of the newest row, number), both descending; `after` is the pair of the
        last thread of the previous page.
        """

    def tips(self, agent: str, *, touched: bool) -> list[ThreadTip]:
        """Return the tips of an owner's threads that have rows, in every name space, sorted by number.

        Threads without a head are included. `touched` leaves out untouched threads; see `Batch.untouch`.
        """

    # -- many threads at once -----------------------------------------------------------------
    # A database needs only one statement for many threads.
    def threads_named(self, space: str, names: Sequence[str]) -> dict[str, ThreadRecord]:
        """Return the threads of a name space with the given names, by name; missing threads are left out."""

    def newest_of(self, threads: Collection[int]) -> dict[int, Row]:
        """Return the newest row of each thread, without payload, by number; threads without rows are left out."""

    def rows_of(self, spans: Sequence[tuple[int, int, int]], *, payload: bool = False) -> dict[tuple[int, int], Row]:
        """Return rows of several threads by (thread, seq), ascending, hidden or not.

        A span is a thread number, and the first and the last seq to return.
        """

    # -- rows ---------------------------------------------------------------------------------
    def newest(self, thread: int) -> Row | None:
        """Return the newest row of a thread, without payload; None if there is no such thread, or it has no row."""

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
        """Return the rows whose seq lies in one of the ranges (both ends included), once each, in order of seq.

        `visible` leaves only visible checkpoints: rows that have a root and are not hidden.
        """

    def count(self, thread: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Return how many visible checkpoints have their seq in one of the ranges."""

    def labelled(self, thread: int, labels: Collection[str]) -> list[int]:
        """Return the seqs of the rows with one of these labels that are not hidden, ascending."""

    # -- tags and pins ------------------------------------------------------------------------
    def tags(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[str, ...]]:
        """Return the tags of a thread's rows by seq, in the order in which they were put; `seqs` None: all rows."""

    def tagged(self, thread: int, tag: str) -> list[int]:
        """Return the seqs of the rows with this tag that are not hidden, ascending."""

    def pins(self, thread: int, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
        """Return the pins of a thread's rows by seq, in the order in which they were put; `seqs` None: all rows."""

    # -- chunks -------------------------------------------------------------------------------
    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored bytes of chunks by digest; absent chunks are left out."""

    def present(self, digests: Sequence[bytes]) -> set[bytes]:
        """Return the digests of those chunks that the store has."""

    # -- time ---------------------------------------------------------------------------------
    def now(self) -> int:
        """Return the time in microseconds since 1970, by a clock that all processes of the store share."""


# -- writing ------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """One atomic write: its additions, requirements and changes.

    A batch names the threads that it creates by -1, -2 ..., in order, and all others by their numbers.
    """

    # Additions.
    threads: tuple[NewThread, ...] = ()
    """`Stale` if the name is taken in its space, or the uid is taken."""
    rows: tuple[tuple[int, Row], ...] = ()
    """(thread, row). `Stale` if the row's seq is not one above the newest row of its thread; the first row of a thread
    has seq 1. The rows of one thread are in ascending order. A new row may be hidden."""
    gaps: bool = False
    """Allow gaps between seqs, as if maintenance had removed rows there. Each seq must be above the newest."""
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    """(digest, stored bytes). A chunk that exists keeps its bytes. In both cases its epoch becomes the current one."""

    # Requirements.
    touch: tuple[bytes, ...] = ()
    """Digests of chunks; `MissingChunks` if one is absent. Their epoch becomes the current one."""
    visible: tuple[tuple[int, int], ...] = ()
    """(thread, seq); `Vanished` if the row did not exist before the batch, or was hidden."""
    newest: tuple[tuple[int, int], ...] = ()
    """(thread, seq); `Stale` if this was not the newest row before the batch. Seq 0: the thread had no row."""
    tags: tuple[tuple[int, int, tuple[str, ...]], ...] = ()
    """(thread, seq, tags); `Stale` if the row has other tags. Tags that the batch itself adds or removes do not count.
    A batch lists here the rows that it hides, so that one writer cannot hide a row while another tags it. The pins of
    the row must also be exactly those that `pins` lists for it, or else the batch is `Stale`."""
    pins: tuple[tuple[int, int, tuple[bytes, ...]], ...] = ()
    """(thread, seq, pins), for rows in `tags`. Pins that the batch itself adds or removes do not count."""

    # Changes, made in this order. Rows and threads that do not exist are skipped.
    renew: tuple[tuple[int, NewThread], ...] = ()
    """(thread, values): start a deleted thread again. It gets the agent, created_at and origin of the values, and keeps
    its number, space, name and uid."""
    hide: tuple[tuple[int, int], ...] = ()
    show: tuple[tuple[int, int], ...] = ()
    """(thread, seq): the row becomes visible. `Vanished` if it did not exist before the batch."""
    tag: tuple[tuple[int, int, str], ...] = ()
    untag: tuple[tuple[int, int, str], ...] = ()
    pin: tuple[tuple[int, int, bytes], ...] = ()
    """(thread, seq, the uid of the holder)."""
    unpin: tuple[tuple[int, int, bytes], ...] = ()
    untouch: tuple[tuple[int, int], ...] = ()
    """(thread, seq): the thread becomes untouched if seq is its newest row. Its next row or renewal touches it again.
    `tips` can leave out untouched threads."""

    # A requirement for stores that can lose rows.
    after: tuple[tuple[int, bytes], ...] = ()
    """(thread, op_id of its newest row), as the caller knows it, for threads in `rows` and `newest`. A server may lose
    rows that it has acknowledged, in a failover, and other writers then write other rows with the same seqs. After a
    lost connection, the backend compares the op_ids; `Stale` if one differs. Other backends ignore them."""


_NO_MORE: Final = Batch()[2:-1]
"""The fields of a batch between `rows` and `after`, all empty."""


def one_row(thread: int, row: Row, after: bytes) -> Batch:
    """Return the batch of a single row, like most batches; `after` is the op_id of the row before it."""
    return new_tuple(Batch, ((), ((thread, row),), *_NO_MORE, ((thread, after),)))


def is_one_row(batch: Batch) -> bool:
    """Tell whether the batch is a single row and nothing else."""
    return batch[2:-1] == _NO_MORE and len(batch[1]) == 1 and not batch[0]


class Stale(Exception):  # noqa: N818 - an answer, not a failure
    """Another writer was first. The caller must read again."""


class Vanished(Exception):  # noqa: N818 - an answer, not a failure
    """A row that the batch refers to is hidden or was removed."""

    def __init__(self, thread: int, seq: int) -> None:
        super().__init__(thread, seq)
        self.thread = thread
        self.seq = seq


class MissingChunks(Exception):  # noqa: N818 - an answer, not a failure
    """Chunks that the batch touches were removed. The caller must send their bytes."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        super().__init__(f"{len(digests)} chunks are missing")
        self.digests = digests


class Undone(Exception):  # noqa: N818 - an answer, not a failure
    """The backend rolled back a group because of other writers. The caller must repeat its writes one by one.

    A group without rows may have been committed in spite of this. Repeating such writes does no harm.
    """


class Writer(Protocol):
    """Commits batches."""

    def commit(self, batch: Batch) -> tuple[int, ...]:
        """Write all of the batch or nothing; return the numbers of the threads that it created."""


class LogStore(Reader, Writer, Protocol):
    """The part of a backend that the engine needs for threads; the overlay of a transaction implements it, too."""


# -- search -------------------------------------------------------------------------------------------


class IndexEntry(NamedTuple):
    """One text in the index."""

    time: int
    """Microseconds since 1970. A search returns the newest entry first."""
    message_id: str | None
    role: str | None
    words: str
    """The searchable words, separated by one space each."""
    text: bytes
    """The text that a search returns: a byte that names the compression, 0 for none, then the text."""


class Splice(NamedTuple):
    """A change of a thread's list: `entries` replace the `removed` entries from position `at` on.

    A None entry takes a position in the list and is never found.
    """

    at: int
    removed: int
    entries: tuple[IndexEntry | None, ...]


class IndexState(NamedTuple):
    """The version of a thread's list: it has the first `items` messages of the row `seq`. Zeros if there is no list."""

    seq: int
    items: int
    as_of: int
    """The newest row of the thread when `seq` was its head. It never falls: a slow indexer cannot undo a fast one."""


class Phrase(NamedTuple):
    """Words that follow each other. At an open end, the word may be a part of a longer word.

    A backend may shorten long words of entries and phrases alike. It may then return more entries, but not fewer.
    """

    words: tuple[str, ...]
    open_left: bool = False
    open_right: bool = False

    @property
    def sought(self) -> str:
        """The text to look for in " words of the entry ", which has a space at both ends."""
        return f"{'' if self.open_left else ' '}{' '.join(self.words)}{'' if self.open_right else ' '}"


class IndexHit(NamedTuple):
    """An entry that `find` returns, and its position."""

    record: ThreadRecord
    seq: int
    """The row whose messages the thread's list has."""
    position: int
    """The entry's position in that list."""
    no: int
    """The entry's number. Later entries have higher numbers, and no number is used again."""
    entry: IndexEntry
    """With empty `words`."""


class SearchIndex(Protocol):
    """Keeps a list of entries for each thread, and finds entries by their words.

    A commit does not change the lists. It marks the threads that it adds rows to, in the same transaction; the next
    search brings the lists of marked threads up to date.
    """

    shows_texts: bool
    """Whether users can read the texts of the index with other tools. If so, the engine does not compress them."""

    def unindexed(self, after: int, limit: int) -> list[int]:
        """Return up to `limit` numbers of marked threads above `after`, ascending."""

    def indexed(self, thread: int) -> IndexState:
        """Return the version of a thread's list."""

    def index(self, thread: int, was: IndexState, now: IndexState, splices: Sequence[Splice]) -> bool:
        """Apply the splices in order, all or none. If the list's version is not `was`, return False and change nothing.

        The version of the list becomes `now`. The thread's mark is removed if `now.as_of` is its newest row; if a row
        is committed at the same moment, the mark stays. Entries that stay keep their numbers. New entries get higher
        numbers than all earlier entries, in their order.
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
    ) -> list[IndexHit]:
        """Return up to `limit` entries that contain all of the phrases, newest first.

        None means any; threads in `without` are skipped. Entries are sorted by (time, number), both descending;
        `after` is the pair of the last entry of the previous page. A backend may return entries that do not match,
        because the engine checks each entry, but it must return every matching entry. If it returns fewer than `limit`
        entries, there are no more.
        """

    def clear_index(self) -> None:
        """Remove all lists, and mark every thread."""


# -- changes ------------------------------------------------------------------------------------------


class ChangeFeed(Protocol):
    """Says which threads have new rows. `listen` says when to look, `changed_since` which threads changed.

    A commit through this backend object calls every listener with its threads, before `commit` (or the group)
    returns. For commits of other processes, the caller polls `changed_since` every `interval` seconds, or sooner.
    """

    def listen(self, wake: Callable[[Collection[int]], None]) -> AbstractContextManager[float]:
        """Call `wake` after each commit until the block ends; yield the polling interval in seconds.

        `wake` gets the numbers of the threads that were written to, as far as they are known. It may be called from any
        thread, and returns at once. The block may end in another thread, and after `close`.
        """

    def changed_since(
        self, mark: object | None, notified: Collection[int], others: Collection[int] | None
    ) -> tuple[object, dict[int, int]]:
        """Return a new mark, and the threads with newer rows than at the old mark: {number: its newest seq then, or 0}.

        A mark is a value of the backend, unknown to the caller. The caller passes each mark once, or again if the call
        failed. The first call passes None: then nothing has changed yet.

        `notified` are the threads that `wake` has named since the mark: the backend always checks them. If another
        process may have written, the backend also checks new threads and `others`; None means all threads. It may
        return more threads, and also an unchanged thread that the mark did not know.
        """


# -- maintenance --------------------------------------------------------------------------------------

REMOVED = ": a repair removes them for good"
"""The end of a message of `check` about data that `repair` removes."""
JUMP = 1 << 20
"""How many rows after the newest row `repair` may count as lost; a larger number is itself damage."""


class Usage(NamedTuple):
    """The counts and sizes of a store's data. Counts by name space leave out spaces whose count is 0."""

    threads: Mapping[str, int]
    """Threads that have a head, by name space."""
    rows: int
    checkpoints: Mapping[str, int]
    """Visible checkpoints, by name space."""
    logical_bytes: Mapping[str, int]
    """The sum of their sizes, by name space."""
    items: Mapping[str, int]
    """The sum of the `items` of the lists of threads that have a head and are not marked, by name space."""
    chunks: int
    payload_bytes: int
    """Bytes of payloads and chunks as they are stored."""
    stored_bytes: int
    """Bytes on disk; in memory, payload_bytes and index_bytes."""
    entries: int = 0
    """Entries of the index."""
    index_bytes: int = 0
    """Bytes of the index, without its overhead."""


class Maintenance(Protocol):
    """Removes, rewrites, checks and counts the stored data.

    Epochs let writers work during garbage collection. The collector begins an epoch, finds the chunks that rows refer
    to, and removes the others, except those that a commit has put or touched since the epoch began.
    """

    # -- garbage --------------------------------------------------------------------------------
    def next_epoch(self) -> int:
        """Begin an epoch and return its number; every later commit stamps its chunks with this epoch or a newer one."""

    def addresses(self, digests: Collection[bytes]) -> Collection[bytes]:
        """Return the addresses of chunks, in order. See `PlainChunks`."""

    def chunk_page(self, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return up to `limit` pairs (address, epoch) with addresses above `after`, ascending."""

    def damaged_chunks(self, addresses: Sequence[bytes], is_sound: Callable[[bytes, bytes], bool]) -> list[bytes]:
        """Return the addresses of the given chunks that are damaged; absent chunks are left out. See `PlainChunks`.

        `is_sound(digest, stored)` tells whether the stored bytes of a chunk match its digest.
        """

    def remove_chunks(self, addresses: Sequence[bytes], before_epoch: int) -> int:
        """Remove the given chunks whose epoch is below `before_epoch`; return the removed bytes."""

    def remove_rows(self, thread: int, seqs: Sequence[int]) -> int:
        """Remove the given rows that are hidden and not the newest, with their tags; return the number removed."""

    def rewrite(self, thread: int, rows: Sequence[Row], chunks: Sequence[tuple[bytes, bytes]] = ()) -> int:
        """Put the chunks, and replace the stored rows with the same seq and op_id; return the number replaced.

        The new rows have the head and the time of the stored ones: they are the same checkpoints, stored otherwise. The
        stored `hidden` flag stays. A row whose payload is None keeps the stored payload. Only a base row (its `base` is
        its own seq) may replace a base row, because the rows before it may have been removed.
        """

    def reclaim(self, *, erase: bool = False) -> None:
        """Return freed space to the operating system, as far as the backend can. Not in a group.

        `erase` also overwrites all removed data in every file of the store; other writers wait. `Unavailable` if other
        users of the store prevent that.
        """

    # -- damage ---------------------------------------------------------------------------------
    def check(self, progress: Callable[[str, int], None] | None) -> tuple[str, ...]:
        """Return a message for each damage of files, tables and indexes. The engine checks the rows themselves."""

    def repair(self) -> None:
        """Repair the damage that `check` finds; remove data that cannot be repaired. Not in a group.

        If another table shows that a thread has lost its newest row, the backend writes a row with a wrong checksum in
        its place. So the engine finds the damage, and the seq is not reused. A seq that is more than `JUMP` above the
        newest row is ignored. `Corrupt`, and nothing changes, if the store cannot be repaired in place.
        """

    def last_seq(self, thread: int) -> int:
        """Return the highest seq that a thread has had, from other tables than its rows; 0 if unknown.

        It is above the seq of the newest row only if newer rows were lost.
        """

    # -- size -----------------------------------------------------------------------------------
    def usage(self) -> Usage:
        """Return the counts and sizes of the stored data."""


# -- all of it ----------------------------------------------------------------------------------------


class Backend(LogStore, SearchIndex, ChangeFeed, Maintenance, Protocol):
    """The storage of a whole store. The module's docstring lists the promises of all backends."""

    read_only: bool
    """Whether the backend was opened for reading only."""
    undoes_groups: bool
    """Whether a group may end in `Undone`. A write that cannot be repeated must then stay outside of groups."""

    def group(self) -> AbstractContextManager[None]:
        """Make the calling thread's commits in the block durable together, at its end.

        Each commit is accepted or refused separately. Until the block ends, only the calling thread sees its commits.
        Then all of them are durable. If the end fails, or an exception leaves the block, none of them is written.

        The backend locks out other writers only from the first write on. If a write fails because the storage fails,
        the whole group has failed: later writes and the end raise the same error, or `Undone` if repeating the writes
        may succeed. A group inside a group is `Invalid`, and so are calls that cannot be part of a group (`reclaim`,
        `snapshot`, `close`).
        """

    def snapshot(self) -> AbstractContextManager[Backend]:
        """Yield a read-only view of the present store, for the calling thread, while others write. Not in a group."""

    def close(self) -> None:
        """Release everything; later calls are `Unavailable`, except another `close`."""


class NewList(NamedTuple):
    """The list of a thread that has none yet."""

    thread: int
    state: IndexState
    entries: tuple[IndexEntry | None, ...]


@runtime_checkable
class IndexesMany(Protocol):
    """A backend whose index takes the lists of many threads per call. Other backends get them one by one."""

    def marked(self, after: int, limit: int) -> list[tuple[ThreadRecord, IndexState]]:
        """Return the records of marked threads like `SearchIndex.unindexed`, each with the version of its list."""

    def index_new(self, lists: Sequence[NewList]) -> set[int]:
        """Add lists as `SearchIndex.index` would, each accepted or refused; return the numbers of accepted threads.

        A list is refused if its thread has one by now. A backend may refuse any other. The call is not durable at
        once: after a crash the threads are marked again.
        """


@runtime_checkable
class Copyable(Protocol):
    """A backend that copies its store to a file or a directory which can be opened like the original."""

    beside: tuple[str, ...]
    """Suffixes of files that the backend would use as a part of the copy."""

    def access(self) -> FileAccess | None:
        """Return the access rights that the copy gets; None if they are unknown."""

    def backup(self, path: Path, progress: Callable[[str, int], None] | None) -> int:
        """Copy a snapshot of the store to a new path, while others write; return the size of the copy in bytes."""


# -- shared by backends -------------------------------------------------------------------------------


class PlainChunks:
    """The part of `Maintenance` that is the same for every backend that stores chunks as it gets them."""

    def chunks(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """See `Reader.chunks`."""
        raise NotImplementedError

    def addresses(self, digests: Collection[bytes]) -> Collection[bytes]:
        """Return the digests: a chunk is stored under its digest."""
        return digests

    def damaged_chunks(self, addresses: Sequence[bytes], is_sound: Callable[[bytes, bytes], bool]) -> list[bytes]:
        """Return the digests of the chunks whose bytes do not match."""
        return [digest for digest, stored in self.chunks(addresses).items() if not is_sound(digest, stored)]


def as_tagged(batch: Batch, tags: Callable[[int, int], Iterable[str]]) -> bool:
    """Tell whether rows have the tags that a batch requires.

    `tags(thread, seq)` returns the stored tags of a row, from before or after the changes of the batch.
    """
    for no, seq, known in batch.tags:
        differing = set(known).symmetric_difference(tags(no, seq))
        if not {(no, seq, tag) for tag in differing}.issubset((*batch.tag, *batch.untag)):
            return False
    return True


# A backend stores a pin as a tag: "@" and the uid of its holder in hexadecimal. Tags of users do not begin with "@".

_PIN = "@"


def pin_tag(holder: bytes) -> str:
    """Return the tag that a pin is stored as."""
    return _PIN + holder.hex()


def pins_as_tags(batch: Batch) -> Batch:
    """Return the batch with each pin replaced by the tag that stores it."""
    if not (batch.pins or batch.pin or batch.unpin):
        return batch
    pins = {(no, seq): tuple(map(pin_tag, holders)) for no, seq, holders in batch.pins}
    return batch._replace(
        tags=tuple((no, seq, (*tags, *pins.get((no, seq), ()))) for no, seq, tags in batch.tags),
        tag=(*batch.tag, *((no, seq, pin_tag(holder)) for no, seq, holder in batch.pin)),
        untag=(*batch.untag, *((no, seq, pin_tag(holder)) for no, seq, holder in batch.unpin)),
        pins=(),
        pin=(),
        unpin=(),
    )


def tags_in(stored: Iterable[str]) -> tuple[str, ...]:
    """Return the stored tags of a row that are not pins."""
    return tuple(tag for tag in stored if not tag.startswith(_PIN))


def pins_in(stored: Iterable[str]) -> tuple[bytes, ...]:
    """Return the holders of the pins among a row's stored tags; for a damaged pin b"", which is no thread's uid."""
    return tuple(_holder(tag) for tag in stored if tag.startswith(_PIN))


def _holder(tag: str) -> bytes:
    try:
        holder = bytes.fromhex(tag[1:])
    except ValueError:
        return b""
    return holder if pin_tag(holder) == tag else b""


def tags_of_rows(stored: Mapping[int, Iterable[str]]) -> dict[int, tuple[str, ...]]:
    """Return the result of `Reader.tags` from the stored tags of each row."""
    return {seq: tags for seq, words in stored.items() if (tags := tags_in(words))}


def pins_of_rows(stored: Mapping[int, Iterable[str]]) -> dict[int, tuple[bytes, ...]]:
    """Return the result of `Reader.pins` from the stored tags of each row."""
    return {seq: pins for seq, words in stored.items() if (pins := pins_in(words))}


def written(batch: Batch, created: Sequence[int]) -> set[int]:
    """Return the numbers of the threads that a batch adds rows to; `created` is the result of its `commit`."""
    return {created[-no - 1] if no < 0 else no for no, _ in batch.rows if no > 0 or created}
