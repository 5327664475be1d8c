"""The cost of a save on disk depends on the change, not on the rest of the state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import backtrail
from tests.support.lengths import lengths

if TYPE_CHECKING:
    from pathlib import Path

TEXT = (
    "the plan for this week is to compare the two offers we have and then decide which hotel fits the budget while "
    "keeping enough time for the museum and a walk along the river before dinner so please check again whether trains "
    "leave early enough on friday and tell me what a table for four would cost in that small place near the station"
)
WORDS = TEXT.split()


def message(i: int, role: str, rng: random.Random) -> dict[str, object]:
    text = " ".join(rng.choices(WORDS, k=260))[:960]
    return {"role": role, "id": f"m{i}", "content": text}


def test_steps_of_two_messages_take_at_most_2400_bytes(tmp_path: Path) -> None:
    rng = random.Random(7)
    path = tmp_path / "s.db"
    with backtrail.open(path, durability="relaxed") as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for i in range(1000):
            thread.append("messages", message(2 * i, "user", rng), message(2 * i + 1, "assistant", rng))
    assert path.stat().st_size / 1000 <= 2400


def test_small_edits_of_the_last_message_store_1_kb(tmp_path: Path) -> None:
    rng = random.Random(8)
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        thread = store.thread("t")
        thread.save({"messages": [message(i, "user", rng) for i in range(1000)]})
        assert thread.set("messages[-1].status", "done").stored <= 1024
        assert thread.append("messages[-1].content", " and").stored <= 1024
        state = thread.load().state
        state["messages"][-1]["status"] = "failed"
        assert thread.save(state).stored <= 1024
        state["messages"][-1]["content"] += " so on"
        assert thread.save(state).stored <= 1024
        costs = [thread.append("messages[-1].content", f" t{i}").stored for i in range(200)]
        assert sum(costs) / len(costs) <= 1024


def test_append_beside_a_10_mb_dict_stores_2_kb(tmp_path: Path) -> None:
    rng = random.Random(9)
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        thread = store.thread("t")
        big = {f"key {i}": rng.randbytes(500).hex() for i in range(10_000)}
        thread.save({"big": big, "messages": []})
        costs = [thread.append("messages", message(i, "user", rng)).stored for i in range(50)]
        assert sum(costs) / len(costs) <= 2048
        state = thread.load().state
        state["messages"].append(message(50, "user", rng))
        assert thread.save(state).stored <= 2048
        assert thread.set(("big", "key 5000"), "changed").stored <= 1024
        assert thread.load().state["big"] == {**big, "key 5000": "changed"}


def test_fork_and_first_save_store_6_kb_on_average(tmp_path: Path) -> None:
    rng = random.Random(10)
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        thread = store.thread("t")
        thread.save({"messages": []})
        for i in range(300):
            thread.append("messages", message(i, "user", rng))
        total = 0
        for i in range(50):
            fork = thread.fork(f"fork {i}", at=40 + 5 * i)
            total += fork.load().stored + fork.append("messages", message(i, "user", rng)).stored
        assert total / 50 <= 6 * 1024


def test_replacing_a_third_of_a_list_rewrites_one_percent(tmp_path: Path) -> None:
    rng = random.Random(11)
    with backtrail.open(tmp_path / "s.db", durability="relaxed") as store:
        thread = store.thread("t")
        state = {"messages": [message(i, "user", rng) for i in range(3000)]}
        first = thread.save(state)
        state["messages"][:900] = [{"role": "system", "content": "a summary"}]
        assert thread.save(state).stored <= first.stored / 100
        assert thread.load().state == state


def test_growth_without_compression_is_what_the_option_says(tmp_path: Path) -> None:
    state = {"text": "abc " * 500}
    sizes = {}
    for compression in (True, False):
        with backtrail.open(tmp_path / f"{compression}.db", compression=compression) as store:
            sizes[compression] = store.thread("t").save(state).stored
    assert sizes[True] * 4 < sizes[False]


@pytest.mark.parametrize("part", lengths(5, 1))
def test_append_to_a_200_mb_state_stores_little(tmp_path: Path, part: int) -> None:
    rng = random.Random(12)
    state = {
        "blob": rng.randbytes(100_000_000 // part),
        "text": "a line of text, and then another\n" * (2_500_000 // part),
        "messages": [message(i, "user", rng) for i in range(20_000 // part)],
    }
    path = tmp_path / "s.db"
    with backtrail.open(path, durability="relaxed") as store:
        assert store.thread("t").save(state).size > 200_000_000 // part
    with backtrail.open(path, durability="relaxed") as store:
        thread = store.thread("t")
        assert thread.append("messages", {"role": "user", "content": "more"}).stored < 1024
        loaded = thread.load().state
    state["messages"].append({"role": "user", "content": "more"})
    assert loaded == state
