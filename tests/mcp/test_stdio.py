"""The first answers of `backtrail mcp`, which do not need the SDK, and the messages after them."""

import io
import json
import queue
import subprocess
import sys

import pytest

import backtrail
from backtrail.cli.main import main
from backtrail.mcp import server
from backtrail.mcp.first_answers import HANDSHAKES, STATELESS, FirstAnswers

CLIENT = {"name": "test", "version": "1"}
META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
OPTIONS = [
    {"read_only": False, "destructive": False},
    {"read_only": True, "destructive": False},
    {"read_only": False, "destructive": True},
]


def line(method, params=None, number=None):
    message = {"jsonrpc": "2.0", "method": method}
    message |= {} if number is None else {"id": number}
    return json.dumps(message | ({} if params is None else {"params": params})).encode() + b"\n"


def hello(version, **changes):
    return line("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT} | changes, "one")


def opening(version):
    if version == STATELESS:
        return [line("server/discover", {"_meta": META}, "one"), line("tools/list", {"_meta": META}, 2)]
    return [hello(version), line("notifications/initialized"), line("tools/list", number=2)]


class Wire:
    """A client that sends its next line when the server has answered the one before."""

    def __init__(self, lines):
        self._lines = iter(lines)
        self._arrived = queue.Queue()
        self._asked = False
        self.answers = []

    def readline(self):
        if self._asked:
            self.answers.append(json.loads(self._arrived.get(timeout=60)))
        found = next(self._lines, b"")
        self._asked = b'"id"' in found
        return found.decode()

    def write(self, text):
        self._arrived.put(text)

    def flush(self):
        pass


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("version", [*HANDSHAKES, STATELESS])
def test_first_answers_are_those_of_the_sdk(version, options):
    first = FirstAnswers(**options)
    answers = [json.loads(answer) for each in opening(version) if (answer := first.answer(each))]
    with backtrail.open("memory://") as store:
        wire = Wire(opening(version))
        server(store, **options).serve_streams(wire, wire)
    assert answers == wire.answers
    assert [answer["id"] for answer in answers] == ["one", 2]


@pytest.mark.parametrize(
    "strange",
    [
        b"",
        b"{",
        b"\xff\n",
        b"[]\n",
        b'{"method": "initialize"}\n',
        hello("2099-01-01"),
        hello(5),
        hello("2025-11-25", clientInfo={"name": "x"}),
        hello("2025-11-25", capabilities={"roots": 1}),
        line("initialize", {}, 1),
        line("initialize", [], 1),
        line("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}),
        line("tools/list", number=1),
        line("tools/list", {"_meta": {**META, "io.modelcontextprotocol/protocolVersion": "2025-11-25"}}, 1),
        line("tools/list", {"_meta": META, "cursor": "x"}, 1),
        line("notifications/initialized"),
        line("server/discover", number=1),
        line("tools/call", {"name": "persistence_stats", "arguments": {}}, 1),
        b"[" * 100_000,
    ],
)
def test_other_messages_are_left_to_the_sdk(strange):
    first = FirstAnswers(read_only=False, destructive=False)
    assert first.answer(strange) is None
    assert first.handshake == []


NOISY = """
import sys
import backtrail
from backtrail.mcp import server
from backtrail.mcp.stdio import serve
def make():
    print("noise")
    return server(backtrail.open(sys.argv[1]))
serve(make, read_only=False, destructive=False)
"""


@pytest.mark.parametrize("version", [HANDSHAKES[-1], STATELESS])
def test_each_request_has_one_answer(tmp_path, version):
    meta = {"_meta": META} if version == STATELESS else {}
    call = line("tools/call", {"name": "persistence_stats", "arguments": {}, **meta}, 3)
    lines = [*opening(version), call, line("tools/list", meta, 4)]
    command = [sys.executable, "-c", NOISY, str(tmp_path / "a.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(4)]
        rest, errors = process.communicate()
    assert [sorted(answer) for answer in answers] == [["id", "jsonrpc", "result"]] * 4
    assert {answer["id"] for answer in answers} == {"one", 2, 3, 4}
    assert answers[1]["result"] == next(answer["result"] for answer in answers if answer["id"] == 4)
    assert (rest, process.returncode, b"noise" in errors) == (b"", 0, True)


def test_a_client_that_leaves_early_ends_the_server(tmp_path):
    command = [sys.executable, "-m", "backtrail", "mcp", str(tmp_path / "a.db")]
    ended = subprocess.run(command, input=hello(HANDSHAKES[-1]), capture_output=True, check=True, timeout=60)
    assert json.loads(ended.stdout)["result"]["serverInfo"]["name"] == "backtrail"
    assert ended.stderr == b""


def test_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr(sys, "argv", ["backtrail", "mcp", "memory://"])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit):
        main()
    assert "pip install 'backtrail[mcp]'" in capsys.readouterr().err
