"""Ctrl-C at the entry of every function that locks, begins or ends something: whoever was interrupted can go on.

An interrupt is raised where a function begins, before anything in it can catch it. What has to be undone must not
depend on a function that would do it.
"""

import contextlib
import itertools
import sys

import pytest

import backtrail
from backtrail import store
from backtrail.backends import (
    file_lock,
    file_shared,
    postgres,
    postgres_group,
    postgres_pool,
    sqlite_connection,
    sqlite_group,
)
from backtrail.engine import engine, overlay, owner
from backtrail.engine.blocks import Block
from tests.servers import place

WATCHED = {
    module.__file__
    for module in (
        store,
        engine,
        owner,
        overlay,
        postgres,
        postgres_group,
        postgres_pool,
        sqlite_connection,
        sqlite_group,
        file_lock,
        file_shared,
        contextlib,
    )
}


@contextlib.contextmanager
def interrupt_at(number):
    """Raise KeyboardInterrupt at the call with this number of a function that is watched."""
    calls = itertools.count(1)

    def trace(frame, event, _):
        if event == "call" and frame.f_code.co_filename in WATCHED and next(calls) == number:
            sys.settrace(None)
            raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def transaction(store):
    with store.transaction():
        store.thread("a").save({"n": 1})


def failed_transaction(store):
    with contextlib.suppress(ZeroDivisionError), store.transaction():
        store.thread("a").save({"n": 1 / 0})


def agent(store):
    store.agents.save(backtrail.AgentState("a", "Ada", "a-model"), replace=True)
    store.agents.checkpoint("a", "now")


def reading(store):
    store.thread("t").latest()
    list(store.thread("t").history())
    list(store.threads())


@pytest.fixture(params=["memory", "sqlite", "file", "postgres"])
def stores(request, tmp_path):
    """A function that opens the same store again, in memory the same one."""
    if request.param == "postgres":
        with place() as opened:
            yield opened
        return
    if request.param == "memory":
        with backtrail.open("memory://") as store:
            yield lambda: contextlib.nullcontext(store)
        return
    url = str(tmp_path / "s.db") if request.param == "sqlite" else (tmp_path / "s").as_uri()
    yield lambda: backtrail.open(url, durability="relaxed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that are being closed
@pytest.mark.parametrize("deed", [transaction, failed_transaction, agent, reading], ids=lambda deed: deed.__name__)
def test_whoever_was_interrupted_goes_on(stores, deed):
    with stores() as store, stores() as other:
        store.thread("t").save({"n": 0})
        deed(store)  # so that all is imported
        for number in itertools.count(1):
            interrupted = True
            with contextlib.suppress(KeyboardInterrupt), interrupt_at(number):
                deed(store)
                interrupted = False
            done = store.thread("t").save({"n": number})
            assert done.state == {"n": number}
            assert other.thread("t").load().state == {"n": number}
            other.thread("t").save({"n": -number})  # nobody else is kept out
            if not interrupted:
                break
        assert number > 3
        assert store.verify().ok


class Left:
    """Leaves its block without an end."""

    def __enter__(self):
        self.block = Block.entered_by(sys._getframe(1))
        return self

    def __exit__(self, *_):
        raise KeyboardInterrupt

    def is_over(self):
        return self.block.is_over()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there a block is entered in another way, and nothing is told")
def test_a_block_knows_whether_it_is_being_run():
    left, told = Left(), []
    for at in range(3):
        try:
            with left:
                told.append(left.is_over())
                try:
                    told.append(next(iter([left.is_over()])))
                    told.append(1 / (at - 1) > 2)
                except ZeroDivisionError:
                    told.append(left.is_over())
                with contextlib.nullcontext():
                    told.append(left.is_over())
        except KeyboardInterrupt:
            assert left.is_over()
        assert left.is_over()
    assert told == [False] * 12


def test_what_may_wait_is_not_told():
    def generator():
        with left:
            yield

    left = Left()
    waiting = generator()
    next(waiting)
    assert left.block is None
    with pytest.raises(KeyboardInterrupt):
        waiting.close()
    stack = contextlib.ExitStack()
    assert stack.enter_context(left).block is None
    stack.pop_all()
