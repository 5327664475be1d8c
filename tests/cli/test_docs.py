"""docs/cli.md has the help and the output of the commands; every command has help with examples."""

import click
import pytest

from backtrail.cli.commands import archives, builtins, catalog, doctor, edits, inspection, keys, maintenance, server
from backtrail.cli.main import cli, sections
from tests.support.commands import ROOT, docs, good

COMMANDS = [command for commands in sections().values() for command in commands]
MODULES = (archives, builtins, catalog, doctor, edits, inspection, keys, maintenance, server)
PAGE = (ROOT / "docs" / "cli.md").read_text()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_examples_print_the_output_in_the_docs(command):
    assert "\n".join(docs.section(command)).rstrip() in PAGE


def test_page_head_names_every_command():
    head = docs.HEAD.read_text().rstrip()
    assert PAGE.startswith(head + "\n\n## Look\n")
    assert not [command.name for command in COMMANDS if f"`{command.name}`" not in head]


def test_every_command_is_in_a_section_once():
    names = [command.name for command in COMMANDS]
    assert sorted(names) == cli.list_commands(click.Context(cli))
    assert sorted(names) == sorted(command.name for module in MODULES for command in module.COMMANDS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_has_common_options_and_examples(command):
    said = good(command.name, "--help").out
    assert command.examples
    for text in ("--json", "--jsonl", "--store URL", "--debug", *command.examples):
        assert text in said
    assert len(command.get_short_help_str(80)) < 60
    assert not command.get_short_help_str(80).endswith("...")


def test_help_lists_every_command_in_one_line():
    lines = good("--help").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert {line.split()[0] for line in lines if line.startswith("  ") and line.split()} >= set(cli.commands)


def test_outdated_page_is_detected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(docs, "PAGE", tmp_path / "cli.md")
    monkeypatch.setattr(docs, "page", lambda: "now\n")
    monkeypatch.setattr("sys.argv", ["generate_cli_docs.py", "--check"])
    assert docs.main() == 1
    (tmp_path / "cli.md").write_text("then\n")
    assert docs.main() == 1
    (tmp_path / "cli.md").write_text("now\n")
    assert docs.main() == 0
