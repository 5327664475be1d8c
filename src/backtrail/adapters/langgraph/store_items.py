"""Items of LangGraph's long-term memory: where they are kept, and which of them a search returns.

A namespace is a thread. Its id is made of the namespace's labels, so a listing by prefix finds the namespaces below
another one; a very long namespace has a hash as its id. Two different namespaces never have one id.
"""

from __future__ import annotations

import math
import operator
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from blake3 import blake3

from backtrail.errors import Invalid

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Sequence

PREFIX: Final = "langgraph-store:"
"""The beginning of the ids of all namespaces."""
_HASHED: Final = "langgraph-store~"
_ID_MAX: Final = 400


def thread_id(namespace: Sequence[str]) -> str:
    """Return the id of the thread of a namespace."""
    name = _joined(namespace)
    return name if len(name) <= _ID_MAX else _HASHED + blake3(name.encode()).hexdigest()


def id_prefixes(namespace_prefix: Sequence[str]) -> list[str]:
    """Return the prefixes of the ids of all namespaces that begin with other labels. Other ids may have them, too."""
    return [_joined(namespace_prefix)[:_ID_MAX], _HASHED]


def _joined(namespace: Sequence[str]) -> str:
    return PREFIX + "/".join(quote(label.encode("utf-8", "surrogatepass"), safe=" ") for label in namespace)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as it is stored, with its place."""

    namespace: tuple[str, ...]
    key: str
    data: dict[str, Any]
    """`value`, `created_at`, `updated_at`; `expires` and `ttl` if it expires; `vectors` if it is indexed."""

    @property
    def updated_at(self) -> dt.datetime:
        """The time of the last put."""
        time: dt.datetime = self.data["updated_at"]
        return time


# -- namespaces -------------------------------------------------------------------------------------


def matches_path(namespace: Sequence[str], path: Sequence[str], match_type: str) -> bool:
    """Tell whether a namespace begins or ends with a path, in which `*` stands for any label."""
    if len(namespace) < len(path):
        return False
    if match_type == "prefix":
        part = namespace[: len(path)]
    elif match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    else:
        raise Invalid(f"a match type is 'prefix' or 'suffix', not {match_type!r:.60}", code="invalid.argument")
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


# -- filters ----------------------------------------------------------------------------------------


def _order(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(value: Any, wanted: Any) -> bool:
        both_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (value, wanted))
        return (both_numbers or (isinstance(value, str) and isinstance(wanted, str))) and test(value, wanted)

    return compare


def _equal(value: Any, wanted: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(_equal(value[key], wanted[key]) for key in value)
    if isinstance(value, list | tuple) and isinstance(wanted, list | tuple):
        return len(value) == len(wanted) and all(map(_equal, value, wanted))
    return bool(value == wanted)


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": _equal,
    "$ne": lambda value, wanted: not _equal(value, wanted),
    "$gt": _order(lambda value, wanted: value > wanted),
    "$gte": _order(lambda value, wanted: value >= wanted),
    "$lt": _order(lambda value, wanted: value < wanted),
    "$lte": _order(lambda value, wanted: value <= wanted),
}


def check_filter(wanted: Any) -> None:
    """Raise `Invalid` for a filter with an unknown operator."""
    if wanted is None:
        return
    if not isinstance(wanted, dict) or not all(isinstance(key, str) for key in wanted):
        raise Invalid("a filter is a dict whose keys are strings", code="invalid.argument", path="filter")
    for key, condition in wanted.items():
        if _is_operators(condition):
            unknown = [name for name in condition if name not in _OPERATORS]
            if unknown:
                known = ", ".join(_OPERATORS)
                text = f"unknown operator {unknown[0]!r:.60} in the filter of {key!r:.60}; there are {known}"
                raise Invalid(text, code="invalid.argument", path="filter")


def _is_operators(condition: Any) -> bool:
    return isinstance(condition, dict) and any(isinstance(name, str) and name.startswith("$") for name in condition)


def filter_test(wanted: dict[str, Any] | None) -> Callable[[dict[str, Any]], bool]:
    """Return a function that tells whether a value meets all conditions of a filter.

    A key with dots names a field inside of another one.
    """
    conditions: list[tuple[str, list[tuple[Callable[[Any, Any], bool], Any]]]] = []
    for key, condition in (wanted or {}).items():
        if _is_operators(condition):
            conditions.append((key, [(_OPERATORS[name], operand) for name, operand in condition.items()]))
        else:
            conditions.append((key, [(operator.eq if type(condition) is str else _equal, condition)]))

    def test(value: dict[str, Any]) -> bool:
        for key, checks in conditions:
            field = value[key] if key in value else _field(value, key)
            for check, operand in checks:
                if not check(field, operand):
                    return False
        return True

    return test if conditions else lambda _: True


def _field(value: Any, key: str) -> Any:
    if isinstance(value, dict) and key in value:
        return value[key]
    first, dot, rest = key.partition(".")
    return _field(value[first], rest) if dot and isinstance(value, dict) and first in value else None


# -- vectors ----------------------------------------------------------------------------------------


def packed(vector: Iterable[float]) -> bytes:
    """Return a vector as bytes: 32-bit numbers, as in LangGraph's own stores."""
    return array("f", vector).tobytes()


def cosines(query: Sequence[float], vectors: Sequence[bytes]) -> list[float]:
    """Return the cosines of the angles between a query and vectors. It is much faster if numpy is installed."""
    width = 4 * len(query)
    for data in vectors:
        if len(data) != width:
            text = (
                f"an item has a vector of {len(data) // 4} dimensions, the query has {len(query)}: put the item again"
            )
            raise Invalid(text, code="invalid.value")
    try:
        import numpy as np  # noqa: PLC0415 - not every program searches by vectors
    except ImportError:
        return [_cosine(query, data) for data in vectors]
    wanted = np.asarray(query, dtype=np.float32)
    matrix = np.frombuffer(b"".join(vectors), dtype=np.float32).reshape(len(vectors), len(query))
    with np.errstate(all="ignore"):  # some BLAS libraries report invalid values for sound vectors
        lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(wanted)
        products = matrix @ wanted
        scores: list[float] = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0).tolist()
    return scores


def _cosine(query: Sequence[float], data: bytes) -> float:
    vector = array("f")
    vector.frombytes(data)
    length = math.sqrt(sum(x * x for x in query) * sum(x * x for x in vector))
    return sum(x * y for x, y in zip(query, vector, strict=True)) / length if length else 0.0
