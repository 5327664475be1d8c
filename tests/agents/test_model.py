"""Random scripts of what can be done with agents, held against a model in plain dicts."""

import contextlib
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

import backtrail
from backtrail.engine.tree import edits
from tests.support.agent_script import AgentScript
from tests.support.chunks import small_chunks
from tests.support.places import in_memory
from tests.support.schemas import swept


@contextlib.contextmanager
def in_file():
    directory = tempfile.mkdtemp()
    try:
        yield partial(backtrail.open, Path(directory, "store.db"), durability="relaxed")
    finally:
        shutil.rmtree(directory)


def in_postgres():
    return swept(durability="relaxed")


PLACES = pytest.mark.parametrize("where", [in_memory, in_file, in_postgres])


def run(where, seed, steps):
    with contextlib.ExitStack() as stack:
        if seed % 2:
            stack.enter_context(small_chunks(inline=400))  # the undo of a restore is metadata
            stack.enter_context(mock.patch.object(edits, "OPS_MAX", 3))
        script = AgentScript(stack.enter_context(where()), random.Random(seed))
        for _ in range(steps):
            script.step()
        with script.store as store:
            assert store.verify().ok, script.log


@PLACES
@pytest.mark.parametrize("seed", range(2))
def test_agents_match_the_model(where, seed):
    run(where, seed, 80)


@pytest.mark.torture
@PLACES
@pytest.mark.parametrize("part", range(10))
def test_agents_match_the_model_over_long_runs(where, part):
    for seed in range(100 + 20 * part, 120 + 20 * part):
        run(where, seed, 400)
