"""Commands, run by tests: in this process, on the store that docs/cli.md is about."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from backtrail.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("generate_cli_docs", ROOT / "tools" / "generate_cli_docs.py")
docs = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = docs
_spec.loader.exec_module(docs)


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def rows(self):
        return [json.loads(line) for line in self.out.splitlines()]


def run(*words, stdin=""):
    """Run a command; what no handler met is raised."""
    done = CliRunner().invoke(cli, [str(word) for word in words], input=stdin, prog_name="backtrail")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def good(*words, stdin=""):
    """Run a command that has to succeed."""
    done = run(*words, stdin=stdin)
    assert done.code == 0, done
    return done


def bad(code, *words, stdin=""):
    """Run a command that must fail with this exit code and one line; return that line."""
    done = run(*words, stdin=stdin)
    assert (done.code, done.out) == (code, ""), done
    last = done.err.splitlines()[-1]
    assert last.startswith(("backtrail: ", "Error: ")), done
    assert "Traceback" not in done.err
    return last


@pytest.fixture(scope="session")
def trip_files(tmp_path_factory):
    with docs.repeatable() as clock:
        docs.fill(clock)
        return shutil.copytree(".", tmp_path_factory.mktemp("store") / "kept")


@pytest.fixture
def trip_store(trip_files, tmp_path, monkeypatch):
    """A directory with the store of docs/cli.md."""
    shutil.copytree(trip_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", docs.URL)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path
