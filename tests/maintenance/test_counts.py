"""Counts in reports: each number has its own name and one meaning."""

import backtrail
from backtrail import AgentState, Conversation, Message


def test_each_count_of_checkpoints_has_its_own_name(tmp_path):
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        *_, last = [thread.save({"n": n}) for n in range(4)]
        thread.rewind(2)
        thread.delete_checkpoint(last)
        store.thread("t", aside=True).save({"n": 1})
        store.agents.save(AgentState("a", "A", "m"))
        store.conversations.save(Conversation("a", id="c", messages=[Message("user", "hi")]))
        store.agents.checkpoint("a", "before")
        info, stats, report = store.info("t"), store.stats(), store.verify()
        exported = store.export(tmp_path / "e")
        assert info.in_view == len(thread) == 2
        assert stats.checkpoints == 3 + 1 + 1  # of the thread with what was rewound away, the agent, the conversation
        assert stats.agent_checkpoints == 1
        assert report.states_read == 5 + 1  # and the thread's aside
        assert exported.visible_rows == 5 + 1 + 1  # and the manifest of the agent's checkpoint
        with backtrail.open("memory://") as other:
            assert other.import_(tmp_path / "e").visible_rows == exported.visible_rows
        older = (info.checkpoints, report.checkpoints, exported.checkpoints)
        assert older == (info.in_view, report.states_read, exported.visible_rows)
