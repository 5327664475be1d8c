"""Agent checkpoints as rows: manifests, and the pins on the rows that they point at.

Each agent with checkpoints has a thread of manifests, in the name space `SPACE`, under the agent's id. A *manifest* is
a state of that thread: pointers to the heads of the agent's thread and of its conversations at one moment. A new
manifest is made from the newest manifest and the threads that were written to since. The metadata of a manifest's row
has its role, under `is`:

    checkpoint   a checkpoint that a user made
    before       the heads when a restore began: undoing the restore returns to them
    after        the heads after a restore, after its undo, or after the newest checkpoint was deleted; the next
                 manifest is made from it. It does not pin the heads of threads that were written to since.

The metadata also has `undo`: the restores that can be undone, the last restore at the end, each as the seqs of its
manifests `before` and `after`.

A row that a manifest points at has a *pin*, whose holder is the thread of the manifest. The transaction that writes or
imports the manifest adds the pin. A pinned row may be hidden, because its thread was deleted, but gc does not remove
it, so that a restore can show it again. gc removes pins that no manifest in use needs.

If a thread is erased, the manifests keep their pointers to it: `erased_among` recognises them, and readers skip them.
The rows of these manifests get a tag, so that listings can name what was erased.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from backtrail.backends.port import Batch, Stale
from backtrail.engine import log, payload
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree.decode import Decoder, Unpacker
from backtrail.engine.tree.path import Path
from backtrail.engine.tree.tree import locate
from backtrail.errors import Conflict, Corrupt, NotFound

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.reader import LogReader
    from backtrail.engine.tree.tree import Tree

SPACE: Final = "checkpoint"
AGENT: Final = "agent"
CONVERSATION: Final = "conversation"
CONVERSATIONS: Final = "conversations"
"""The key of a manifest's pointers to conversations. They are in buckets, so that a change rewrites only one bucket."""
CHECKPOINT: Final = "checkpoint"
BEFORE: Final = "before"
AFTER: Final = "after"
_BUCKETS: Final = "0123456789abcdef"
PLAIN: Final = Types()
"""The registry for manifests, which are plain data: it has no classes."""

Names = tuple[str, str]
"""The name space and the name of a thread."""
Needs = dict[Names, dict[int, bytes]]
"""The rows that manifests point at: for each thread, the seqs with their root hashes."""


class Pointer(NamedTuple):
    """A pointer to a checkpoint of a thread: its seq, the size of its state in bytes, and its root hash."""

    seq: int
    size: int
    root: bytes

    @classmethod
    def to(cls, row: Row) -> Pointer:
        """Return a pointer to a checkpoint."""
        return cls(row.seq, row.size, row.root)


class Manifest(NamedTuple):
    """The heads of an agent's threads at one moment."""

    agent: Pointer | None
    """The head of the agent's own thread; None if its state was deleted, but not the agent."""
    conversations: dict[str, Pointer]

    @property
    def size(self) -> int:
        """The bytes of all states that the manifest points at."""
        return sum(pointer.size for pointer in (self.agent, *self.conversations.values()) if pointer)

    def pointers(self, agent_id: str) -> dict[Names, Pointer]:
        """Return all pointers, by name space and name of their threads."""
        own = {} if self.agent is None else {(AGENT, agent_id): self.agent}
        return {**own, **{(CONVERSATION, name): pointer for name, pointer in self.conversations.items()}}

    def state(self) -> dict[str, Any]:
        """Return the manifest as the state of a thread."""
        buckets: dict[str, dict[str, list[Any]]] = {bucket: {} for bucket in _BUCKETS}
        for name, pointer in self.conversations.items():
            buckets[_bucket(name)][name] = list(pointer)
        return {AGENT: None if self.agent is None else list(self.agent), CONVERSATIONS: buckets}


class ManifestInfo(NamedTuple):
    """The facts about a manifest in the metadata of its row, so that listings need not read the manifest."""

    role: str
    name: str = ""
    description: str | None = None
    size: int = 0
    """The bytes of all states that the manifest points at."""
    conversations: int = 0
    """The number of conversations that the manifest points at."""
    undo: tuple[tuple[int, int], ...] = ()

    def metadata(self) -> dict[str, Any]:
        """Return the metadata for the manifest's row."""
        fields: dict[str, Any] = {"is": self.role, "bytes": self.size, "conversations": self.conversations}
        if self.role == CHECKPOINT:
            fields |= {"name": self.name, "description": self.description}
        return fields | {"undo": [list(pair) for pair in self.undo]} if self.undo else fields


def info_of(row: Row) -> ManifestInfo:
    """Return the info in the metadata of a manifest's row; `Corrupt` if it is damaged."""
    packed = log.unpack_extra(row)[0]
    data = Unpacker(PLAIN)(packed) if packed else None
    try:
        undo = tuple((before, after) for before, after in data.get("undo", ()))  # type: ignore[union-attr]
        name, description = data.get("name", ""), data.get("description")  # type: ignore[union-attr]
        return ManifestInfo(data["is"], name, description, data["bytes"], data["conversations"], undo)  # type: ignore[index]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"row {row.seq} of an agent's checkpoints is damaged", code="corrupt.row") from error


def in_use(seq: int, info: ManifestInfo, head: int, newest: ManifestInfo) -> bool:
    """Tell whether a manifest is in use: a user's checkpoint, the newest manifest, or the target of an undo."""
    return info.role == CHECKPOINT or seq == head or any(seq == before for before, _ in newest.undo)


# -- reading ------------------------------------------------------------------------------------------


def manifest_of(reader: LogReader, record: ThreadRecord, row: Row) -> Manifest:
    """Read the manifest of a row, and verify it against its root hash."""
    return _manifest(reader, record, row, reader.chain(record, row).tree)


def _manifest(reader: LogReader, record: ThreadRecord, row: Row, tree: Tree) -> Manifest:
    load_nodes(tree)
    state = Decoder(tree.nodes, PLAIN).value(tree.rep)
    try:
        buckets = state[CONVERSATIONS].values()
        pointers = {name: Pointer(*at) for bucket in buckets for name, at in bucket.items()}
        return Manifest(None if state[AGENT] is None else Pointer(*state[AGENT]), pointers)
    except (AttributeError, KeyError, TypeError) as error:
        raise reader.damaged(record, row.seq, "it is not an agent checkpoint") from error


def load_nodes(tree: Tree) -> None:
    """Load all nodes of a manifest into the cache, with one read per level."""
    todo = payload.refs_of(tree.rep)
    while todo:
        todo = [child for node in tree.nodes.load(todo).values() for child in node.children()]


def _bucket(name: str) -> str:
    """Return the key of the bucket that holds a conversation's pointer."""
    return _BUCKETS[crc32(name.encode("utf-8", "surrogatepass")) % len(_BUCKETS)]


def path_to(names: Names) -> Path:
    """Return the path of a thread's pointer in the state of a manifest."""
    space, name = names
    return Path((AGENT,) if space == AGENT else (CONVERSATIONS, _bucket(name), name))


def pointer_to(tree: Tree | None, names: Names) -> Pointer | None:
    """Return a manifest's pointer to a thread; None if the manifest has none."""
    if tree is None:
        return None
    try:
        rep, _ = locate(tree, path_to(names), PLAIN)
    except NotFound:
        return None
    at = Decoder(tree.nodes, PLAIN).value(rep)
    return None if at is None else Pointer(*at)


def erased_among(reader: LogReader, places: Mapping[Names, tuple[ThreadRecord, int]]) -> set[Names]:
    """Return the names of the threads that were erased after the row that is given with their records. One read."""
    numbers = {record.no: names for names, (record, _) in places.items()}
    if not numbers:
        return set()
    later = reader.backend.rows_of([(record.no, seq + 1, log.MAX_SEQ) for record, seq in places.values()])
    return {numbers[no] for (no, _), row in later.items() if log.erased_count(row) is not None}


def without(manifest: Manifest, agent_id: str, names: Container[Names]) -> Manifest:
    """Return a manifest without its pointers to some threads; the same object if it has none."""
    kept = {name: at for name, at in manifest.conversations.items() if (CONVERSATION, name) not in names}
    agent = None if (AGENT, agent_id) in names else manifest.agent
    if len(kept) == len(manifest.conversations) and agent is manifest.agent:
        return manifest
    return Manifest(agent, kept)


_ERASED: Final = "erased "
_ERASED_TAG: Final = re.compile(f"{_ERASED}[0-9a-f]{{{2 * log.UID_BYTES}}}")


def erased_tag(uid: bytes) -> str:
    """Return the tag of a manifest's row that says that a thread it points at was erased."""
    return _ERASED + uid.hex()


def erased_names(reader: LogReader, tags: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the erased threads that the tags of a manifest's row name, sorted."""
    uids = [bytes.fromhex(tag.removeprefix(_ERASED)) for tag in tags if _ERASED_TAG.fullmatch(tag)]
    records = (reader.backend.thread_with_uid(uid) for uid in uids)
    return tuple(sorted(record.name for record in records if record is not None))


def refuse_other_agent(reader: LogReader, record: ThreadRecord, agent: str | None) -> None:
    """Raise `Conflict` if the id of a deleted conversation cannot be reused, because its old agent has checkpoints."""
    owner = record.agent
    if owner is None or agent in (None, owner) or record.space != CONVERSATION:
        return
    tip = reader.tip(SPACE, owner)
    if tip is not None and tip.head is not None:
        raise Conflict(
            f"the id {record.name!r} was that of a {record.space} of agent {owner!r}, which the agent's checkpoints "
            "can restore; use another id",
            code="conflict.agent",
        )


# -- pins ---------------------------------------------------------------------------------------------


def pins_of(reader: LogReader, record: ThreadRecord, seqs: Iterable[int] | None = None) -> dict[int, tuple[bytes, ...]]:
    """Return the pins of a thread's rows: for each seq (of `seqs`, or any), the uids of the holders.

    Only threads of agents and conversations can have pins.
    """
    return reader.backend.pins(record.no, seqs) if record.space in (AGENT, CONVERSATION) else {}


def pinned_seqs(reader: LogReader, record: ThreadRecord, seqs: Iterable[int] | None = None) -> set[int]:
    """Return the seqs (of `seqs`, or any) of a thread's rows that have a pin."""
    return set(pins_of(reader, record, seqs))


class PinIndex:
    """Tells which pins are still needed. gc removes a pin only some time after its manifests were deleted.

    The newest manifest may have the role `after`; the next manifest is made from it. `of_heads` says whether the rows
    that only this manifest points at are needed.
    """

    def __init__(self, reader: LogReader, *, of_heads: bool = True) -> None:
        self._reader = reader
        self._of_heads = of_heads
        self._known: dict[bytes, tuple[int, Needs]] = {}

    def agents(self, record: ThreadRecord, seq: int, holders: Iterable[bytes]) -> list[str]:
        """Return the ids of the agents whose manifests need a row; "?" for an unknown agent. `holders` are its pins."""
        ids: dict[str, None] = {}
        for holder in holders:
            manifests = self._reader.backend.thread_with_uid(holder)
            needs = None if manifests is None else self._needs(manifests)
            if manifests is None:
                ids["?"] = None
            elif needs is None or seq in needs[1].get((record.space, record.name), ()):
                ids[manifests.name] = None
        return list(ids)

    def unpin(self, record: ThreadRecord) -> None:
        """Remove the pins of a thread's rows that no manifest in use needs.

        A pin stays for now if its holder is unknown or unreadable, or if another writer is adding a manifest.
        """
        by_holder: dict[bytes, list[int]] = {}
        for seq, holders in pins_of(self._reader, record).items():
            for holder in holders:
                by_holder.setdefault(holder, []).append(seq)
        for holder, seqs in by_holder.items():
            manifests = self._reader.backend.thread_with_uid(holder)
            needs = None if manifests is None else self._needs(manifests)
            if manifests is None or needs is None:
                continue
            needed = needs[1].get((record.space, record.name), {})
            unpin = tuple((record.no, seq, holder) for seq in seqs if seq not in needed)
            if not unpin:
                continue
            try:
                self._reader.backend.commit(Batch(newest=((manifests.no, needs[0]),), unpin=unpin))
            except Stale:
                continue
            self._reader.examined[record.no] = None

    def _needs(self, manifests: ThreadRecord) -> tuple[int, Needs] | None:
        """Return `needs_of` of an agent's manifests, cached until a row is added; None if they cannot be read."""
        newest = self._reader.backend.newest(manifests.no)
        known = self._known.get(manifests.uid)
        try:
            if known is None or newest is None or known[0] != newest.seq:
                known = self._known[manifests.uid] = needs_of(self._reader, manifests, of_heads=self._of_heads)
        except (Corrupt, NotFound):
            return None
        return known


def needs_of(reader: LogReader, record: ThreadRecord, *, of_heads: bool = True) -> tuple[int, Needs]:
    """Return the seq of the newest row of an agent's manifests, and the rows that the manifests in use point at.

    With `of_heads`, the newest manifest of role `after` counts, too, except for threads that were written to since.
    """
    newest = reader.backend.newest(record.no)
    if newest is None or newest.head == 0:
        return (0 if newest is None else newest.seq), {}
    rows = reader.backend.rows(record.no, [(1, newest.seq)], payload=True, visible=True)
    for row in rows:
        reader.require_sound(record, row)
    infos = {row.seq: info_of(row) for row in rows}
    if newest.head not in infos:
        raise NotFound("its newest manifest was just hidden", code="not_found.checkpoint")
    needs: Needs = {}
    for row, tree in _trees(reader, record, rows):
        if in_use(row.seq, infos[row.seq], newest.head, infos[newest.head]):
            pointers = _manifest(reader, record, row, tree).pointers(record.name)
            if row.seq == newest.head and infos[row.seq].role == AFTER:  # the next manifest is made from this one
                if not of_heads:
                    continue
                for tip in reader.backend.tips(record.name, touched=True):
                    pointers.pop((tip.record.space, tip.record.name), None)
            for names, pointer in pointers.items():
                needs.setdefault(names, {})[pointer.seq] = pointer.root
    return newest.seq, needs


def _trees(reader: LogReader, record: ThreadRecord, rows: list[Row]) -> Iterator[tuple[Row, Tree]]:
    """Yield the rows with the trees of their manifests. Most trees are made from the tree before and one delta."""
    last: tuple[int, Tree] | None = None
    for row in rows:
        tree: Tree | None = None
        if last is not None and row.parent == last[0] and row.base != row.seq:
            tree = last[1].apply(payload.read_delta(row.payload or b"", reader.nodes()))
        if tree is None or tree.root != row.root:
            tree = reader.chain(record, row).tree
        last = row.seq, tree
        yield row, tree
