"""What the golden stores hold, as plain Python: they are written once per format, and must be read for ever.

`python tests/golden/contents.py PATH` writes a store with the code at hand. A golden store that has been checked in is
never written again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import pathlib
import random
import sys
import uuid
import zoneinfo
from typing import Any

import backtrail
from backtrail import AgentState, Attachment, Conversation, Message, ToolCall
from backtrail.backends.port import Batch


@dataclasses.dataclass
class Plan:
    city: str
    days: list[int]


class Mood(enum.Enum):
    CALM = 1
    BUSY = 2


def everything() -> dict[str, Any]:
    """A state with every type of plain data."""
    return {
        "none": None,
        "bools": [True, False, 1, 0, 1.0],
        "ints": [-1, 2**63, -(2**63), 2**200, -(2**200)],
        "floats": [0.0, -0.0, 1.5, float("inf"), 5e-324],
        "strs": ["", "a\0b", "é", "\ud800 lone", "🙂" * 3],
        "bytes": [b"", b"\0\xff", bytearray(b"array")],
        "tuple": (1, ("nested", [2])),
        "sets": [{1, 2, 3}, frozenset({"x"})],
        "keys": {1: "int", (1, 2): "tuple", None: "none", b"b": "bytes", 2.5: "float"},
        "times": [
            dt.datetime(2026, 1, 31, 12, 0, 1, 5),
            dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
            dt.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Lisbon")),
            dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30), "named")),
            dt.date(2026, 1, 31),
            dt.time(23, 59, fold=1),
            dt.timedelta(days=-1, microseconds=7),
        ],
        "others": [
            uuid.UUID(int=7),
            decimal.Decimal("1.10"),
            decimal.Decimal("NaN"),
            pathlib.PurePosixPath("a/b"),
            pathlib.PureWindowsPath("c:/d"),
        ],
    }


def long() -> dict[str, Any]:
    """A state of many chunks: lists, dicts, a str and bytes, at some depth."""
    rng = random.Random(1)
    words = [f"word{i}" for i in range(300)]
    return {
        "messages": [{"role": "user", "i": i, "content": " ".join(rng.choices(words, k=12))} for i in range(900)],
        "deep": {"index": {f"key {i}": [i, str(i)] for i in range(2500)}},
        "text": "".join(f"line {i}\n" for i in range(14_000)),
        "bytes": rng.randbytes(3_000) * 25,
    }


@functools.cache
def words(i: int) -> str:
    """Some text, always the same."""
    rng = random.Random(i)
    return " ".join(rng.choices([f"word{n}" for n in range(200)], k=100))


def grown(count: int) -> dict[str, Any]:
    """A state that grows by a message and a key with each step; each message is changed once it is there."""
    return {
        "messages": [{"role": "user", "content": words(i), "status": "done"} for i in range(count)],
        "index": {f"key {i}": words(1000 + i) for i in range(count)},
    }


def repacked() -> list[tuple[int, str | None, Any]]:
    """The history of the thread that was collected: only stores from format 2 on have it."""
    history: list[tuple[int, str | None, Any]] = [(1, None, grown(0))]
    for i in range(78):
        state = grown(i + 1)
        del state["index"][f"key {i}"], state["messages"][i]["status"]
        history.append((3 * i + 2, None, state))
        history.append((3 * i + 3, None, {**grown(i + 1), "index": grown(i)["index"]}))
        history.append((3 * i + 4, f"step {i}", grown(i + 1)))
    return history


def histories() -> dict[str, list[tuple[int, str | None, Any]]]:
    """What each thread's history shows: (step, label, state)."""
    states = long()
    grown = {**states, "messages": [*states["messages"], {"role": "user", "content": "one more"}]}
    flipped = {**grown, "messages": [*grown["messages"][:-1], {**grown["messages"][-1], "status": "done"}]}
    counted = [(i + 1, None, {"n": list(range(i))}) for i in range(80)]
    return {
        "every type": [(1, "types", everything())],
        "long": [(1, None, states), (2, "grown", grown), (3, None, flipped)],
        "fork \0 of long": [(2, "grown", grown), (3, None, {"short": True})],
        "rewound": [(1, "a", {"x": 1}), (2, None, {"x": 1, "y": 4})],
        "counted": counted,
        "typed": [(1, None, {"plan": Plan("Lisbon", [1, 2]), "mood": Mood.BUSY})],
    }


WHEN = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def said(count: int) -> list[Message]:
    """Messages of a conversation, the first ones with all that a message may have."""
    call = ToolCall("book", {"night": 1, "nested": {"x": [1.5, None]}}, id="call", result="done", status="completed")
    ticket = Attachment("file", "ticket \0.pdf", "application/pdf", "QUJD" * 30_000, None, 90_000, "ticket")
    first = [
        Message.user("Zwei Nächte in Lissabon? 🙂", id="m0", timestamp=WHEN, attachments=[ticket], tokens=7),
        Message.assistant("", id="m1", timestamp=WHEN, tool_calls=[call], parent_id="m0", metadata={"n": 1}),
        Message.tool_result("call", "done", id="m2", timestamp=WHEN, raw={"type": "own", "b": b"x"}, raw_format="own"),
    ]
    return [*first, *(Message.user(words(i), id=f"m{i}", timestamp=WHEN) for i in range(3, count))][:count]


def agent(steps: int) -> AgentState:
    """The agent of the golden stores, after so many steps."""
    made = AgentState(
        "golden/agent", "Ann", "model", "be kind", ["a", "b"], {"t": 0.5}, {}, ["c \0"], WHEN, WHEN, 1, {"k": "v"}
    )
    return dataclasses.replace(made, custom_state={f"step {i}": i for i in range(steps)})


def conversations() -> dict[str, dict[str, Conversation]]:
    """The conversations of the agent at each of its checkpoints, and as they are."""

    def made(name: str, count: int, **others: Any) -> Conversation:
        given = {"created_at": WHEN, "last_message_at": WHEN, **others}
        return Conversation("golden/agent", id=name, messages=said(count), **given)

    first = {f"c{i}": made(f"c{i}", i % 5) for i in range(40)} | {"c \0": made("c \0", 120, title="T", tags=["x"])}
    second = {**first, "c \0": made("c \0", 121, title="T", tags=["x"]), "later": made("later", 2, archived=True)}
    del second["c7"]
    return {"first": first, "second": second, "now": first}


def write_agents(store: backtrail.Store) -> None:
    """Make an agent, its conversations, two checkpoints, a restore that can be undone, and one that was."""
    wanted = conversations()
    store.agents.save(agent(1))
    for each in wanted["first"].values():
        store.conversations.save(each)
    first = store.agents.checkpoint("golden/agent", "first", description="the first")
    store.agents.save(agent(2), replace=True)
    store.conversations.append("c \0", said(121)[-1])
    store.conversations.save(wanted["second"]["later"])
    store.conversations.delete("c7")
    store.agents.checkpoint("golden/agent", "second", kind="pre_operation")
    store.agents.restore(first.id)
    store.agents.undo("golden/agent")
    store.agents.restore(first.id)


def write(path: str, schema: str | None = None) -> None:
    """Write the store."""
    with backtrail.open(path, schema=schema) as store:
        write_agents(store)
        for name in ("every type", "typed"):
            for _, label, state in histories()[name]:
                store.thread(name).save(state, label=label, tags=["first"], metadata={"by": "golden", "n": 1})
        thread = store.thread("long", agent="planner")
        thread.save(long())
        thread.append("messages", {"role": "user", "content": "one more"}, label="grown")
        thread.set("messages[-1].status", "done")
        fork = thread.fork("fork \0 of long", at="grown").save({"short": True})
        no = store._backend.find_thread("thread", fork.thread_id).no
        store._backend.commit(Batch(untouch=((no, fork.seq),)))
        thread = store.thread("rewound")
        thread.save({"x": 1}, label="a")
        thread.set("x", 2)
        thread.set("x", 3)
        thread.rewind("a")
        thread.undo()
        thread.undo()
        thread.redo()
        thread.rewind("a")
        thread.set("y", 4, kind="recovery")
        store.search("word1")
        thread = store.thread("counted")
        thread.save({"n": []})
        for i in range(79):
            thread.append("n", i)
        thread = store.thread("deleted")
        thread.save({"gone": True})
        thread.delete()
        thread = store.thread("repacked")
        thread.save(grown(0))
        for i in range(78):
            thread.append("messages", {"role": "user", "content": words(i)})
            thread.set("messages[-1].status", "done")
            thread.set(("index", f"key {i}"), words(1000 + i), label=f"step {i}")
        store.gc()


if __name__ == "__main__":
    write(*sys.argv[1:])
