"""Namespaces: the threads of subgraphs, whose checkpoints belong to checkpoints of the thread of the outermost graph.

A row of a namespace names the outer checkpoint on which it was saved, the run of the outer graph that saved it, and the
runs that this run skipped (see `adapter_labels.Under`). A rewind moves only the outer thread. So the *valid* row of a
namespace is found when it is read. It is the newest row that was saved on an ancestor of the outer checkpoint, or on
that checkpoint itself by a run that was not taken back. A fork starts each namespace with the row that is valid at the
forked checkpoint.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from backtrail.engine import adapter_labels, log
from backtrail.engine.asides import THREAD, run_of, used
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.backends.port import Row
    from backtrail.engine.reader import LogReader, Tip


_PAGE: Final = 256
_DIGEST: Final = "|\\#"
"""Begins the digest that replaces a namespace whose name is too long for the id of a thread."""


class Above(NamedTuple):
    """The outer checkpoint that a run of the outer graph continues from."""

    label: str
    gone: frozenset[str] = frozenset()
    """The runs that had continued from the checkpoint, and that a rewind took back."""


class Outer:
    """The thread of the outermost graph, seen from one of its checkpoints."""

    def __init__(self, reader: LogReader, tip: Tip, above: Above) -> None:
        self._reader = reader
        self._tip = tip
        self._above = above

    @staticmethod
    def at(reader: LogReader, tip: Tip, row: Row) -> Outer:
        """Return the outer thread at a checkpoint, as if no run had continued from it yet."""
        return Outer(reader, tip, Above(row.label or "", used(reader, tip, row)))

    @cached_property
    def _rows(self) -> list[Row]:
        every = self._reader.backend.rows(self._tip.record.no, [(1, self._tip.newest.seq)])
        return [row for row in every if row.op in log.CHECKPOINTS]

    @cached_property
    def _is_stored(self) -> bool:
        return any(row.label == self._above.label for row in self._rows)

    @cached_property
    def _path(self) -> log.Ranges:
        """The ranges from the root to the checkpoint; to the head, if the checkpoint is not saved yet."""
        own = [row for row in self._rows if row.label == self._above.label]
        view = self._reader.view(self._tip)
        seen = [row for row in own if log.contains(view, row.seq)] or own
        return self._reader.path(self._tip.record, seen[-1]) if seen else view

    def newest(self, inner: Tip, *, of_fork: bool = False) -> Row | None:
        """Return the valid row of a namespace: its head, if that is valid, else the newest valid row; None if none is.

        Raises `Invalid` if the valid row was pruned. A fork reads all namespaces (`of_fork`): then only if the oldest
        row left was saved on this very checkpoint.
        """
        if inner.head is not None and self._has(inner, inner.head):
            return inner.head
        rows = self._reader.backend.rows(inner.record.no, [(1, inner.newest.seq)], newest_first=True, visible=True)
        valid = next((row for row in rows if self._has(inner, row)), None)
        if valid is None and rows:
            under = adapter_labels.under(rows[-1], self._reader.types)
            parent = (adapter_labels.mark_of(rows[-1], self._reader.types) or {}).get("parent")
            here = under is not None and under.label == self._above.label
            if parent is not None and (here or not of_fork):
                raise _pruned(inner)
        return valid

    def _has(self, inner: Tip, row: Row) -> bool:
        """Tell whether a row of a namespace is valid at the outer checkpoint."""
        under = adapter_labels.under(row, self._reader.types)
        if under is None:  # it belongs to no outer checkpoint
            return True
        label, run, without = under
        if label == self._above.label:
            return self._is_left(inner, run, self._above.gone)
        same = [each for each in self._rows if each.label == label]
        if not same:
            return self._is_before(label)
        on_path = [each for each in same if log.contains(self._path, each.seq)]
        if not on_path:
            return False
        after = [each for each in self._rows if each.parent == on_path[-1].seq]
        chosen = {run_of(each) for each in after if log.contains(self._path, each.seq)}
        others = frozenset(run_of(each) for each in after) - chosen
        return self._is_left(inner, run, others) and not chosen.intersection(without)

    def _is_left(self, inner: Tip, run: str | None, gone: frozenset[str]) -> bool:
        if run is None and gone:
            raise _unknown(inner)
        return run not in gone

    def _is_before(self, label: str) -> bool:
        """Tell whether an outer checkpoint that is not stored belongs to the path. LangGraph's labels sort by time."""
        later = [row for row in self._rows if row.label is not None and row.label > label]
        if not later or not self._is_stored:
            return not self._is_stored
        return log.contains(self._path, min(later, key=lambda row: row.label or "").seq)


def _unknown(inner: Tip) -> Invalid:
    name = inner.record.name
    text = (
        f"thread {name!r} of a subgraph holds checkpoints of which it is not recorded which run saved them (they were "
        "imported), so it cannot be told which of them the rewind or fork of its graph takes back: undo the rewind, or "
        f"delete thread {name!r} to run the subgraph from its beginning"
    )
    return Invalid(text, code="invalid.rewind")


def _pruned(inner: Tip) -> Invalid:
    name = inner.record.name
    text = (
        f"the checkpoint of the subgraph in thread {name!r} that belongs to this checkpoint of its graph was pruned, "
        "so the subgraph would run again from its beginning: undo the rewind, or delete "
        f"thread {name!r} to let it run again"
    )
    return Invalid(text, code="invalid.rewind")


def has_branches(reader: LogReader, tip: Tip) -> bool:
    """Tell whether a thread may have checkpoints out of view: it was rewound, or has no head."""
    head = tip.head
    return head is None or tip.newest.seq != head.seq or len(reader.view(tip)) > 1


def below(reader: LogReader, name: str) -> Iterator[Tip]:
    """Yield the tips of the namespaces of a graph's thread."""
    after: tuple[int, int] | None = None
    while page := reader.backend.threads(space=THREAD, agent=None, prefix=f"{name}|", after=after, limit=_PAGE):
        for record, newest in page:
            after = (newest.created_at, record.no)
            tip = reader.tip_of(record)
            head: Any = None if tip is None else tip.head
            if tip is not None and head is not None and adapter_labels.mark_of(head, reader.types) is not None:
                yield tip
        if len(page) < _PAGE:
            return


def taken_along(reader: LogReader, tip: Tip, row: Row, new_id: str) -> list[tuple[Tip, Row, str]]:
    """Return the namespaces to fork with a graph's thread: the tip, the row to fork, and the name of the new thread."""
    name = tip.record.name
    if adapter_labels.mark_of(row, reader.types) is None or any(
        adapter_labels.outermost(each) != each for each in (name, new_id)
    ):
        return []
    outer = Outer.at(reader, tip, row)
    forks = []
    for inner in below(reader, name):
        its, rest = outer.newest(inner, of_fork=True), inner.record.name[len(name) :]
        if its is not None and rest.startswith(_DIGEST):
            text = f"thread {inner.record.name!r} of a subgraph cannot be forked with its graph: its name is too long"
            raise Invalid(text, code="invalid.argument")
        if its is not None:
            forks.append((inner, its, new_id + rest))
    return forks
