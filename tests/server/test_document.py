"""Schemathesis calls the whole HTTP API as its OpenAPI document describes it, on SQLite and PostgreSQL."""

import subprocess
import sys

import httpx2
import pytest

import backtrail
from backtrail import AgentState, Message
from tests.support import servers
from tests.support.lengths import lengths
from tests.support.web import TOKEN, serving


def fill(store):
    trip = store.thread("trip", agent="planner")
    trip.save({"n": 1, "messages": [{"role": "user", "content": "hello"}]})
    trip.save({"n": 2})
    store.agents.save(AgentState("planner", "P", "m"))
    store.conversations.append("talk", Message.user("hello"), agent_id="planner")
    store.agents.checkpoint("planner", "p")
    with store.run("run", agent="planner") as run:
        for _ in run.iterations():
            run.tool("search", lambda: 1)
            run.halt("waiting")


def judge(url, phases, examples, *options):
    with serving(url, "--write", *options) as (link, _):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        document = httpx2.get(f"{link}api/v1/openapi.json", headers=headers).json()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{link}api/v1/openapi.json"),
                *("--header", f"Authorization: Bearer {TOKEN}"),
                *("--phases", phases, "--max-examples", examples, "--seed", "1", "--no-color"),
            ],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    operations = sum(len(methods) for methods in document["paths"].values())
    assert f"Tested: {operations}" in done.stdout


@pytest.mark.parametrize(("phases", "examples"), lengths(("examples,fuzzing", "2"), ("examples,coverage,fuzzing", "4")))
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.torture)])
def test_api_is_as_its_document_says(kind, phases, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # schemathesis keeps examples in the current directory
    if kind == "sqlite":
        with backtrail.open(tmp_path / "a.db") as store:
            fill(store)
        judge(tmp_path / "a.db", phases, examples)
    else:
        with servers.place() as opened:
            with opened() as store:
                fill(store)
            judge(servers.server().url, phases, examples, "--schema", opened.keywords["schema"])
