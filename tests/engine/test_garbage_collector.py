"""Python's garbage collector pauses during a load, and resumes after it."""

import gc
import os
import threading

import pytest

import backtrail
from backtrail import gc_pause
from backtrail.engine import throttle


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_collector_pauses_while_a_long_list_is_read(monkeypatch):
    seen = []
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        thread.save([{"n": n, "text": "x" * 50} for n in range(2000)])
        rest = throttle.rest
        monkeypatch.setattr(throttle, "rest", lambda: (seen.append(gc.isenabled()), rest())[1])
        assert len(store.thread("t").load().state) == 2000
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_collector_is_enabled_after_an_error():
    with pytest.raises(KeyboardInterrupt), gc_pause.uncollected():
        assert not gc.isenabled()
        raise KeyboardInterrupt
    assert gc.isenabled()


def test_collector_stays_off_if_it_was_off():
    gc.disable()
    with gc_pause.uncollected():
        pass
    assert not gc.isenabled()


def test_collector_is_enabled_after_overlapping_blocks():
    inner, outer = threading.Event(), threading.Event()

    def work():
        with gc_pause.uncollected():
            inner.set()
            outer.wait()

    thread = threading.Thread(target=work)
    with gc_pause.uncollected():
        thread.start()
        inner.wait()
    outer.set()
    thread.join()
    assert gc.isenabled()
    assert not gc_pause._uncollected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_meanwhile_collects():
    with gc_pause.uncollected():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
