"""Stores of every released format can be read and written.

A golden PostgreSQL store is the compressed output of `pg_dump --schema=golden --inserts --no-owner` for a store that
`contents.py URL golden` has written, without statements that only psql and newer servers understand.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import pytest
import zstandard

import backtrail
from backtrail.archive import format as layout
from backtrail.backends.file import frames
from backtrail.backends.postgres import schema
from backtrail.backends.sqlite import schema as sqlite_schema
from backtrail.engine.compression import stands_beside
from tests.support.exact import same
from tests.support.lengths import lengths
from tests.support.servers import server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

import contents  # noqa: E402 - it lies beside the stores
import runs  # noqa: E402

FORMATS = sorted(GOLDEN.glob("format*.db"))
DUMPS = sorted(GOLDEN.glob("postgres*.sql.zst"))
DIRECTORIES = sorted(GOLDEN.glob("files*"))
EXPORTS = sorted(GOLDEN.glob("export?"))


class Golden(NamedTuple):
    """A copy of a golden store: how it is opened, and how its format is found out."""

    open: Callable[..., backtrail.Store]
    format: Callable[[], int]
    knows_repacking: bool
    knows_agents: bool
    newest: int
    knows_touched: bool = True


@pytest.fixture(params=[*FORMATS, *DIRECTORIES, *DUMPS, *EXPORTS], ids=lambda path: path.name.partition(".")[0])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Golden]:
    if request.param in EXPORTS:
        made = partial(backtrail.open, path := tmp_path / "s.db")
        with made() as store:
            store.import_(request.param)
        newest = len(sqlite_schema.STEPS)
        yield Golden(made, lambda: format_of(path), True, True, newest, knows_touched=False)
        return
    if request.param in FORMATS:
        path = Path(shutil.copy(request.param, tmp_path / "s.db"))
        made = partial(backtrail.open, path)
        found = format_of(path)
        yield Golden(made, lambda: format_of(path), found >= 2, found >= 4, len(sqlite_schema.STEPS))
        return
    if request.param in DIRECTORIES:
        directory = Path(shutil.copytree(request.param, tmp_path / "s"))
        made = partial(backtrail.open, directory.as_uri())
        yield Golden(made, lambda: format_of_files(directory), True, True, frames.FORMAT)
        return
    server().execute("DROP SCHEMA IF EXISTS golden CASCADE")
    server().execute(zstandard.ZstdDecompressor().decompress(request.param.read_bytes()).decode())
    yield Golden(
        partial(backtrail.open, server().url, schema="golden"),
        lambda: server().execute("SELECT value FROM golden.meta WHERE name = 'format'")[0][0],
        knows_repacking=True,
        knows_agents=request.param.name != "postgres1.sql.zst",
        newest=len(schema.STEPS),
    )
    server().execute("DROP SCHEMA golden CASCADE")


def expected_of(golden: Golden) -> dict[str, list[tuple[int, str | None, Any]]]:
    """What each thread's history shows. Format 1 knew no repacking, so its store has no thread that shows it."""
    repacked = {"repacked": contents.repacked()} if golden.knows_repacking else {}
    return contents.histories() | repacked


def format_of(path: Path) -> int:
    connection = apsw.Connection(str(path))
    found = connection.pragma("user_version")
    connection.close()
    return int(found) & 0xFF


def format_of_files(directory: Path) -> int:
    return int((directory / "backtrail.store").read_text().split()[1])


def test_there_is_a_golden_store_of_every_format() -> None:
    assert {path.name: format_of_files(path) for path in DIRECTORIES} == {
        f"files{n}": n for n in range(1, frames.FORMAT + 1)
    }
    assert {path.stem: format_of(path) for path in FORMATS} == {f"format{n}": n for n in range(1, 6)}
    assert len(sqlite_schema.STEPS) == len(FORMATS)
    assert [path.name for path in EXPORTS] == [f"export{n}" for n in range(1, layout.VERSION + 1)]
    assert [path.name for path in DUMPS] == [f"postgres{n}.sql.zst" for n in range(1, len(schema.STEPS) + 1)]


def test_golden_format_2_has_rows_beside_chunks() -> None:
    connection = apsw.Connection(str(GOLDEN / "format2.db"))
    query = "SELECT base = key & 0xffffffff, payload FROM row WHERE substr(payload, 1, 1) = x'03'"
    found = [(is_base, len(stands_beside(payload))) for is_base, payload in connection.execute(query)]
    connection.close()
    assert len(found) > 50
    assert {is_base for is_base, _ in found} == {0, 1}


def test_golden_format_3_has_a_partial_index() -> None:
    connection = apsw.Connection(str(GOLDEN / "format3.db"))
    counts = [connection.execute(f"SELECT count(*) FROM {table}").get for table in ("message", "vocabulary", "mark")]
    connection.close()
    assert counts == [901, 302, 3]


def test_search_finds_messages_of_a_golden_store(golden: Golden) -> None:
    expected = {
        (name, position)
        for name, history in expected_of(golden).items()
        for position, message in enumerate(history[-1][2].get("messages", ()))
        if "word7" in message["content"].split()
    }
    with golden.open() as store:
        hits = store.search("word7", kind="thread", limit=1000)
        assert {(hit.conversation_id, hit.position) for hit in hits} == expected
        assert len(hits) == len(expected) > 20
        assert store.verify().ok


@pytest.mark.parametrize("read_only", [True, False])
def test_converted_golden_store_has_touched_threads(golden: Golden, read_only: bool) -> None:
    with golden.open(read_only=read_only) as store:
        touched, tip = (
            [stand.record.name for stand in store._backend.tips("planner", touched=touched)]
            for touched in (True, False)
        )
    assert tip == ["long", "fork \0 of long"]
    assert touched == (["long"] if golden.knows_agents and golden.knows_touched else tip)


def test_golden_store_is_converted_only_for_writing(golden: Golden) -> None:
    before = golden.format()
    golden.open(read_only=True).close()
    assert golden.format() == before
    golden.open().close()
    assert golden.format() == golden.newest


@pytest.mark.parametrize("every", lengths(3, 1))
def test_a_golden_store_reads_exactly_as_it_was_written(golden: Golden, every: int) -> None:
    with golden.open(read_only=True, types=[contents.Plan, contents.Mood]) as store:
        histories = expected_of(golden)
        assert {info.id for info in store.threads()} == set(histories)
        for name, expected in histories.items():
            history = list(store.thread(name).history())
            assert [(c.step, c.label) for c in history] == [(step, label) for step, label, _ in expected]
            for checkpoint, (_, _, state) in list(zip(history, expected, strict=True))[::-every]:
                assert same(checkpoint.state, state), (name, checkpoint.step)
        assert store.verify().ok
        assert not store.thread("deleted").latest()


def test_golden_store_keeps_labels_tags_and_metadata(golden: Golden) -> None:
    with golden.open() as store:
        (checkpoint,) = store.thread("every type").find(tag="first")
        assert checkpoint.metadata == {"by": "golden", "n": 1}
        assert {info.id for info in store.threads(agent="planner")} == {"long", "fork \0 of long"}
        fork = store.thread("fork \0 of long")
        assert fork.load(2).parent_id == store.thread("long").load("grown").id
        thread = store.thread("rewound")
        assert thread.load().kind == "recovery"
        assert thread.undo().state == {"x": 1}
        assert thread.undo().state == {"x": 3}


def assert_agents(store: backtrail.Store, point: str, steps: int) -> None:
    wanted = contents.conversations()[point]
    assert store.agents.load("golden/agent") == contents.agent(steps)
    assert {info.id for info in store.conversations.list("golden/agent")} == set(wanted)
    for name, conversation in wanted.items():
        assert store.conversations.load(name) == conversation


def test_agents_of_a_golden_store_go_where_they_were(golden: Golden) -> None:
    if not golden.knows_agents:
        with golden.open() as store:
            assert store.agents.list() == []
        return
    with golden.open(read_only=True) as store:
        assert_agents(store, "now", 1)
        second, first = store.agents.checkpoints("golden/agent")
        assert (first.name, first.description, first.kind, first.conversations) == ("first", "the first", "manual", 41)
        assert (second.name, second.kind, second.conversations) == ("second", "pre_operation", 41)
    with golden.open() as store:
        store.gc()
        store.agents.undo("golden/agent")
        assert_agents(store, "second", 2)
        store.agents.restore(first.id)
        assert_agents(store, "first", 1)
        store.agents.restore(second.id)
        store.gc()
        assert_agents(store, "second", 2)
        assert store.verify().ok


def test_golden_store_can_be_written(golden: Golden) -> None:
    with golden.open() as store:
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


@pytest.mark.parametrize("file", ["runs1.db", "runs2.db", "runs3.db"])
def test_golden_runs_continue(tmp_path: Path, file: str) -> None:
    """As they were left: killed inside of a call, rewound, forked; and then they are forked and rewound here."""
    with backtrail.open(shutil.copy(GOLDEN / file, tmp_path / "s.db")) as store:
        listed = {run.session_id: (str(run.status), run.iteration, len(run.messages)) for run in store.runs.list()}
        found = {name: run for name, run in listed.items() if name != "left"}
        assert found == {
            "killed": ("halted(interrupted)", 3, 5),
            "rewound": ("halted(rewound)", 2, 3),
            "fork": ("halted(forked)", 3, 5),
        }
        assert [(call.id, call.name) for call in store.runs.load("killed").in_doubt] == [("3.2", "book")]
        with pytest.raises(backtrail.InDoubt):
            runs.work(store, "killed")
        store.runs.settle("killed", "3.2", result={"name": "settled", "number": 3, "nights": (1, 2)})
        store.runs.thread("killed").fork("branch", at=2)
        for name in [*found, "branch", "killed"]:
            if name == "killed" and store.runs.load(name).status.name == "completed":
                with pytest.warns(backtrail.Irreversible):
                    store.runs.thread(name).rewind(1)
            run = runs.work(store, name)
            assert (run.status.name, len(run.messages), len(run.tool_calls)) == ("completed", 7, 7)
            assert [each["nights"] for each in run.state["booked"]] == [(1, 2)] * 3
        assert len(store.runs.irreversible("rewound")) == 2  # one of them it went back behind
        assert store.verify().ok


def test_run_in_golden_store_continues_after_its_worker_died(tmp_path: Path) -> None:
    """Its journal continues a checkpoint: the finished calls are not made again, and the other one is in doubt."""
    with backtrail.open(shutil.copy(GOLDEN / "runs3.db", tmp_path / "s.db")) as store:
        left = store.runs.load("left")
        assert (str(left.status), left.iteration, len(left.messages)) == ("in_progress", 2, 2)
        assert [(call.id, call.name) for call in left.in_doubt] == [("2.3", "tip")]
        with pytest.raises(backtrail.InDoubt):
            runs.go_on(store)
        store.runs.settle("left", "2.3", result=5)
        run = runs.go_on(store)
        assert (run.status.name, run.state, len(run.messages)) == ("completed", {"paid": [1, 2]}, 3)
        assert [call.result for call in run.tool_calls] == [1, 2, "THANKS", 5]
        assert store.verify().ok
