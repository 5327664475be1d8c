"""Processes that append to lists, read them, and record their operations, for `tests.support.histories` to check.

A list is the `items` of a thread, a stack the messages of a conversation: clients push to it and pop from it. Every
`ROUND` operations all clients go on to other lists, so that lists stay short. Half of the time a client uses a handle
that it has held for long.
Each client writes a line when it begins an operation and one when it knows its end, so that one that is killed leaves
what it had done and what it was doing. The system's monotonic clock is one for all processes.
"""

import asyncio
import contextlib
import itertools
import json
import mmap
import os
import random
import signal
import struct
import time
import traceback
from collections import defaultdict

from backtrail import NEW, CommitUnknown, Conflict, Conversation, Message, Unavailable, aio
from tests.support.histories import APPEND, FAILED, FOREVER, OK, POP, READ, SAW, TAKEN, UNKNOWN, Operation

LISTS = 4
STACKS = 2
ROUND = 800
TOGETHER = 6


class Counts:
    """How many operations each client has begun, in memory that processes share."""

    def __init__(self, clients):
        self._memory = mmap.mmap(-1, 8 * clients)
        self._clients = clients

    def add(self, client, count):
        (before,) = struct.unpack_from("q", self._memory, 8 * client)
        struct.pack_into("q", self._memory, 8 * client, before + count)
        return self.total()

    def total(self):
        return sum(struct.unpack_from(f"{self._clients}q", self._memory))


class Client:
    """One process: the lists in use, its new values, and the file for its record."""

    def __init__(self, number, place, counts, total):
        self._number = number
        self._place = place
        self._counts = counts
        self._total = total
        self._values = 0
        self._seen = set()
        self._handles = {}
        self._file = os.open(place / f"client {number}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.chance = random.Random(number)
        self.lists = []
        self.stacks = []

    def goes_on(self, count=1):
        """Count so many more operations; False if all have been done."""
        total = self._counts.add(self._number, count)
        self.lists = [f"{total // ROUND}-{at}" for at in range(LISTS)]
        self.stacks = [f"{total // ROUND}-stack-{at}" for at in range(STACKS)]
        return total <= self._total

    def unseen(self, name):
        """Whether this client has not used a list yet."""
        seen = name in self._seen
        self._seen.add(name)
        return not seen

    def thread(self, store, name):
        """Return a handle of a list: a new one, or one that this client has held since it first used the list."""
        if self.chance.random() < 0.5:
            return store.thread(name)
        return self._handles.get(name) or self._handles.setdefault(name, store.thread(name))

    def value(self):
        self._values += 1
        return self._number * 1_000_000 + self._values

    @contextlib.contextmanager
    def operation(self, what, *appends, pops=()):
        """Record an operation: its appends before it runs, its reads after its end."""
        name = f"{self._number}.{what}.{self.value()}"
        parts = [[POP, key, n] for key, n in pops] + [[APPEND, key, value] for key, value in appends]
        self._write("begin", name, parts)
        try:
            yield parts
        except Conflict:
            self._write(FAILED, name, parts)
        except CommitUnknown:
            self._write(UNKNOWN, name, parts)
        except Unavailable as error:
            self._write(FAILED, name, parts, error.code)
        else:
            self._write(OK, name, parts)

    def _write(self, what, name, parts, *more):
        line = json.dumps([what, name, time.monotonic_ns(), parts, *more])
        os.write(self._file, line.encode() + b"\n")


def read_history(place):
    """Return the records of all clients. An operation without a recorded end has an unknown outcome."""
    history, refused = [], defaultdict(int)
    for path in place.glob("client *"):
        begun = {}
        for line in path.read_text().splitlines():
            what, name, at, parts, *more = json.loads(line)
            if what == "begin":
                begun[name] = at, parts
            else:
                history.append(Operation(name, _frozen(parts), begun.pop(name)[0], at, what))
                for code in more:
                    refused[code] += 1
        history += [Operation(name, _frozen(parts), at, FOREVER, UNKNOWN) for name, (at, parts) in begun.items()]
    return history, dict(refused)


def _frozen(parts):
    return tuple(map(tuple, parts))


# ---- what clients do ------------------------------------------------------------------------------------------------


def work(opener, client):
    """Do one thing after the other."""
    deeds = [append, append, append_several, read, read, read, both, both, save, step, update, edit]
    of_stacks = [push, pop, pop, pop, edit_pop, edit_pop, push_if_empty, look, move, move]
    with opener() as store:
        while client.goes_on():
            for name in filter(client.unseen, client.lists):
                with contextlib.suppress(Conflict):
                    store.thread(name).save({"items": []}, expect=NEW)
            for name in filter(client.unseen, client.stacks):
                with contextlib.suppress(Conflict):
                    store.conversations.save(Conversation("agent", id=name))
            if client.chance.random() < 0.6:
                client.chance.choice(deeds)(store, client, client.chance.choice(client.lists))
            else:
                client.chance.choice(of_stacks)(store, client, client.chance.choice(client.stacks))


def append(store, client, name):
    value = client.value()
    with client.operation("append", (name, value)):
        client.thread(store, name).append("items", value)


def append_several(store, client, name):
    values = [client.value() for _ in range(3)]
    with client.operation("several", *((name, value) for value in values)):
        client.thread(store, name).append("items", *values)


def read(store, client, name):
    with client.operation("read") as parts:
        parts.append((READ, name, client.thread(store, name).load().state["items"]))


def both(store, client, name):
    """A transaction over two lists; what it sees of them behind its own appends must not have changed at its end."""
    other = client.chance.choice([each for each in client.lists if each != name])
    value, second = client.value(), client.value()
    with client.operation("both", (name, value), (other, second)) as parts, store.transaction():
        client.thread(store, name).append("items", value)
        client.thread(store, other).append("items", second)
        parts += [(READ, each, store.thread(each).load().state["items"]) for each in (name, other)]


def save(store, client, name):
    """A state derived from one that was read is saved on top of that, or not at all."""
    with client.operation("load") as parts:
        seen = client.thread(store, name).load()
        items = seen.state["items"]
        parts.append((READ, name, items))
    value = client.value()
    with client.operation("save", (name, value)) as parts:
        client.thread(store, name).save({"items": [*items, value]}, expect=seen)
        parts.insert(0, (READ, name, items))


def step(store, client, name):
    value = client.value()
    with client.operation("step", (name, value)) as parts, client.thread(store, name).step() as state:
        parts.insert(0, (READ, name, list(state["items"])))
        state["items"].append(value)


def update(store, client, name):
    value, seen = client.value(), []

    def changed(state):
        seen[:] = state["items"]
        return {"items": [*state["items"], value]}

    with client.operation("update", (name, value)) as parts:
        client.thread(store, name).update(changed)
        parts.insert(0, (READ, name, list(seen)))


def edit(store, client, name):
    """Append a value if the list has an even length, else decide to change nothing."""
    value, seen = client.value(), []

    def changed(editor):
        seen[:] = editor.get("items")
        if len(seen) % 2:
            raise LookupError
        editor.append("items", value)

    with client.operation("edit", (name, value)) as parts:
        try:
            client.thread(store, name).edit(changed)
        except LookupError:
            parts.clear()
        parts.insert(0, (READ, name, list(seen)))


def push(store, client, name):
    value = client.value()
    with client.operation("push", (name, value)):
        store.conversations.append(name, _message(value))


def pop(store, client, name):
    n = client.chance.choice([1, 1, 2])
    with client.operation("pop", pops=[(name, n)]) as parts:
        parts[:] = [(TAKEN, name, _values(store.conversations.pop(name, n)))]


def edit_pop(store, client, name):
    """Take a value by an edit that raises if there is none."""
    taken = []

    def changed(editor):
        taken.clear()
        if not editor.count("messages"):
            raise LookupError
        taken.append(int(editor.get("messages[-1].content")))
        editor.delete_at("messages[-1]")

    with client.operation("edit pop", pops=[(name, 1)]) as parts:
        with contextlib.suppress(LookupError):
            store.conversations.thread(name).edit(changed)
        parts[:] = [(TAKEN, name, taken)]


def push_if_empty(store, client, name):
    """Push a value by an edit that changes nothing if there is something."""
    value, seen = client.value(), []

    def changed(editor):
        seen[:] = [int(message["content"]) for message in editor.get("messages")]
        if not seen:
            editor.append("messages", {"id": str(value), "role": "user", "content": str(value)})

    with client.operation("push if empty", (name, value)) as parts:
        store.conversations.thread(name).edit(changed)
        if seen:
            parts.clear()
        parts.insert(0, (SAW, name, list(seen)))


def look(store, client, name):
    with client.operation("look") as parts:
        parts.append((SAW, name, _values(store.conversations.load(name).messages)))


def move(store, client, name):
    """A transaction that pops from one stack and pushes another value to the other, whether it got one or not."""
    other = next(each for each in client.stacks if each != name)
    value = client.value()
    with client.operation("move", (other, value), pops=[(name, 1)]) as parts, store.transaction():
        parts[0] = (TAKEN, name, _values(store.conversations.pop(name)))
        store.conversations.append(other, _message(value))


def _message(value):
    return Message("user", str(value))


def _values(messages):
    return [int(message.content) for message in messages]


async def work_together(opener, client):
    """Do several things at once: their commits come in groups."""
    async with aio.Store(opener()) as store:
        while client.goes_on(TOGETHER):
            for name in filter(client.unseen, client.lists):
                with contextlib.suppress(Conflict):
                    await store.thread(name).save({"items": []}, expect=NEW)
            for name in filter(client.unseen, client.stacks):
                with contextlib.suppress(Conflict):
                    await store.conversations.save(Conversation("agent", id=name))
            deeds = [aio_append, aio_read, aio_step, aio_both]
            chosen = client.chance.choices(deeds, [3, 2, 1, 1], k=TOGETHER - 3)
            of_stacks = client.chance.choices([aio_push, aio_pop, aio_edit_pop, aio_move], [1, 2, 1, 1], k=3)
            await asyncio.gather(
                *(deed(store, client, client.chance.choice(client.lists)) for deed in chosen),
                *(deed(store, client, client.chance.choice(client.stacks)) for deed in of_stacks),
            )


async def aio_append(store, client, name):
    value = client.value()
    with client.operation("aio append", (name, value)):
        await store.thread(name).append("items", value)


async def aio_read(store, client, name):
    with client.operation("aio read") as parts:
        parts.append((READ, name, (await (await store.thread(name).load()).load_state())["items"]))


async def aio_step(store, client, name):
    value = client.value()
    with client.operation("aio step", (name, value)) as parts:
        async with store.thread(name).step() as state:
            parts.insert(0, (READ, name, list(state["items"])))
            state["items"].append(value)


async def aio_both(store, client, name):
    other = client.chance.choice([each for each in client.lists if each != name])
    value, second = client.value(), client.value()
    with client.operation("aio both", (name, value), (other, second)) as parts:
        async with store.transaction():
            await store.thread(name).append("items", value)
            await store.thread(other).append("items", second)
            for each in (name, other):
                parts.append((READ, each, (await (await store.thread(each).load()).load_state())["items"]))


async def aio_push(store, client, name):
    value = client.value()
    with client.operation("aio push", (name, value)):
        await store.conversations.append(name, _message(value))


async def aio_pop(store, client, name):
    with client.operation("aio pop", pops=[(name, 1)]) as parts:
        parts[:] = [(TAKEN, name, _values(await store.conversations.pop(name)))]


async def aio_edit_pop(store, client, name):
    taken = []

    def changed(editor):
        taken.clear()
        if not editor.count("messages"):
            raise LookupError
        taken.append(int(editor.get("messages[-1].content")))
        editor.delete_at("messages[-1]")

    with client.operation("aio edit pop", pops=[(name, 1)]) as parts:
        with contextlib.suppress(LookupError):
            await store.conversations.thread(name).edit(changed)
        parts[:] = [(TAKEN, name, taken)]


async def aio_move(store, client, name):
    other = next(each for each in client.stacks if each != name)
    value = client.value()
    with client.operation("aio move", (other, value), pops=[(name, 1)]) as parts:
        async with store.transaction():
            parts[0] = (TAKEN, name, _values(await store.conversations.pop(name)))
            await store.conversations.append(other, _message(value))


# ---- processes ------------------------------------------------------------------------------------------------------


class Clients:
    """Run eight processes; errors in them are raised at the end."""

    def __init__(self, opener, place, total, *, seed=None, most=8):
        self._opener = opener
        self._place = place
        self._total = total
        self._seed = seed
        self._counts = Counts(most)
        self._most = most
        self._begun = 0
        self._running = {}
        self.kills = self.stops = 0
        for _ in range(8):
            self._begin()
        (place / "go").touch()

    def _begin(self):
        number, self._begun = self._begun, self._begun + 1
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                while not (self._place / "go").exists():  # all begin at once, however long it takes to make them
                    time.sleep(0.001)
                with self._seed() if self._seed else contextlib.nullcontext():
                    client = Client(number, self._place, self._counts, self._total)
                    if number % 4 == 3:
                        asyncio.run(work_together(self._opener, client))
                    else:
                        work(self._opener, client)
                code = 0
            except BaseException:  # noqa: BLE001 - it is told by the parent
                (self._place / f"error {number}").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        self._running[pid] = number

    def disturb(self, every):
        """Until the work is done, kill a process now and then and begin another, or stop one for a while."""
        chance = random.Random(1)
        deeds = itertools.chain([False, True], (chance.random() < 0.5 for _ in itertools.count()))
        while self._counts.total() < self._total:
            self._let_them_work(every)
            pid = chance.choice(list(self._running))
            if next(deeds) and self._begun < self._most:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del self._running[pid]
                self.kills += 1
                self._begin()
            else:
                os.kill(pid, signal.SIGSTOP)
                self._let_them_work(chance.random() * 5 * every)
                os.kill(pid, signal.SIGCONT)
                self.stops += 1

    def _let_them_work(self, seconds):
        """Wait for so long, or until a twentieth more of the work is done."""
        until, mark = time.monotonic() + seconds, self._counts.total() + self._total // 20
        while self._counts.total() < mark and time.monotonic() < until:
            time.sleep(0.001)

    def wait(self):
        for pid in self._running:
            os.waitpid(pid, 0)
        errors = [path.read_text() for path in self._place.glob("error *")]
        assert not errors, errors[0]
