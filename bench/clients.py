"""Many clients at once: processes and threads through PgBouncer, and coroutines on one store. Every error is counted.

    python -m bench.clients --url postgresql://... --clients 500 --processes 4
    python -m bench.clients --url postgresql://... --coroutines 5000

Each client has a thread of its own, and appends to it, reads it and lists threads in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import multiprocessing
import sys
import threading
import time
import uuid
from typing import Any

import backtrail
import backtrail.aio


def main() -> None:
    """Run the clients, print the rate, the latency and the errors, and check that nothing is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of PgBouncer, or of the server itself")
    parser.add_argument("--schema", default=f"clients_{uuid.uuid4().hex[:8]}")
    parser.add_argument("--clients", type=int, default=0, help="stores with one connection each")
    parser.add_argument("--processes", type=int, default=4, help="that the clients are spread over")
    parser.add_argument("--coroutines", type=int, default=0, help="on one store")
    parser.add_argument("--rounds", type=int, default=10, help="appends of each client")
    options = parser.parse_args()
    with backtrail.open(options.url, schema=options.schema) as store:
        start = time.perf_counter()
        number = options.clients or options.coroutines
        times, errors = _processes(options) if options.clients else asyncio.run(_coroutines(options))
        wall = time.perf_counter() - start
        times.sort()
        kept = sum(len(info.id) > 0 for info in store.threads(prefix="client"))
        lengths = collections.Counter(
            len(store.thread(f"client{at}").latest().state["items"])  # type: ignore[union-attr]
            for at in range(0, number, max(number // 50, 1))
        )
    print(f"{number:,} clients, {len(times):,} appends in {wall:.1f} s: {len(times) / wall:,.0f} a second")
    print(f"latency in ms: median {times[len(times) // 2] * 1e3:.0f}, p99 {times[len(times) * 99 // 100] * 1e3:.0f}")
    print(f"errors: {sum(errors.values())} {dict(errors) or ''}")
    print(f"threads: {kept:,}; lengths of a sample: {dict(lengths)}")
    sys.exit(bool(errors) or kept != number or set(lengths) != {options.rounds})


def _client(store: backtrail.Store, at: int, rounds: int, times: list[float]) -> None:
    thread: backtrail.Thread[Any] = store.thread(f"client{at}")
    thread.save({"items": []})
    for n in range(rounds):
        start = time.perf_counter()
        thread.append("items", {"n": n, "text": "x" * 200})
        times.append(time.perf_counter() - start)
        latest = thread.latest()
        assert latest is not None
        assert len(latest.state["items"]) == n + 1
    assert list(store.threads(limit=1))


def _processes(options: argparse.Namespace) -> tuple[list[float], collections.Counter[str]]:
    per, rest = divmod(options.clients, options.processes)
    context = multiprocessing.get_context("spawn")
    shares, first = [], 0
    for at in range(options.processes):
        count = per + (at < rest)
        shares.append((options.url, options.schema, first, count, options.rounds))
        first += count
    with context.Pool(options.processes) as pool:
        results = pool.starmap(_share, shares)
    errors: collections.Counter[str] = collections.Counter()
    for _, failed in results:
        errors.update(failed)
    return [each for times, _ in results for each in times], errors


def _share(url: str, schema: str, first: int, count: int, rounds: int) -> tuple[list[float], dict[str, int]]:
    """Run some of the clients in this process, a Python thread and a store for each."""
    times: list[float] = []
    errors: collections.Counter[str] = collections.Counter()
    together = threading.Barrier(count)

    def run(at: int) -> None:
        try:
            with backtrail.open(url, schema=schema) as store:
                together.wait()
                _client(store, at, rounds, times)
        except (backtrail.Error, AssertionError) as error:
            errors[f"{type(error).__name__}: {error}"[:200]] += 1

    threads = [threading.Thread(target=run, args=(first + at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, dict(errors)


async def _coroutines(options: argparse.Namespace) -> tuple[list[float], collections.Counter[str]]:
    times: list[float] = []
    errors: collections.Counter[str] = collections.Counter()
    async with backtrail.aio.open(options.url, schema=options.schema) as store:

        async def run(at: int) -> None:
            try:
                thread: Any = store.thread(f"client{at}")
                await thread.save({"items": []})
                for n in range(options.rounds):
                    start = time.perf_counter()
                    await thread.append("items", {"n": n, "text": "x" * 200})
                    times.append(time.perf_counter() - start)
                assert len(await (await thread.latest()).load_state()) == 1
            except (backtrail.Error, AssertionError) as error:
                errors[f"{type(error).__name__}: {error}"[:200]] += 1

        await asyncio.gather(*(run(at) for at in range(options.coroutines)))
    return times, errors


if __name__ == "__main__":
    main()
