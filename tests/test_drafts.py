"""Drafts: whatever a step does to its state is saved as if the whole state had been, and costs what it changed."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import backtrail
from backtrail.testing import exact
from backtrail.testing.chunks import small_chunks
from tests.draft_scripts import Pair, value

NUMBER = st.integers(0, 10**6)
SCRIPT = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=8)


class Dropped(Exception):
    pass


def run(first, steps):
    store = backtrail.open("memory://")
    thread, other = store.thread("draft"), store.thread("plain")
    thread.save(copy.deepcopy(first))
    other.save(first)
    pair = Pair(None, first)
    for script, fails in steps:
        before = copy.deepcopy(pair.root[1])
        refused = None
        try:
            with thread.step() as state:
                assert exact.same(copy.deepcopy(state), before)
                pair.root = state, pair.root[1]
                pair.run(script)
                if fails:
                    raise Dropped
        except Dropped:
            pair.root, pair.kept = (None, before), []
            assert exact.same(thread.load().state, before)
            continue
        except backtrail.Invalid as error:
            refused = error
        if refused is not None:
            with pytest.raises(backtrail.Invalid):
                other.save(pair.root[1])
            pair.root, pair.kept = (None, before), []
            continue
        saved = other.save(pair.root[1])
        assert thread.load().root == saved.root
        assert exact.same(thread.load().state, saved.state)
        assert exact.same(copy.deepcopy(pair.root[0]), saved.state)
        pair.settled(copy.deepcopy(saved.state))
    store.close()


STEPS = st.lists(st.tuples(SCRIPT, st.sampled_from([False, False, False, True])), max_size=5)
FIRST = st.lists(NUMBER, max_size=6).map(lambda numbers: {"l": [value(n) for n in numbers], "d": {}, "n": 1})


@given(FIRST, STEPS)
@settings(max_examples=300, deadline=None)
def test_a_draft_saves_what_a_plain_save_of_the_same_changes_saves(first, steps):
    run(first, steps)


@given(FIRST, STEPS)
@settings(max_examples=300, deadline=None)
def test_a_draft_saves_what_a_plain_save_saves_in_small_chunks(first, steps):
    with small_chunks():
        run(first, steps)
