"""The user's classes that a saver may save and load.

Loading makes instances of classes by their schema names. A class is allowed if

- the caller named it (`types=`),
- the graph names it: in the schemas of its state, input, output or context, of its nodes or channels, or as the
  response format of LangChain's `create_agent`,
- this process saved an instance of it: of this very class, by module and qualified name.

Loading never looks up a stored name in modules. It imports nothing and makes no other class.

LangGraph asks the graph for the saver of each call. A hook there (`install_graph_hook`) gives the saver the graph.
LangGraph's own way, `with_allowlist`, works only in its strict mode, and misses named tuples and classes that were
defined inside functions.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from langgraph.pregel import Pregel

from backtrail.adapters.langgraph.framework_types import FRAMEWORK, LOG, all_of, numpy_types
from backtrail.engine.schema.annotations import reachable
from backtrail.engine.schema.registry import QualifiedClass
from backtrail.engine.schema.upcast import class_schema, is_declared, name_of
from backtrail.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_HOOK: Final = "_apply_checkpointer_allowlist"


class _SavedClasses:
    """The classes whose instances this process has saved, by schema name."""

    def __init__(self) -> None:
        self._classes: dict[str, weakref.ref[type]] = {}
        self.count = 0
        """The number of classes added so far, for caches."""

    def __iter__(self) -> Iterator[type]:
        return iter([cls for ref in list(self._classes.values()) if (cls := ref()) is not None])

    def add(self, cls: type) -> bool:
        """Record a class; return False if it is known, or if a different class has its schema name.

        A class that was defined again, with the same module and qualified name, replaces the old one.
        """
        ref = self._classes.get(name := name_of(cls))
        known = None if ref is None else ref()
        if known is cls or (known is not None and _full_name(known) != _full_name(cls)):
            return False
        self._classes[name] = weakref.ref(cls)
        self.count += 1
        return True


SAVED: Final = _SavedClasses()


def _full_name(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


class AllowedTypes:
    """The classes that a saver may save and load."""

    def __init__(self, named: Iterable[Any], graph: Iterable[type] = ()) -> None:
        self._named = tuple(named)
        self._graph = tuple(graph)
        self._cache: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
        """The key and the result of the last computation."""

    @property
    def types(self) -> tuple[Any, ...]:
        """All classes, in the form that a store takes; the same tuple until a class is added."""
        key = (SAVED.count, numpy_types())  # a node may import numpy at any time
        cache = self._cache
        if cache[0] != key:
            cache = self._cache = (key, self._all())
        return cache[1]

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
        """Tell whether the caller or the graph named a class."""
        return any(_class(each) is cls for item in (*self._named, *self._graph) for each in _with_inner(item))

    def with_classes(self, classes: Iterable[type]) -> AllowedTypes | None:
        """Return the allowed types with these classes added; None if each class is allowed already."""
        more = [cls for cls in classes if not self.knows(cls)]
        return AllowedTypes(self._named, (*self._graph, *more)) if more else None

    def learn(self, value: Any) -> None:
        """Allow the unknown classes in a value that is about to be saved, with a warning in the log."""
        known = {_class(each) for each in self.types}
        customs = {each.cls: each.dump for each in self.types if hasattr(each, "dump")}
        new = [cls for cls in _classes_in(value, customs) if cls not in known and SAVED.add(cls)]
        for cls in new:
            LOG.warning(
                "%s.%s is saved, but neither the graph's schemas nor types= name it: a process that has not saved "
                "an instance loads its fields instead. Pass BacktrailSaver(..., types=[%s])",
                cls.__module__,
                cls.__qualname__,
                cls.__name__,
            )


def _qualified(cls: Any) -> Any:
    """Return a class with its module and qualified name as its schema name: other classes may share the short name."""
    return cls if not isinstance(cls, type) or is_declared(cls) else QualifiedClass(cls)


def _class(item: Any) -> Any:
    return getattr(item, "cls", item)


def _name(item: Any) -> Any:
    return item.name if hasattr(item, "dump") else name_of(item) if isinstance(item, type) else item


def _with_inner(item: Any) -> Iterator[Any]:
    """Give a class and the classes in its annotations."""
    yield item
    if isinstance(item, type):
        yield from (each for each in reachable(item) if each is not item)


def _classes_in(value: Any, customs: dict[type, Callable[[Any], Any]]) -> list[type]:
    """Return the classes with a schema (classes with fields, and Enums) of which a value contains instances."""
    found: dict[type, None] = {}
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        cls = type(item)
        plan = None if cls in customs else class_schema(cls)
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


def install_graph_hook() -> None:
    """Make LangGraph give our savers the graph, whenever it asks a graph for its saver."""
    original = getattr(Pregel, _HOOK, None)
    if original is None or hasattr(original, "gives_graph"):
        return

    def apply(graph: Any, saver: Any) -> Any:
        found = original(graph, saver)
        for_graph = getattr(found, "_for_graph", None)
        return found if for_graph is None else for_graph(graph)

    apply.gives_graph = True  # type: ignore[attr-defined]
    setattr(Pregel, _HOOK, apply)


def classes_of_graph(graph: Any) -> list[type]:
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
    except Exception:  # noqa: BLE001 - a user's channel may raise anything
        return None


def _response_formats(node: Any) -> Iterator[Any]:
    """Give the schemas of a LangChain agent's structured output. Only the agent's node has them."""
    function = getattr(getattr(node, "runnable", None), "func", None)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        if type(content).__module__ == "langchain.agents.structured_output":
            schema = getattr(content, "schema", None)
            if not isinstance(schema, dict):
                yield schema
