"""Salvaging: what goes on beside damage, and what comes of it after a repair.

Nothing goes by what is damaged; no id is given twice, and no call is made again that a checkpoint knows of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backtrail import Message, Policy
from backtrail.testing.conformance.base import Suite, fill, messages
from backtrail.testing.conformance.repairing import _row as row_of
from backtrail.testing.conformance.repairing import column, furnish, lost_newest, stored, wrong_time

if TYPE_CHECKING:
    from backtrail import Store


class Salvaging(Suite):
    """What is left, before a repair and after it."""

    def test_prune_passes_over_a_thread_whose_head_is_lost_and_names_it(self, store: Store) -> None:
        for name in "abc":
            fill(store.thread(name), 4)
        column("thread", "b")(store)
        rows = {place: row for place, row in stored(store).items() if place[1] == "b"}
        for dry_run in (True, False):
            report = store.prune(Policy(keep_last=1), dry_run=dry_run)
            assert (int(report), report.damaged) == (6, ("b",))
        assert {place: row for place, row in stored(store).items() if place[1] == "b"} == rows
        store.verify(repair=True)
        report = store.prune(Policy(keep_last=1))
        assert (int(report), report.damaged) == (2, ())

    @pytest.mark.parametrize("kept", ["keep_last", "keep_daily", "older_than"])
    def test_prune_does_not_go_by_rows_that_are_damaged(self, store: Store, kept: str) -> None:
        """They stay, and take the place of none that would stay without them."""
        thread = store.thread("t")
        made = fill(thread, 5)
        record, row = row_of(store, "thread", "t", 2)
        late = row._replace(created_at=row.created_at + (1 << 53 if kept == "keep_daily" else -(1 << 45)))
        assert store._backend.rewrite(record.no, [late]) == 1  # noqa: SLF001
        policy = {"keep_last": Policy(keep_last=4), "keep_daily": Policy(keep_daily=1)}.get(kept, Policy(older_than=60))
        report = thread.prune(policy)
        reasons = {checkpoint_id: why for checkpoint_id, _, why in report.kept}
        assert reasons[made[1].id] == ("damaged",)
        left = {"keep_last": [0, 2, 3, 4], "keep_daily": [4], "older_than": [0, 2, 3, 4]}[kept]
        assert reasons.keys() == {made[at].id for at in left} | {made[1].id}

    @pytest.mark.parametrize("lost", [1, 2, 3, 4], ids=lambda lost: f"{lost} rows")
    def test_a_run_that_lost_the_end_of_its_journal_repeats_no_call_that_a_checkpoint_knows(
        self, store: Store, lost: int
    ) -> None:
        made: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            _paying(store, made, 3)
        _, newest = row_of(store, "journal", "session")
        for seq in range(newest.seq - lost + 1, newest.seq + 1):
            column("journal", "session", seq)(store)
        store.verify(repair=True)
        assert store.verify().ok
        _paying(store, made, 3, ends=True)
        assert made == [1, 2, 3]

    def test_what_is_left_of_a_journal_says_of_nobody_that_he_has_the_run(self, store: Store) -> None:
        with store.run("session") as run:
            run.tool("one", lambda: 1)
            run.tool("two", lambda: 2)
        column("journal", "session")(store)  # with it, that the run was left
        assert store.verify(repair=True).repaired
        with store.run("session") as run:
            assert run.tool("one", lambda: 0) == 1

    def test_the_id_of_a_row_that_is_lost_is_not_given_again(self, store: Store) -> None:
        furnish(store)
        lost = max(seq for _, _, seq in lost_newest(store))
        store.verify(repair=True)
        assert [message.content for message in store.conversations.load("c").messages] == ["hello", "again"]
        assert store.conversations.append("c", Message.user("more")).seq > lost
        assert [hit.conversation_id for hit in store.search("more")] == ["c"]
        assert store.conversations.thread("c").undo().seq < lost
        assert store.verify().ok

    def test_a_thread_whose_time_is_damaged_has_that_of_its_first_row(self, store: Store) -> None:
        furnish(store)
        before = store.info("t")
        wrong_time(store)
        assert store.info("t") != before
        assert store.verify().faults == ("thread 't': the time at which it was made is damaged",)
        store.verify(repair=True)
        assert store.info("t") == before


def _paying(store: Store, made: list[int], until: int, *, ends: bool = False) -> None:
    """Let a run make a call in each iteration, up to this number, and interrupt it in the last one, or end it."""
    with store.run("session", agent="b", state={"n": 0, "messages": messages(5)}) as run:
        for _ in run.iterations():
            if run.state["n"] == until:
                return
            run.tool("pay", lambda: made.append(len(made) + 1))
            run.state["n"] += 1
            run.checkpoint()
            if run.state["n"] == until and not ends:
                raise KeyboardInterrupt
