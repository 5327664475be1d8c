"""`backtrail mcp` over standard input and output: the first answers at once, then the SDK's server.

The import of the SDK takes far longer than all else at a start. So the main thread gives the first answers itself
while another thread imports the SDK. The first message that it does not answer goes to the SDK's server, as do all
that follow. That server gets the handshake again, and its answer to it is dropped: the client has it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from backtrail.mcp.first_answers import FirstAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backtrail.mcp.store_server import StoreServer


def serve(make: Callable[[], StoreServer], *, read_only: bool, destructive: bool) -> None:
    """Serve standard input and output until the input ends. `make` is called when the SDK's server is needed."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not reach the client
    first = FirstAnswers(read_only=read_only, destructive=destructive)
    importing = threading.Thread(target=_import_sdk, daemon=True)
    for line in iter(sys.stdin.buffer.readline, b""):
        answer = first.answer(line)
        if answer is None:
            break
        output.write(answer)
        output.flush()
        if not importing.ident:
            importing.start()
    else:
        return
    if importing.ident:
        importing.join()
    made = make()
    made.serve_streams(Input([*first.handshake, line], sys.stdin.buffer), Replies(output, drop=first.handshake[:1]))


def _import_sdk() -> None:
    with suppress(ImportError):  # the main thread meets it, too
        import mcp.server  # noqa: PLC0415, F401 - this is what takes long


class Input:
    """Lines that were read already, and then those of a stream."""

    def __init__(self, lines: Iterable[bytes], stream: BinaryIO) -> None:
        self._lines = deque(lines)
        self._stream = stream

    def readline(self) -> str:
        """Return the next line; an empty one at the end."""
        line = self._lines.popleft() if self._lines else self._stream.readline()
        return line.decode("utf-8", "replace")


class Replies:
    """A stream without the answers to some requests."""

    def __init__(self, stream: BinaryIO, *, drop: Iterable[bytes]) -> None:
        self._stream = stream
        self._dropped: list[Any] = [json.loads(line)["id"] for line in drop]

    def write(self, text: str) -> None:
        """Write a line."""
        if self._dropped and json.loads(text).get("id") in self._dropped:
            self._dropped.clear()
            return
        self._stream.write(text.encode())

    def flush(self) -> None:
        """Send what was written."""
        self._stream.flush()
