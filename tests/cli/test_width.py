"""No command prints a line that is wider than the terminal, whatever is stored; commands to be copied stay whole."""

import json
import re
import shutil

import pytest
from rich.cells import cell_len

from backtrail.cli import output, parameters
from tests.cli.test_terminal import ESCAPES, in_terminal
from tests.support import everything
from tests.support.commands import run

COMMANDS = re.compile(r"backtrail \w+ |`backtrail [^`]*`")


def wide(name):
    """Return a name that is long, in characters of two cells and of one, with and without blanks."""
    japanese, more = "旅行の計画をたてる", "やすい宿とおいしい店を探している"
    return f"{name} {japanese} a-long-word-without-a-blank-{name * 4} {more}, e\u0301 {name}"


def plain(name):
    return name


STORES = {"wide": wide, "plain": plain}
LINES = [
    (kind, words) for kind, text in STORES.items() for words in everything.commands(text) if "--debug" not in words
]
NAMES = [f"{kind}: {' '.join(words)}"[:70] for kind, words in LINES]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = {}
    for kind, text in STORES.items():
        path = tmp_path_factory.mktemp(kind) / "agents.db"
        made[kind] = path, everything.fill(f"sqlite:///{path}", text)
    return made


@pytest.fixture
def opened(files, tmp_path, monkeypatch):
    """Give a function that goes to a directory with a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKTRAIL_URL", "sqlite:///agents.db")

    def open_(kind):
        shutil.copy(files[kind][0], tmp_path / "agents.db")
        for name in ("copied.db", "backup.db", "all.backtrail", "one.backtrail"):
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "new.json").write_text(json.dumps({STORES[kind]("key"): STORES[kind]("value")}))
        return files[kind][1]

    return open_


def shown(words, columns, monkeypatch, *, answer=True):
    """Return the lines that a terminal of so many columns would get, questions among them."""
    asked = []

    def confirm(question, err):
        asked.append(f"{question} [y/N]: y")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(output, "is_terminal", lambda stream: True)
        patch.setattr(parameters, "is_terminal", lambda stream: True)
        patch.setattr(parameters.click, "confirm", confirm)
        patch.setattr(output, "Progress", None, raising=False)
        patch.setenv("TERM", "dumb")
        patch.setenv("COLUMNS", str(columns))
        done = run(*words)
    return [*done.out.split("\n"), *done.err.split("\n"), *asked]


def too_wide(lines, columns):
    """Return the lines that do not fit, but for commands, which have a line for themselves."""
    long = [line for line in lines if cell_len(line) > columns]
    return [line for line in long if not (COMMANDS.match(line.strip()) or "[OPTIONS]" in line or "--help" in line)]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(("kind", "words"), LINES, ids=NAMES)
def test_no_line_is_wider_than_the_terminal(opened, monkeypatch, kind, words, columns):
    point = opened(kind)
    words = [word.replace(everything.POINT, point) for word in words]
    assert not too_wide(shown(words, columns, monkeypatch), columns)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_real_terminal_gets_no_line_that_wraps(opened, columns):
    opened("wide")
    for words in (
        ["show", wide("lunch"), "--kind", "conversation"],
        ["show", wide("trip"), "--kind", "thread"],
        ["log", wide("trip"), "--graph", "--kind", "thread"],
        ["conversations"],
        ["runs"],
        ["stats"],
    ):
        code, got = in_terminal(words, columns)
        assert code == 0, got
        assert not too_wide(ESCAPES.sub("", got).split("\n"), columns), words
    code, got = in_terminal(["delete", wide("session"), "--kind", "run"], columns, answer=b"n\n")
    assert code == 1
    assert not too_wide(ESCAPES.sub("", got).split("\n"), columns)


def test_folded_state_is_complete(opened):
    """Long lines are folded, not cut."""
    opened("wide")
    _, got = in_terminal(["show", wide("trip"), "--kind", "thread"], 50, NO_COLOR="1")
    assert "".join(wide("Lisbon in May").split()) in "".join(got.split())


def test_narrow_tables_drop_spare_columns(opened, monkeypatch):
    opened("plain")
    rows = shown(["log", "trip", "--kind", "thread"], 40, monkeypatch)
    assert rows[0].split()[:2] == ["ID", "STEP"]
    assert "ADDED" not in rows[0]
    assert "user: Lisbon" in rows[1]


def test_commands_to_copy_are_never_broken(opened, monkeypatch):
    opened("wide")
    lines = shown(["undo", wide("trip"), "--kind", "thread"], 40, monkeypatch)
    at = lines.index("to revert:")
    assert lines[at + 1].startswith("backtrail redo ")
    assert wide("trip") in lines[at + 1]


@pytest.mark.parametrize("room", [1, 2, 3, 7, 20])
def test_wrapped_lines_hold_the_whole_text(room):
    text = "a bc 旅行の計画 defghijklmnopq rs"
    lines = output.wrapped(text, max(room, 2))
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cell_len(line) <= max(room, 2) for line in lines)
