"""Generates docs/cli.md from the commands: their help texts, and their examples with the real output.

Run it with `make cli-docs`; `--check` only tells whether the page is up to date. Clocks and random numbers are
replaced, so that the same code generates the same page.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import random
import re
import shlex
import sys
import tempfile
import time
from contextlib import ExitStack, chdir, contextmanager, suppress
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import click
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import backtrail  # noqa: E402
from backtrail import AgentState, Conversation, Message  # noqa: E402
from backtrail.cli.main import cli, sections  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backtrail.cli.parameters import Command

PAGE = ROOT / "docs" / "cli.md"
HEAD = ROOT / "tools" / "cli_head.md"
URL = "sqlite:///agents.db"
COLUMNS = 100
_START = 1_790_000_000.0
INSTALLED = {
    "backtrail": "0.2.0",
    "python": "3.13.1",
    "system": "Linux-6.12-x86_64",
    "sqlite": "3.54.1",
    "packages": {"apsw": "3.54.1.0", "blake3": "1.0.11", "click": "8.5.1"},
    "extras": {"langgraph": {"langgraph": None}, "postgres": {"psycopg": "3.3.8"}},
}
"""What `doctor` finds on the machine of the examples."""
_PIPED = re.compile(r"^(echo .*) \| (backtrail .*)$")


# -- the store of the examples ------------------------------------------------------------------


class Clock:
    """A clock that moves only when a caller sets it."""

    def __init__(self) -> None:
        self.now = _START

    def time(self) -> float:
        """Replace time.time."""
        return self.now

    def moment(self) -> dt.datetime:
        """Return the time as a datetime."""
        return dt.datetime.fromtimestamp(self.now, dt.UTC)

    def time_ns(self) -> int:
        """Replace time.time_ns."""
        return int(self.now * 1_000_000) * 1000


@contextmanager
def repeatable() -> Iterator[Clock]:
    """Replace clocks and random numbers, and change to a new directory."""
    clock, numbers = Clock(), random.Random(7)
    with ExitStack() as stack:
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory(prefix="backtrail-"))))
        stack.enter_context(mock.patch("time.time", clock.time))
        stack.enter_context(mock.patch("time.time_ns", clock.time_ns))
        stack.enter_context(mock.patch("os.urandom", numbers.randbytes))
        stack.enter_context(mock.patch("socket.gethostname", return_value="host"))
        stack.enter_context(mock.patch("os.getpid", return_value=1))
        stack.enter_context(mock.patch.dict(os.environ, {"BACKTRAIL_URL": URL, "COLUMNS": str(COLUMNS), "TZ": "UTC"}))
        stack.enter_context(mock.patch("backtrail.cli.commands.doctor.installed", return_value=INSTALLED))
        stack.enter_context(mock.patch("backtrail.cli.commands.doctor._surroundings", return_value=()))
        time.tzset()
        yield clock
    time.tzset()


def fill(clock: Clock) -> None:
    """Fill the store: a trip that is planned, forked and rewound; an agent with a conversation and a run."""
    with backtrail.open(URL) as store:
        trip = store.thread("trip", agent="planner")
        trip.save({"budget": 120, "messages": []})
        clock.now += 60
        trip.append("messages", {"role": "user", "content": "Lisbon in May, a window seat"}, label="before-booking")
        clock.now += 300
        with trip.step("book") as state:
            state["messages"].append({"role": "assistant", "content": "Booked the night train."})
            state["budget"] -= 90
        cheap = trip.fork("trip-cheap", at="before-booking")
        clock.now += 60
        with cheap.step() as state:
            state["budget"] = 40
        clock.now += 3600
        trip.rewind("before-booking")
        with trip.step("fly") as state:
            state["messages"].append({"role": "assistant", "content": "Flights are 60 each way."})
            state["budget"] -= 60
        trip.tag("@", "cheap")
        now = clock.moment()
        state = AgentState("planner", name="Planner", agent_type="travel", created_at=now, modified_at=now)
        store.agents.save(state)
        asked = Message.user("Where do we eat in Lisbon?", timestamp=now)
        talk = Conversation("planner", id="lunch", messages=[asked], created_at=now, last_message_at=now)
        store.conversations.save(talk.auto_title())
        store.agents.checkpoint("planner", "before-lunch")
        clock.now += 60
        store.conversations.append("lunch", Message.assistant("At the market, at noon.", timestamp=clock.moment()))
        with store.run("session-42", agent="planner") as run:
            for _ in run.iterations():
                run.tool("book_table", lambda: "table 4", irreversible=True)
                run.halt("waiting for an answer")
    Path("notes.json").write_text('{"todo": ["passport", "tickets"]}\n')
    clock.now += 86_400


def fill_doubt() -> None:
    """Add a run whose process ended during a call."""
    with suppress(SystemExit), backtrail.open(URL) as store, store.run("session-43", agent="planner") as run:
        for _ in run.iterations():
            run.tool("book_table", _end_process, 4, irreversible=True)


def _end_process(_: int) -> None:
    """End the process during a call."""
    raise SystemExit


# -- running examples -----------------------------------------------------------------------------------------


def run(example: str) -> tuple[int, str]:
    """Run an example and return its exit code and output."""
    piped = _PIPED.fullmatch(example)
    stdin, line = (" ".join(shlex.split(piped[1])[1:]) + "\n", piped[2]) if piped else ("", example)
    name, *words = shlex.split(line)
    assert name == "backtrail", example
    result = CliRunner().invoke(cli, words, input=stdin, prog_name="backtrail")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def outputs(command: Command) -> Iterator[tuple[str, str]]:
    """Give the examples of a command with their output, run in a new store."""
    with repeatable() as clock:
        fill(clock)
        if command.name == "settle":
            fill_doubt()
        for example in command.examples:
            code, output = run(example)
            if code:
                raise AssertionError(f"{example}\nexit code {code}\n{output}")
            yield example, output


# -- the page ---------------------------------------------------------------------------------------------------


def section(command: Command) -> Iterator[str]:
    """Give the lines of a command's section."""
    context = click.Context(command, info_name=f"backtrail {command.name}")
    yield f"### {command.name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```console\nbacktrail {command.name} {usage}\n```\n"
    yield cleandoc(command.help or "") + "\n"
    options = [param for param in command.params if isinstance(param, click.Option)]
    records = [record for param in options if (record := param.get_help_record(context))]
    own = [each for each in records if not each[0].startswith(_COMMON)]
    if own:
        yield "| option | |\n|---|---|"
        yield from (f"| `{_cell(name)}` | {_cell(text)} |" for name, text in own)
        yield ""
    for example, output in outputs(command):
        yield f"```console\n$ {example}\n{output.rstrip()}".rstrip() + "\n```\n"


_COMMON = ("--json", "--jsonl", "--store", "--schema", "--key-file", "--keyring", "--debug")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """Return the page."""
    parts = [HEAD.read_text().rstrip() + "\n"]
    for title, commands in sections().items():
        parts.append(f"## {title}\n")
        for command in commands:
            parts.extend(section(command))
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    check = parser.parse_args().check
    text = page()
    if check:
        is_current = PAGE.exists() and PAGE.read_text() == text
        if not is_current:
            sys.stderr.write("docs/cli.md differs from the commands: run `make cli-docs`\n")
        return int(not is_current)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
