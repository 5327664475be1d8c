"""The classes that an annotation names. A caller that passes the type of a state also allows the classes inside it.

`reachable` walks through generics, unions, aliases and the fields of classes. Loading may build instances of the
classes that it returns. So it skips annotations that describe no data: class variables, parameters of functions, and
`type[...]`. It also skips names that it cannot resolve, such as imports for type checkers only; their instances load
as Records.
"""

from __future__ import annotations

import collections.abc
import weakref
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from backtrail.engine.schema.class_forms import ENUM, PYDANTIC, form_of, is_typeddict

_NOT_DATA: Final = (ClassVar, type, collections.abc.Callable)
_REACHABLE: weakref.WeakKeyDictionary[type, tuple[weakref.ref[type], ...]] = weakref.WeakKeyDictionary()


def reachable(annotation: object) -> list[type]:
    """Return every class with a form that an annotation names, at any depth."""
    if isinstance(annotation, type) and annotation in _REACHABLE:
        known = [cls for ref in _REACHABLE[annotation] if (cls := ref()) is not None]
        if len(known) == len(_REACHABLE[annotation]):
            return known
    classes: dict[type, None] = {}
    complete = True
    seen: dict[int, object] = {}  # by id: annotations may be unhashable. The values keep the ids unique
    todo = [annotation]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, type) and get_origin(item) is None:
            form = form_of(item)
            if form is not None:
                classes[item] = None
            if form is not None or is_typeddict(item):
                hints, resolved = _named_by(item, form)
                todo += hints
                complete = complete and resolved
        else:
            todo += _parts(item)
    if complete and isinstance(annotation, type):
        _REACHABLE[annotation] = tuple(weakref.ref(cls) for cls in classes)
    return list(classes)


def _parts(annotation: Any) -> list[Any]:
    """Return the parts of an annotation that is not a class."""
    if isinstance(annotation, list | tuple):
        return list(annotation)
    if isinstance(annotation, TypeVar):
        return [annotation.__bound__, *annotation.__constraints__]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return [args[0]]
    if origin is Literal:
        return [type(value) for value in args]
    if origin is not None:
        return [] if origin in _NOT_DATA else [origin, *args]
    return [getattr(annotation, name, None) for name in ("__supertype__", "__value__")]  # NewType, `type X = ...`


def _named_by(cls: Any, form: str | None) -> tuple[list[Any], bool]:
    """Return the annotations of a class (of an Enum: the classes of its values), and whether all names resolved."""
    if form == ENUM:
        return [type(member._value_) for member in cls.__members__.values()], True
    hints, resolved = _hints(cls)
    if form == PYDANTIC:  # pydantic also resolves names of the function that defines the class
        hints += [field.annotation for field in cls.model_fields.values()]
    return hints, resolved


def _hints(cls: type) -> tuple[list[Any], bool]:
    """Return the evaluated annotations of the fields, and whether all names resolved; an unknown name becomes Any."""
    names: dict[str, Any] = {}
    while True:
        try:
            hints = get_type_hints(cls, localns=names or None, include_extras=True)
            return list(hints.values()), all(each is not Any for each in names.values())
        except NameError as error:
            if not error.name or error.name in names:
                break
            scopes = ({cls.__name__: cls}, *(vars(k) for k in cls.__mro__))
            names[error.name] = next((scope[error.name] for scope in scopes if error.name in scope), Any)
        except Exception:  # noqa: BLE001 - an annotation is any expression, which may raise anything
            break
    raw = [hint for k in cls.__mro__ for hint in vars(k).get("__annotations__", {}).values()]
    return [hint for hint in raw if not isinstance(hint, str)], False
