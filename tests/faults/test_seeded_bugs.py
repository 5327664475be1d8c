"""The state machine is worth its time: it finds bugs that are put into the engine on purpose.

Each bug is found within a bounded number of examples: `make test` tries every sixth bug, `make torture` all of them.
The examples are the same every time that the same modules are loaded: hypothesis also tries constants of theirs.
"""

from unittest import mock

import pytest
from hypothesis import Phase, settings

from backtrail.engine import log, payload, refs, retention, rows, writer
from backtrail.engine.reader import LogReader
from backtrail.engine.tree import decode, nodes, scan
from backtrail.engine.writer import LogWriter
from backtrail.errors import Error
from backtrail.maintenance import gc
from backtrail.overlay import Overlay
from backtrail.thread import Thread
from tests.machine import thread_machine as machine
from tests.support.places import in_memory

EXAMPLES = 200
"""How many it may take: three times what the slowest needs, or more."""
TRY = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
)


def moving(patch, change):
    """Let `change` have its way with what a move of the head writes down: a dict of ranges, undo and redo."""
    made = rows.move

    def move(tip, op, head, ranges, *, undo, redo, at):
        wrong = change(tip, op, head) or {}
        written = {"ranges": ranges, "undo": undo, "redo": redo} | wrong
        return made(tip, op, head, written.pop("ranges"), **written, at=at)

    patch.setattr(rows, "move", move)


def rewind_shows_everything_before_the_head(patch):
    moving(patch, lambda tip, op, head: {"ranges": ((1, head.seq),)} if head else None)


def undo_forgets_redo(patch):
    moving(patch, lambda tip, op, head: {"redo": 0} if op == log.UNDO else None)


def undo_undoes_itself(patch):
    moving(patch, lambda tip, op, head: {"undo": tip.newest.seq} if op == log.UNDO else None)


def undo_goes_to_what_was_deleted(patch):
    patch.setattr(log, "undo_target", lambda nearest, read, *, head, start: nearest(start) if start else None)


def redo_goes_to_what_was_deleted(patch):
    patch.setattr(log, "redo_target", lambda read, *, head, start: read(start) if start else None)


def redo_survives_a_save(patch):
    made = rows.checkpoint

    def checkpoint(tip, *rest, **options):
        return made(tip, *rest, **options)._replace(redo=tip.newest.redo if tip else 0)

    patch.setattr(rows, "checkpoint", checkpoint)


def prune_takes_labelled_ones(patch):
    patch.setattr(retention, "_keep_marked", lambda heads, tip, *_: heads.backend.tags(tip.record.no))


def prune_takes_one_too_many(patch):
    chosen = retention.sort_out

    def sort_out(heads, tip, rules, *rest, **options):
        return chosen(heads, tip, rules._replace(keep_last=max(rules.keep_last - 1, 0)), *rest, **options)

    patch.setattr(retention, "sort_out", sort_out)


def a_maximum_keeps_one_too_many(patch):
    placed = retention._places
    patch.setattr(retention, "_places", lambda heads, tip, listed, first=0: placed(heads, tip, listed))


def collecting_takes_rows_that_others_stand_on(patch):
    patch.setattr(gc, "make_base", lambda heads, record, row: row._replace(base=row.seq))


def collecting_does_not_follow_inner_nodes(patch):
    children, mark = nodes.Node.children, gc._mark_row

    def marked(*arguments):
        with mock.patch.object(nodes.Node, "children", lambda node: [] if node.kind == nodes.INNER else children(node)):
            mark(*arguments)

    patch.setattr(gc, "_mark_row", marked)


def chunks_stand_on_what_is_no_chunk(patch):
    patch.setattr(
        payload, "reachable", lambda source, digests: {d: source.fresh[d] for d in digests if d in source.fresh}
    )


def equal_states_are_taken_for_the_same(patch):
    scanned = scan.changes

    def sloppy(tree, value, types, only=None):
        if decode.Decoder(tree.nodes, types).value(tree.rep) == value:
            return [], tree.nodes
        return scanned(tree, value, types, only)

    patch.setattr(scan, "changes", sloppy)


def a_label_means_the_newest_wherever_it_is(patch):
    patch.setattr(refs, "_newest", lambda heads, tip, seqs: heads.sound_row(tip.record, max(seqs)) if seqs else None)


def nobody_checks_expectations(patch):
    patch.setattr(LogWriter, "_require", lambda *_: None)


def an_append_counts_as_reading(patch):
    real = Thread._write

    def write(self, *args, **options):
        made = real(self, *args, **options)
        self._expect(self._tip())
        return made

    patch.setattr(Thread, "_write", write)


def deleting_the_head_goes_back_too_far(patch):
    listed = LogReader.visible

    def visible(self, tip, ranges, *, newest_first=False, limit=None):
        return listed(self, tip, ranges, newest_first=newest_first and limit != 1, limit=limit)

    patch.setattr(LogReader, "visible", visible)


def giving_up_a_transaction_writes_it(patch):
    finish = Overlay.finish
    patch.setattr(Overlay, "finish", lambda self, *, commit: finish(self, commit=True))


def rows_stand_beside_chunks_that_go(patch):
    walked = gc.repack

    class Everything(set):
        def __contains__(self, _):
            return True

        def issuperset(self, _):
            return True

    patch.setattr(gc, "repack", lambda heads, record, live, *rest: walked(heads, record, Everything(), *rest))


def repacking_takes_the_wrong_bytes(patch):
    squeezed, read = gc.Beside.squeeze, gc.unsqueeze_beside

    def wrong(data):
        return data[:-1] + bytes([data[-1] ^ 1])

    patch.setattr(gc.Beside, "squeeze", lambda self, data: squeezed(self, wrong(data)))
    patch.setattr(gc, "unsqueeze_beside", lambda *given, **options: wrong(read(*given, **options)))  # no check


BUGS = [
    rewind_shows_everything_before_the_head,
    undo_forgets_redo,
    undo_undoes_itself,
    undo_goes_to_what_was_deleted,
    redo_goes_to_what_was_deleted,
    redo_survives_a_save,
    prune_takes_labelled_ones,
    prune_takes_one_too_many,
    a_maximum_keeps_one_too_many,
    collecting_takes_rows_that_others_stand_on,
    collecting_does_not_follow_inner_nodes,
    chunks_stand_on_what_is_no_chunk,
    equal_states_are_taken_for_the_same,
    a_label_means_the_newest_wherever_it_is,
    nobody_checks_expectations,
    an_append_counts_as_reading,
    deleting_the_head_goes_back_too_far,
    giving_up_a_transaction_writes_it,
    rows_stand_beside_chunks_that_go,
    repacking_takes_the_wrong_bytes,
]


@pytest.mark.parametrize("examples", [10, pytest.param(EXAMPLES, marks=pytest.mark.torture)])
def test_without_a_bug_nothing_is_found(examples):
    machine.run(in_memory, settings(TRY, max_examples=examples))  # as test_memory does, with many more


@pytest.mark.parametrize(
    "bug",
    [bug if at % 6 == 1 else pytest.param(bug, marks=pytest.mark.torture) for at, bug in enumerate(BUGS)],
    ids=[bug.__name__ for bug in BUGS],
)
def test_a_bug_is_found(monkeypatch, bug):
    monkeypatch.setattr(writer, "PATIENCE", 1.0)  # some make the engine try in vain
    bug(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, Error)):
        machine.run(in_memory, TRY)
