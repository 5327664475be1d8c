"""Promises that no other file is about: the event loop keeps turning, and filters are only data."""

import asyncio
import random
import statistics
import time
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backtrail
from backtrail import aio
from tests.support.servers import place

# ---- the event loop -------------------------------------------------------------------------------------------------


def large(megabytes):
    rng = random.Random(1)
    texts = [rng.randbytes(450).hex() for _ in range(1000)]
    return {"messages": [{"role": "user", "content": f"{n} {texts[n % 1000]}"} for n in range(megabytes * 1000)]}


async def late_during(work):
    """Return by how many seconds a task that wakes up every millisecond was late each time, while work was done."""
    late, done = [], asyncio.Event()

    async def watch():
        while not done.is_set():
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - begun - 0.001)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        await work
    finally:
        done.set()
        await watching
    return late


async def saving(path, state, *, blocking=False):
    async with aio.open(path, durability="relaxed") as store:
        if not blocking:
            return await late_during(store.thread("t").save(state))

        async def block():
            store._sync.thread("t").save(state)

        return await late_during(block())


def test_the_event_loop_turns_while_a_large_state_is_saved(tmp_path):
    state = large(3)
    assert len(asyncio.run(saving(tmp_path / "s.db", state))) > 10
    assert len(asyncio.run(saving(tmp_path / "t.db", state, blocking=True))) < 3  # it would be noticed


@pytest.mark.torture
def test_event_loop_stays_responsive_during_a_50_mb_save(tmp_path):
    late = asyncio.run(saving(tmp_path / "s.db", large(50)))
    p99 = statistics.quantiles(late, n=100)[98]
    print(f"\nevent loop during a save of 50 MB: {len(late)} turns, p99 {p99 * 1e3:.1f} ms late")  # noqa: T201
    assert p99 < 0.010


# ---- filters --------------------------------------------------------------------------------------------------------

HOSTILE = ["a", "a.b", "$.a", "$", "a' OR 1=1 --", '"', "'); DROP TABLE row; --", "%", "_", "a\\", "é", "\0", "[0]", ""]
keys = st.sampled_from(HOSTILE)
values = st.sampled_from([*HOSTILE, None, 0, 1, 1.0, True, False, [1], ["a"], {"a": 1}, {}])
names = st.sampled_from([each for each in HOSTILE if each])
marks = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(keys, values, min_size=1, max_size=2),
        "label": names,
        "tag": names,
        "kind": st.sampled_from(["manual", "automatic", "recovery"]),
    },
)


@pytest.fixture(scope="module", params=["memory", "sqlite", "file", "postgres"])
def marked(request, tmp_path_factory):
    """A thread whose checkpoints are marked in many ways, and those marks."""
    path = tmp_path_factory.mktemp("marked")
    opener = {
        "memory": partial(backtrail.open, "memory://"),
        "sqlite": partial(backtrail.open, path / "s.db", durability="relaxed"),
        "file": partial(backtrail.open, path.as_uri(), durability="relaxed"),
    }.get(request.param)
    if opener is None:
        with place(durability="relaxed") as opened, opened() as store:
            yield mark(store.thread("t"))
    else:
        with opener() as store:
            yield mark(store.thread("t"))


def mark(thread):
    rng = random.Random(1)
    labels = [each for each in HOSTILE if each]
    scalars = [*HOSTILE, None, 0, 1, 1.0, True, False, [1], {"a": 1}]
    made = []
    for n in range(60):
        marks = {
            "metadata": {key: rng.choice(scalars) for key in rng.sample(HOSTILE, rng.randrange(4))},
            "label": rng.choice([None, *labels]),
            "tags": tuple(rng.sample(labels, rng.randrange(3))),
            "kind": rng.choice(["manual", "automatic", "recovery"]),
        }
        thread.save(n, **marks)
        made.append(marks)
    return thread, made


def fits(marks, wanted):
    there = marks["metadata"]
    return (
        all(key in there and there[key] == value for key, value in wanted.get("metadata", {}).items())
        and wanted.get("label", marks["label"]) == marks["label"]
        and ("tag" not in wanted or wanted["tag"] in marks["tags"])
        and wanted.get("kind", marks["kind"]) == marks["kind"]
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=marks)
def test_filters_return_what_the_model_returns(marked, wanted):
    thread, made = marked
    found = [checkpoint.step - 1 for checkpoint in thread.history(**wanted)]
    assert found == [n for n, marks in enumerate(made) if fits(marks, wanted)]
