"""`make bench-peers` compares what it says: the same chat on every side, races judged right, docs written as described.

No test looks at how long something took. What needs LangGraph's savers or SQLAlchemy is skipped without them.
"""

import asyncio
import contextlib
import importlib
import json
import math
import re
import sys
import types
import uuid
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import servers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `python -m bench.frameworks` finds the package there, too

from bench import frameworks, own_environment, report, server, sides  # noqa: E402
from bench.clock import Cost  # noqa: E402
from bench.figures import Figure  # noqa: E402
from bench.place import Place  # noqa: E402

TINY = sides.Scale(turns=6, fewer=4, lengths=(4, 6), window=2, rounds=1, budget=0, writers=4, pause=0.01)


def needs(name):
    """The module of the benchmark, or a skip; packages warn about each other when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{error}: pip install 'backtrail[bench]'")


class Schemas(Place):
    """The shared server, where every name is one of this test's own."""

    def __init__(self, url):
        super().__init__(url)
        self.made = {}

    def _own(self, name):
        return self.made.setdefault(name, f"peers_{uuid.uuid4().hex[:16]}")

    def options(self, name):
        return super().options(self._own(name))

    def schema(self, name):
        return super().schema(self._own(name))

    def size(self, name):
        return super().size(self._own(name))

    def settle(self):
        """Other tests use the server: its log is left alone."""


@pytest.fixture
def place():
    with contextlib.closing(Schemas(servers.server().url)) as there:
        yield there
        for name in there.made.values():
            servers.server().drop_schema(name)


# -- both frameworks ----------------------------------------------------------------------------------


def check(found, *, gated):
    """Every figure has a value, every side its turns, every message of ours is kept or told of."""
    assert all(figure.value is not None and math.isfinite(figure.value) for figure in found.figures)
    assert len({figure.name for figure in found.figures}) == len(found.figures)
    assert [figure.name for figure in found.figures if figure.gate] == gated
    assert all(figure.verdict == "gate" for figure in found.figures if figure.gate)
    for side in found.sides:
        assert len(side.taken) in (TINY.turns, TINY.fewer)
        assert all(sum(race[:3]) == TINY.writers for race in side.races.values())
        assert bool(side.bytes) == bool(side.reads) == bool(side.races)
        assert set(side.bytes) <= {4, 6}
    data = json.loads(frameworks.as_json({"date": "today"}, {"langgraph": found}, TINY))
    assert [side["turns"] for side in data["sides"]] == [len(side.taken) for side in found.sides]


def test_one_chat_goes_through_every_saver_of_langgraph(tmp_path, place):
    graphs = needs("bench.graphs")
    needs("langgraph.checkpoint.postgres")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph's, about its own delta channel
        found = graphs.graphs(tmp_path, place, TINY)
    again = graphs.AGAIN
    check(
        found,
        gated=[
            f"{name}: {what}, kept or told"
            for name, what in (
                (graphs.OURS, graphs.RACE),
                (graphs.OURS, again),
                (graphs.OURS + graphs.DELTA, graphs.RACE),
                (graphs.OURS_POSTGRES, graphs.RACE),
                (graphs.OURS_POSTGRES, again),
            )
        ],
    )
    by_name = {side.name: side for side in found.sides}
    assert len(by_name) == 10
    assert by_name[graphs.OURS].races[again].kept == TINY.writers
    assert set(by_name[graphs.SQLITE].reads) == {graphs.LOAD, graphs.LIST, graphs.VALUES}


def test_one_chat_goes_through_every_session_of_the_sdk(tmp_path, place):
    sessions = needs("bench.agent_sessions")
    found = sessions.sessions(tmp_path, place, TINY)
    check(found, gated=[f"{name}: {sessions.RACE}, kept or told" for name in (sessions.OURS, sessions.OURS_POSTGRES)])
    assert len(found.sides) == 6


def test_the_gates_are_those_of_a_full_run(tmp_path):
    graphs = needs("bench.graphs")
    costs = [Cost(1.0, 1.0)] * sides.FULL.turns
    names = (graphs.ITSELF, graphs.SQLITE, graphs.SQLITE + graphs.DELTA, graphs.OURS, graphs.OURS + graphs.DELTA)
    made = {}
    for at, name in enumerate(names):
        reads = {graphs.LOAD: 1.0, graphs.LIST: 1.0, graphs.VALUES: 1.0}
        taken = [Cost((at + 1) * cost.wall, cost.cpu) for cost in costs]
        made[name] = sides.Side(name, "", taken, {500: 1, 1_000: 1}, reads)
    gates = [figure.gate for figure in graphs._figures(made, sides.FULL) if figure.gate]
    assert gates == [300, 50, 1.0, 0.7, 0.2, 1.0, 0.4]
    assert not any(figure.gate for figure in graphs._figures(made, sides.QUICK))


def test_graph_and_reference_end_alike():
    graphs = needs("bench.graphs")
    script = sides.script(3)
    alone, kept = graphs.Alone(script, TINY), graphs.Graph(graphs.ITSELF, graphs.Reference(), script, TINY)
    for at in range(3):
        alone.turn(at)
        kept.turn(at)
    found = kept._graph.get_state(graphs.config()).values["messages"]
    assert [message.content for message in found] == [message.content for message in alone._messages]
    assert [message.content for message in found] == [text for turn in script for text in turn]


def test_a_session_that_forgets_is_noticed():
    sessions = needs("bench.agent_sessions")
    from agents import SQLiteSession

    with asyncio.Runner() as runner:
        talk = sessions.Talk("x", SQLiteSession, sides.script(3), TINY, runner=runner, size=lambda: 0)
        talk.turn(0)
        talk._session.close()
        talk._session = SQLiteSession("another")
        with pytest.raises(AssertionError):
            talk.turn(1)
        talk._session.close()


# -- turns and races ----------------------------------------------------------------------------------


class Fake:
    """A side that notes its turns."""

    note = ""
    size = None

    def __init__(self, name, turns, log):
        self.name, self.turns, self.log = name, turns, log
        self.reads, self.races = {}, {}

    def turn(self, at):
        self.log.append((at, self.name))

    def close(self):
        self.log.append("closed")


def test_sides_take_turns_in_changing_order():
    log = []
    found = sides.measure([Fake("a", 20, log), Fake("b", 20, log), Fake("c", 5, log)], TINY)
    assert [len(side.taken) for side in found] == [20, 20, 5]
    assert log[-3:] == ["closed"] * 3
    turns = [[name for at, name in log[:-3] if at == number] for number in range(20)]
    assert [at for at, _ in log[:-3]] == sorted(at for at, _ in log[:-3])
    assert {frozenset(each) for each in turns[5:]} == {frozenset("ab")}
    assert {tuple(each) for each in turns[5:]} == {("a", "b"), ("b", "a")}


def test_each_message_is_kept_refused_or_lost():
    race = sides.Race.judge([True, True, False, False], [None, KeyError(), ValueError(), None])
    assert race == (2, 1, 1, ("KeyError", "ValueError"))
    (figure,) = sides.raced(sides.Side("x", races={"at once": race}), gated=True)
    assert (figure.value, figure.gate, figure.verdict) == (3, 4, "missed")
    assert report.cells(figure)[1] == "3 of 4"
    assert figure.note == "2 kept, 1 told by KeyError, ValueError, 1 lost silently"


def test_time_at_a_length_is_a_median():
    side = sides.Side("x", taken=[Cost(second, 0) for second in (9, 8, 2, 3, 100, 5)])
    assert side.ms(4, window=20) == 2_500
    assert side.ms(6, window=3) == 5_000
    assert side.ms(7, window=3) is None
    assert side.total(3) == (19, 0)


def test_sides_are_compared_over_common_turns():
    theirs = sides.Side("theirs", "as it comes", [Cost(4, 8)] * 4, {2: 60, 4: 100}, {"load": 9.0})
    ours = sides.Side("ours", "", [Cost(2, 2)] * 2, {2: 10}, {"load": 1.0})
    alone = sides.Side("alone", taken=[Cost(1, 1)] * 4)
    found = sides.against(theirs, ours, alone, {"time": {"gate": 3}})
    assert [(figure.name, figure.value, figure.cpu, figure.verdict) for figure in found] == [
        ("theirs / ours: bytes after 2 turns", 6, None, "told"),
        ("theirs / ours: time of 2 turns", 2, 4, "missed"),
        ("theirs / ours: the same without alone", 3, None, "told"),
    ]
    assert found[1].note == "as it comes"
    turned = sides.against(ours, theirs, alone, {})
    assert turned[0].note == sides.BETTER
    equal = sides.Side("equal", "", [Cost(1, 1)] * 4, {4: 1}, {"load": 3.0})
    # As fast as the framework alone: there is nothing left to divide by.
    assert [figure.name.partition(": ")[2] for figure in sides.against(theirs, equal, alone, {})] == [
        "bytes after 4 turns",
        "time of 4 turns",
        "load",
    ]


# -- told ---------------------------------------------------------------------------------------------

SIDES = [
    sides.Side("theirs", "", [Cost(0.004, 0.002)] * 6, {4: 3_000_000, 6: 4_500_000_000}, {"load": 1.5}),
    sides.Side("ours", "", [Cost(0.001, 0.001)] * 4, {4: 2_000}, {"load": 0.5}, {"at once": sides.Race(3, 1, 0)}),
]
FOUND = {"langgraph": sides.Compared([Figure("a / b", 4.0, gate=3, better="higher")], sides=SIDES)}


def test_table_has_a_row_for_each_side():
    headers, *rows = frameworks.side_by_side(SIDES, TINY)
    assert rows == [
        ["theirs", "4", "4", "6", "0.024 s", "4.50 GB", "1.50", "-"],
        ["ours", "1", "-", "4", "0.004 s", "2 KB", "0.50", "3 / 1 / 0"],
    ]
    assert headers[-1] == "4 at once: kept / told / lost"


def test_plots_have_a_line_for_each_complete_side():
    drawn = frameworks.plots(FOUND, TINY)
    assert set(drawn) == {"peers-langgraph-ms.svg", "peers-langgraph-bytes.svg"}
    for svg in drawn.values():
        root = ET.fromstring(svg)
        lines = root.findall("{http://www.w3.org/2000/svg}polyline")
        assert [len(line.get("points").split()) for line in lines] == [2]
        assert frameworks.TURNS in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_run_prints_and_writes_its_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(frameworks, "ROOT", tmp_path)
    monkeypatch.setattr(frameworks, "GROUPS", {"langgraph": lambda *_: FOUND["langgraph"]})
    monkeypatch.setattr(frameworks, "FULL", TINY)
    monkeypatch.setattr(frameworks, "QUICK", replace(TINY, rounds=2))
    frameworks.main(["--quick"])
    printed = capsys.readouterr().out
    assert "a / b" in printed
    assert "theirs: ms per turn at 4 4; ms per turn at 6 4; turns 6; " in printed
    made = tmp_path / "build" / "bench-peers"
    run = json.loads((made / "peers.json").read_text())
    assert run["quick"] is True
    assert run["machine"]["packages"].keys() >= {"langgraph", "openai-agents", "sqlalchemy"}
    page = tmp_path / "docs" / "peers.md"
    page.parent.mkdir()
    page.write_text(f"before {frameworks.BEGIN} old {report.END} after")
    frameworks.main(["--write-docs"])
    text = page.read_text()
    assert text.startswith(f"before {frameworks.BEGIN}")
    assert text.endswith(f"{report.END} after")
    assert " old " not in text
    assert all((page.parent / name).exists() for name in re.findall(r"\]\((\S+)\)", text))
    assert json.loads((tmp_path / "bench" / "peers.json").read_text())["quick"] is False


@pytest.mark.parametrize("arguments", [["--quick", "--write-docs"], ["--only", "openai", "--write-docs"]])
def test_half_a_run_is_not_put_into_the_docs(arguments, capsys):
    with pytest.raises(SystemExit):
        frameworks.main(arguments)
    assert "--write-docs is for a full run" in capsys.readouterr().err


def test_incomplete_run_is_not_put_into_the_docs(tmp_path, monkeypatch):
    monkeypatch.setattr(frameworks, "ROOT", tmp_path)
    missing = sides.Compared([Figure("x", None, note="not installed")])
    monkeypatch.setattr(frameworks, "GROUPS", {"openai": lambda *_: missing})
    with pytest.raises(SystemExit, match="not measured"):
        frameworks.main(["--write-docs"])
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("group", "module"),
    [
        ("langgraph", "bench.graphs"),
        ("openai", "bench.agent_sessions"),
        ("memories", "bench.memories"),
        ("pydantic-ai", "bench.pydantic_conversations"),
    ],
)
def test_without_a_framework_its_group_says_so(group, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    (figure,) = frameworks.GROUPS[group](tmp_path, TINY).figures
    assert figure.verdict == "not measured"
    assert figure.note


def test_without_a_server_the_rest_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "missing", lambda: "no server here")
    found = frameworks._measured(
        lambda _, place, __: sides.Compared([Figure("x", float(place is None))]), tmp_path, TINY
    )
    assert [(figure.name, figure.value, figure.note) for figure in found.figures] == [
        ("x", 1.0, ""),
        ("PostgreSQL", None, "no server here"),
    ]


def test_the_json_has_what_the_page_says():
    run = json.loads(frameworks.as_json({"date": "today"}, FOUND, TINY))
    page = (ROOT / "docs" / "peers.md").read_text()
    for key in run:
        assert f"| `{key}` |" in page
    for key in run["sides"][0]:
        assert f"| `sides[].{key}` |" in page
    assert page.count(frameworks.BEGIN) == page.count(report.END) == 1
    assert f"one framework: {', '.join(frameworks.GROUPS)}\n" in page


# -- the groups of other frameworks -------------------------------------------------------------------


@pytest.mark.parametrize("group", ["memories", "pydantic-ai"])
def test_a_group_compares_all_its_sides(tmp_path, group):
    needs("bench.memories" if group == "memories" else "bench.pydantic_conversations")
    found = frameworks.GROUPS[group](tmp_path, TINY)
    assert len(found.sides) == 3
    assert all(len(side.taken) == TINY.turns for side in found.sides)
    assert all(side.bytes[TINY.turns] > 0 for side in found.sides[1:])
    assert any("a turn at 4" in figure.name for figure in found.figures)
    assert all(figure.value > 0 for figure in found.figures)


@pytest.mark.torture  # makes an environment and asks the package registry
def test_an_environment_that_cannot_be_made_is_told(tmp_path):
    found = own_environment.measured("adk_sessions", ["no-such-package-anywhere==1"], tmp_path, sides.QUICK)
    assert found.figures[0].value is None
    assert found.figures[0].note


def test_results_of_another_environment_come_back_whole(tmp_path, monkeypatch):
    side = sides.Side("a", "note", [Cost(1.0, 0.5)], {1: 7}, {"read": 0.5}, {"race": sides.Race(1, 2, 3, ("E",))})
    found = sides.Compared([Figure("f", 1.5, cpu=2.0, gate=1.5)], sides=[side])
    module = types.SimpleNamespace(measured=lambda directory, scale: found)
    monkeypatch.setattr(own_environment, "import_module", lambda name: module)
    own_environment.main("any", str(tmp_path), "quick")
    assert own_environment._read(json.loads((tmp_path / "results.json").read_text())) == found
