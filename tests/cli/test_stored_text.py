"""Whatever was stored reaches a terminal as text: it does nothing there."""

import json
import re
import shutil
import sqlite3
import warnings

import pytest

import backtrail
from backtrail.cli import output, parameters
from backtrail.cli.main import sections
from tests.cli.test_terminal import in_terminal
from tests.support import everything
from tests.support.commands import run

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[31m\x1b[2J\x9b31m\x90q\x9c\u202e\u2066\u200f\r\b\x7f\x0b\u2028[bold red]x[/]\\[b]"
OURS = re.compile(r"\x1b\[(0|2|3[0-7])m|\r\x1b\[K")
"""Colours, and the line that tells how far work is."""


def hostile(name):
    return name + EVIL


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "agents.db"
    return path, everything.fill(f"sqlite:///{path}", hostile)


@pytest.fixture
def hostile_store(hostile_file, tmp_path, monkeypatch):
    shutil.copy(hostile_file[0], tmp_path / "agents.db")
    (tmp_path / "new.json").write_text(json.dumps({hostile("key"): hostile("value")}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", "sqlite:///agents.db")
    monkeypatch.delenv("COLUMNS", raising=False)
    return hostile_file[1]


def controls(text):
    """Return the characters of a text that control a terminal."""
    return [char for char in text if not char.isprintable() and char != "\n"]


LINES = list(everything.commands(hostile))
NAMES = [" ".join(words).replace(EVIL, "") for words in LINES]


def answered(words, monkeypatch, answer):
    """Run a command as if in a terminal, with colours; questions are answered."""
    asked = []

    def confirm(question, err):
        assert err
        asked.append(question)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(output, "is_terminal", lambda stream: True)
        patch.setattr(parameters, "is_terminal", lambda stream: True)
        patch.setattr(parameters.click, "confirm", confirm)
        patch.setenv("TERM", "xterm")
        done = run(*words)
    return done.out + done.err + "".join(asked)


@pytest.mark.parametrize("words", LINES, ids=NAMES)
def test_stored_text_cannot_control_a_terminal(hostile_store, monkeypatch, words):
    words = [word.replace(everything.POINT, hostile_store) for word in words]
    shown = [answered(words, monkeypatch, answer=False)]
    plain = run(
        *words, *(["--yes"] if words[0] in ("delete", "erase", "undo", "rewind", "tag", "fork", "save") else [])
    )
    assert not controls(plain.out + plain.err)
    for form in ("--json", "--jsonl"):
        done = run(*words, form)
        assert not controls(done.out + done.err)
    shown.append(answered([*words, "--debug"], monkeypatch, answer=True))
    for text in shown:
        assert not controls(OURS.sub("", text))


def test_every_command_is_covered():
    assert {command.name for commands in sections().values() for command in commands} <= {words[0] for words in LINES}


def test_a_warning_names_calls_as_text(hostile_store):
    with backtrail.open("sqlite:///agents.db") as store, pytest.warns(backtrail.Irreversible) as warned:
        store.agents.restore(hostile_store)
    assert not controls(str(warned[0].message))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        told = run("call", "checkpoint_restore", json.dumps({"checkpoint_id": hostile_store})).err
    assert told.startswith("backtrail: warning: these calls stay done outside")
    assert not controls(told)


def test_damaged_text_cannot_control_a_terminal(hostile_store, monkeypatch):
    database = sqlite3.connect("agents.db")
    with database:
        database.execute("UPDATE row SET payload = X'00' WHERE key % 2 = 0")
    database.close()
    for words in (["verify"], ["threads"], ["agents"], ["conversations", hostile("planner")], ["runs"], ["gc"]):
        done = run(*words)
        assert not controls(done.out + done.err)
    assert run("verify").code == 5
    assert not controls(OURS.sub("", answered(["verify", "--repair"], monkeypatch, answer=True)))


@pytest.mark.parametrize("answer", [b"n\n", b"y\n"])
def test_terminal_questions_have_no_controls(hostile_store, answer):
    code, got = in_terminal(["delete", hostile("session"), "--kind", "run"], 80, answer=answer)
    assert code == (0 if answer == b"y\n" else 1)
    assert "pay\\x1b]52;c;" in got
    assert not controls(OURS.sub("", got.replace("\r", "")))
    with backtrail.open("sqlite:///agents.db") as store:
        assert (hostile("session") in store.runs) == (answer == b"n\n")
