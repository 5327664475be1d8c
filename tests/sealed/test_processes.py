"""Encrypted stores and several processes: killed writers, and keys that another process replaces."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import textwrap
from unittest import mock

import pytest
from psycopg import sql

import backtrail
from backtrail import Key, aio
from backtrail.sealed import keyring as keyrings
from backtrail.urls import backend_at
from tests.support.sealing import KEY
from tests.support.servers import place, server

WRITER = """
import sys, backtrail
from backtrail import Key
with backtrail.open(sys.argv[1], key=Key(bytes(range(32)))) as store:
    for n in range(10_000):
        thread = store.thread(f"t{n % 50}")
        if n < 50:
            thread.save({"list": []})
        else:
            thread.append("list", f"{n} " * 30)
        print(n, flush=True)
"""
HOLDER = """
import sys, backtrail
from backtrail import Key
from backtrail.sealed import keyring
keyring.FRESH = 0.0
with backtrail.open(sys.argv[1], key=Key(bytes(range(32)))) as store:
    print(store.thread("t").load().state["n"], flush=True)
    for line in sys.stdin:
        print(store.thread("t").save({"n": int(line)}).state["n"], flush=True)
"""


def started(program, path):
    place = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    return subprocess.Popen(place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def url_of(kind, tmp_path):
    return (tmp_path / "s").as_uri() if kind == "file" else tmp_path / "s.db"


@pytest.mark.parametrize("acknowledged", [1, 20, 60, 150])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_killed_writer_loses_nothing_that_was_acknowledged(tmp_path, kind, acknowledged):
    """Also if it is killed between the key of a thread and the thread."""
    with started(WRITER, url_of(kind, tmp_path)) as writer:
        for _ in range(acknowledged):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        last = max([last, *map(int, writer.stdout.read().split())])
    with backtrail.open(url_of(kind, tmp_path), key=KEY) as store:
        assert store.verify().ok
        threads = sorted(info.id for info in store.threads())
        assert len(threads) >= min(last + 1, 50)
        written = sum(len(store.thread(each).load().state["list"]) for each in threads)
        assert last - 49 <= written <= last - 48 or last < 50
        status = store.keys.status()
        assert status.threads - status.orphans == len(threads)
        store.thread("after").save({"n": 1})


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_keys_rotate_while_another_process_has_the_store_open(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(keyrings, "FRESH", 0.0)
    url = url_of(kind, tmp_path)
    with backtrail.open(url, key=KEY) as store:
        store.thread("t").save({"n": 0})
        with started(HOLDER, url) as holder:
            assert holder.stdout.readline() == "0\n"
            store.keys.rotate(data=True)
            holder.stdin.write("1\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "1\n"
            assert store.thread("t").load().state == {"n": 1}
            assert store.keys.rotate(data=True).rows == 2
            holder.stdin.write("2\n")
            holder.stdin.close()
            assert holder.stdout.readline() == "2\n"
        assert store.thread("t").load().state == {"n": 2}
        assert store.verify().ok


def test_caller_key_rotates_while_another_process_has_the_store_open(tmp_path):
    """The other process goes on with the keys that it has, until there are keys that it cannot unwrap."""
    with backtrail.open(tmp_path / "s.db", key=KEY) as store, backtrail.open(tmp_path / "s.db", key=KEY) as other:
        store.thread("t").save({"n": 0})
        store.keys.rotate(Key(bytes(32)))
        other.thread("t").save({"n": 1})
        other._backend.keyring._read_at = 0.0
        other.thread("t").save({"n": 2})
        other.thread("new").save({"n": 3})
        assert (store.thread("t").load().state, store.thread("new").load().state) == ({"n": 2}, {"n": 3})
        store._backend.keyring.add_store_generation()
        other._backend.keyring._read_at = 0.0
        with pytest.raises(backtrail.Unavailable) as caught:
            other.thread("t").save({"n": 4})
        assert caught.value.code == "unavailable.key"
        assert store.thread("t").load().state == {"n": 2}


def test_async_stores_take_keys(tmp_path):
    async def main():
        async with aio.open(tmp_path / "s.db", key=KEY) as store:
            await asyncio.gather(*(store.thread(f"t{n}").save({"n": n}) for n in range(50)))
            status = await store.keys.status()
            assert (status.threads, status.orphans) == (50, 0)
            await store.keys.backup(tmp_path / "keys.db")
            await store.keys.rotate(Key(bytes(32)))
        with pytest.raises(backtrail.Unavailable):
            await aio.open(tmp_path / "s.db", key=KEY)
        async with aio.open(tmp_path / "s.db", key=Key(bytes(32))) as store:
            assert await (await store.thread("t7").load()).load_state() == {"n": 7}
        report = await aio.copy(tmp_path / "s.db", tmp_path / "copy.db", key=Key(bytes(32)), to_key=KEY)
        assert report.checkpoints == 50

    asyncio.run(main())
    assert (tmp_path / "keys.db").exists()


def test_a_process_reads_threads_that_have_the_numbers_of_lost_ones():
    """A failover to a standby that lacks the newest threads gives their numbers to others."""
    with contextlib.ExitStack() as stack:
        opener, keys = stack.enter_context(place()), stack.enter_context(place())

        def keyring_at(*_, read_only, must_exist):
            del must_exist
            return backend_at(server().url, durability="full", read_only=read_only, schema=keys.keywords["schema"])

        with mock.patch("backtrail.store.keyring_at", keyring_at):
            store, other = (stack.enter_context(opener(key=KEY)) for _ in range(2))
        store.thread("lost").save({"n": 1})
        number = store._backend.find_thread("thread", "lost").no
        schema = sql.Identifier(opener.keywords["schema"])
        for statement in (
            "DELETE FROM {}.row WHERE thread = {}",
            "DELETE FROM {}.thread WHERE no = {}",
            "ALTER TABLE {}.thread ALTER COLUMN no RESTART WITH {}",
        ):
            server().execute(sql.SQL(statement).format(schema, sql.Literal(number)))
        other.thread("new").save({"n": 2})
        assert other._backend.find_thread("thread", "new").no == number
        assert store.thread("new").load().state == {"n": 2}
        store.thread("new").set("n", 3)
        assert other.thread("new").load().state == {"n": 3}
        assert store.verify().ok
