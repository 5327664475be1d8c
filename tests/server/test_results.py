"""The results of all reading operations are what their schemas say, whatever texts a store holds."""

import json

import jsonschema
import pytest

import backtrail
from backtrail.operations import TABLE, Effect, call
from tests.support import everything
from tests.support.web import client

KINDS = ("thread", "agent", "conversation", "run")
TEXTS = {
    "plain": lambda name: name,
    "hostile": lambda name: f"<script>{name}</script>\x1b[31m\x00\u202e",
    "long": lambda name: (name + "é" * 600)[:512],
    "surrogates": lambda name: name if name == "Schema" else f"{name}\udc80\ud800",
    "slashes": lambda name: f"../{name}/%2e?x=1&y#z",
}


def questions(store):
    """Every reading operation, for everything that the store lists."""
    for kind in KINDS:
        yield "thread_list", {"kind": kind}
        for info in store.threads(kind=kind):
            thread = {"thread_id": info.id, "kind": kind}
            for name in ("thread_show", "thread_history", "thread_log", "thread_state"):
                yield name, thread
            yield "thread_state", {**thread, "max_bytes": 0, "limit": 2}
            yield "thread_checkpoint", {**thread, "ref": "@"}
            yield "checkpoint_show", {"checkpoint_id": info.head_id}
            if info.step > 1:
                yield "thread_diff", thread
    yield from questions_about_agents(store)
    for name in ("agent_list", "conversation_list", "run_list", "activity", "persistence_stats", "verify"):
        yield name, {}
    for name in ("search", "conversation_search"):
        yield name, {"query": "lisbon" if name == "search" else "where"}
    yield "prune_plan", {"keep_last": 1}


def questions_about_agents(store):
    for info in store.agents.list():
        yield "agent_load", {"agent_id": info.agent_id}
        yield "checkpoint_list", {"agent_id": info.agent_id}
        for point in store.agents.checkpoints(info.agent_id):
            yield "checkpoint_info", {"checkpoint_id": point.id}
    for info in store.conversations.list():
        yield "conversation_load", {"conversation_id": info.id}
        yield "conversation_messages", {"conversation_id": info.id}
    for run in store.runs.list():
        yield "run_status", {"run_id": run.session_id}


@pytest.mark.parametrize("kind", TEXTS)
def test_results_are_as_their_schemas_say(kind, tmp_path):
    everything.fill(tmp_path / "a.db", TEXTS[kind])
    asked = set()
    with backtrail.open(tmp_path / "a.db") as store:
        for name, arguments in questions(store):
            answer = json.loads(json.dumps(call(store, name, arguments), allow_nan=False))
            jsonschema.validate(answer, TABLE[name].result)
            asked.add(name)
    assert asked == {name for name, operation in TABLE.items() if operation.effect is Effect.READ}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_thread_can_be_reached_over_http(kind, tmp_path):
    from urllib.parse import quote

    everything.fill(tmp_path / "a.db", TEXTS[kind])
    with backtrail.open(tmp_path / "a.db") as store:
        api = client(store, write=False)
        for each in KINDS:
            for info in store.threads(kind=each):
                name = quote(info.id.encode("utf-8", "surrogatepass"), safe="").replace(".", "%2E")
                for path in ("", "/log", "/state", "/history"):
                    answer = api.get(f"/api/v1/threads/{name}{path}?kind={each}")
                    assert answer.status_code == 200, (info.id, answer.text)
                assert api.get(f"/api/v1/threads/{name}?kind={each}").json()["thread_id"] == info.id
