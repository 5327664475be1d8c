"""The async mirror is made from the synchronous code: nothing is missing, nothing is out of date."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import backtrail
from backtrail import aio
from backtrail.agents import repository
from backtrail.aio.agents import Agents
from backtrail.aio.conversations import Conversations
from backtrail.aio.run import Run
from backtrail.aio.runs import Runs
from backtrail.aio.scheduler import AutoCheckpoint
from backtrail.conversations import repository as conversations
from backtrail.runs import repository as runs
from backtrail.runs import run

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    (backtrail.Thread, aio.Thread),
    (backtrail.Store, aio.Store),
    (backtrail.Checkpoint, aio.Checkpoint),
    (repository.Agents, Agents),
    (conversations.Conversations, Conversations),
    (runs.Runs, Runs),
]
OTHER_NAMES = {"state": "load_state", "__len__": "count", "__contains__": "has"}
OTHERWISE = {"update": "fn"}
"""Parameters whose types differ."""


@pytest.fixture
def generator():
    spec = importlib.util.spec_from_file_location("generate_aio", ROOT / "tools" / "generate_aio.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["checkpoint", "thread", "agents", "conversations", "runs", "store"])
def test_the_modules_are_what_the_generator_makes_of_the_source(generator, name):
    assert generator.MODULES[name]() == (ROOT / "src" / "backtrail" / "aio" / f"{name}.py").read_text()


def test_the_generator_makes_all_modules_but_those_written_by_hand(generator):
    there = {path.stem for path in (ROOT / "src" / "backtrail" / "aio").glob("*.py")}
    assert there == {*generator.MODULES, "__init__", "blocks", "copy", "executor", "run", "scheduler"}


def test_a_public_name_without_a_rule_is_an_error(generator):
    rules = {name: rule for name, rule in generator.THREAD.items() if name != "rewind"}
    with pytest.raises(SystemExit, match="rewind"):
        generator.Maker("thread", "Thread", rules)


def public(cls):
    names = {name for name in vars(cls) if not name.startswith("_")} | (vars(cls).keys() & OTHER_NAMES.keys())
    return sorted(names | {name for name in inspect.get_annotations(cls) if not name.startswith("_")})


@pytest.mark.parametrize(("sync", "mirror"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_public_name_has_its_mirror_with_the_same_parameters(sync, mirror):
    names = public(sync)
    assert len(names) > 8
    assert {OTHER_NAMES.get(name, name) for name in names} == set(public(mirror))
    for name in names:
        one, other = vars(sync).get(name), vars(mirror)[OTHER_NAMES.get(name, name)]
        if isinstance(one, property) or one is None or inspect.ismemberdescriptor(one):
            continue
        one, other = inspect.unwrap(getattr(one, "__func__", one)), getattr(other, "__func__", other)
        assert [
            (p.name, p.kind, p.default, p.annotation if p.name != OTHERWISE.get(name) else "")
            for p in inspect.signature(one).parameters.values()
        ] == [
            (p.name, p.kind, p.default, p.annotation if p.name != OTHERWISE.get(name) else "")
            for p in inspect.signature(other).parameters.values()
        ], name


def test_scheduler_mirrors_every_public_name():
    assert set(public(AutoCheckpoint)) == {*public(backtrail.AutoCheckpoint), "first"}
    for name in ("start", "stop"):
        assert inspect.iscoroutinefunction(vars(AutoCheckpoint)[name])
    assert "first()" in (ROOT / "docs" / "async.md").read_text()


def test_a_run_has_every_public_name_with_the_same_parameters():
    names = set(public(run.Run))
    assert (set(public(Run)), run.Run.__mro__[1:]) == (names, Run.__mro__[1:])
    assert {name for name in names if inspect.iscoroutinefunction(vars(Run)[name])} == {"checkpoint", "llm", "tool"}
    for name in ("checkpoint", "halt", "iterations", "llm", "message", "partial", "tool"):
        one, other = (inspect.signature(getattr(cls, name)).parameters.values() for cls in (run.Run, Run))
        assert [p for p in one if p.name != "fn"] == [p for p in other if p.name != "fn"]
        assert inspect.getdoc(getattr(Run, name))


def test_opening_has_the_same_parameters():
    one, other = inspect.signature(backtrail.open), inspect.signature(aio.open)
    assert list(one.parameters.values()) == list(other.parameters.values())


@pytest.mark.parametrize(("sync", "mirror"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_call_has_a_docstring(sync, mirror):
    members = [value for name, value in vars(mirror).items() if not name.startswith("_")]
    assert not [member for member in members if not inspect.ismemberdescriptor(member) and not inspect.getdoc(member)]


@pytest.mark.parametrize(("sync", "mirror"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_name_that_differs_is_in_the_page(sync, mirror):
    page = (ROOT / "docs" / "async.md").read_text()
    differs = {name for name in public(mirror) if name not in public(sync)}
    differs |= {
        name
        for name, member in vars(mirror).items()
        if isinstance(vars(sync).get(name), property) and not isinstance(member, property)
    }
    assert not [name for name in differs if f"{name}()" not in page]
