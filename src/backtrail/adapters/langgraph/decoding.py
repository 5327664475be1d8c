"""Values as LangGraph's own savers keep them, decoded: exactly, or not at all.

Their serializer packs what is not plain data as the name of a class, or of a function, and what it is to be called
with. Here a name is looked up among the classes that were named; nothing is imported, and no pickle is loaded. What
LangGraph would let pass as something else than it was (a class that is not there, one that refuses its fields) is
`Undecodable`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import pathlib
import re
import sys
import uuid
from typing import TYPE_CHECKING, Any, Final

import ormsgpack
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.types import _DeltaSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PLAIN: Final = (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, uuid.UUID, set, frozenset)
"""Classes that a store keeps as they are; and these, whose module has another name since Python 3.13."""
_PATHS: Final = (pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath)
_METHODS: Final[dict[tuple[str, ...], Callable[..., Any]]] = {
    ("datetime", "datetime", "fromisoformat"): dt.datetime.fromisoformat
}


class Undecodable(Exception):  # noqa: N818 - named for what happened
    """A value that cannot be had as it was, and why."""


class Decoder:
    """Decodes values whose classes are among those that are named."""

    def __init__(self, types: Iterable[Any]) -> None:
        named = (*_PLAIN, *(getattr(each, "cls", each) for each in types))
        self._known: dict[tuple[str, str], Callable[..., Any]] = {(cls.__module__, cls.__name__): cls for cls in named}
        self._known["re", "compile"] = re.compile
        self._known |= {(module, cls.__name__): cls for module in ("pathlib", "pathlib._local") for cls in _PATHS}
        self._why: list[Undecodable] = []

    def value(self, kind: Any, data: Any) -> Any:
        """Return a value that was kept as this kind of data."""
        if kind == "null":
            return None
        if not isinstance(data, bytes):
            raise Undecodable(f"data of the kind {kind!r:.100} are bytes, not {type(data).__name__}")
        if kind in ("bytes", "bytearray"):
            return data if kind == "bytes" else bytearray(data)
        if kind == "msgpack":
            try:
                return self._unpacked(data)
            except Undecodable:  # or it was interrupted when a hook was called, which nobody in there could notice
                self._unpacked(data)
                raise KeyboardInterrupt from None
        if kind == "json":  # what LangGraph wrote before it had msgpack
            return _from_json(data, _no_constructors)
        raise Undecodable(f"data of the kind {kind!r:.100} are not read here")

    def _unpacked(self, data: bytes) -> Any:
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, RecursionError) as error:
            raise self._why.pop() if self._why else Undecodable(f"its data are damaged: {error}") from error

    def _hook(self, code: int, data: bytes) -> Any:
        try:
            return self._made(code, data)
        except Undecodable as error:  # what a hook raises is not told to who called for the whole
            self._why = [error]
            raise

    def _made(self, code: int, data: bytes) -> Any:
        """Return what an extension of MessagePack stands for."""
        found = self._unpacked(data)
        if code == jsonplus.EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(found)
        if code == jsonplus.EXT_NUMPY_ARRAY:
            return _array(found)
        try:
            module, name, given, *method = found
            make = self._maker(code, module, name, method)
        except (TypeError, ValueError) as error:
            raise Undecodable(f"its data are damaged: {error}") from error
        try:
            return make(given)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{module}.{name} cannot be made of what was kept of it: {error}") from error

    def _maker(self, code: int, module: str, name: str, method: list[Any]) -> Callable[[Any], Any]:
        by_method = code == jsonplus.EXT_METHOD_SINGLE_ARG
        call = _METHODS.get((module, name, *method)) if by_method else self._known.get((module, name))
        if call is None:
            raise Undecodable(f"it holds a {module}.{name}, which is not among the classes that are named: types=[...]")
        if code in (jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, jsonplus.EXT_METHOD_SINGLE_ARG):
            return call
        if code == jsonplus.EXT_CONSTRUCTOR_POS_ARGS:
            return lambda given: _called(call, given)
        if code == jsonplus.EXT_CONSTRUCTOR_KW_ARGS:
            return lambda given: call(**given)
        if code in (jsonplus.EXT_PYDANTIC_V1, jsonplus.EXT_PYDANTIC_V2):
            return lambda given: _model(call, given)
        raise Undecodable(f"it holds data of the unknown kind {code}")


def _array(found: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise Undecodable("it holds an array of numpy, which is not loaded: import numpy, and do it again")
    try:
        kind, shape, order, data = found
        return numpy.frombuffer(bytearray(data), dtype=numpy.dtype(kind)).reshape(shape, order=order)
    except (TypeError, ValueError) as error:
        raise Undecodable(f"its data are damaged: {error}") from error


def _called(call: Callable[..., Any], given: Any) -> Any:
    """Call with arguments; the third of a `Send` has a name."""
    if getattr(call, "__name__", "") == "Send" and len(given) > 2:  # noqa: PLR2004 - node, arg, timeout
        return call(*given[:2], timeout=given[2])
    return call(*given)


def _model(cls: Any, given: dict[str, Any]) -> Any:
    """Make a model, unchecked if its checks have changed meanwhile, as LangGraph does."""
    try:
        return cls(**given)
    except Exception:  # noqa: BLE001 - whatever a validator raises
        construct = getattr(cls, "model_construct", None) or cls.construct
        return construct(**given)


def metadata_of(data: Any) -> dict[str, Any]:
    """Return metadata, which are JSON."""
    if data is None:
        return {}
    found = _from_json(data, None)
    if type(found) is not dict:
        raise Undecodable("its metadata are damaged: they are no object")
    return found


def _from_json(data: Any, hook: Callable[[dict[str, Any]], Any] | None) -> Any:
    try:
        return json.loads(data, object_hook=hook)
    except (TypeError, ValueError, RecursionError) as error:
        raise Undecodable(f"its data are damaged: {error}") from error


def _no_constructors(found: dict[str, Any]) -> dict[str, Any]:
    if "lc" in found:
        raise Undecodable("it holds objects as JSON, as LangGraph had it before version 0.2: let that save it anew")
    return found
