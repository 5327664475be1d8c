"""A decoder for the values that LangGraph's own savers stored: exact, or an error.

LangGraph's serializer stores an object as the name of a class or function, and the arguments to call it with. This
decoder looks the name up among the allowed classes. It imports nothing and loads no pickle. Where LangGraph would
return a substitute (an unknown class, a class that refuses its fields), the decoder raises `Undecodable`.
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

from backtrail.adapters.imports import Undecodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PLAIN: Final = (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone, decimal.Decimal, uuid.UUID, set, frozenset)
"""Classes that a store saves without help."""
_PATHS: Final = (pathlib.Path, pathlib.PosixPath, pathlib.WindowsPath)
"""Path classes. Their module has another name since Python 3.13, and both names are decoded."""
_METHODS: Final[dict[tuple[str, ...], Callable[..., Any]]] = {
    ("datetime", "datetime", "fromisoformat"): dt.datetime.fromisoformat
}


class SaverDecoder:
    """A decoder of values that consist of plain data and instances of allowed classes."""

    def __init__(self, types: Iterable[Any]) -> None:
        named = (*_PLAIN, *(getattr(each, "cls", each) for each in types))
        self._known: dict[tuple[str, str], Callable[..., Any]] = {(cls.__module__, cls.__name__): cls for cls in named}
        self._known["re", "compile"] = re.compile
        self._known |= {(module, cls.__name__): cls for module in ("pathlib", "pathlib._local") for cls in _PATHS}
        self._reasons: list[Undecodable] = []
        """The error of the last hook: ormsgpack does not pass it on."""

    def value(self, kind: Any, data: Any) -> Any:
        """Return the decoded value of data with this kind, as in a row of SqliteSaver; `Undecodable` if it fails."""
        if kind == "null":
            return None
        if not isinstance(data, bytes):
            raise Undecodable(f"data of kind {kind!r:.100} are {type(data).__name__}, not bytes")
        if kind in ("bytes", "bytearray"):
            return data if kind == "bytes" else bytearray(data)
        if kind == "msgpack":
            return self._unpacked(data)
        if kind == "json":  # LangGraph wrote JSON before it used msgpack
            return _from_json(data, _no_constructors)
        raise Undecodable(f"data of kind {kind!r:.100} are not supported")

    def _unpacked(self, data: bytes) -> Any:
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, RecursionError) as error:
            raise self._reasons.pop() if self._reasons else _damaged(error) from error

    def _hook(self, code: int, data: bytes) -> Any:
        try:
            return self._made(code, data)
        except Undecodable as error:
            self._reasons = [error]
            raise

    def _made(self, code: int, data: bytes) -> Any:
        """Return the value of a MessagePack extension."""
        content = self._unpacked(data)
        if code == jsonplus.EXT_DELTA_SNAPSHOT:
            return _DeltaSnapshot(content)
        if code == jsonplus.EXT_NUMPY_ARRAY:
            return _array(content)
        try:
            module, name, given, *method = content
            make = self._maker(code, module, name, method)
        except (TypeError, ValueError) as error:
            raise _damaged(error) from error
        try:
            return make(given)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{module}.{name} refuses its stored fields: {error}") from error

    def _maker(self, code: int, module: str, name: str, method: list[Any]) -> Callable[[Any], Any]:
        by_method = code == jsonplus.EXT_METHOD_SINGLE_ARG
        call = _METHODS.get((module, name, *method)) if by_method else self._known.get((module, name))
        if call is None:
            raise Undecodable(f"it holds a {module}.{name}, which is not allowed: pass types=[...]")
        if code in (jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, jsonplus.EXT_METHOD_SINGLE_ARG):
            return call
        if code == jsonplus.EXT_CONSTRUCTOR_POS_ARGS:
            return lambda given: _called(call, given)
        if code == jsonplus.EXT_CONSTRUCTOR_KW_ARGS:
            return lambda given: call(**given)
        if code in (jsonplus.EXT_PYDANTIC_V1, jsonplus.EXT_PYDANTIC_V2):
            return lambda given: _model(call, given)
        raise Undecodable(f"it holds an extension of the unknown code {code}")


def _array(content: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise Undecodable("it holds a numpy array, and numpy is not loaded: import numpy, then import again")
    try:
        kind, shape, order, data = content
        return numpy.frombuffer(bytearray(data), dtype=numpy.dtype(kind)).reshape(shape, order=order)
    except (TypeError, ValueError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> Undecodable:
    return Undecodable(f"its data are damaged: {error}")


def _called(call: Callable[..., Any], given: Any) -> Any:
    """Call a class with positional arguments. `Send` gets its third argument by name."""
    if getattr(call, "__name__", "") == "Send" and len(given) > 2:  # noqa: PLR2004 - node, arg, timeout
        return call(*given[:2], timeout=given[2])
    return call(*given)


def _model(cls: Any, given: dict[str, Any]) -> Any:
    """Return a pydantic model. If its validation fails, make it without validation, as LangGraph does."""
    try:
        return cls(**given)
    except Exception:  # noqa: BLE001 - a validator may raise anything
        construct = getattr(cls, "model_construct", None) or cls.construct
        return construct(**given)


def metadata_of(data: Any) -> dict[str, Any]:
    """Return a checkpoint's metadata from JSON, as text or already parsed; {} for None."""
    if data is None:
        return {}
    metadata = data if isinstance(data, dict) else _from_json(data, None)
    if type(metadata) is not dict:
        raise Undecodable("its metadata are damaged: they are not an object")
    return metadata


def _from_json(data: Any, hook: Callable[[dict[str, Any]], Any] | None) -> Any:
    try:
        return json.loads(data, object_hook=hook)
    except (TypeError, ValueError, RecursionError) as error:
        raise _damaged(error) from error


def _no_constructors(fields: dict[str, Any]) -> dict[str, Any]:
    if "lc" in fields:
        raise Undecodable("it holds objects in the JSON of LangGraph before 0.2: save it again with a newer LangGraph")
    return fields
