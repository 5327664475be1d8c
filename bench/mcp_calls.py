"""What MCP costs: the start of `backtrail mcp`, and a `tools/call` beside the same operation in Python.

`python -m bench.mcp_calls` prints medians of runs in turns. "bare" writes JSON lines to the server and reads its
answers, so it measures the server; the SDK's client also parses each answer and checks it against the tool's schema.
The CPU time of the server for a bare call, less that of the operation, is what other work on the machine disturbs
least; it needs Linux. The start is measured from the start of the process to its first answer, beside imports of the
SDK or of parts of it.
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
    "backtrail.mcp": "import backtrail.mcp",
}
_HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


class Bare:
    """A server process, and JSON lines."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(_command(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - this package
        self._number = 0
        self.request("initialize", _HELLO)
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


def starts(path: Path) -> dict[str, float]:
    """Return the median milliseconds of imports, and of a start up to the first answer."""
    taken: dict[str, list[float]] = {name: [] for name in (*IMPORTS, "backtrail mcp, first answer")}
    for _ in range(STARTS):
        for name, code in IMPORTS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - the code above
            taken[name].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        made = Bare(path)
        taken["backtrail mcp, first answer"].append(time.perf_counter() - begin)
        made.close()
    return {name: 1000 * statistics.median(times) for name, times in taken.items()}


async def calls(path: Path) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each operation, by the way in which it is called."""
    found: dict[str, dict[str, float]] = {}
    bare = Bare(path)
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


def main() -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory(prefix="backtrail-bench-") as directory:
        path = Path(directory) / "agents.db"
        with backtrail.open(path) as store:
            for at in range(MESSAGES):
                store.conversations.append("talk", Message.user(f"hello {at}"), agent_id="a")
        for name, ms in starts(path).items():
            print(f"{name:32} {ms:7.0f} ms")
        for at, (name, ways) in enumerate(asyncio.run(calls(path)).items()):
            if at == 0:
                print(f"\n{'ms':20}{''.join(f'{way:>12}' for way in ways)}")
            over = min(ways["bare, more"], ways["CPU, more"]) > MORE
            print(f"{name:20}{''.join(f'{ms:12.2f}' for ms in ways.values())}{f'  > {MORE:.0f}' if over else ''}")


if __name__ == "__main__":
    main()
