"""LangGraph's own server, `langgraph dev`, keeps its threads in a store; its own client sees no difference.

The server runs the files that docs/langgraph.md shows, in a virtual environment of its own.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from contextlib import contextmanager
from pathlib import Path

import pytest
from langgraph_sdk import get_sync_client

import backtrail

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "langgraph.md").read_text()
SECTION = PAGE.partition("\n## Under LangGraph's own server\n")[2].partition("\n## ")[0]


OFFLINE = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}


def files():
    """Return the files of the page: a name in a sentence that ends with a colon, then a block."""
    return dict(re.findall(r"(?ms)^`([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```$", SECTION))


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Install the server beside a copy of this package; return the directory with the files of the page."""
    place = tmp_path_factory.mktemp("server")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(place / "env", with_pip=True)
    words = [f"{source}[langgraph]", "langgraph-cli[inmem]", "langgraph-sdk"]
    done = subprocess.run(
        [place / "env" / "bin" / "python", "-m", "pip", "install", "-q", *words],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")},
    )
    if done.returncode:
        pytest.skip(f"pip cannot install langgraph-cli[inmem]: {done.stderr.strip().splitlines()[-1]}")
    for name, text in files().items():
        (place / name).write_text(text)
    return place


@contextmanager
def running(project):
    """Start `langgraph dev`; yield its URL; stop it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    env = {name: os.environ[name] for name in kept if name in os.environ} | OFFLINE
    command = [project / "env" / "bin" / "langgraph", "dev", "--no-browser", "--no-reload", "--port", str(port)]
    with (project / "server.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=project, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        while not answers(f"{url}/ok"):
            assert process.poll() is None, (project / "server.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def contents(state):
    return [message["content"] for message in state["values"]["messages"]]


def turn(words):
    return {"messages": [{"role": "user", "content": words}]}


FIRST = ["Lisbon in May", "You said: Lisbon in May"]
SECOND = [*FIRST, "Two people", "You said: Two people"]
FORK = [*FIRST, "Three people"]


def drive(client):
    """Create, run, read, fork, copy and delete; return the ids of the thread and of its copy."""
    thread = client.threads.create()["thread_id"]
    for words in ("Lisbon in May", "Two people"):
        client.runs.wait(thread, "agent", input=turn(words))
    assert contents(client.threads.get_state(thread)) == SECOND

    history = client.threads.get_history(thread, limit=100)
    assert len(history) == 6
    assert contents(history[0]) == SECOND
    first = next(each for each in history if contents(each) == FIRST and not each["next"])

    client.threads.update_state(thread, turn("Three people"), checkpoint=first["checkpoint"])
    assert contents(client.threads.get_state(thread)) == FORK
    old = client.threads.get_state(thread, checkpoint=history[0]["checkpoint"])
    assert contents(old) == SECOND  # the branch that the fork left
    assert len(client.threads.get_history(thread, limit=100)) == 7

    copy = client.threads.copy(thread)["thread_id"]
    assert contents(client.threads.get_state(copy)) == FORK
    assert len(client.threads.get_history(copy, limit=100)) == 7

    deleted = client.threads.create()["thread_id"]
    client.runs.wait(deleted, "agent", input=turn("Faro"))
    client.threads.delete(deleted)
    return thread, copy


def resume(client, thread, copy):
    """Read both threads after a restart, and go on with the copy."""
    assert contents(client.threads.get_state(thread)) == FORK
    assert len(client.threads.get_history(thread, limit=100)) == 7
    client.runs.wait(copy, "agent", input=turn("By train"))
    assert contents(client.threads.get_state(copy)) == [*FORK, "By train", "You said: By train"]


def test_page_has_the_files_of_a_project():
    assert set(files()) == {"langgraph.json", "ck.py", "agent.py"}
    assert json.loads(files()["langgraph.json"])["checkpointer"] == {"backend": "custom", "path": "./ck.py:make"}


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform == "win32", reason="a virtual environment has other paths there")
def test_server_keeps_its_threads_in_a_store(project):
    with running(project) as url, get_sync_client(url=url) as client:
        thread, copy = drive(client)
    with running(project) as url, get_sync_client(url=url) as client:
        resume(client, thread, copy)
    shutil.rmtree(project / ".langgraph_api")  # the server's own records
    with running(project) as url, get_sync_client(url=url) as client:
        client.threads.create(thread_id=thread, graph_id="agent")
        assert contents(client.threads.get_state(thread)) == FORK

    with backtrail.open(project / "agents.db") as store:
        assert {each.id for each in store.threads()} == {thread, copy}
        messages = store.thread(thread).latest().get("messages")
        assert [message["content"] for message in messages] == FORK
        assert len(list(store.thread(thread).history(everything=True))) == 7
        assert len(store.thread(thread)) == 4
        assert store.verify().ok
