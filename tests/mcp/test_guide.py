"""docs/mcp.md and the example: the configuration, the tables, the session."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from mcp import Client

import backtrail
from backtrail.cli.commands.server import mcp
from backtrail.mcp import TOOLS, server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mcp.md").read_text()
SESSION = PAGE.partition("## A session")[2].partition("```text\n")[2].partition("```")[0]


def steps():
    """The calls of the session, each with the answer that the page shows."""
    texts = [" ".join(each.split()) for each in re.split(r"^(?=->|<-)", SESSION, flags=re.MULTILINE) if each]
    for call, answer in zip(texts[::2], texts[1::2], strict=True):
        name, arguments = re.fullmatch(r"-> tools/call (\w+) ({.*})", call).groups()
        shown = re.fullmatch(r"<- ({.*})", answer)[1]
        yield name, json.loads(arguments), json.loads(shown.replace(", ...", "").replace("...", ""))


def contains(found, shown):
    """Tell whether an answer has all that is shown of it."""
    if isinstance(shown, dict):
        return isinstance(found, dict) and all(key in found and contains(found[key], shown[key]) for key in shown)
    if isinstance(shown, list):
        return len(found) == len(shown) and all(map(contains, found, shown))
    return found == shown


def test_the_session_is_what_happens():
    async def main():
        with backtrail.open("memory://") as store:
            async with Client(server(store)) as client:
                for name, arguments, shown in [*steps()]:
                    result = await client.call_tool(name, arguments)
                    found = json.loads(result.content[0].text)
                    assert contains(found, shown), (name, found)

    asyncio.run(main())
    assert len([*steps()]) >= 6


def test_the_configuration_starts_the_server(tmp_path):
    (entry,) = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])["mcpServers"].values()
    assert entry["command"] == "backtrail"
    words = [str(tmp_path / "agents.db") if word.endswith(".db") else word for word in entry["args"]]
    done = subprocess.run(
        [sys.executable, "-m", "backtrail", *words, "--dry-run"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "conversation_save" in done.stdout


def test_the_tables_name_all_tools_and_options():
    rows = PAGE.partition("| tools | for |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+_\w+|activity|search|erase)`", rows)) == sorted(TOOLS)
    options = {name for each in mcp.params if isinstance(each, click.Option) for name in each.opts}
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PAGE))
    assert named <= options | {"--write"}
    assert {"--read-only", "--agent", "--allow-destructive", "--max-bytes", "--max-calls", "--http"} <= named


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, "examples/mcp_client.py"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == [
        "26 tools, 16 of them only read",
        "found: A week in Lisbon, please",
        "after the rewind: 1 message",
        "after the undo: 2 messages",
    ]


@pytest.mark.parametrize("client", ["Claude Desktop", "Claude Code", "Cursor", "VS Code", "OpenAI Agents SDK"])
def test_the_usual_clients_are_named(client):
    assert f"| {client} |" in PAGE
