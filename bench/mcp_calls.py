"""What MCP costs: the start of `backtrail mcp`, and a `tools/call` beside the same operation in Python.

`python -m bench.mcp_calls` prints medians of runs in turns. "bare" writes JSON lines to the server and reads its
answers, so it measures the server; the SDK's client also parses each answer and checks it against the tool's schema.
The CPU time of the server for a bare call, less that of the operation, is what other work on the machine disturbs
least; it needs Linux. The start is measured from the start of the process to its first answers, for `backtrail mcp` and
for the SDK's server alone, beside imports of the SDK or of parts of it. CPU time is that of the process. Python needs
its bytecode cache for this: PYTHONDONTWRITEBYTECODE is unset.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

import backtrail
from backtrail import Message
from backtrail.mcp import server
from backtrail.operations import call

MORE = 2.0
"""Milliseconds that a call may cost more than the operation."""
ROUNDS = 300
STARTS = 9
MESSAGES = 20
CALLS: dict[str, dict[str, Any]] = {
    "persistence_stats": {},
    "conversation_list": {},
    "conversation_load": {"conversation_id": "talk"},
    "search": {"query": "hello"},
    "conversation_save": {"agent_id": "a", "conversation_id": "new", "messages": [{"role": "user", "content": "x"}]},
}
IMPORTS = {
    "Python": "pass",
    "pydantic": "import pydantic",
    "the SDK's message types": "import mcp_types.methods",
    "the SDK": "import mcp",
    "backtrail.mcp": "import backtrail.mcp.store_server",
}
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Bare:
    """A server process, and JSON lines."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())  # noqa: S603 - this package
        self._number = 0
        self.request("initialize", _HELLO)

    def initialized(self) -> None:
        """Tell the server that the handshake is done."""
        self._send({"method": "notifications/initialized"})

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return its answer."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "result" in answer, answer
        return answer

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        """Return the seconds of CPU time that the server has used; 0 where that is not known."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the server."""
        self._process.communicate()


def starts(path: Path) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds of imports, and of starts up to the first answers: wall time, and CPU time."""
    taken: dict[str, list[tuple[float, float]]] = {}
    for _ in range(STARTS):
        for name, code in IMPORTS.items():
            taken.setdefault(f"import: {name}", []).append(_finished([sys.executable, "-c", code]))
        for name, command in {"backtrail mcp": _command(path), "the SDK alone": _sdk_command(path)}.items():
            for answer, point in _first_answers(command).items():
                taken.setdefault(f"{name}: {answer}", []).append(point)
    return {
        name: (1000 * statistics.median(wall for wall, _ in points), 1000 * statistics.median(cpu for _, cpu in points))
        for name, points in taken.items()
    }


def _finished(command: list[str]) -> tuple[float, float]:
    before, begin = os.times(), time.perf_counter()
    subprocess.run(command, check=True, env=_environment())  # noqa: S603 - the code above
    wall, after = time.perf_counter() - begin, os.times()
    return wall, after.children_user + after.children_system - before.children_user - before.children_system


def _first_answers(command: list[str]) -> dict[str, tuple[float, float]]:
    begin = time.perf_counter()
    made = Bare(command)
    found = {"initialize": (time.perf_counter() - begin, made.cpu())}
    made.initialized()
    made.request("tools/list", {})
    found["tools/list"] = (time.perf_counter() - begin, made.cpu())
    made.request("tools/call", {"name": "persistence_stats", "arguments": {}})
    found["tools/call"] = (time.perf_counter() - begin, made.cpu())
    made.close()
    return found


async def calls(path: Path) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each operation, by the way in which it is called."""
    found: dict[str, dict[str, float]] = {}
    bare = Bare(_command(path))
    bare.initialized()
    with backtrail.open(path) as store:
        stdio = StdioServerParameters(command=sys.executable, args=_command(path)[1:])
        async with Client(server(store)) as memory, Client(stdio) as piped:
            for name, arguments in CALLS.items():
                taken: dict[str, list[float]] = {way: [] for way in ("operation", "bare", "SDK memory", "SDK stdio")}
                own, before = 0.0, bare.cpu()
                for _ in range(ROUNDS):
                    cpu = time.process_time()
                    times = [time.perf_counter()]
                    call(store, name, arguments)
                    times.append(time.perf_counter())
                    own += time.process_time() - cpu
                    bare.request("tools/call", {"name": name, "arguments": arguments})
                    times.append(time.perf_counter())
                    for client in (memory, piped):
                        await client.call_tool(name, arguments)
                        times.append(time.perf_counter())
                    for way, begin, end in zip(taken, times, times[1:], strict=False):
                        taken[way].append(end - begin)
                found[name] = {way: 1000 * statistics.median(each) for way, each in taken.items()}
                found[name]["bare, more"] = found[name]["bare"] - found[name]["operation"]
                found[name]["CPU, more"] = 1000 * (bare.cpu() - before - own) / ROUNDS
    bare.close()
    return found


def _command(path: Path) -> list[str]:
    return [sys.executable, "-m", "backtrail", "mcp", str(path)]


def _sdk_command(path: Path) -> list[str]:
    code = "import sys, backtrail; from backtrail.mcp import server; server(backtrail.open(sys.argv[1])).run()"
    return [sys.executable, "-c", code, str(path)]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def main() -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="backtrail-bench-") as directory:
        path = Path(directory) / "agents.db"
        with backtrail.open(path) as store:
            for at in range(MESSAGES):
                store.conversations.append("talk", Message.user(f"hello {at}"), agent_id="a")
        print(f"{'ms':32}{'wall':>8}{'CPU':>8}")
        for name, (wall, cpu) in starts(path).items():
            print(f"{name:32}{wall:8.0f}{cpu:8.0f}")
        for at, (name, ways) in enumerate(asyncio.run(calls(path)).items()):
            if at == 0:
                print(f"\n{'ms':20}{''.join(f'{way:>12}' for way in ways)}")
            over = min(ways["bare, more"], ways["CPU, more"]) > MORE
            print(f"{name:20}{''.join(f'{ms:12.2f}' for ms in ways.values())}{f'  > {MORE:.0f}' if over else ''}")


if __name__ == "__main__":
    main()
