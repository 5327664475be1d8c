"""Statements in `.sql` files, one section each.

    -- name: thread_by_name (text, bytea)
    SELECT {thread_columns} FROM thread WHERE space = $1 AND name = $2

The types of the parameters follow the name, if the driver needs them. `{other}` is replaced by the text of the section
`other`, which must come before; other text in braces stays. Comments belong below the name.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEADER: Final = re.compile(r"^-- name: (\w+)(?: \(([^)]*)\))?$", re.MULTILINE)
_TYPE: Final = re.compile(r"\w+(?:\[\])?")
_FRAGMENT: Final = re.compile(r"\{(\w+)\}")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)


class Section(NamedTuple):
    """One section of a `.sql` file: a statement or a fragment, and the types of its parameters."""

    text: str
    types: tuple[str, ...]


@cache
def sections(package: str, file: str) -> Mapping[str, Section]:
    """Return the sections of a package's `.sql` file by name, with their text unchanged."""
    parts = _HEADER.split(files(package).joinpath(file).read_text("utf-8"))[1:]
    return {
        name: Section(text.strip("\n"), tuple(_TYPE.findall(types or "")))
        for name, types, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


@cache
def statements(package: str, file: str) -> Mapping[str, Section]:
    """Return the sections of a `.sql` file by name, each on one line, with fragments filled in and without comments.

    Drivers cache statements by their text.
    """
    whole: dict[str, Section] = {}
    for name, (text, types) in sections(package, file).items():
        line = " ".join(_COMMENT.sub("", text).split())
        line = _FRAGMENT.sub(lambda match: whole[match[1]].text if match[1] in whole else match[0], line)
        whole[name] = Section(line, types)
    return whole
