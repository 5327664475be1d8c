"""A smoke test of an installed backtrail, without the repository: `python -I smoke_test.py`. `make dist` runs it.

It needs only what the wheel requires. It prints the versions, and fails at the first thing that does not work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import requires, version
from importlib.resources import files
from pathlib import Path

import backtrail
from backtrail import AgentState, Conversation, Message

FILES = ("py.typed", "engine/dictionary1.bin", "backends/postgres/schema.sql", "backends/sqlite/schema.sql")
"""Some files that are not Python, and must be in the wheel."""


def use(store: backtrail.Store) -> None:
    """Do the main things with a store."""
    trip = store.thread("trip")
    trip.save({"budget": 120, "messages": []}, label="start")
    trip.append("messages", {"role": "user", "content": "Lisbon in May"})
    with trip.step("book") as state:
        state["budget"] -= 90
    assert trip.diff("start", "@")
    assert trip.rewind("start").state["budget"] == 120
    assert trip.undo().state["budget"] == 30
    assert trip.fork("cheap", at="start").latest().state["budget"] == 120
    store.agents.save(AgentState("planner", "Planner", "some-model"))
    store.conversations.save(Conversation("planner", id="lunch"))
    store.conversations.append("lunch", Message.user("Where do we eat?"))
    saved = store.agents.checkpoint("planner", "before")
    store.conversations.delete("lunch")
    store.agents.restore(saved.id)
    assert [hit.conversation_id for hit in store.search("eat")] == ["lunch"]
    calls: list[str] = []
    for _ in range(2):  # the second time, the recorded result is used
        with store.run("work", agent="planner") as run:
            for _ in run.iterations():
                run.tool("find", calls.append, "hotel")
                break
    assert calls == ["hotel"]
    assert store.verify().ok
    store.gc()


def command(*words: str) -> str:
    """Run the command line in a process of its own."""
    script = Path(sys.executable).with_name("backtrail")
    done = subprocess.run([str(script), *words], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def main() -> None:
    """Try each kind of store, the command line, and the files of the package."""
    os.environ.pop("BACKTRAIL_URL", None)
    with tempfile.TemporaryDirectory() as place:
        for url in ("memory://", f"{place}/agents.db", f"file://{place}/agents"):
            with backtrail.open(url) as store:
                use(store)
        with backtrail.open(f"{place}/agents.db") as store:
            store.backup(f"{place}/backup.db")
            store.export(f"{place}/agents.backtrail")
        with backtrail.open(f"{place}/copy.db") as store:
            store.import_(f"{place}/agents.backtrail")
            assert store.thread("trip").load().state["budget"] == 30
        listed = json.loads(command("threads", "--json", "--store", f"{place}/backup.db"))
        assert {"trip", "cheap"} <= {each["id"] for each in listed}, listed
        assert version("backtrail") in command("--version")
    for name in FILES:
        found = files("backtrail").joinpath(*name.split("/"))
        assert found.is_file() or found.is_dir(), name
    names = sorted({each.split(";")[0].strip() for each in requires("backtrail") or () if "extra ==" not in each})
    print(f"backtrail {version('backtrail')} works on Python {sys.version.split()[0]}; it requires {', '.join(names)}")


if __name__ == "__main__":
    main()
