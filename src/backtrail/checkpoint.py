"""The `Checkpoint` that callers get. Its fields are in memory; its state is loaded at the first access."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import ormsgpack

from backtrail.backends.port import Row, ThreadRecord
from backtrail.engine import log, payload
from backtrail.engine.compression import squeeze, unsqueeze
from backtrail.engine.schema.registry import Types
from backtrail.engine.tree import chunked, decode, msgpack
from backtrail.engine.tree.decode import Decoder
from backtrail.engine.tree.nodes import Cache, Node, Nodes, Rep, as_ref, digest_of, measured, size_of
from backtrail.engine.tree.path import parse
from backtrail.engine.tree.tree import Tree, locate, value_of
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.models import MISSING, StatePart, when
from backtrail.validation import check_count

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable


S = TypeVar("S")
_MAGIC: Final = b"backtrail checkpoint 1\n"
_LIMIT: Final = 1 << 34
_LARGE: Final = 1 << 30
_DENSEST: Final = 1024
"""The most times that a state of more than _LARGE bytes may be larger than its nodes; a forged size is refused."""


class Checkpoint(Generic[S]):
    """An immutable point in a thread. Two checkpoints are equal if they have the same id and operation id."""

    __slots__ = (
        "_damaged",
        "_load",
        "_record",
        "_row",
        "_state",
        "_tree",
        "_type",
        "_types",
        "tags",
    )

    tags: tuple[str, ...]

    def __init__(  # noqa: PLR0917 - by position: every write makes one
        self,
        row: Row,
        record: ThreadRecord,
        tags: tuple[str, ...],
        types: Types,
        type: type[S] | None,  # noqa: A002 - the name of the public parameter
        load: Callable[[ThreadRecord, Row], Tree],
        damaged: Corrupt | None = None,
    ) -> None:
        self._row = row
        self._record = record
        self._types = types
        self._type = type
        self._load = load
        self._tree: Tree | None = None
        self._state: Any = MISSING
        self._damaged = damaged
        self.tags = tags

    # -- fields -----------------------------------------------------------------------------------

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return self._record.name

    @property
    def thread_kind(self) -> str | None:
        """The kind of the thread: "thread", "agent", "conversation" or "run". None after `from_bytes`."""
        return self._record.space or None

    @property
    def id(self) -> str:
        """The id of the checkpoint, the same in every store that has it."""
        return log.checkpoint_id(self._record.uid, self._row.seq)

    @property
    def parent_id(self) -> str | None:
        """The id of the parent checkpoint; for the first checkpoint of a fork, the id of the forked checkpoint."""
        origin = None if self.damaged else log.unpack_extra(self._row)[2]
        return origin or (log.checkpoint_id(self._record.uid, self._row.parent) if self._row.parent else None)

    @property
    def op_id(self) -> bytes:
        """The id of the write. A checkpoint of a dropped transaction may have the same id, but never the same op_id."""
        return self._row.op_id

    @property
    def seq(self) -> int:
        """The position in the thread's log."""
        return self._row.seq

    @property
    def step(self) -> int:
        """The number of checkpoints on the path to this checkpoint, itself and ancestors before a fork included."""
        return self._row.step

    @property
    def label(self) -> str | None:
        """The name of the checkpoint in its thread, or None."""
        return self._row.label

    @property
    def kind(self) -> str:
        """One of manual, automatic, pre_operation, recovery."""
        return log.KINDS[self._row.kind] if 0 <= self._row.kind < len(log.KINDS) else "manual"

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of the metadata that was saved with the checkpoint."""
        saved = b"" if self.damaged else log.unpack_extra(self._row)[0]
        metadata = decode.Unpacker(self._types)(saved) if saved else {}
        if type(metadata) is not dict:
            raise Corrupt(f"the metadata of checkpoint {self.id} is damaged", code="corrupt.row", checkpoint_id=self.id)
        return metadata

    @property
    def created_at(self) -> dt.datetime:
        """The time of the write, by the writer's clock, in UTC."""
        return when(self._row.created_at)

    @property
    def size(self) -> int:
        """The bytes of the whole state, uncompressed and unshared."""
        return self._row.size

    @property
    def stored(self) -> int:
        """The bytes that this checkpoint added to the store: its row's content and the new chunks."""
        return self._row.stored

    @property
    def root(self) -> str:
        """The hash of the state. Equal states have equal roots."""
        return f"blake3:{self._row.root.hex()}"

    @property
    def damaged(self) -> bool:
        """Whether the row does not match its checksum. Then only the id is reliable."""
        return self._damaged is not None

    # -- state --------------------------------------------------------------------------------------

    @property
    def state(self) -> S:
        """The state. The first access loads and verifies it."""
        if self._state is MISSING:
            tree = self._opened()
            with _named(self):
                value = Decoder(tree.nodes, self._types).value(tree.rep)
            self._state = self._types.convert_root(value, self._type)
        return self._state  # type: ignore[no-any-return]

    def get(self, path: str | tuple[Any, ...], default: Any = None) -> Any:
        """Return the value at a path, or `default`. Only the nodes that lead there are read."""
        tree = self._opened()
        with _named(self):
            try:
                rep, _ = locate(tree, parse(path), self._types)
            except NotFound:
                return default
            return Decoder(tree.nodes, self._types).value(rep)

    def tail(self, path: str | tuple[Any, ...], n: int) -> list[Any]:
        """Return the last n items of a list or tuple, oldest first. Earlier items are not loaded."""
        check_count(n, "n")
        tree = self._opened()
        with _named(self):
            rep, _ = locate(tree, parse(path), self._types)
            spine = chunked.open_rep(rep, tree.nodes)
            if spine is None or spine.code not in (msgpack.LIST, msgpack.TUPLE):
                raise Invalid(f"{parse(path) or 'the state'} is not a list", code="invalid.path", path=str(parse(path)))
            entries = chunked.entries(tree.nodes, spine, max(spine.length - n, 0))
            return Decoder(tree.nodes, self._types).values(entries)

    def part(
        self, path: str | tuple[Any, ...] = (), *, start: int = 0, limit: int = 100, most: int = 2_000
    ) -> StatePart:
        """Return the value at a path: whole if it has at most `most` bytes, else only its type and size.

        Of a large list or dict, it also returns up to `limit` entries from the position `start` on. Entries of more
        than `most` bytes are not read. `NotFound` if there is no value at the path.
        """
        check_count(start, "start")
        check_count(limit, "limit")
        tree = self._opened()
        with _named(self):
            rep, _ = locate(tree, parse(path), self._types)
            decoder = Decoder(tree.nodes, self._types)
            whole = _summary(rep, decoder, most)
            spine = chunked.open_rep(rep, tree.nodes) if whole.value is MISSING else None
            if spine is None:
                return whole
            unpack = decode.Unpacker(self._types)
            entries = []
            for at, entry in enumerate(chunked.entries(tree.nodes, spine, start, start + limit), start):
                key, value = (unpack(chunked.key_of(entry)), value_of(entry)) if spine.is_mapping else (at, entry)
                entries.append((key, _summary(value, decoder, most)))
            return replace(whole, count=spine.length, entries=tuple(entries))

    def _opened(self) -> Tree:
        if self._damaged is not None:
            raise self._damaged
        if self._tree is None:
            self._tree = self._load(self._record, self._row)
        return self._tree

    # -- to bytes and back --------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the checkpoint and its whole state as self-contained bytes."""
        tree = self._opened()
        with _named(self):
            nodes = _all_nodes(tree)
        row = self._row._replace(payload=None)
        body: list[Any] = [self.thread_id.encode("utf-8", "surrogatepass"), bytes.fromhex(self.id[8:])]
        body += [_plain_row(row), [tag.encode("utf-8", "surrogatepass") for tag in self.tags], bytes(tree.rep)]
        body += [[[node.kind, node.data] for node in nodes.values()]]
        return _MAGIC + squeeze(msgpack.pack(body))

    @classmethod
    def from_bytes(
        cls,
        data: Any,
        type: type[S] | None = None,  # noqa: A002
        *,
        types: tuple[Any, ...] = (),
    ) -> Checkpoint[S]:
        """Return the checkpoint of `to_bytes`; `Corrupt` for damaged bytes, `Invalid` for any other data."""
        if not isinstance(data, bytes) or not data.startswith(_MAGIC):
            raise Invalid("the data is not the output of Checkpoint.to_bytes()", code="invalid.bytes")
        try:
            name, uid, fields, tags, rep, listed = ormsgpack.unpackb(unsqueeze(data[len(_MAGIC) :], limit=_LIMIT))
            row = _row_from(fields)
            fresh = {digest_of(kind, body): Node(kind, body) for kind, body in listed}
            tree = Tree(measured(rep), Nodes(lambda _: {}, Cache(0), fresh))
            thread_id = name.decode("utf-8", "surrogatepass")
            words = tuple(tag.decode("utf-8", "surrogatepass") for tag in tags)
        except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise Corrupt(f"the bytes of the checkpoint are damaged ({error})", code="corrupt.bytes") from error
        held = len(rep) + sum(len(node.data) for node in fresh.values())
        if tree.root != row.root or not log.is_sound(row, uid) or not row.size == tree.size <= _LARGE + _DENSEST * held:
            raise Corrupt("the bytes of the checkpoint are damaged: their hash differs", code="corrupt.bytes")
        registry = Types(types).for_state(type)
        record = ThreadRecord(0, "", thread_id, uid, None, row.created_at, None)
        return cls(row, record, words, registry, type, lambda *_: tree)

    # -- as a value -----------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other.id == self.id and other.op_id == self.op_id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        label = f" {self.label!r}" if self.label is not None else ""
        return f"<Checkpoint {self.id[:8]} {self.thread_id!r} step {self.step}{label}>"


_TYPES: Final = {
    **dict.fromkeys((msgpack.LIST, msgpack.TUPLE), "array"),
    **dict.fromkeys((msgpack.SET, msgpack.FROZENSET), "set"),
    **dict.fromkeys((msgpack.DICT, msgpack.RECORD), "object"),
    **dict.fromkeys((msgpack.STR, msgpack.TEXT), "text"),
    **dict.fromkeys((msgpack.BYTES, msgpack.BYTEARRAY), "bytes"),
}
_PLAIN: Final = (
    (dict, "object"),
    (list | tuple, "array"),
    (set | frozenset, "set"),
    (str, "text"),
    (bytes | bytearray, "bytes"),
    (bool, "boolean"),
    (int | float, "number"),
    (type(None), "null"),
)


def _summary(rep: bytes, decoder: Decoder, most: int) -> StatePart:
    """Return a value without entries. The value is decoded only if it has at most `most` bytes."""
    rep = rep if type(rep) is Rep else measured(rep)
    ref, size = as_ref(rep), size_of(rep)
    if ref is not None and size > most:
        return StatePart(_TYPES.get(ref.code, "other"), size, ref.length)
    parts = msgpack.take_apart(rep) if ref is None and size > most else None
    if parts is not None:
        return StatePart(_TYPES[parts[0]], size, len(parts[2]))
    value = decoder.value(rep)
    kind = next((name for cls, name in _PLAIN if isinstance(value, cls)), "other")
    count = len(value) if kind in ("object", "array", "set") else None
    return StatePart(kind, size, count, value)


class _named:  # noqa: N801 - reads as a word in `with _named(checkpoint):`
    """Adds the checkpoint's id to a `Corrupt` error that the block raises."""

    def __init__(self, checkpoint: Checkpoint[Any]) -> None:
        self._checkpoint = checkpoint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt) and error.checkpoint_id is None:
            name = self._checkpoint.id
            raise Corrupt(
                log.unreadable(name, self._checkpoint.thread_id, str(error)),
                code=error.code,
                checkpoint_id=name,
            ) from error


def _all_nodes(tree: Tree) -> dict[bytes, Node]:
    """Return all nodes of a tree, by digest."""
    nodes: dict[bytes, Node] = {}
    todo = payload.refs_of(tree.rep)
    while todo:
        loaded = tree.nodes.load(todo)
        nodes.update(loaded)
        todo = [child for node in loaded.values() for child in node.children() if child not in nodes]
    return nodes


def _plain_row(row: Row) -> list[Any]:
    fields: list[Any] = list(row[:19])
    fields[12] = row.label.encode("utf-8", "surrogatepass") if row.label is not None else None
    return fields


def _row_from(fields: list[Any]) -> Row:
    label = fields[12].decode("utf-8", "surrogatepass") if fields[12] is not None else None
    return Row._make([*fields[:12], label, *fields[13:19], None, False])
