"""Which classes a saver may keep and make again without being told by name.

Loading makes instances of classes by their schema names. Enough consent for it is that

- the caller named the class (`types=`),
- the graph names it, in the schemas of its state, input, output and context, of its nodes, of its channels, or as the
  response format of LangChain's `create_agent`,
- this process has saved an instance of it: of this class, by its module and qualified name, not of one of its name.

What a row names is never looked up among modules: nothing is imported, and no class is made that is not one of these.
LangGraph asks the graph for the saver of each call, be it a run or a look at the state. There the saver is told which
graph it is (`introduce`); LangGraph's own way to say so, `with_allowlist`, is used only in its strict mode, names no
named tuples and finds no classes that were made inside of functions.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from langgraph.pregel import Pregel

from backtrail.adapters.langgraph.classes import FRAMEWORK, LOG, all_of, numpy_types
from backtrail.engine.schema.annotations import reachable
from backtrail.engine.schema.registry import Qualified
from backtrail.engine.schema.versions import is_declared, name_of, plan_of
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_HOOK: Final = "_apply_checkpointer_allowlist"


class _Saved:
    """The classes of which this process has saved instances, by their schema names."""

    def __init__(self) -> None:
        self._classes: dict[str, weakref.ref[type]] = {}
        self.count = 0
        """Changes whenever there is one more."""

    def __iter__(self) -> Iterator[type]:
        return iter([cls for ref in list(self._classes.values()) if (cls := ref()) is not None])

    def add(self, cls: type) -> bool:
        """Take note of a class; False if another one has its name. One that was defined again takes its own place."""
        ref = self._classes.get(name := name_of(cls))
        known = None if ref is None else ref()
        if known is cls or (known is not None and _full_name(known) != _full_name(cls)):
            return False
        self._classes[name] = weakref.ref(cls)
        self.count += 1
        return True


SAVED: Final = _Saved()


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


class Consent:
    """The classes that a saver may keep."""

    def __init__(self, named: Iterable[Any], graph: Iterable[type] = ()) -> None:
        self._named = tuple(named)
        self._graph = tuple(graph)
        self._made: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
        """What was there when they were last put together, and what that made."""

    @property
    def types(self) -> tuple[Any, ...]:
        """All of them, as a store takes them; the same tuple until there are others."""
        now = (SAVED.count, numpy_types())  # none as long as a node is importing numpy
        made = self._made
        if made[0] != now:
            made = self._made = (now, self._all())
        return made[1]

    def _all(self) -> tuple[Any, ...]:
        found = dict.fromkeys(all_of(self._named))
        names = {_name(each): _class(each) for item in found for each in _with_inner(item)}
        plain, saved = (*numpy_types(), *self._graph), tuple(SAVED)
        for at, item in enumerate((*plain, *saved, *FRAMEWORK)):
            is_saved = len(plain) <= at < len(plain) + len(saved)
            inner = list(_with_inner(item))
            if all(names.get(_name(each), _class(each)) is _class(each) for each in inner):
                more = (_qualified(each) if is_saved and each not in found else each for each in inner)
                found.update(dict.fromkeys(more))
                names |= {_name(each): _class(each) for each in inner}
        return tuple(found)

    def knows(self, cls: type) -> bool:
        """Tell whether a class was named by the caller or by the graph."""
        return any(_class(each) is cls for item in (*self._named, *self._graph) for each in _with_inner(item))

    def with_graph(self, classes: Iterable[type]) -> Consent | None:
        """Return this and the classes of a graph; None if they are all here."""
        more = [cls for cls in classes if not self.knows(cls)]
        return Consent(self._named, (*self._graph, *more)) if more else None

    def learn(self, value: Any) -> None:
        """Take note of the classes in what is about to be saved."""
        known = {_class(each) for each in self.types}
        customs = {each.cls: each.dump for each in self.types if hasattr(each, "dump")}
        new = [cls for cls in _classes_in(value, customs) if cls not in known and SAVED.add(cls)]
        for cls in new:
            LOG.warning(
                "%s.%s is kept, but neither the schemas of the graph nor types= name it: a process that has not saved "
                "one loads its fields in its place. To change that: BacktrailSaver(..., types=[%s])",
                cls.__module__,
                cls.__qualname__,
                cls.__name__,
            )


def _qualified(cls: Any) -> Any:
    """Return how to keep a class that only this process consents to: not by a name that others may have, too."""
    return cls if not isinstance(cls, type) or is_declared(cls) else Qualified(cls)


def _class(item: Any) -> Any:
    return getattr(item, "cls", item)


def _name(item: Any) -> Any:
    return item.name if hasattr(item, "dump") else name_of(item) if isinstance(item, type) else item


def _with_inner(item: Any) -> Iterator[Any]:
    """Give a class and those that its annotations name."""
    yield item
    if isinstance(item, type):
        yield from (each for each in reachable(item) if each is not item)


def _classes_in(value: Any, customs: dict[type, Callable[[Any], Any]]) -> list[type]:
    """Return the classes with fields, and the Enums, of which there are instances in a value."""
    found: dict[type, None] = {}
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        cls = type(item)
        plan = None if cls in customs else plan_of(cls)
        try:
            if cls in customs:
                todo.append(customs[cls](item))
            elif plan is not None:
                found[cls] = None
                todo += [item.value] if plan.shape is None else plan.shape.take(item).values()
        except (Invalid, AttributeError, ValueError):
            pass
        if isinstance(item, dict):
            todo += (*item.keys(), *item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
    return list(found)


# -- the classes of a graph -------------------------------------------------------------------------------------


def introduce() -> None:
    """Tell savers of ours which graph they work for, whenever LangGraph asks a graph for its saver."""
    original = getattr(Pregel, _HOOK, None)
    if original is None or hasattr(original, "introduces"):
        return

    def apply(graph: Any, saver: Any) -> Any:
        found = original(graph, saver)
        for_graph = getattr(found, "_for_graph", None)
        return found if for_graph is None else for_graph(graph)

    apply.introduces = True  # type: ignore[attr-defined]
    setattr(Pregel, _HOOK, apply)


def classes_of(graph: Any) -> list[type]:
    """Return the classes that a graph names."""
    builder = getattr(graph, "builder", None)
    named: list[Any] = [getattr(graph, "context_schema", None)]
    named += [getattr(builder, f"{each}_schema", None) for each in ("state", "input", "output", "context")]
    nodes = getattr(builder, "nodes", None) or {}
    named += [getattr(node, "input_schema", None) for node in nodes.values()]
    named += [
        getattr(branch, "input_schema", None)
        for branches in (getattr(builder, "branches", None) or {}).values()
        for branch in branches.values()
    ]
    for channel in (getattr(graph, "channels", None) or {}).values():
        named += [_declared(channel, each) for each in ("ValueType", "UpdateType")]
    named += [each for node in nodes.values() for each in _response_formats(node)]
    return list(dict.fromkeys(cls for each in named if each is not None for cls in reachable(each)))


def _declared(channel: Any, name: str) -> Any:
    try:
        return getattr(channel, name, None)
    except Exception:  # noqa: BLE001 - a channel of the user's may say anything
        return None


def _response_formats(node: Any) -> Iterator[Any]:
    """Give the schemas of the structured output of an agent of LangChain's: only its node knows them."""
    function = getattr(getattr(node, "runnable", None), "func", None)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # it is empty
            continue
        if type(held).__module__ == "langchain.agents.structured_output":
            schema = getattr(held, "schema", None)
            if not isinstance(schema, dict):
                yield schema
