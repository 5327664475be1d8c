"""The command line in a real terminal and in real processes: colours only there, nothing that wraps, quiet ends."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from rich.cells import cell_len

import backtrail
from tests.support.commands import docs

SOURCE = str(Path(backtrail.__file__).resolve().parent.parent)
COMMAND = [sys.executable, "-m", "backtrail"]
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES", "TERM")}
    return {**kept, "PYTHONPATH": SOURCE, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


def in_terminal(words, columns, answer=None, **more):
    """Run a command in a terminal with this number of columns; return its exit code and the terminal's output."""
    lead, follow = pty.openpty()
    fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen(
        [*COMMAND, *words],
        stdin=follow,
        stdout=follow,
        stderr=follow,
        env=environment(**more),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - Ctrl-C is for whom it controls
    )
    os.close(follow)
    got, end, again = b"", time.monotonic() + 60, None
    while time.monotonic() < end:
        if not select.select([lead], [], [], 3)[0]:
            if again:  # CPython misses a Ctrl-C that comes just before it waits for a line
                os.write(lead, again)
            continue
        try:
            part = os.read(lead, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        got += part
        if answer is not None and b"[y/N]" in got:
            os.write(lead, answer)
            again, answer = answer if answer == b"\x03" else None, None
    os.close(lead)
    return child.wait(60), got.decode().replace("\r\n", "\n")


@pytest.fixture
def wide(trip_store):
    """A store with long and wide things in it."""
    with backtrail.open(docs.URL) as store:
        thread = store.thread("旅行の計画" * 6)
        for n in range(5):
            words = "朝早く出発して、" * 30 if n % 2 else "a long way to go " * 30
            thread.save(
                {"messages": [{"role": "user", "content": words}]}, label=f"label-{n}-" + "é" * 40, tags=["t" * 30]
            )
            if n == 2:
                thread.rewind(1)
        thread.fork("fork-" + "x" * 200)
    return "旅行の計画" * 6


@pytest.mark.parametrize("columns", [80, 200])
def test_terminal_lines_do_not_wrap(wide, columns):
    name = wide
    for words in (["log", name, "--graph"], ["threads"], ["diff", name]):
        code, got = in_terminal(words, columns)
        assert code == 0, got
        lines = ESCAPES.sub("", got).splitlines()
        assert max(map(cell_len, lines)) <= columns, words
        assert "…" in got, words
        assert max(map(cell_len, lines)) > columns - 12, words  # and the room is used
        assert ESCAPES.search(got), words


def test_help_fits_80_columns(trip_store):
    code, got = in_terminal(["--help"], 80)
    assert code == 0
    assert max(map(len, got.splitlines())) <= 80


def test_colours_appear_only_in_terminals(trip_store):
    assert "\x1b[" in in_terminal(["log", "trip"], 80)[1]
    assert "\x1b" not in in_terminal(["log", "trip"], 80, NO_COLOR="1")[1]
    assert "\x1b" not in in_terminal(["log", "trip"], 80, TERM="dumb")[1]
    done = subprocess.run([*COMMAND, "log", "trip"], capture_output=True, text=True, env=environment(), check=True)
    assert "\x1b" not in done.stdout + done.stderr


def test_terminal_question_takes_an_answer(trip_store):
    code, got = in_terminal(["rewind", "trip@1"], 80, answer=b"n\n")
    assert code == 1
    assert "Rewind 'trip'? [y/N]" in got
    assert got.rstrip().endswith("nothing was changed")
    code, got = in_terminal(["rewind", "trip@1"], 80, answer=b"y\n")
    assert code == 0
    assert "to revert: backtrail undo trip" in got


def test_ctrl_c_at_a_question_exits_with_130(trip_store):
    code, got = in_terminal(["delete", "trip"], 80, answer=b"\x03")
    assert (code, got.splitlines()[-1]) == (130, "backtrail: interrupted")
    with backtrail.open(docs.URL, read_only=True) as store:
        assert len(store.thread("trip")) == 3


def test_closed_pipe_is_quiet(trip_store):
    with backtrail.open(docs.URL, durability="relaxed") as store, store.transaction():
        thread = store.thread("much")
        for n in range(300):
            thread.save({"text": f"{n} " + "x" * 400})
    line = f"{sys.executable} -m backtrail log much -n 0 --jsonl | head -n 1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["step"] == 300


def test_closed_empty_pipe_is_quiet(trip_store):
    read, write = os.pipe()
    os.close(read)
    buffered = {name: value for name, value in environment().items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([*COMMAND, "threads"], stdout=write, stderr=subprocess.PIPE, env=buffered, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_ends_a_watch_with_130(trip_store):
    child = subprocess.Popen(
        [*COMMAND, "watch", "trip", "--jsonl", "--after", "fly"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    deadline = time.monotonic() + 60
    got = ""
    with backtrail.open(docs.URL) as store:
        store.thread("trip").append("messages", {"role": "user", "content": "news"})
        while "\n" not in got and time.monotonic() < deadline:
            got += child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        assert json.loads(got)["step"] == 4
        assert (child.returncode, said) == (130, "backtrail: interrupted\n")
        assert store.verify().ok


def test_unencodable_names_are_escaped(trip_store):
    with backtrail.open(docs.URL) as store:
        store.thread("旅").save({"n": "\ud800"})
    ascii_only = environment(PYTHONIOENCODING="ascii")
    done = subprocess.run([*COMMAND, "log", "旅", "--graph"], capture_output=True, env=ascii_only, check=True)
    assert b"@  " in done.stdout
    done = subprocess.run([*COMMAND, "show", "旅", "--json"], capture_output=True, env=ascii_only, check=True)
    assert json.loads(done.stdout)["state"] == {"n": "\ud800"}


def test_the_shell_completes_commands_and_threads(trip_store):
    def completed(line, at):
        more = {"_BACKTRAIL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(at)}
        script = "import sys; sys.argv = ['backtrail']; from backtrail.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment(**more), check=False
        )
        return [line for line in done.stdout.splitlines() if line]

    assert completed("backtrail re", 1) == [
        "plain,redo",
        "plain,reindex",
        "plain,restore",
        "plain,restore-backup",
        "plain,rewind",
    ]
    assert completed("backtrail log tri", 2) == ["plain,trip", "plain,trip-cheap"]
    assert completed("backtrail --store sqlite:///no.db log tri", 4) == []


HEAVY = {"rich", "apsw", "psycopg", "backtrail.store", "asyncio"}


def test_help_imports_little(trip_store):
    script = (
        "import sys; from backtrail.cli.main import cli; cli(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    )
    for words, banned in (
        (["--help"], HEAVY),
        (["threads"], {"rich", "psycopg", "asyncio", "backtrail.archive.import_"}),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment(), check=True
        )
        assert not banned & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_streams_are_quiet(trip_store, closed):
    def done(words):
        command = f"{sys.executable} -m backtrail {words} {closed}"
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment(), check=False)

    looked = done("show trip")
    assert (looked.returncode, looked.stderr) == (0, "")
    missing = done("show nope")
    assert missing.returncode == 3
    asked = done("rewind trip@1")
    assert asked.returncode == 2
    assert "Traceback" not in looked.stderr + missing.stderr + asked.stderr


@pytest.mark.parametrize("words", [["log", "trip"], ["threads"], ["--help"]], ids=" ".join)
def test_commands_import_only_their_needs(trip_store, words):
    script = """
import sys
from backtrail.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="backtrail")
finally:
    sys.stderr.write(" ".join(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment(), check=True
    )
    loaded = set(done.stderr.split())
    assert "backtrail.cli.parameters" in loaded
    unused = ["agents.repository", "agents.scheduler", "conversations.repository", "runs.repository", "runs.run"]
    assert not loaded & {f"backtrail.{name}" for name in [*unused, "maintenance.retention", "builtins"]}
    assert not loaded & {"psycopg", "rich", "logging", "pydantic", "msgspec", "asyncio"}
    if words == ["--help"]:
        assert not loaded & {"apsw", "zstandard", "backtrail.store"}
