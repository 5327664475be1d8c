"""Namespaces: the threads of subgraphs, whose checkpoints belong to checkpoints of the thread of the outermost graph.

A row of a namespace says on which outer checkpoint it was saved, by which run of the outer graph, and which runs that
one had not been shown (see `asides`). A rewind moves only the outer thread. So which row of a namespace counts is
decided when it is read: the newest one that was saved on the way to the outer checkpoint, or on that one by a run that
was not taken back. A fork begins its namespaces with the rows that count at the checkpoint that is forked.
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
    from backtrail.engine.reader import Heads, Standing


_PAGE: Final = 256
_DIGEST: Final = "|\\#"
"""Begins what stands for a namespace of which the name is too long for an id of a thread."""


class Above(NamedTuple):
    """The outer checkpoint that a run stands on, as the run knows it."""

    label: str
    gone: frozenset[str] = frozenset()
    """The runs that went on from it and were taken back."""


class Outer:
    """The thread of the outermost graph, seen from one of its checkpoints."""

    def __init__(self, heads: Heads, standing: Standing, above: Above) -> None:
        self._heads = heads
        self._standing = standing
        self._above = above

    @staticmethod
    def at(heads: Heads, standing: Standing, row: Row) -> Outer:
        """Return it as it stood at a checkpoint, before any run went on from there."""
        return Outer(heads, standing, Above(row.label or "", used(heads, standing, row)))

    @cached_property
    def _rows(self) -> list[Row]:
        every = self._heads.backend.rows(self._standing.record.no, [(1, self._standing.newest.seq)])
        return [row for row in every if row.op in log.CHECKPOINTS]

    @cached_property
    def _is_stored(self) -> bool:
        return any(row.label == self._above.label for row in self._rows)

    @cached_property
    def _path(self) -> log.Ranges:
        """The way to the checkpoint; to the head as long as the run that makes the checkpoint has not saved it."""
        own = [row for row in self._rows if row.label == self._above.label]
        view = self._heads.view(self._standing)
        seen = [row for row in own if log.contains(view, row.seq)] or own
        return self._heads.path(self._standing.record, seen[-1]) if seen else view

    def newest(self, inner: Standing, *, of_fork: bool = False) -> Row | None:
        """Return the row of a namespace that counts: its head, if that does, else the newest one that does.

        `Invalid` if there was one and it was pruned. A fork asks for all namespaces: then only if it began here.
        """
        if inner.head is not None and self._has(inner, inner.head):
            return inner.head
        rows = self._heads.backend.rows(inner.record.no, [(1, inner.newest.seq)], newest_first=True, visible=True)
        found = next((row for row in rows if self._has(inner, row)), None)
        if found is None and rows:
            under = adapter_labels.under(rows[-1], self._heads.types)
            parent = (adapter_labels.mark_of(rows[-1], self._heads.types) or {}).get("parent")
            here = under is not None and under.label == self._above.label
            if parent is not None and (here or not of_fork):
                raise _pruned(inner)
        return found

    def _has(self, inner: Standing, row: Row) -> bool:
        """Tell whether a row of a namespace counts here."""
        under = adapter_labels.under(row, self._heads.types)
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

    def _is_left(self, inner: Standing, run: str | None, gone: frozenset[str]) -> bool:
        if run is None and gone:
            raise _unknown(inner)
        return run not in gone

    def _is_before(self, label: str) -> bool:
        """Tell whether a checkpoint that is not stored is on the way: the labels of LangGraph's go by their time."""
        later = [row for row in self._rows if row.label is not None and row.label > label]
        if not later or not self._is_stored:
            return not self._is_stored
        return log.contains(self._path, min(later, key=lambda row: row.label or "").seq)


def _unknown(inner: Standing) -> Invalid:
    name = inner.record.name
    text = (
        f"thread {name!r} of a subgraph holds checkpoints of which it is not recorded which run saved them (they were "
        "imported), so it cannot be told which of them the rewind or fork of its graph takes back: undo the rewind, or "
        f"delete thread {name!r} to run the subgraph from its beginning"
    )
    return Invalid(text, code="invalid.rewind")


def _pruned(inner: Standing) -> Invalid:
    name = inner.record.name
    text = (
        f"the checkpoint of the subgraph in thread {name!r} that belongs to this checkpoint of its graph was pruned, "
        "so the subgraph would run again from its beginning: undo the rewind, or delete "
        f"thread {name!r} to let it run again"
    )
    return Invalid(text, code="invalid.rewind")


def has_branches(heads: Heads, standing: Standing) -> bool:
    """Tell whether anything in a thread may be out of view: it was rewound, or went on from an older checkpoint."""
    head = standing.head
    return head is None or standing.newest.seq != head.seq or len(heads.view(standing)) > 1


def below(heads: Heads, name: str) -> Iterator[Standing]:
    """Give the namespaces of the thread of a graph."""
    after: tuple[int, int] | None = None
    while page := heads.backend.threads(space=THREAD, agent=None, prefix=f"{name}|", after=after, limit=_PAGE):
        for record, newest in page:
            after = (newest.created_at, record.no)
            standing = heads.standing_of(record)
            head: Any = None if standing is None else standing.head
            if standing is not None and head is not None and adapter_labels.mark_of(head, heads.types) is not None:
                yield standing
        if len(page) < _PAGE:
            return


def taken_along(heads: Heads, standing: Standing, row: Row, new_id: str) -> list[tuple[Standing, Row, str]]:
    """Return the namespaces that a fork of the thread of a graph has, the row that each begins with, and its name."""
    name = standing.record.name
    if adapter_labels.mark_of(row, heads.types) is None or any(
        adapter_labels.outermost(each) != each for each in (name, new_id)
    ):
        return []
    outer = Outer.at(heads, standing, row)
    found = []
    for inner in below(heads, name):
        its, rest = outer.newest(inner, of_fork=True), inner.record.name[len(name) :]
        if its is not None and rest.startswith(_DIGEST):
            text = f"thread {inner.record.name!r} of a subgraph cannot be forked with its graph: its name is too long"
            raise Invalid(text, code="invalid.argument")
        if its is not None:
            found.append((inner, its, new_id + rest))
    return found
