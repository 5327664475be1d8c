"""The statements in `.sql` files: SQLite compiles each of them, and each is used."""

import importlib
import re
from pathlib import Path

import pytest

from backtrail.backends.sql.statements import sections, statements
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.backends.sqlite.statements import SQL

PACKAGES = ["backtrail.backends.sqlite", "backtrail.backends.postgres"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_section_is_used(package):
    directory = Path(importlib.import_module(package).__file__).parent
    code = "".join(path.read_text() for path in (*directory.glob("*.py"), *(directory.parent / "sql").glob("*.py")))
    used = {
        *re.findall(r"\{(\w+)\}", (directory / "statements.sql").read_text()),
        *re.findall(r"[\"'](\w+)[\"']", code),
    }
    assert set(statements(package, "statements.sql")) <= used


@pytest.mark.parametrize("package", PACKAGES)
def test_statements_are_one_line_without_comments(package):
    for name, section in statements(package, "statements.sql").items():
        assert "\n" not in section.text, name
        assert "-- " not in section.text, name


def test_sections_of_a_schema_are_as_written():
    text = sections("backtrail.backends.sqlite", "schema.sql")["format_4"].text
    assert text.startswith("-- Which threads")
    assert "CREATE TRIGGER row_marks AFTER INSERT ON row BEGIN\n    INSERT OR IGNORE INTO mark" in text


def test_sqlite_compiles_every_statement(tmp_path):
    backend = SqliteBackend(tmp_path / "store")
    whole = {name: text for name, text in SQL.items() if re.match("SELECT|INSERT|UPDATE|DELETE", text)}
    assert len(whole) > 60
    with backend._shared.use() as connection:
        for text in whole.values():
            for statement in text.split("; "):
                places = re.findall(r"\?(\d*)", statement)
                count = max(map(int, filter(None, places)), default=len(places))
                assert connection.execute(f"EXPLAIN {statement}", (None,) * count).fetchall()
    backend.close()
