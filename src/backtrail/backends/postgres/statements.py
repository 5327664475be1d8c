"""The statements of `statements.sql`, for the schema of one store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from backtrail.backends.port import JUMP, Row
from backtrail.backends.postgres.session import Statement
from backtrail.backends.sql.statements import statements

if TYPE_CHECKING:
    from backtrail.backends.postgres.schema import SchemaName

_PLACE: Final = re.compile(r"\{(\w+)\}")
_WITH_ACTIVITY: Final = 3
"""The first format with the tables `activity` and `unindexed`."""
_LETTERS: Final = {"bigint": "i", "bytea": "b", "text": "t", "boolean": "o"}
_BYTES: Final = ("label", "root", "op_id", "extra", "check", "payload")
_ROW_LETTERS: Final = "".join({"hidden": "o"}.get(field, "b" if field in _BYTES else "i") for field in Row._fields)
"""The type letters of a row's columns, in the order of its fields."""


class Statements:
    """The statements of a store; `durable`: a write is on the server's disk when its statement returns."""

    def __init__(self, schema: SchemaName, *, durable: bool = True) -> None:
        self._sections = statements(__package__, "statements.sql")
        self._values = {
            "schema": schema.quoted,
            "literal": schema.literal,
            "durable": str(durable).lower(),
            "jump": str(JUMP),
        }
        self._values["marks"] = self.text("unindexed")
        self.has_activity = True
        self._statements: dict[str, Statement] = {}

    def use_format(self, version: int) -> None:
        """Use statements for the format of a store that was found when it was opened."""
        if version < _WITH_ACTIVITY:
            self._values["marks"] = self.text("unindexed_2")
            self.has_activity = False

    def __getitem__(self, name: str) -> Statement:
        """Return the named statement, ready to run."""
        statement = self._statements.get(name)
        if statement is None:
            letters = "".join(map(_letters, self._sections[name].types))
            places = ", ".join(f"${at}" for at in range(1, len(letters) + 1))
            statement = self._statements[name] = Statement(self.text(name, parameters=places), letters)
        return statement

    def text(self, name: str, **values: str) -> str:
        """Return the text of a section, with its placeholders filled."""
        return self.filled(self._sections[name].text, **values)

    def filled(self, text: str, **values: str) -> str:
        """Return a text with its {placeholders} replaced by the store's values and the given values."""
        known = self._values | values
        return _PLACE.sub(lambda match: known.get(match[1], match[0]), text)


def _letters(name: str) -> str:
    """Return the letters of a parameter type for `Statement`; "row" has one letter per column."""
    letters = _ROW_LETTERS if name.startswith("row") else _LETTERS[name.removesuffix("[]")]
    return letters.upper() if name.endswith("[]") else letters
