"""Channel values that are loaded when somebody looks at them: a listing has many checkpoints, and most are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Values(dict[str, Any]):
    """A dict that gets its items when it is first used. A copy of it, of whatever kind, is a plain dict."""

    __slots__ = ("_load",)

    def __init__(self, load: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._load: Callable[[], dict[str, Any]] | None = load

    def _filled(self) -> Values:
        load = self._load
        if load is not None:
            found = load()
            if self._load is not None:
                dict.update(self, found)
                self._load = None
        return self

    def copy(self) -> dict[str, Any]:
        """Return a plain dict with the same items."""
        return dict(self)

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return dict, (dict(self),)

    __hash__ = None


def _method(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    def method(self: Values, *args: Any, **kwargs: Any) -> Any:
        return plain(self._filled(), *args, **kwargs)

    method.__name__ = name
    return method


# `__iter__` among them: so that C code, too, asks for the items instead of reading what is not there yet.
for _name in (
    *("__contains__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__", "__or__"),
    *("__repr__", "__reversed__", "__ror__", "__setitem__"),
    *("clear", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(Values, _name, _method(_name))
