"""A store in PostgreSQL with millions of checkpoints: what takes how long, and what a checkpoint takes on disk.

    python -m bench.million --threads 200000 --checkpoints 2000000

Without --url it starts a server of its own and stops it at the end. With --url it uses that server, and the schema
stays: then --phase runs one part at a time on the same store. CPU times are those of this process, and of this process
and the server's connections together, if both run on this machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

import backtrail
from bench import server
from bench.data import Messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PHASES = ("load", "move", "calls", "index", "search", "hot", "verify", "prune", "gc")
SIZE = 400
"""The characters of a message."""
BLOCK = 20_000
"""Checkpoints per bulk block."""


def main() -> None:
    """Run the phases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=200_000)
    parser.add_argument("--checkpoints", type=int, default=2_000_000)
    parser.add_argument("--url", help="a server to use; the store stays")
    parser.add_argument("--schema", default="million")
    parser.add_argument("--phase", choices=PHASES, action="append", help="may be repeated; the default is all of them")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.url is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="million-")))
            options.url = stack.enter_context(server.server(directory))
        store = stack.enter_context(backtrail.open(options.url, schema=options.schema))
        database = stack.enter_context(psycopg.connect(options.url, autocommit=True))
        for phase in options.phase or PHASES:
            globals()[f"_{phase}"](store, database, options)


def say(*words: Any) -> None:
    """Print a line at once."""
    print(time.strftime("%H:%M:%S"), *words, flush=True)


@contextmanager
def measured(what: str, count: int, database: psycopg.Connection[Any]) -> Iterator[None]:
    """Print the rate of the block, by wall time and by CPU time, and the memory that this process has needed."""
    wall, cpu, server_cpu = time.perf_counter(), time.process_time(), _server_cpu(database)
    yield
    wall, cpu, now = time.perf_counter() - wall, max(time.process_time() - cpu, 1e-9), _server_cpu(database)
    both = cpu + sum(seconds - server_cpu.get(pid, 0.0) for pid, seconds in now.items())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rates = f"{count / wall:,.0f}/s by wall time, {count / cpu:,.0f}/s by CPU time of this process"
    if now:
        rates += f", {count / both:,.0f}/s of both"
    say(f"{what}: {count:,} in {wall:.1f} s, {rates}; this process has used {memory} MB at most")


def _server_cpu(database: psycopg.Connection[Any]) -> dict[int, float]:
    """Return the CPU seconds of each of the server's connections; empty if it runs on another machine."""
    seconds = {}
    for (pid,) in database.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def best(what: str, work: Callable[[], Any], rounds: int = 7) -> None:
    """Print the best and the worst time of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    say(f"{what}: {min(times) * 1e3:.1f} ms (worst of {rounds}: {max(times) * 1e3:.1f})")


def progress(every: int) -> Callable[[str, int], None]:
    """Return a callback that prints a report now and then."""
    last: dict[str, int] = {}

    def tell(what: str, count: int) -> None:
        if count - last.get(what, 0) >= every:
            last[what] = count
            say(f"  {what} {count:,}")

    return tell


# -- the phases -----------------------------------------------------------------------------------------


def _load(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Create the threads in bulk blocks."""
    wal = _wal(database)
    with measured("load", options.threads * _each(options), database):
        _fill(store, options, options.threads)
    say(f"WAL: {(_wal(database) - wal) / options.checkpoints:,.0f} bytes per checkpoint")
    _sizes(database, options)


def _each(options: argparse.Namespace) -> int:
    return int(options.checkpoints // options.threads)


def _fill(store: backtrail.Store, options: argparse.Namespace, threads: int) -> None:
    """Create threads, each with a first save and appends of one message, in bulk blocks."""
    each = _each(options)
    texts = [message["content"][:SIZE] for message in Messages(1).many(2_000)]
    per_block = max(BLOCK // each, 1)
    for start in range(0, threads, per_block):
        with store.bulk():
            for at in range(start, min(start + per_block, threads)):
                thread = store.thread(f"t{at}", agent=f"agent{at % 100}")
                thread.save({"messages": []})
                for n in range(1, each):
                    text = f"{at} {n} {texts[(at * 7 + n) % len(texts)]}"
                    thread.append("messages", {"role": "user", "id": f"m{at}.{n}", "content": text})
        if start // per_block % 10 == 0:
            say(f"  {(start + per_block) * each:,} checkpoints")


def _move(_: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Import an export, and copy the same store from SQLite, each into a new schema: a tenth of the threads."""
    threads = max(options.threads // 10, 1)
    count = threads * _each(options)
    with tempfile.TemporaryDirectory(prefix="million-") as directory:
        source, file = f"{directory}/source.db", f"{directory}/export"
        with backtrail.open(source, durability="relaxed") as small:
            _fill(small, options, threads)
            small.export(file)
        for what in ("import", "copy"):
            schema = f"{options.schema}_{what}"
            with backtrail.open(options.url, schema=schema) as target:
                target.stats()  # its connection exists before the measurement
                with measured(f"{what} into PostgreSQL", count, database):
                    if what == "import":
                        target.import_(file)
                    else:
                        backtrail.copy(source, target)
            database.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def _calls(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Time the calls that a program makes."""
    database.execute("ANALYZE")
    at = iter(range(0, options.threads, max(options.threads // 1000, 1)))
    best("list the newest 20", lambda: list(store.threads(limit=20)))
    best("list the newest 20 of an agent", lambda: list(store.threads(agent="agent7", limit=20)))
    best("list 20 by prefix", lambda: list(store.threads(prefix="t12", limit=20)))
    best("the newest 20 of all checkpoints", lambda: list(store.activity(limit=20)))
    best("load a state", lambda: store.thread(f"t{next(at)}").latest().state)  # type: ignore[union-attr]
    best("history of a thread", lambda: list(store.thread(f"t{next(at)}").history()))
    best("first append", lambda: store.thread(f"t{next(at)}").append("messages", {"role": "user", "content": "x"}))
    thread: backtrail.Thread[Any] = store.thread("t1")
    best("next append", lambda: thread.append("messages", {"role": "user", "content": "x"}), rounds=50)
    best("stats", store.stats, rounds=2)


def _index(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Index all messages."""
    with measured("index messages", options.checkpoints - options.threads, database):
        store.index(progress=progress(20_000))
    database.execute("ANALYZE")
    _sizes(database, options)


def _search(store: backtrail.Store, _: psycopg.Connection[Any], __: argparse.Namespace) -> None:
    search = partial(store.search, wait=False)
    say(f"{store.stats().indexed:,} messages are indexed; {search('x').behind:,} threads are not")
    best("search a number that few messages have", lambda: search("1234 hotel"))
    best("search a common word", lambda: search("museum"))
    best("search two common words", lambda: search("museum budget"))
    best("search a phrase", lambda: search('"small place"'))
    best("search a prefix", lambda: search("muse*"))
    best("search in one agent", lambda: search("museum", agent="agent7"))
    best("search part of a word", lambda: search("useu", contains=True), rounds=3)
    thread: backtrail.Thread[Any] = store.thread("t2")

    def appended() -> None:
        thread.append("messages", {"role": "user", "content": "fresh"})
        assert store.search("fresh", thread="t2", limit=1)

    best("append, then search in its thread", appended)


def _hot(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Append to random threads one by one, and count the HOT updates of the thread table."""
    database.execute("SELECT pg_stat_force_next_flush()")
    before = _updates(database, options.schema)
    count = min(5_000, options.threads)
    with measured("single appends", count, database):
        for at in range(count):
            thread: backtrail.Thread[Any] = store.thread(f"t{at * 7919 % options.threads}")
            thread.append("messages", {"role": "user", "content": "y"})
    time.sleep(2)  # the server's statistics are late
    updates, hot = (now - was for now, was in zip(_updates(database, options.schema), before, strict=True))
    say(f"updates of threads: {updates:,}, of which HOT {hot / max(updates, 1):.1%}")


def _verify(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    with measured("verify", options.checkpoints, database):
        assert store.verify(progress=progress(options.checkpoints // 10)).ok


def _prune(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    with measured("prune to the last 5", options.threads, database):
        say(store.prune(keep_last=5, progress=progress(options.threads // 10)))


def _gc(store: backtrail.Store, database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    with measured("gc", options.checkpoints, database):
        say(store.gc(progress=progress(options.checkpoints // 10)))
    _sizes(database, options)


# -- what the server says -------------------------------------------------------------------------------


def _wal(database: psycopg.Connection[Any]) -> int:
    return int(database.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()[0])  # type: ignore[index]


def _updates(database: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    row = database.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'thread'",
        [schema],
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def _sizes(database: psycopg.Connection[Any], options: argparse.Namespace) -> None:
    """Print the bytes of each table and index, per checkpoint."""
    rows = database.execute(
        "SELECT regexp_replace(c.relname, '_\\d(_|$)', '\\1'), sum(pg_relation_size(c.oid) + CASE WHEN c.relkind = 'r' "
        "THEN coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) ELSE 0 END)::bigint FROM pg_class c "
        "WHERE c.relnamespace = %s::regnamespace AND c.relkind IN ('r', 'i') GROUP BY 1 ORDER BY 2 DESC",
        [options.schema],
    ).fetchall()
    total = sum(size for _, size in rows)
    say(f"tables and indexes: {total / 1e6:,.0f} MB, {total / options.checkpoints:,.0f} bytes per checkpoint")
    for name, size in rows[:12]:
        say(f"  {name}: {size / 1e6:,.1f} MB, {size / options.checkpoints:,.1f} per checkpoint")


if __name__ == "__main__":
    sys.exit(main())
