"""gc while other processes write the chunks that it removes: every acknowledged checkpoint loads.

Each writer saves to threads of its own, from a few texts that all of them share, and takes back most of what it saved.
So at any moment chunks fall out of use that another writer is about to store again, by touching them. What a writer
keeps it knows exactly, and looks at when it has ended.
"""

import random
import time
from functools import partial
from unittest import mock

import pytest

import backtrail
from backtrail.maintenance import gc
from tests.runs.test_processes import Child
from tests.support.history_clients import Counts
from tests.support.lengths import lengths
from tests.support.servers import place, wait_for

WRITERS = 4
TEXTS = [random.Random(at).randbytes(2_600).hex() for at in range(150)]


@pytest.fixture(params=["sqlite", "file", "postgres"])
def opener(request, tmp_path):
    if request.param == "sqlite":
        yield partial(backtrail.open, tmp_path / "s.db", durability="relaxed")
    elif request.param == "file":
        yield partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")
    else:
        with place(durability="relaxed") as opened:
            yield opened


def churn(opener, writer, counts, stop, pause, tell):  # noqa: PLR0917 - what a process is given
    """Save, append, prune and delete until a file `stop` exists; return the kept checkpoints that differ."""
    rng = random.Random(writer)
    kept, took = {}, []
    with opener() as store:
        for i in range(1_000_000):
            if stop.exists():
                break
            name = f"{writer} {rng.randrange(3)}"
            thread = store.thread(name)
            state = {"texts": rng.sample(TEXTS, 3)}
            began = time.perf_counter()
            first = thread.save(state)
            took.append(time.perf_counter() - began)
            own = f"{i} " * 50
            second = thread.append("texts", own)
            kept.setdefault(name, []).extend([(first.id, state), (second.id, {"texts": [*state["texts"], own]})])
            if i % 3 == 2:
                thread.prune(keep_last=2)
                kept[name] = kept[name][-2:]
            if i % 11 == 10:
                thread.delete()
                del kept[name]
            counts.add(writer, 1)
            time.sleep(pause)
    with opener() as fresh:
        wrong = [
            ident
            for name, checkpoints in kept.items()
            for ident, state in checkpoints
            if fresh.thread(name).load(ident).state != state
        ]
        lengths = {name: len(fresh.thread(name)) for name in kept}
    wrong += [name for name, checkpoints in kept.items() if lengths[name] != len(checkpoints)]
    tell("kept", wrong=wrong, checkpoints=sum(map(len, kept.values())), saves=len(took), took=took)


def collected(opener, stop, collections, *, pause, counts=None):
    """Run gc beside the writers until it has removed something; return the reports, what writers tell, the damage."""
    counts = counts or Counts(WRITERS)
    reports = []
    with opener() as store:
        children = [Child(partial(churn, opener, writer, counts, stop, pause)) for writer in range(WRITERS)]
        try:
            wait_for(lambda: counts.total() > 10)
            while len(reports) < collections or not any(report.chunks for report in reports):
                reports.append(store.gc())
        finally:
            stop.touch()
            said = [child.wait() for child in children]
        return reports, said, store.verify().damaged


@pytest.mark.parametrize("collections", lengths(20, 1000))
def test_collections_beside_writers_leave_nothing_dangling(opener, tmp_path, collections, request):
    pause = 0.03 if collections == 20 else 0.001
    if request.node.callspec.id == "postgres-short":
        collections = 10
    reports, said, damaged = collected(opener, tmp_path / "stop", collections, pause=pause)
    assert damaged == ()
    assert [each["what"] for lines in said for each in lines] == ["kept", "end"] * WRITERS, said
    for kept, _ in said:
        assert kept["wrong"] == []
        assert kept["checkpoints"] > 0
    took = sorted(seconds for kept, _ in said for seconds in kept["took"])
    print(  # noqa: T201 - figures for the reader of the output
        f"\n{collections} collections, {sum(report.chunks for report in reports)} chunks and "
        f"{sum(report.rows for report in reports)} rows removed beside {len(took)} saves of 4 writers: "
        f"p50 {took[len(took) // 2] * 1e3:.1f} ms, p99 {took[len(took) * 99 // 100] * 1e3:.1f} ms"
    )


def test_without_epochs_something_would_dangle(opener, tmp_path):
    """A wrong sweep, which removes unmarked chunks although a writer has stamped them since."""
    counts = Counts(WRITERS)
    real = gc._sweep

    def sweep(heads, live, _epoch, *rest):
        before = counts.total()
        wait_for(lambda: counts.total() > before + 10)
        return real(heads, live, 1 << 60, *rest)

    with mock.patch.object(gc, "_sweep", sweep):
        try:
            _, said, damaged = collected(opener, tmp_path / "stop", 8, pause=0.005, counts=counts)
        except backtrail.Corrupt:  # the next collection met it
            return
    assert damaged or any(lines[-1]["what"] == "error" or lines[0]["wrong"] for lines in said)
