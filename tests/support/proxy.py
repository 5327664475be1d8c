"""A proxy in front of PostgreSQL that loses messages on purpose, as a network may lose them.

It knows as much of the protocol as that takes. A client's messages up to a Sync (or a simple Query) are one
**exchange**; they are passed on together, when the Sync has come. The server's answer ends with ReadyForQuery, which
says how the transaction stands. Faults are asked for before they are to happen, each for the first exchanges from then
on whose SQL it matches, over all connections; what fired is kept with the fault, so that a test can tell that it did:

    BEFORE    the exchange never reaches the server
    DURING    it does, and the connection is cut at once: the server goes on by itself
    SWALLOW   it does, and the connection is cut when the whole answer has come: it is done, and nobody is told
    STALL     the answer is held back until `release()`

A cut is one of both sides. TLS is answered with no, so all is in plain sight.
"""

import asyncio
import contextlib
import re
import struct
import threading
from collections import deque
from dataclasses import dataclass, field

from psycopg.conninfo import conninfo_to_dict

from tests.support.servers import free_port

BEFORE, DURING, SWALLOW, STALL = "before", "during", "swallow", "stall"

TLS_REQUESTS = (80877103, 80877104)
PARTS = (b"P", b"B", b"D", b"E", b"C")  # Parse, Bind, Describe, Execute, Close: an exchange that is not complete yet


@dataclass
class Fired:
    """The effect of a fault: its SQL, and for SWALLOW and STALL the end of the reply."""

    sql: str
    status: str | None = None
    """I: no transaction is open (any more); T: one is; E: one has failed."""
    failed: bool = False
    """Whether the server answered with an error."""


@dataclass
class Fault:
    """One thing to go wrong, `times` times, from the exchange on that follows `skip` others that match."""

    kind: str
    sql: re.Pattern
    skip: int
    times: int
    leave: bool
    fired: list[Fired] = field(default_factory=list)

    def takes(self, text):
        if self.times == 0 or not self.sql.search(text):
            return None
        if self.skip:
            self.skip -= 1
            return None
        self.times -= 1
        self.fired.append(Fired(text))
        return self.fired[-1]


class Proxy:
    """Runs for a block, in a thread of its own; `url` is that of the server, by way of the proxy."""

    def __init__(self, url):
        self._target = conninfo_to_dict(url)
        self.port = free_port()
        self.url = f"postgresql://{self._target['user']}@127.0.0.1:{self.port}/{self._target['dbname']}"
        self.seen = deque(maxlen=10_000)
        """The SQL of each exchange, newest last."""
        self.exchanges = 0
        self._lock = threading.Lock()
        self._faults = []
        self._links = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener = None

    # -- from the test's side ---------------------------------------------------------------------

    def fault(self, kind, *, sql="", skip=0, times=1, leave=False):
        """Ask for a fault; `sql` is a pattern, whatever its case; `leave`: with it, `leave()`."""
        fault = Fault(kind, re.compile(sql, re.IGNORECASE), skip, times, leave)
        with self._lock:
            self._faults.append(fault)
        return fault

    def disarm(self):
        """Forget about faults that have not happened yet."""
        with self._lock:
            self._faults.clear()

    def release(self):
        """Send the replies that were held back, and hold back no others."""
        self._call(self._release())

    def cut(self):
        """Cut all connections there are."""
        self._call(self._cut())

    def leave(self, seconds=None):
        """Cut all connections and refuse new ones: until `come_back()`, or for so many seconds."""
        self._call(self._leave(seconds))

    def turn_to(self, url):
        """Cut all connections, and lead new ones to another server."""
        self._target = conninfo_to_dict(url)
        self.cut()

    def come_back(self):
        self._call(self._listen())

    def __enter__(self):
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_):
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    # -- in the thread ----------------------------------------------------------------------------

    async def _listen(self):
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def _refuse(self):
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self):
        for link in self._links:
            link.cut()

    async def _leave(self, seconds):
        self._refuse()
        await self._cut()
        if seconds is not None:
            self._loop.call_later(seconds, lambda: self._loop.create_task(self._listen()))

    async def _release(self):
        for link in self._links:
            link.released.set()

    async def _end(self):
        await self._release()
        await self._leave(None)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    async def _serve(self, reader, writer):
        link = Link(self, (reader, writer))
        self._links.add(link)
        try:
            with contextlib.suppress(OSError, EOFError):
                await link.run(self._target["host"], self._target["port"])
        finally:
            self._links.discard(link)
            link.cut()

    def judge(self, text, link):
        """An exchange has come by this link: return the fault that it meets, if any, as (kind, what fired)."""
        with self._lock:
            self.exchanges += 1
            self.seen.append(text)
            for fault in self._faults:
                fired = fault.takes(text)
                if fired is not None:
                    if fault.leave:
                        self._refuse()
                        for other in self._links - {link}:
                            other.cut()
                    return fault.kind, fired
        return None, None


class Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(self, proxy, client):
        self._proxy = proxy
        self._client = client
        self._server = None
        self._statements = {}
        self._pending = deque()  # (kind of fault, what fired) of each exchange that has no answer yet
        self.released = asyncio.Event()

    async def run(self, host, port):
        hello = await self._hello()
        self._server = await asyncio.open_connection(host, port)
        for _, writer in (self._client, self._server):
            writer.transport.set_write_buffer_limits(0)  # so that drained is sent
        self._server[1].write(hello)
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self):
        for _, writer in filter(None, (self._client, self._server)):
            writer.transport.abort()

    async def _hello(self):
        """The first message, the only one that has no letter."""
        reader, writer = self._client
        while True:
            head = await reader.readexactly(8)
            size, code = struct.unpack("!II", head)
            rest = await reader.readexactly(size - 8)
            if code not in TLS_REQUESTS:
                return head + rest
            writer.write(b"N")

    async def _requests(self):
        held, texts = [], []
        async for batch in batches(self._client[0]):
            for message in batch:
                held.append(message)
                texts += self._texts(message)
                if message[:1] in (b"S", b"Q"):
                    kind, fired = self._proxy.judge("; ".join(texts), self)
                    if kind == BEFORE:
                        return
                    self._pending.append((kind, fired))
                    await send(self._server, held)
                    if kind == DURING:
                        return
                    held, texts = [], []
                elif message[:1] not in PARTS:
                    await send(self._server, held)
                    held = []

    def _texts(self, message):
        """The SQL that a message names."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return [body[:-1].decode(errors="replace")]
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self._statements[name] = text.decode(errors="replace")
        if kind == b"B":
            return [self._statements.get(body.split(b"\0", 2)[1], "?")]
        return []

    async def _answers(self):
        held, failed = [], False
        async for batch in batches(self._server[0]):
            for message in batch:
                held.append(message)
                failed |= message[:1] == b"E"
                if message[:1] == b"Z" and self._pending:
                    kind, fired = self._pending.popleft()
                    if fired is not None:
                        fired.status, fired.failed = message[5:6].decode(), failed
                    if kind == SWALLOW:
                        return
                    if kind == STALL:
                        await self.released.wait()
                    failed = False
            if not self._pending or self._pending[0][0] is None:
                await send(self._client, held)
                held = []


async def batches(reader):
    """What has come, as whole messages: each a letter, its length (the letter not counted), its body."""
    buffer = bytearray()
    while data := await reader.read(1 << 18):
        buffer += data
        batch, at = [], 0
        while len(buffer) >= at + 5 and len(buffer) >= (end := at + 1 + int.from_bytes(buffer[at + 1 : at + 5], "big")):
            batch.append(bytes(buffer[at:end]))
            at = end
        del buffer[:at]
        yield batch


async def send(end, parts):
    end[1].write(b"".join(parts))
    await end[1].drain()
