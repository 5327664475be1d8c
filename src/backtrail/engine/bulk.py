"""Reads many threads at once: their records, their tips, and the paths and states of their checkpoints.

The number of backend calls does not depend on the number of threads. Rows are checked as `LogReader` checks them. If a
row is damaged or missing, `LogReader` reads its thread again alone, and returns the result or raises the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from backtrail.engine import log, payload
from backtrail.engine.compression import stands_beside
from backtrail.engine.reader import LogReader, Tip

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from backtrail.backends.port import Row, ThreadRecord
    from backtrail.engine.tree.tree import Tree

Names = tuple[str, str]
"""The name space and the name of a thread."""
Place = tuple["ThreadRecord", "Row"]
"""A checkpoint of a thread."""

_PAGE: Final = 500
_PAGE_BYTES: Final = 16 << 20
"""The limits of a page, in states and in bytes of states. Callers hold one page in memory at a time."""


def pages(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield the checkpoints in pages whose states fit into memory together."""
    page: list[Place] = []
    size = 0
    for place in places:
        if page and (len(page) == _PAGE or size + place[1].size > _PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(place)
        size += place[1].size
    if page:
        yield page


class BulkReader:
    """Reads many threads through a `LogReader`."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._backend = reader.backend

    def records(self, names: Collection[Names]) -> dict[Names, ThreadRecord]:
        """Return the records of the named threads that exist."""
        by_space: dict[str, list[str]] = {}
        for space, name in names:
            by_space.setdefault(space, []).append(name)
        return {
            (space, name): record
            for space, listed in by_space.items()
            for name, record in self._backend.threads_named(space, listed).items()
        }

    def tips(self, records: Mapping[Names, ThreadRecord]) -> dict[Names, Tip]:
        """Return the tips of the threads that have rows, without their states."""
        newest = self._backend.newest_of([record.no for record in records.values()])
        heads = self._backend.rows_of([(no, row.head, row.head) for no, row in newest.items() if row.head])
        tips: dict[Names, Tip] = {}
        for names, record in records.items():
            row = newest.get(record.no)
            head = heads.get((record.no, row.head)) if row else None
            whole = row and log.is_sound(row, record.uid) and (head is not None or not row.head)
            if row and whole and (head is None or log.is_sound(head, record.uid)):
                tips[names] = Tip(record, row, head)
            elif (tip := self._reader.tip_of(record)) is not None:
                tips[names] = tip
        return tips

    def paths(self, places: Sequence[Place]) -> list[log.Ranges]:
        """Return, for each checkpoint, the ranges of seq from the root to it."""
        moves = self._backend.rows_of([(record.no, row.view, row.view) for record, row in places if row.view])
        paths: list[log.Ranges] = []
        for record, row in places:
            move = moves.get((record.no, row.view))
            whole = row.view == 0 or (move is not None and log.is_sound(move, record.uid))
            paths.append(log.path_of(row, {row.view: move}.get) if whole else self._reader.path(record, row))
        return paths

    def trees(self, places: Sequence[Place]) -> list[Tree]:
        """Return the trees of a page of checkpoints, each verified against its root hash. One checkpoint per thread."""
        chains = self.chains(places)
        return [self._reader.read_chain(row, chain).tree for (_, row), chain in zip(places, chains, strict=True)]

    def chains(self, places: Sequence[Place]) -> list[list[Row]]:
        """Return the rows of the chain of each checkpoint in a page. One checkpoint per thread."""
        for record, row in places:
            self._reader.require_sound(record, row)
        turned = [place for place in places if place[1].view >= place[1].base]
        paths = dict(zip((record.no for record, _ in turned), self.paths(turned), strict=True))
        ranges = [self._reader.chain_ranges(row, paths.get(record.no, ())) for record, row in places]
        spans = [(record.no, *span) for (record, _), each in zip(places, ranges, strict=True) for span in each]
        rows: dict[int, list[Row]] = {}
        for (no, _), row in self._backend.rows_of(spans, payload=True).items():
            rows.setdefault(no, []).append(row)
        chains = [self._reader.chain_from(record, row, rows.get(record.no, [])) for record, row in places]
        self._load_nodes(chains)
        return chains

    def _load_nodes(self, chains: Sequence[list[Row]]) -> None:
        """Load into the cache the chunks that compressed payloads refer to, and the nodes of bases that have deltas."""
        nodes = self._reader.nodes()
        nodes.load([digest for chain in chains for row in chain for digest in stands_beside(row.payload or b"")])
        bases = [payload.read_base(chain[0].payload or b"", nodes)[0] for chain in chains if len(chain) > 1]
        nodes.load([digest for tree in bases for digest in payload.refs_of(tree.rep)])
