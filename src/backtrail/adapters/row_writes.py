"""Writing the rows of a namespace's threads, without the checks that the adapter's own values do not need.

A handle of a thread is shared by all callers, so no write expects the head that its caller saw last: a write names the
head that it expects, or goes on top of any head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from backtrail.engine.adapter_labels import MARK
from backtrail.engine.asides import RUN
from backtrail.engine.rows import Meta
from backtrail.engine.tree.decode import Unpacker
from backtrail.engine.tree.edits import Replace
from backtrail.engine.tree.encode import Packer, is_long
from backtrail.engine.tree.tree import Tree
from backtrail.engine.writer import ANYTHING, LABELLED, NOTHING, Expect
from backtrail.models import NEW
from backtrail.validation import check_label

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from backtrail import Thread
    from backtrail.engine.writer import Propose
    from backtrail.models import Sentinel

RowMetadata: TypeAlias = "Mapping[str, Any] | bytes | None"
"""The metadata of a row, or their bytes."""


def save_checkpoint(
    thread: Thread[Any],
    state: dict[str, Any],
    label: str | None,
    metadata: RowMetadata,
    *,
    changed: Collection[str] | None = None,
    expect: str | Sentinel | None = None,
    onto: Any = None,
) -> None:
    """Save a state as `Thread.save` does. `expect` is the head's label or `NEW`; None: any head."""
    state = thread._redacted(state)  # noqa: SLF001 - a part of Thread.save
    change = Replace(state, thread._nodes(), thread._types, changed)  # noqa: SLF001 - a part of Thread.save
    expected = ANYTHING
    if expect is not None:
        expected = Expect(NOTHING) if expect is NEW else Expect(LABELLED, None, str(expect))
    _commit(thread, change, _meta(thread, label, metadata), expected, onto)


def save_alone(
    thread: Thread[Any],
    state: dict[str, Any],
    label: str | None,
    metadata: RowMetadata,
    *,
    values: list[Any] | None = None,
) -> None:
    """Save a state that has nothing in common with the one before: neither is read to write or read the other.

    `values` are the parts of the state that may be other than plain strings, lists and dicts, if the caller knows them.
    """
    state, types, nodes = thread._redacted(state), thread._types, thread._nodes()  # noqa: SLF001 - as above
    data = None
    if values is not None and thread._redact is None and not any(map(is_long, values)):  # noqa: SLF001 - as above
        data = Packer(types).inline_with(state, values)
    tree = Tree.of(state, nodes, types) if data is None else Tree(data, nodes)
    _commit(thread, lambda _: (tree, None), _meta(thread, label, metadata), ANYTHING, None)


def _commit(thread: Thread[Any], propose: Propose, meta: Meta, expected: Expect, onto: Any) -> None:
    """Write a checkpoint. Unlike `Thread._write`, keep nothing for the caller's next save."""
    engine, shared, key = thread._engine, thread._shared, thread._key  # noqa: SLF001 - as above
    session, group = engine.session, engine.open_group
    if session.overlay is not None:
        thread._write(propose, meta, None, default=expected, onto=onto)  # noqa: SLF001 - as above
        return
    find = None if onto is None else lambda tip: thread._stand_on(tip, onto)  # noqa: SLF001 - as above
    if group is None:
        shared.tip = session.writer.save(key, propose, meta, expected, shared.tip, find)
    else:
        known = group.tips.get(shared, shared.tip)
        group.tips[shared] = session.writer.save(key, propose, meta, expected, known, find)


def _meta(thread: Thread[Any], label: str | None, metadata: RowMetadata) -> Meta:
    if metadata and thread._redact is not None:  # noqa: SLF001 - as above
        given = Unpacker(thread._types)(metadata) if isinstance(metadata, bytes) else metadata  # noqa: SLF001
        own = {MARK, RUN}  # ids that lead from checkpoint to checkpoint
        metadata = {key: value if key in own else thread._redacted(value) for key, value in given.items()}  # noqa: SLF001
    packed = metadata if isinstance(metadata, bytes) else thread._metadata(metadata)  # noqa: SLF001 - as above
    return Meta(label=check_label(label), metadata=packed)
