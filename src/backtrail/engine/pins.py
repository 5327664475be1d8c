"""Agent checkpoints as threads: manifests, and the pins that keep what they point at.

Each agent that has checkpoints has a thread for them, in the name space `SPACE`, under the agent's id. Its states are
*manifests*: how the agent's thread and those of its conversations stood, as pointers to their heads. The newest one is
what the next one is made from, with the threads that were touched since. A row of this thread says in its metadata what
it `is`:

    checkpoint   what a user asked for
    before       how things stood when a restore began: what its undo goes back to
    after        how they stand since a restore or an undo, or since the newest checkpoint was deleted: the next
                 manifest is made from it, and it keeps nothing that was touched since

and carries `undo`, the restores that can be undone, the last one at the end, each as the seqs of its two rows.

What a manifest points at has a *pin*: a tag that begins with @, as no user's tag does, and names the thread of the
manifest. It is put in the transaction that writes the manifest, or imports it. What is pinned may be hidden, because
its thread was deleted, but is not collected: a restore shows it again. A collection takes pins off that no manifest in
use needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from backtrail.backends.port import Batch, Stale
from backtrail.engine import log, payload
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import unpacker
from backtrail.engine.tree.codec import Decoder
from backtrail.errors import Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import Heads
    from backtrail.engine.tree.tree import Tree

SPACE: Final = "checkpoint"
AGENT: Final = "agent"
CONVERSATION: Final = "conversation"
CONVERSATIONS: Final = "conversations"
"""Where a manifest has its pointers to them: in buckets, so that a change of one touches few others."""
CHECKPOINT: Final = "checkpoint"
BEFORE: Final = "before"
AFTER: Final = "after"
_BUCKETS: Final = "0123456789abcdef"
_MARK: Final = "@"
PLAIN: Final = Types()
"""Manifests are plain data."""

Needs = dict[tuple[str, str], dict[int, bytes]]
"""Rows that manifests need: by the name space and the name of their thread, the seq of each, and its root."""


class Pointer(NamedTuple):
    """A checkpoint of a thread: its seq, the size of its state, and the hash of that."""

    seq: int
    size: int
    root: bytes

    @classmethod
    def to(cls, row: Row) -> Pointer:
        """Return a pointer to a checkpoint."""
        return cls(row.seq, row.size, row.root)


class Manifest(NamedTuple):
    """How an agent's threads stood."""

    agent: Pointer | None
    """None if its state was deleted, but not the agent."""
    conversations: dict[str, Pointer]

    @property
    def size(self) -> int:
        """Bytes of all their states."""
        return sum(pointer.size for pointer in (self.agent, *self.conversations.values()) if pointer)

    def pointers(self, agent_id: str) -> dict[tuple[str, str], Pointer]:
        """Return all pointers, by the name space and the name of the thread."""
        own = {} if self.agent is None else {(AGENT, agent_id): self.agent}
        return {**own, **{(CONVERSATION, name): pointer for name, pointer in self.conversations.items()}}

    def state(self) -> dict[str, Any]:
        """Return it as the state of a thread."""
        buckets: dict[str, dict[str, list[Any]]] = {bucket: {} for bucket in _BUCKETS}
        for name, pointer in self.conversations.items():
            buckets[bucket_of(name)][name] = list(pointer)
        return {AGENT: None if self.agent is None else list(self.agent), CONVERSATIONS: buckets}


def bucket_of(name: str) -> str:
    """Return the bucket of a conversation."""
    return _BUCKETS[crc32(name.encode("utf-8", "surrogatepass")) % len(_BUCKETS)]


class Note(NamedTuple):
    """What the row of a manifest says beside it."""

    role: str
    name: str = ""
    description: str | None = None
    size: int = 0
    """Bytes of all the states that it points at."""
    held: int = 0
    """How many conversations it points at."""
    undo: tuple[tuple[int, int], ...] = ()

    def metadata(self) -> dict[str, Any]:
        """Return it as the metadata of a checkpoint."""
        made: dict[str, Any] = {"is": self.role, "bytes": self.size, "conversations": self.held}
        if self.role == CHECKPOINT:
            made |= {"name": self.name, "description": self.description}
        return made | {"undo": [list(pair) for pair in self.undo]} if self.undo else made


def note_of(row: Row) -> Note:
    """Return what the row of a manifest says beside it."""
    packed = log.unpack_extra(row)[0]
    found = unpacker.Unpacker(PLAIN)(packed) if packed else None
    try:
        undo = tuple((before, after) for before, after in found.get("undo", ()))  # type: ignore[union-attr]
        name, description = found.get("name", ""), found.get("description")  # type: ignore[union-attr]
        return Note(found["is"], name, description, found["bytes"], found["conversations"], undo)  # type: ignore[index]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"row {row.seq} of an agent's checkpoints is damaged", code="corrupt.row") from error


def manifest_of(heads: Heads, record: ThreadRecord, row: Row) -> Manifest:
    """Read a manifest, verified."""
    return _manifest(heads, record, row, heads.chain(record, row).tree)


def _trees(heads: Heads, record: ThreadRecord, rows: list[Row]) -> Iterator[tuple[Row, Tree]]:
    """Give the manifests of rows, unread: each is mostly a change of the one before."""
    last: tuple[int, Tree] | None = None
    for row in rows:
        tree: Tree | None = None
        if last is not None and row.parent == last[0] and row.base != row.seq:
            tree = last[1].apply(payload.read_delta(row.payload or b"", heads.nodes()))
        if tree is None or tree.root != row.root:
            tree = heads.chain(record, row).tree
        last = row.seq, tree
        yield row, tree


def _manifest(heads: Heads, record: ThreadRecord, row: Row, tree: Tree) -> Manifest:
    found = Decoder(tree.nodes, PLAIN).value(tree.rep)
    try:
        buckets = found[CONVERSATIONS].values()
        pointers = {name: Pointer(*at) for bucket in buckets for name, at in bucket.items()}
        return Manifest(None if found[AGENT] is None else Pointer(*found[AGENT]), pointers)
    except (AttributeError, KeyError, TypeError) as error:
        raise heads.damaged(record, row.seq, "it is no agent checkpoint") from error


# -- pins ---------------------------------------------------------------------------------------------


def pin_of(uid: bytes) -> str:
    """Return the pin of a thread of manifests."""
    return _MARK + uid.hex()


def uid_of(pin: str) -> bytes:
    """Return the uid of the thread of manifests that a pin names; no thread has it if the pin is damaged."""
    try:
        return bytes.fromhex(pin.removeprefix(_MARK))
    except ValueError:
        return b""


def is_pin(tag: str) -> bool:
    """Tell whether a tag is one that `pin_of` makes."""
    digits = tag.removeprefix(_MARK)
    return tag.startswith(_MARK) and len(digits) == 2 * log.UID_BYTES and set(digits) <= set("0123456789abcdef")


def pins_in(tags: Iterable[str]) -> tuple[str, ...]:
    """Return those of a row's tags that are pins."""
    return tuple(tag for tag in tags if tag.startswith(_MARK))


def shown(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a row's tags that users gave."""
    return tuple(tag for tag in tags if not tag.startswith(_MARK)) if tags else tags


def pinned(heads: Heads, record: ThreadRecord) -> set[int]:
    """Return the seqs of a thread's rows that have a pin."""
    if record.space not in (AGENT, CONVERSATION):
        return set()
    return {seq for seq, tags in heads.backend.tags(record.no).items() if pins_in(tags)}


class Holders:
    """Tells what agents' checkpoints hold. A pin may be there still when those that needed the row were deleted."""

    def __init__(self, heads: Heads, *, of_heads: bool = True) -> None:
        self._heads = heads
        self._of_heads = of_heads
        """Whether the manifest from which the next one is made counts: a thread that is deleted is not in that one."""
        self._known: dict[str, tuple[int, Needs]] = {}

    def of(self, record: ThreadRecord, seq: int, tags: Iterable[str]) -> list[str]:
        """Return the ids of the agents whose checkpoints hold a row with these tags; "?" for one that is not known."""
        found: dict[str, None] = {}
        for pin in pins_in(tags):
            manifests = self._heads.backend.thread_with_uid(uid_of(pin))
            if manifests is None or self._hold(manifests, pin, record, seq):
                found["?" if manifests is None else manifests.name] = None
        return list(found)

    def _hold(self, manifests: ThreadRecord, pin: str, record: ThreadRecord, seq: int) -> bool:
        """Tell whether manifests need a row; they do if they cannot be read."""
        newest = self._heads.backend.newest(manifests.no)
        try:
            if pin not in self._known or newest is None or self._known[pin][0] != newest.seq:
                self._known[pin] = needed(self._heads, manifests, of_heads=self._of_heads)
        except (Corrupt, NotFound):
            return True
        return seq in self._known[pin][1].get((record.space, record.name), ())


class Loosening:
    """Takes pins off that no manifest in use needs."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._held: dict[str, tuple[ThreadRecord, int, Needs] | None] = {}

    def loosen(self, record: ThreadRecord) -> None:
        """Do so for one thread. If the manifests change meanwhile, or cannot be read, its pins stay for now."""
        if record.space not in (AGENT, CONVERSATION):
            return
        loose: dict[str, list[int]] = {}
        for seq, tags in self._heads.backend.tags(record.no).items():
            for pin in pins_in(tags):
                held = self._holding(pin)
                if held is not None and seq not in held[2].get((record.space, record.name), ()):
                    loose.setdefault(pin, []).append(seq)
        for pin, seqs in loose.items():
            held = self._holding(pin)
            if held is not None:
                manifests, newest, _ = held
                untag = tuple((record.no, seq, pin) for seq in seqs)
                try:
                    self._heads.backend.commit(Batch(newest=((manifests.no, newest),), untag=untag))
                except Stale:
                    self._held[pin] = None
                else:
                    self._heads.examined[record.no] = None

    def _holding(self, pin: str) -> tuple[ThreadRecord, int, Needs] | None:
        """Return what the manifests of a pin need, and as of which row; None if that is not known."""
        if pin not in self._held:
            try:
                record = self._heads.backend.thread_with_uid(uid_of(pin))
                self._held[pin] = None if record is None else (record, *needed(self._heads, record))
            except (Corrupt, NotFound):
                self._held[pin] = None
        return self._held[pin]


def in_use(seq: int, note: Note, head: int, newest: Note) -> bool:
    """Tell whether a manifest is in use: a checkpoint, the newest one, or what a restore can be undone to."""
    return note.role == CHECKPOINT or seq == head or any(seq == before for before, _ in newest.undo)


def needed(heads: Heads, record: ThreadRecord, *, of_heads: bool = True) -> tuple[int, Needs]:
    """Return the newest row of an agent's checkpoints, and the rows that they need.

    `of_heads`: also those that the next one is made from, if nothing is written to their threads before.
    """
    newest = heads.backend.newest(record.no)
    if newest is None or newest.head == 0:
        return (0 if newest is None else newest.seq), {}
    rows = heads.backend.rows(record.no, [(1, newest.seq)], payload=True, visible=True)
    for row in rows:
        heads.require_sound(record, row)
    notes = {row.seq: note_of(row) for row in rows}
    if newest.head not in notes:
        raise NotFound("its newest manifest was hidden meanwhile", code="not_found.checkpoint")
    found: Needs = {}
    for row, tree in _trees(heads, record, rows):
        if in_use(row.seq, notes[row.seq], newest.head, notes[newest.head]):
            pointers = _manifest(heads, record, row, tree).pointers(record.name)
            if row.seq == newest.head and notes[row.seq].role == AFTER:  # the next one is made from what still holds
                if not of_heads:
                    continue
                for stand in heads.backend.standings(record.name, touched=True):
                    pointers.pop((stand.record.space, stand.record.name), None)
            for name, pointer in pointers.items():
                found.setdefault(name, {})[pointer.seq] = pointer.root
    return newest.seq, found
