"""Erasures while another process restores an agent: what was erased does not come back."""

import threading
import warnings

import pytest

import backtrail
from backtrail import Erased
from backtrail.agents.checkpoints import Manifests
from tests.support.scene import agent, conversation


@pytest.fixture(params=["memory", "sqlite", "file"])
def url(request, tmp_path):
    return {"memory": "memory://", "sqlite": tmp_path / "s.db", "file": (tmp_path / "dir").as_uri()}[request.param]


def elsewhere(deed):
    thread = threading.Thread(target=deed)
    thread.start()
    thread.join()


@pytest.mark.parametrize("state", ["deleted", "shown", "begun again"])
@pytest.mark.parametrize("collected", [True, False])
def test_restore_does_not_bring_back_what_is_erased_meanwhile(url, monkeypatch, state, collected):
    with backtrail.open(url) as store:
        store.agents.save(agent())
        for name in ("c", "other"):
            store.conversations.save(conversation(name, "one"))
        made = store.agents.checkpoint("a", "one")
        if state == "deleted":
            store.conversations.delete("c")
        store.conversations.delete("other")
        look, done = Manifests._agent_tip, []
        if not collected:
            monkeypatch.setattr("backtrail.maintenance.erase.remove", lambda *_: "not yet")

        def erase():
            store.conversations.erase("c")
            if state == "begun again":
                store.conversations.save(conversation("c", "new"))

        def meanwhile(self, session):  # it is called after the states were read
            if not done:
                done.append(elsewhere(erase))
            return look(self, session)

        monkeypatch.setattr(Manifests, "_agent_tip", meanwhile)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store.agents.restore(made)
        assert done
        assert [each.message.conversations for each in caught if each.category is Erased] == [("c",)]
        assert [info.id for info in store.conversations.list("a")] == ["other"]
        monkeypatch.undo()
        store.gc()
        assert store.verify().ok
        store.agents.undo("a")
        kept = ["c"] if state == "begun again" else []
        assert [info.id for info in store.conversations.list("a")] == kept
        assert store.verify().ok
