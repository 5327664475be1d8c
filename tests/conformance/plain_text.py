"""Names from a StrEnum or another subclass of str are stored and returned as plain str."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import AgentState, Conversation, Invalid, Message
from tests.conformance.base import Suite, head, states

if TYPE_CHECKING:
    from pathlib import Path

    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Name(StrEnum):
    """Names as an Enum."""

    LABEL = "draft"
    TAG = "red"
    ID = "trip"
    OTHER = "trip-2"
    AGENT = "planner"
    KEY = "model"
    TEXT = "coffee"
    PREFIX = "tri"
    MANUAL = "automatic"
    THREAD = "thread"
    CONVERSATION = "conversation"


class Shown(str):
    """A str with another repr and another hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __str__(self) -> str:
        return "something else"


def _is_plain(*values: Any) -> bool:
    return all(type(value) is str for value in values)


class PlainText(Suite):
    """Every parameter for a name takes subclasses of str."""

    def test_a_label_of_a_str_enum_is_plain_text(self, opener: Opener) -> None:
        with opener() as store:
            made = store.thread("t").save({"n": 1}, label=Name.LABEL, tags=[Name.TAG], metadata={Name.KEY: 1})
            assert _is_plain(made.label, *made.tags, *made.metadata)
        with opener() as store:
            thread = store.thread("t")
            loaded = thread.load(Name.LABEL)
            assert (loaded.label, loaded.tags, loaded.metadata) == ("draft", ("red",), {"model": 1})
            assert _is_plain(loaded.label, *loaded.tags, *loaded.metadata)
            assert store.verify().ok

    def test_a_label_keeps_its_text_however_it_shows_itself(self, thread: Thread[Any]) -> None:
        thread.save({"n": 1}, label=Shown("v1"), tags=[Shown("t1")])
        assert thread.load("v1").tags == ("t1",)
        assert thread.load(Shown("t1")).label == "v1"

    def test_str_enums_work_as_refs_labels_and_tags(self, thread: Thread[Any]) -> None:
        made = thread.save({"n": 1}, label="draft", tags=["red"])
        thread.save({"n": 2}, label="model")
        assert thread.load(Name.LABEL) == thread.load(Name.TAG) == made
        assert thread.find(label=Name.LABEL, tag=Name.TAG) == [made]
        assert len(thread.find(label=[Name.LABEL, Name.KEY])) == 2
        assert list(thread.history(label=Name.LABEL, tag=Name.TAG)) == [made]
        thread.untag(Name.LABEL, Name.TAG)
        assert thread.find(tag="red") == []
        thread.tag(Name.LABEL, Name.TEXT)
        assert thread.find(tag="coffee")[0].tags == ("coffee",)
        assert thread.save({"n": 3}, expect=Name.KEY).step == 3

    def test_a_kind_of_a_str_enum_is_a_kind(self, thread: Thread[Any]) -> None:
        made = thread.save({"n": 1}, kind=Name.MANUAL)
        assert _is_plain(made.kind)
        assert list(thread.history(kind=Name.MANUAL)) == [made]

    def test_ids_of_threads_are_plain_text(self, store: Store) -> None:
        thread = store.thread(Name.ID, agent=Name.AGENT)
        thread.save({"n": 1})
        assert _is_plain(thread.id, head(thread).thread_id)
        assert head(store.thread("trip")).state == {"n": 1}
        assert thread.fork(Name.OTHER).id == "trip-2"
        listed = list(store.threads(agent=Name.AGENT, prefix=Name.PREFIX, kind=Name.THREAD))
        assert [info.id for info in listed] == ["trip-2", "trip"]
        assert _is_plain(*(info.id for info in listed), *(info.agent for info in listed))
        assert store.info(Name.ID, kind=Name.THREAD) == store.info("trip")
        assert [info.id for info in store.threads(forked_from=Name.ID)] == ["trip-2"]
        assert [info.id for info in store.threads(after=Name.OTHER)] == ["trip"]
        assert store.prune(keep_last=1, threads=[Name.ID], kind=Name.THREAD) == 0
        assert store.thread(Name.ID).delete()
        assert store.info("trip") is None

    def test_conversations_take_str_enums_as_ids(self, opener: Opener) -> None:
        with opener() as store:
            many = store.conversations
            many.append(Name.ID, Message("user", Name.TEXT), agent_id=Name.AGENT)
            many.update(Name.ID, title=Name.TEXT, tags=[Name.TAG], metadata={Name.KEY: Name.TEXT})
            forked = many.fork(Name.ID, new_id=Name.OTHER)
            assert _is_plain(forked.id, forked.forked_from, forked.agent_id)
        with opener() as store:
            many = store.conversations
            found = many.load(Name.ID)
            assert (found.agent_id, found.title, found.tags, found.metadata) == (
                "planner",
                "coffee",
                ("red",),
                {"model": "coffee"},
            )
            assert _is_plain(found.id, found.agent_id, found.title, *found.tags, *found.metadata.values())
            assert [info.id for info in many.list(Name.AGENT, tag=Name.TAG, prefix=Name.PREFIX)] == ["trip-2", "trip"]
            assert many.load("trip-2").forked_from == "trip"
            assert [info.id for info in many.branches(Name.ID)] == ["trip-2"]
            assert {hit.conversation_id for hit in many.search(Name.TEXT, agent_id=Name.AGENT)} == {"trip", "trip-2"}
            hits = store.search(Name.TEXT, agent=Name.AGENT, thread=Name.ID, kind=Name.CONVERSATION)
            assert [hit.conversation_id for hit in hits] == ["trip"]
            assert many.thread(Name.ID, agent_id=Name.AGENT).id == "trip"
            assert [message.content for message in many.pop(Name.ID)] == ["coffee"]
            assert many.delete(Name.ID)
            assert store.verify().ok

    def test_agents_take_str_enums_as_ids(self, opener: Opener) -> None:
        with opener() as store:
            store.agents.save(AgentState(Name.AGENT, agent_type=Name.ID, name=Name.TEXT))
            store.conversations.save(Conversation(Name.AGENT, id=Name.ID))
            made = store.agents.checkpoint(Name.AGENT, Name.LABEL, description=Name.TEXT, kind=Name.MANUAL)
            assert _is_plain(made.agent_id, made.name, made.description, made.kind)
        with opener() as store:
            (found,) = store.agents.checkpoints(Name.AGENT)
            assert (found.name, found.description, found.kind) == ("draft", "coffee", "automatic")
            assert _is_plain(found.agent_id, found.name, found.description)
            assert store.agents.load(Name.AGENT).name == "coffee"
            assert store.agents.restore(found.id, agent_id=Name.AGENT).agent_id == "planner"
            assert store.agents.delete(Name.AGENT)
            assert store.agents.list() == []

    def test_runs_take_str_enums_as_ids(self, opener: Opener) -> None:
        with opener() as store, store.run(Name.ID, agent=Name.AGENT) as run:
            assert _is_plain(run.session_id)
            for _ in run.iterations():
                run.message(Message("user", Name.TEXT))
                run.halt(Name.TEXT)
        with opener() as store:
            found = store.runs.load(Name.ID)
            assert _is_plain(found.session_id, found.agent, found.status.reason)
            assert Name.ID in store.runs
            assert [run.session_id for run in store.runs.list(agent=Name.AGENT)] == ["trip"]
            assert store.runs.thread(Name.ID).fork(Name.OTHER).id == "trip-2"
            assert "trip-2" in store.runs

    def test_exports_name_threads_by_str_enums(self, store: Store, tmp_path: Path) -> None:
        store.thread("trip").save({"n": 1})
        assert store.export(tmp_path / "e", threads=[Name.ID], kind=Name.THREAD).threads == 1

    def test_metadata_with_one_key_twice_is_refused(self, thread: Thread[Any]) -> None:
        with pytest.raises(Invalid, match="twice"):
            thread.save({"n": 1}, metadata={"model": 1, Shown("model"): 2})
        assert thread.latest() is None

    def test_values_of_a_state_are_still_exact_or_refused(self, thread: Thread[Any]) -> None:
        with pytest.raises(Invalid):
            thread.save({"n": Shown("x")})
        assert states(thread.history()) == []
