"""`redact=`: what its rule finds is in no row, chunk, label, tag or index, whichever call writes it."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from backtrail import CallError, EveryN, Invalid, Message
from tests.conformance.base import Suite
from tests.conformance.erase import CANARY, canaries
from tests.support.scene import agent, contents, conversation

if TYPE_CHECKING:
    from backtrail import Store
    from tests.conformance.base import Opener

_RULE = re.compile(CANARY + "[0-9]*")
_SAFE = "[redacted]"


@dataclasses.dataclass
class Plan:
    """A state with fields."""

    city: str
    notes: list[str]


class Redacting(Suite):
    """`open(url, redact=...)`."""

    def test_every_write_of_a_thread_is_redacted(self, opener: Opener) -> None:
        with opener(compression=False, redact=[_RULE]) as store:
            thread = store.thread("t")
            thread.save(
                {"a": [f"x {CANARY}1 y", (CANARY, {CANARY})], "n": 1},
                label=f"label {CANARY}",
                tags=[CANARY],
                metadata={"by": CANARY},
            )
            assert thread.load().state == {"a": [f"x {_SAFE} y", (_SAFE, {_SAFE})], "n": 1}
            assert (thread.load().label, thread.load().tags) == (f"label {_SAFE}", (_SAFE,))
            thread.append("a", CANARY, {"deep": [CANARY]})
            thread.set("b", CANARY)
            with thread.step() as state:
                state["c"] = [CANARY] * 3
            thread.edit(lambda edit: edit.set("d", CANARY))
            thread.edit(lambda edit: edit.append("a", CANARY))
            thread.edit(lambda edit: edit.update((), {"e": CANARY}))
            thread.update(lambda state: {**state, "f": CANARY})
            thread.tag("@", f"{CANARY}2")
            assert canaries(store) == []
            assert [thread.load().state[key] for key in "bcdef"] == [_SAFE, [_SAFE] * 3, _SAFE, _SAFE, _SAFE]
            assert store.redactions == 17
            assert store.verify().ok

    def test_keys_stay_so_that_no_two_of_them_become_one(self, opener: Opener) -> None:
        with opener(redact=[_RULE]) as store:
            state = {f"{CANARY}1": 1, f"{CANARY}2": CANARY}
            assert store.thread("t").save(state).state == {f"{CANARY}1": 1, f"{CANARY}2": _SAFE}

    def test_texts_of_subclasses_are_redacted(self, opener: Opener) -> None:
        class Text(str):
            __slots__ = ()

        with opener(redact=[_RULE]) as store:
            redact = store._engine.reader.options.redact
            assert redact(Text(f"a {CANARY}"), store._engine.reader.types) == f"a {_SAFE}"

    def test_agents_and_conversations_are_redacted(self, opener: Opener) -> None:
        with opener(compression=False, redact=_RULE) as store:
            store.agents.save(agent(custom_state={"key": CANARY}))
            store.conversations.save(conversation("c", "hello", CANARY, title=CANARY))
            store.conversations.append("c", Message.user(CANARY), {"role": "user", "content": CANARY})
            store.conversations.append("new", Message.user(CANARY), agent_id="a")
            store.conversations.update("c", title=f"about {CANARY}", metadata={"k": CANARY})
            store.conversations.edit("c", "c1", f"edited {CANARY}", new_id="branch")
            made = store.agents.checkpoint("a", CANARY, description=CANARY)
            assert (made.name, made.description) == (_SAFE, _SAFE)
            assert canaries(store) == []
            assert contents(store, "c") == ["hello", _SAFE, _SAFE, _SAFE]
            assert contents(store, "branch")[-1] == f"edited {_SAFE}"
            assert len(store.search("redacted")) >= 4
            store.agents.restore(made)
            assert store.verify().ok

    def test_runs_are_redacted_and_the_live_caller_is_not(self, opener: Opener) -> None:
        def look(text: str) -> dict[str, str]:
            return {"found": text}

        def fail(text: str) -> None:
            raise ValueError(text)

        with opener(compression=False, redact=_RULE) as store:
            given = {"messages": [Message.user(CANARY)], "state": {"key": CANARY}}
            with store.run("r", agent="a", conversation="c", strategy=EveryN(1), **given) as run:
                for number in run.iterations():
                    run.message(Message.user(f"{CANARY} said"))
                    assert run.tool("look", look, CANARY) == {"found": CANARY}
                    with pytest.raises(ValueError, match=CANARY):
                        run.tool("fail", fail, f"{CANARY} {number}")
                    run.partial(CANARY)
                    run.state["more"] = CANARY
                    if number == 2:
                        break
            assert canaries(store) == []
            recorded = store.runs.load("r")
            assert recorded.state == {"key": _SAFE, "more": _SAFE}
            assert recorded.tool_calls[0].result == {"found": _SAFE}
            assert recorded.tool_calls[0].arguments["args"] == [_SAFE]
            assert store.verify().ok

    def test_a_resumed_run_gets_the_redacted_result(self, opener: Opener) -> None:
        made: list[str] = []

        def look(text: str) -> str:
            made.append(text)
            return f"found {text}"

        with opener(compression=False, redact=_RULE) as store:
            for answer in (f"found {CANARY}", f"found {_SAFE}"):
                with pytest.raises(RuntimeError), store.run("r") as run:
                    for _ in run.iterations():
                        assert run.tool("look", look, CANARY) == answer
                        raise RuntimeError(f"failed with {CANARY}")
            assert made == [CANARY]
            assert canaries(store) == []
            assert store.runs.load("r").status.reason == f"RuntimeError: failed with {_SAFE}"

    def test_a_replayed_failure_is_redacted(self, opener: Opener) -> None:
        class RefusedError(Exception):
            pass

        def fail() -> None:
            raise RefusedError(f"no {CANARY}")

        with opener(compression=False, redact=_RULE) as store:
            for expected in (RefusedError, CallError):
                with pytest.raises(KeyError), store.run("r") as run:
                    for _ in run.iterations():
                        with pytest.raises(expected):
                            run.tool("fail", fail)
                        raise KeyError
            assert canaries(store) == []

    def test_instances_keep_their_class(self, opener: Opener) -> None:
        with opener(compression=False, redact=_RULE, types=[Plan]) as store:
            thread = store.thread("t", Plan)
            thread.save(Plan("Lisbon", ["fine"]))
            assert thread.load().state == Plan("Lisbon", ["fine"])
            thread.save(Plan(CANARY, ["x", CANARY]))
            assert thread.load().state == Plan(_SAFE, ["x", _SAFE])
            store.thread("u").save({"plan": Plan(CANARY, [])})
            assert store.thread("u").load().state == {"plan": Plan(_SAFE, [])}
            assert canaries(store) == []

    def test_a_function_says_what_is_written(self, opener: Opener) -> None:
        seen: list[str] = []

        def rule(text: str) -> str:
            seen.append(text)
            return text.replace(CANARY, "***")

        with opener(redact=rule) as store:
            store.thread("t").save({"a": f"{CANARY}!", "b": 1})
            assert store.thread("t").load().state == {"a": "***!", "b": 1}
            assert (seen, store.redactions) == ([f"{CANARY}!"], 1)
        with opener(redact=lambda _: None) as store, pytest.raises(Invalid, match="must return a str"):
            store.thread("t").set("a", "x")

        def broken(_: str) -> str:
            raise ZeroDivisionError

        with opener(redact=broken) as store:
            with pytest.raises(ZeroDivisionError):
                store.thread("t").set("a", "x")
            assert store.thread("t").load().state == {"a": "***!", "b": 1}

    def test_ready_made_patterns_find_tokens(self, opener: Opener) -> None:
        tokens = [
            "sk-ant-" + "a1B2" * 10,
            "AKIA" + "ABCD" * 4,
            "ghp_" + "a" * 36,
            "xoxb-1234567890-abc",
            "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
            "Bearer " + "abcd" * 8,
        ]
        with opener(redact="secrets") as store:
            store.thread("t").save({"texts": [f"key: {each}, end" for each in tokens], "plain": "a task-force, AKIA"})
            state = store.thread("t").load().state
            assert state["texts"] == [f"key: {_SAFE}, end"] * len(tokens)
            assert state["plain"] == "a task-force, AKIA"
            assert store.redactions == len(tokens)

    def test_redactions_are_logged_without_the_text(self, opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
        with opener(redact=_RULE) as store, caplog.at_level(logging.INFO, "backtrail"):
            store.thread("t").save({"a": [CANARY, CANARY]})
        assert [each.getMessage() for each in caplog.records] == ["redacted 2 parts of a value before it was written"]

    @pytest.mark.parametrize("wrong", ["sercets", b"x", 1, [], [b"x"], [re.compile(b"x")], {"a": 1}])
    def test_wrong_rules_are_refused(self, opener: Opener, wrong: Any) -> None:
        with pytest.raises(Invalid, match="redact="):
            opener(redact=wrong)

    def test_nothing_is_redacted_without_a_rule(self, store: Store) -> None:
        store.thread("t").save({"a": CANARY})
        assert store.thread("t").load().state == {"a": CANARY}
        assert store.redactions == 0
