"""Classes in the channels of graphs: which are kept and made again without being named, and which are not."""

import collections
import datetime as dt
import enum
import logging
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import pydantic
import pytest
from langchain_core.agents import AgentAction, AgentFinish
from langchain_core.messages import AIMessage
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, interrupt

import backtrail
from backtrail.adapters.langgraph import BacktrailSaver

AT = {"configurable": {"thread_id": "t"}}
NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


class Mood(enum.Enum):
    CALM = 1


class Text(str):
    """Like what LangChain makes of `message.text`."""

    __slots__ = ()


class Number(int):
    pass


class Ratio(float):
    pass


class Items(list):
    pass


class Fields(dict):
    pass


@dataclass
class Plan:
    city: str
    mood: Mood = Mood.CALM


@dataclass
class Loaded:
    n: int


class Point(NamedTuple):
    x: int
    y: int


class Trip(pydantic.BaseModel):
    plan: Plan
    points: list[Point] = []


def graph_of(saver, value, annotation=Any, **options):
    """A graph with one node, which writes a value."""
    fields = {"start": int, "value": annotation}
    state = TypedDict("State", fields, total=False)
    builder = StateGraph(state, **options).add_node("n", lambda _: {"value": value}).add_edge(START, "n")
    return builder.compile(checkpointer=saver)


def came_back(saver, value, annotation=Any):
    graph = graph_of(saver, value, annotation)
    graph.invoke({"start": 1}, AT)
    return graph.get_state(AT).values["value"]


KEPT = [
    Trip(plan=Plan("Faro"), points=[Point(1, 2)]),
    [Plan("Lagos"), Mood.CALM],
    {"where": Point(3, 4)},
    Item(value={"a": 1}, key="k", namespace=("n",), created_at=NOW, updated_at=NOW),
    SearchItem(("n", "m"), "k", {"a": [1]}, NOW, NOW, 0.5),
    AgentAction(tool="t", tool_input={"a": 1}, log="l"),
    AgentFinish({"output": 1}, "l"),
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_unnamed_classes_are_saved(value):
    found = came_back(BacktrailSaver("memory://"), value)
    assert found == value == came_back(InMemorySaver(), value)
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_local_classes_are_saved():
    @dataclass
    class Inner:
        n: int

    assert came_back(BacktrailSaver("memory://"), Inner(1), Inner) == Inner(1)
    assert came_back(BacktrailSaver("memory://"), [Inner(2)]) == [Inner(2)]


def test_numpy_arrays_are_saved():
    numpy = pytest.importorskip("numpy")
    for value in (
        numpy.arange(6).reshape(2, 3),
        numpy.zeros((2, 2), order="F"),
        numpy.array(["a", "bc"]),
        numpy.array(7),
    ):
        found = came_back(BacktrailSaver("memory://"), value)
        assert (found.dtype, found.shape, found.flags.writeable) == (value.dtype, value.shape, True)
        assert (found == value).all()
    with pytest.raises(backtrail.Invalid, match="an array of object cannot be saved"):
        came_back(BacktrailSaver("memory://"), numpy.array([object()]))
    assert came_back(BacktrailSaver("memory://"), numpy.float64(1.5)) == 1.5


def test_exceptions_become_their_repr():
    value = {"tried": [ValueError("bad"), OSError(2, "no file")]}
    assert came_back(BacktrailSaver("memory://"), value) == came_back(InMemorySaver(), value)


HARMLESS = [
    (Text("text"), "text"),
    (Text("long " * 5000), "long " * 5000),
    (Number(7), 7),
    (Number(2**80), 2**80),
    (Ratio(1.5), 1.5),
    (Items([1, bytearray(b"x"), Text("a")]), [1, bytearray(b"x"), "a"]),
    (Fields(a=Fields(b=Text("c"))), {"a": {"b": "c"}}),
    ({Text("key"): Text("value")}, {"key": "value"}),
    (TextAccessor("of a message"), "of a message"),
]


@pytest.mark.parametrize(("value", "kept"), HARMLESS, ids=lambda value: type(value).__name__)
def test_harmless_subclasses_become_plain_values(value, kept):
    found = came_back(BacktrailSaver("memory://"), [value, {"a": value}])
    assert found == [kept, {"a": kept}]
    assert [type(each) for each in (found[0], found[1]["a"])] == [type(kept)] * 2


def test_message_text_is_saved_as_plain_text():
    said = AIMessage("hello").text
    assert type(said) is TextAccessor
    found = came_back(BacktrailSaver("memory://"), AIMessage(said, id="1", additional_kwargs={"raw": said}))
    assert found == AIMessage("hello", id="1", additional_kwargs={"raw": "hello"})
    assert type(found.additional_kwargs["raw"]) is str


def test_subclass_without_plain_value_is_refused():
    class Odd(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            return False

    with pytest.raises(backtrail.Invalid) as caught:
        came_back(BacktrailSaver("memory://"), [Odd("x")])
    assert caught.value.path == "writes.value[0]"


def test_subclasses_are_still_refused_outside_of_adapters():
    with pytest.raises(backtrail.Invalid):
        backtrail.open("memory://").thread("t", types=[Plan]).save({"x": [Text("text")]})


def test_collection_classes_keep_their_type():
    value = [collections.OrderedDict(a=1), collections.Counter("aab")]
    assert [type(each) for each in came_back(BacktrailSaver("memory://"), value)] == [
        collections.OrderedDict,
        collections.Counter,
    ]


def test_answers_and_results_of_tasks_may_be_classes():
    @task
    def plan(city):
        return Plan(city)

    @entrypoint(checkpointer=BacktrailSaver("memory://"))
    def work(city):
        found = plan(city).result()
        answer = interrupt(Trip(plan=found))
        return [found, answer]

    work.invoke("Faro", AT)
    assert work.get_state(AT).interrupts[0].value == Trip(plan=Plan("Faro"))
    assert work.invoke(Command(resume=Point(1, 2)), AT) == [Plan("Faro"), Point(1, 2)]


def test_two_classes_of_one_name_are_told_apart_or_refused():
    saver = BacktrailSaver("memory://")
    other = type("Plan", (Plan,), {"__module__": "elsewhere"})
    assert came_back(saver, Plan("Faro"), Plan) == Plan("Faro")
    with pytest.raises(backtrail.Invalid, match=r"two classes have the schema name 'Plan': .*@backtrail\.schema"):
        came_back(saver, [other("Faro")], list[Plan])


NAMESAKES = """
    import sys
    from typing import Any, TypedDict
    import billing, shop
    from langgraph.graph import START, StateGraph
    from backtrail.adapters.langgraph import BacktrailSaver

    class State(TypedDict):
        v: Any

    def graph(**options):
        builder = StateGraph(State).add_node("n", lambda _: {}).add_edge(START, "n")
        return builder.compile(checkpointer=BacktrailSaver(sys.argv[1], **options))

    def at(thread):
        return {"configurable": {"thread_id": thread}}

    mine = billing if sys.argv[2] == "billing" else shop
    graph().invoke({"v": [mine.Item(1), mine.Verdict.DENY]}, at(sys.argv[2]))
    print([type(each).__module__.split(".")[0] for each in graph().get_state(at("billing")).values["v"]])
    named = graph(types=[billing.Item, billing.Verdict])
    print([type(each).__module__.split(".")[0] for each in named.get_state(at("billing")).values["v"]])
"""
NAMESAKE = """
    import dataclasses, enum

    @dataclasses.dataclass
    class Item:
        x: int

    class Verdict(enum.Enum):
        DENY = 1
"""


def test_saving_a_class_does_not_revive_another_of_its_name(tmp_path):
    for name, text in (("app", NAMESAKES), ("billing", NAMESAKE), ("shop", NAMESAKE)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    def ran(which):
        command = [sys.executable, tmp_path / "app.py", tmp_path / "s.db", which]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran("billing").stdout == "['billing', 'billing']\n" * 2
    other = ran("shop")
    assert other.stdout == "['backtrail', 'backtrail']\n['billing', 'billing']\n"
    assert "a checkpoint holds a 'billing:Item'" in other.stderr


def test_class_may_share_a_langchain_name():
    @dataclass
    class AgentAction:
        mine: int

    assert came_back(BacktrailSaver("memory://"), [AgentAction(1)], list[AgentAction]) == [AgentAction(1)]


def test_class_without_fields_is_refused_with_the_fix():
    with pytest.raises(backtrail.Invalid, match=r"register it with types=\[backtrail\.Type") as caught:
        came_back(BacktrailSaver("memory://"), {"a": [object()]})
    assert caught.value.path == "writes.value.a[0]"


def test_unnamed_class_is_warned_about_once(caplog):
    @dataclass
    class Unnamed:
        n: int

    saver = BacktrailSaver("memory://")
    with caplog.at_level(logging.WARNING, "backtrail"):
        came_back(saver, [Unnamed(1)])
        came_back(saver, [Unnamed(2)])
        came_back(saver, [Plan("Faro")], list[Plan])
    assert [each.args[2] for each in caplog.records] == ["Unnamed"]
    assert "types=[Unnamed]" in caplog.text


def test_arrays_work_after_a_partial_numpy_import(monkeypatch):
    """A node imports numpy while another thread saves: the module is there, its names are not yet."""
    numpy = pytest.importorskip("numpy")
    with BacktrailSaver("memory://") as saver:
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
        with monkeypatch.context() as importing:
            importing.delattr(numpy, "ndarray")
            saver.put_writes(config, [("x", 1)], "first")
        saver.put_writes(config, [("x", numpy.arange(3))], "second")


def test_subgraphs_name_their_classes_too():
    class Inner(TypedDict, total=False):
        plan: Plan

    inner = (
        StateGraph(Inner).add_node("i", lambda _: {"plan": Plan(interrupt("where?"))}).add_edge(START, "i").compile()
    )
    outer = StateGraph(TypedDict("Outer", {"x": int})).add_node("sub", lambda state: (inner.invoke({}), state)[1])
    graph = outer.add_edge(START, "sub").compile(checkpointer=BacktrailSaver("memory://"))
    graph.invoke({"x": 1}, AT)
    assert graph.invoke(Command(resume="Faro"), AT) == {"x": 1}


APP = """
    import enum, sys
    from dataclasses import dataclass
    from typing import Any, NamedTuple, TypedDict
    import pydantic
    from langgraph.graph import START, StateGraph
    from backtrail.adapters.langgraph import BacktrailSaver

    class Mood(enum.Enum):
        CALM = 1

    class Point(NamedTuple):
        x: int

    @dataclass
    class Plan:
        mood: Mood

    class Trip(pydantic.BaseModel):
        plans: list[Plan]

    @dataclass
    class Unnamed:
        n: int

    class State(TypedDict, total=False):
        x: int
        trip: Trip | None
        points: dict[str, Point]
        anything: Any

    made = {"trip": Trip(plans=[Plan(Mood.CALM)]), "points": {"a": Point(1)}, "anything": [Unnamed(1)]}
    graph = StateGraph(State).add_node("n", lambda _: made).add_edge(START, "n")
    with BacktrailSaver(sys.argv[1]) as saver:
        graph = graph.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}}
        if sys.argv[2] == "save":
            graph.invoke({"x": 1}, config)
        found = graph.get_state(config).values
        assert {**found, "anything": None} == {"x": 1, **made, "anything": None}, found
        print(type(found["anything"][0]).__name__)
"""


def test_new_process_loads_classes_of_the_graph(tmp_path):
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))

    def ran(how):
        command = [sys.executable, tmp_path / "app.py", tmp_path / "s.db", how]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran("save").stdout == "Unnamed\n"
    loaded = ran("load")
    assert loaded.stdout == "Record\n"
    assert "types=[Unnamed]" in loaded.stderr


def test_loading_makes_no_unnamed_class():
    """What a row names is not looked up among modules."""
    store = backtrail.open("memory://")
    saver = BacktrailSaver(store)
    graph_of(saver, 1).invoke({"start": 1}, AT)
    head = store.thread("t").latest()
    crafted = backtrail.Record(f"{__name__}:Loaded", 1, "dataclass", {"n": 1})
    store.thread("t").save({**head.state, "value": crafted}, label="crafted", metadata=head.metadata)
    assert type(saver.get_tuple(AT).checkpoint["channel_values"]["value"]) is backtrail.Record
    assert came_back(BacktrailSaver("memory://"), [Loaded(1)]) == [Loaded(1)]
    assert saver.get_tuple(AT).checkpoint["channel_values"]["value"] == Loaded(1)  # it was saved here meanwhile
