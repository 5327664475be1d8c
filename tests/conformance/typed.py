"""Typed threads: states that are instances of the caller's classes, and classes that change."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import pytest

import backtrail
from backtrail import Invalid, Member, Record
from tests.conformance.base import Suite, head
from tests.support.exact import same

if TYPE_CHECKING:
    from backtrail import Store, Thread
    from tests.conformance.base import Opener


class Mood(enum.Enum):
    """An Enum."""

    GOOD = "good"
    BAD = "bad"


class Place(NamedTuple):
    """A named tuple."""

    city: str
    zip: int = 0


@dataclass
class Day:
    """A dataclass inside another one."""

    place: Place
    notes: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """A dataclass with all the others inside."""

    name: str
    days: list[Day] = field(default_factory=list)
    mood: Mood = Mood.GOOD
    extra: dict[str, Any] = field(default_factory=dict)


class Loose(TypedDict):
    """A TypedDict, which is a plain dict for the store."""

    a: int
    b: list[str]


def _plan() -> Plan:
    return Plan("trip", [Day(Place("Lisbon", 1000), ["x"]), Day(Place("Porto"))], Mood.BAD, {"n": (1, True)})


class Typed(Suite):
    """`store.thread(id, type)`."""

    def test_dataclass_loads_as_itself_with_its_parts(self, opener: Opener) -> None:
        with opener() as store:
            thread = store.thread("t", Plan)
            made = thread.save(_plan())
            assert made.state == _plan()
            changed = _plan()
            changed.days[1].notes.append("y")
            thread.save(changed)
        with opener() as store:
            old, new = store.thread("t", Plan).history()
            assert same(old.state, _plan())
            assert new.state.days[1].notes == ["y"]
            assert type(new.state.days[0].place) is Place
            assert new.state.mood is Mood.BAD
            assert [str(change.path) for change in store.thread("t", Plan).diff()] == ["days[1].notes[0]"]

    def test_changes_by_path_and_steps_work_inside_instances(self, store: Store) -> None:
        thread = store.thread("t", Plan)
        thread.save(_plan())
        assert thread.append("days[0].notes", "z").state.days[0].notes == ["x", "z"]
        assert thread.set("mood", Mood.GOOD).state.mood is Mood.GOOD
        with thread.step() as plan:
            plan.name = "other"
            plan.days.append(Day(Place("Faro")))
        state = head(thread).state
        assert (state.name, len(state.days), state.days[2].place.city) == ("other", 3, "Faro")
        assert head(thread).get("days[2].place.city") == "Faro"

    def test_state_without_its_type_is_a_record(self, store: Store) -> None:
        store.thread("t", Plan).save(_plan())
        state = head(store.thread("t")).state
        assert type(state) is Record
        assert (state.schema, state.version, state["name"]) == ("Plan", 1, "trip")
        assert type(state["mood"]) is Member
        assert state["mood"].name == "BAD"
        assert head(store.thread("t", Plan)).state == _plan()

    def test_a_struct_comes_back_as_itself(self, store: Store) -> None:
        msgspec = pytest.importorskip("msgspec")
        point = msgspec.defstruct("Point", [("x", int), ("tags", list[str], msgspec.field(default_factory=list))])
        thread: Thread[Any] = store.thread("t", point)
        thread.save(point(1, ["a"]))
        thread.append("tags", "b")
        assert head(store.thread("t", point)).state == point(1, ["a", "b"])

    def test_a_pydantic_model_comes_back_as_itself(self, store: Store) -> None:
        pydantic = pytest.importorskip("pydantic")
        model = pydantic.create_model("Settings", name=(str, ...), limit=(int, 5), inner=(dict[str, Any], {}))
        thread: Thread[Any] = store.thread("t", model)
        thread.save(model(name="x", inner={"a": [1]}))
        loaded = head(store.thread("t", model)).state
        assert loaded == model(name="x", inner={"a": [1]})
        assert loaded.model_fields_set == {"name", "inner"}

    def test_a_typed_dict_is_a_dict(self, store: Store) -> None:
        thread = store.thread("t", Loose)
        thread.save({"a": 1, "b": ["x"]})
        assert type(head(thread).state) is dict
        assert head(store.thread("t", Loose)).state == {"a": 1, "b": ["x"]}

    def test_named_tuples_and_enums_can_be_the_state(self, store: Store) -> None:
        store.thread("place", Place).save(Place("Lisbon", 1))
        store.thread("mood", Mood).save(Mood.BAD)
        assert same(head(store.thread("place", Place)).state, Place("Lisbon", 1))
        assert head(store.thread("mood", Mood)).state is Mood.BAD

    def test_state_of_another_type_is_refused(self, store: Store) -> None:
        thread: Thread[Any] = store.thread("t", Plan)
        others: tuple[object, ...] = ({"name": "x"}, None, [], Day(Place("x")), 5)
        for state in others:
            with pytest.raises(Invalid):
                thread.save(state)
        assert thread.latest() is None

    def test_loading_as_another_type_is_an_error(self, store: Store) -> None:
        store.thread("t", Plan).save(_plan())
        with pytest.raises(Invalid) as caught:
            _ = head(store.thread("t", Day)).state
        assert "Plan" in str(caught.value)
        assert head(store.thread("t", Plan)).state == _plan()

    def test_unregistered_class_is_refused_with_its_path(self, store: Store) -> None:
        class Odd(dict[str, int]):
            pass

        class Custom:
            pass

        for value in (Odd(), Custom(), Custom, len, iter(())):
            with pytest.raises(Invalid) as caught:
                store.thread("t").save({"messages": [1, {"when": value}]})
            assert caught.value.path == "state.messages[1].when"
            assert "state.messages[1].when" in str(caught.value)
        assert store.thread("t").latest() is None

    def test_registered_type_uses_its_own_functions(self, opener: Opener) -> None:
        class Celsius:
            def __init__(self, degrees: float) -> None:
                self.degrees = degrees

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Celsius) and other.degrees == self.degrees

            __hash__ = None  # type: ignore[assignment]

        registered = backtrail.Type(
            Celsius, "Celsius", dump=lambda c: {"degrees": c.degrees}, load=lambda fields: Celsius(**fields)
        )
        with opener(types=[registered]) as store:
            store.thread("t").save({"heat": [Celsius(21.5)]})
            assert head(store.thread("t")).state == {"heat": [Celsius(21.5)]}
        with opener() as store:
            assert head(store.thread("t")).state == {"heat": [{"degrees": 21.5}]}

    def test_bytes_of_a_typed_checkpoint_come_back_typed(self, store: Store) -> None:
        data = store.thread("t", Plan).save(_plan()).to_bytes()
        assert backtrail.Checkpoint.from_bytes(data, Plan).state == _plan()
        assert backtrail.Checkpoint.from_bytes(data).state["name"] == "trip"


class Upcasting(Suite):
    """A changed class still loads data of its older versions."""

    def test_upcasters_lead_from_any_older_version_to_the_newest(self, opener: Opener) -> None:
        def first() -> Any:
            @backtrail.schema(name="Trip")
            @dataclass
            class Trip:
                city: str

            return Trip

        def second() -> Any:
            @backtrail.schema(name="Trip")
            @dataclass
            class Trip:
                cities: list[str]

            @backtrail.upcast(Trip, from_version=1)
            def to_second(fields: dict[str, Any]) -> dict[str, Any]:
                return {"cities": [fields["city"]]}

            return Trip, to_second

        def third() -> Any:
            @backtrail.schema(name="Trip")
            @dataclass
            class Trip:
                cities: list[str]
                budget: int

            @backtrail.upcast(Trip, from_version=1)
            def to_second(fields: dict[str, Any]) -> dict[str, Any]:
                return {"cities": [fields["city"]]}

            @backtrail.upcast(Trip, from_version=2)
            def to_third(fields: dict[str, Any]) -> dict[str, Any]:
                return {**fields, "budget": 100}

            return Trip, to_second, to_third

        one, (two, *_), (three, *_) = first(), second(), third()
        with opener() as store:
            store.thread("t", one).save(one("Lisbon"))
            store.thread("u").save({"trips": [one("Porto")]})
        with opener() as store:
            assert head(store.thread("t", two)).state == two(["Lisbon"])
            store.thread("t", two).save(two(["Lisbon", "Faro"]))
        with opener(types=[three]) as store:
            old, new = store.thread("t", three).history()
            assert old.state == three(["Lisbon"], 100)
            assert new.state == three(["Lisbon", "Faro"], 100)
            assert head(store.thread("u")).state == {"trips": [three(["Porto"], 100)]}
            assert head(store.thread("u")).get("trips[0]") == three(["Porto"], 100)

    def test_instances_in_sets_and_as_keys_are_migrated(self, opener: Opener) -> None:
        @backtrail.schema(name="Spot")
        @dataclass(frozen=True)
        class Old:
            x: int

        @backtrail.schema(name="Spot")
        @dataclass(frozen=True)
        class New:
            x: int
            y: int

        @backtrail.upcast(New, from_version=1)
        def to_second(fields: dict[str, Any]) -> dict[str, Any]:
            return {**fields, "y": 0}

        with opener(types=[Old]) as store:
            store.thread("a").save({"spots": {Old(1), Old(2)}})
            store.thread("b").save([{(Old(1), "a"): 1, Old(2): frozenset({Old(3)})}])
            store.thread("c").save([{Place("Lisbon")}])
        with opener(types=[New]) as store:
            report = store.migrate()
            assert (report.threads, report.migrated, report.failed) == (3, 2, ())
            assert head(store.thread("a")).state == {"spots": {New(1, 0), New(2, 0)}}
            assert head(store.thread("b")).state == [{(New(1, 0), "a"): 1, New(2, 0): frozenset({New(3, 0)})}]
            assert store.migrate().migrated == 0

    def test_a_registered_type_is_migrated(self, opener: Opener) -> None:
        class Heat:
            def __init__(self, kelvin: float) -> None:
                self.kelvin = kelvin

        def registered(version: int) -> backtrail.Type:
            dump, load = (lambda heat: {"kelvin": heat.kelvin}), (lambda fields: Heat(**fields))
            return backtrail.Type(Heat, "Heat", version=version, dump=dump, load=load)

        with opener(types=[registered(1)]) as store:
            store.thread("t").save([Heat(280.0)])

        @backtrail.upcast(Heat, from_version=1)
        def to_second(fields: dict[str, Any]) -> dict[str, Any]:
            return {"kelvin": fields["kelvin"] + 1}

        with opener(types=[registered(2)]) as store:
            assert [store.migrate().migrated for _ in range(2)] == [1, 0]
        with opener() as store:
            assert head(store.thread("t")).state == [Record("Heat", 2, "custom", {"kelvin": 281.0})]

    def test_newer_schema_version_is_refused_and_kept(self, opener: Opener) -> None:
        @backtrail.schema(name="Thing", version=3)
        @dataclass
        class New:
            n: int

        @backtrail.schema(name="Thing", version=2)
        @dataclass
        class Old:
            n: int

        with opener() as store:
            store.thread("t", New).save(New(1))
        with opener() as store:
            with pytest.raises(Invalid):
                _ = head(store.thread("t", Old)).state
            assert head(store.thread("t", New)).state == New(1)
            assert head(store.thread("t")).state["n"] == 1
