"""Stores of every released format are read for ever, and go on being written to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import backtrail
from backtrail.testing.exact import same

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))

import contents  # noqa: E402 - it lies beside the stores

FORMATS = sorted(GOLDEN.glob("format*.db"))


@pytest.fixture(params=FORMATS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "s.db"))


def test_there_is_a_golden_store_of_format_1() -> None:
    assert "format1" in [path.stem for path in FORMATS]


def test_a_golden_store_reads_exactly_as_it_was_written(path: Path) -> None:
    with backtrail.open(path, read_only=True, types=[contents.Plan, contents.Mood]) as store:
        assert {info.id for info in store.threads()} == set(contents.histories())
        for name, expected in contents.histories().items():
            history = list(store.thread(name).history())
            assert [(c.step, c.label) for c in history] == [(step, label) for step, label, _ in expected]
            for checkpoint, (_, _, state) in zip(history, expected, strict=True):
                assert same(checkpoint.state, state), (name, checkpoint.step)
        assert store.verify().ok
        assert not store.thread("deleted").latest()


def test_a_golden_store_keeps_what_goes_with_its_checkpoints(path: Path) -> None:
    with backtrail.open(path) as store:
        (checkpoint,) = store.thread("every type").find(tag="first")
        assert checkpoint.metadata == {"by": "golden", "n": 1}
        assert {info.id for info in store.threads(agent="planner")} == {"long", "fork \0 of long"}
        fork = store.thread("fork \0 of long")
        assert fork.load(2).parent_id == store.thread("long").load("grown").id
        thread = store.thread("rewound")
        assert thread.load().kind == "recovery"
        assert thread.undo().state == {"x": 1}
        assert thread.undo().state == {"x": 3}


def test_a_golden_store_goes_on(path: Path) -> None:
    with backtrail.open(path) as store:
        thread = store.thread("long")
        root = thread.append("messages", "new").root
        expected = contents.histories()["long"][-1][2]
        expected["messages"] = [*expected["messages"], "new"]
        assert thread.load().state == expected
        assert store.thread("same").save(expected).root == root
        store.thread("counted").prune(keep_last=3)
        store.gc()
        assert store.verify().ok
        assert thread.load("grown").state == contents.histories()["long"][1][2]
