"""Several processes on one SQLite file: every acknowledged write is there, once, in its writer's order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import backtrail
from tests.support.processes import spawn

if TYPE_CHECKING:
    import multiprocessing
    from pathlib import Path

WRITERS = 8
EACH = 40


def _append(path: str, writer: int, acknowledged: multiprocessing.Queue[tuple[int, int]]) -> None:
    with backtrail.open(path) as store:
        thread = store.thread("shared")
        for i in range(EACH):
            thread.append("messages", {"writer": writer, "i": i})
            acknowledged.put((writer, i))


def _update(path: str, _writer: int, _unused: object) -> None:
    with backtrail.open(path) as store:
        thread = store.thread("counter")

        def bump(state: dict[str, int] | None) -> dict[str, int]:
            return {"n": (state or {"n": 0})["n"] + 1}

        for _ in range(EACH // 4):
            thread.update(bump, retries=1000)


def _run(target: object, path: Path) -> list[tuple[int, int]]:
    queue = spawn.Queue()
    workers = [spawn.Process(target=target, args=(str(path), writer, queue)) for writer in range(WRITERS)]  # type: ignore[arg-type]
    for worker in workers:
        worker.start()
    seen: list[tuple[int, int]] = []
    while any(worker.is_alive() for worker in workers) or not queue.empty():
        while not queue.empty():
            seen.append(queue.get())
        time.sleep(0.01)
    assert [worker.exitcode for worker in workers] == [0] * WRITERS
    return seen


def test_eight_appending_processes_lose_nothing_and_keep_order(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        store.thread("shared").save({"messages": []})
    acknowledged = _run(_append, path)
    with backtrail.open(path) as store:
        messages = [(m["writer"], m["i"]) for m in store.thread("shared").load().state["messages"]]
    assert sorted(messages) == sorted(acknowledged) == [(w, i) for w in range(WRITERS) for i in range(EACH)]
    for writer in range(WRITERS):
        assert [i for w, i in messages if w == writer] == list(range(EACH))


def test_eight_processes_updating_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    _run(_update, path)
    with backtrail.open(path) as store:
        thread = store.thread("counter")
        assert thread.load().state == {"n": WRITERS * (EACH // 4)}
        assert len(thread) == WRITERS * (EACH // 4)
        assert [c.step for c in thread.history()] == list(range(1, len(thread) + 1))


_CRASHER = """
import sys, backtrail
store = backtrail.open(sys.argv[1])
thread = store.thread("t")
thread.save({"messages": []})
i = 0
while True:
    thread.append("messages", "x" * 500 + str(i))
    print(i, flush=True)
    i += 1
"""


def test_a_killed_writer_leaves_every_acknowledged_append(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    for _ in range(3):
        command = [sys.executable, "-c", _CRASHER, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        last = -1
        for line in child.stdout:
            last = int(line)
            if last == 60:
                os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with backtrail.open(path) as store:
            messages = store.thread("t").load().state["messages"]
            assert [m.removeprefix("x" * 500) for m in messages[: last + 1]] == [str(i) for i in range(last + 1)]
            assert len(messages) - (last + 1) in (0, 1)  # one more may have been written and not yet told
            assert store.verify().ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_a_store_survives_fork_in_parent_and_child(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with backtrail.open(path) as store:
        thread = store.thread("t")
        thread.save({"n": []})
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                thread.append("n", "child")
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        thread.append("n", "parent")
        assert sorted(thread.load().state["n"]) == ["child", "parent"]
    with backtrail.open(path) as store:
        assert sorted(store.thread("t").load().state["n"]) == ["child", "parent"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_child_forked_while_a_store_is_opened_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.db"
    backtrail.open(path).close()
    children: list[int] = []

    class Forking(apsw.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if not children:
                children.append(os.fork())
                if children == [0]:
                    code = 1
                    try:
                        backtrail.open(path)
                    except backtrail.Unavailable as error:
                        code = 0 if error.code == "unavailable.forked" else 2
                    finally:
                        os._exit(code)

    monkeypatch.setattr(apsw, "Connection", Forking)
    backtrail.open(path).close()
    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 0


COLD = """
import sys, backtrail
from backtrail.backends.sqlite.backend import SqliteBackend
bodies = []
read = SqliteBackend.chunks
def counted(self, digests):
    found = read(self, digests)
    from backtrail.engine.compression import unsqueeze
    bodies.extend(unsqueeze(data, limit=1 << 30)[:1] for data in found.values())
    return found
SqliteBackend.chunks = counted
with backtrail.open(sys.argv[1]) as store:
    state = {"messages": [{"role": "user", "content": f"message {at} " + "some words " * 8} for at in range(10_001)]}
    saved = store.thread("t").save(state)
    print(saved.stored, bodies.count(b"L") + bodies.count(b"T"))
    thread = store.thread("other")
    print(thread.append("messages", state["messages"][-1]).stored)
"""


def test_first_save_of_a_process_costs_one_append(tmp_path):
    state = {"messages": [{"role": "user", "content": f"message {at} " + "some words " * 8} for at in range(10_000)]}
    with backtrail.open(tmp_path / "s.db") as store:
        for name in ("t", "other"):
            store.thread(name).save(state)
    done = subprocess.run(
        [sys.executable, "-c", COLD, str(tmp_path / "s.db")], capture_output=True, text=True, check=True
    )
    saved, bodies, appended = map(int, done.stdout.split())
    assert bodies == 0
    assert saved <= appended + 64


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_forked_child_does_not_wait_for_its_parents_lookup(
    tmp_path: Path,
) -> None:
    with backtrail.open(tmp_path / "s.db") as store:
        store.thread("t").save({"m": ["a" * 10_000]})
        cache = store._engine.session.reader.cache
        with cache._lock:  # as if another thread had it
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                cache.get(b"anything")
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
