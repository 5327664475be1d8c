"""Eight processes append to lists and read them: their history is linearizable.

`tests.support.histories` checks what `tests.support.history_clients` did. That the checker finds what it is there for
is shown with histories made by hand, one for each anomaly, and with clients that have a fault of each kind.
"""

import contextlib
import random
import time
from functools import partial
from typing import NamedTuple
from unittest import mock

import pytest

import backtrail
from backtrail.backends.port import Stale
from backtrail.engine import writer
from backtrail.engine.writer import LogWriter
from backtrail.overlay import Overlay
from tests.support import histories
from tests.support.histories import APPEND, FAILED, FOREVER, POP, READ, SAW, TAKEN, UNKNOWN, Operation, unstacked
from tests.support.history_clients import Clients, read_history
from tests.support.lengths import lengths
from tests.support.servers import place


@pytest.fixture(params=["sqlite", "file", "postgres"])
def opener(request, tmp_path):
    if request.param == "sqlite":
        yield partial(backtrail.open, tmp_path / "s.db", durability="relaxed")  # a kill is no power cut
    elif request.param == "file":
        yield partial(backtrail.open, (tmp_path / "s").as_uri(), durability="relaxed")
    else:
        with place(durability="relaxed") as opened:
            yield opened


def recorded(opener, directory, total, *, seed=None, every=None):
    """Let clients work; return what they did, how the lists are then, and the clients."""
    opener().close()
    directory.mkdir()
    clients = Clients(opener, directory, total, seed=seed, most=8 if every is None else 400)
    if every is not None:
        clients.disturb(every)
    clients.wait()
    history, refused = read_history(directory)
    with opener() as store:
        final = {info.id: info for info in store.threads()}
        final = {name: store.thread(name).load().state["items"] for name in final}
        versions = {info.id: stack_versions(store, info.id) for info in store.threads(kind="conversation")}
        if seed is None:
            assert store.verify().ok
    history, stacks, anomalies = unstacked(history, versions)
    return history, refused, Final(final | stacks, anomalies), clients


class Final(NamedTuple):
    """How the lists are in the end, and what the stacks alone show."""

    lists: dict
    anomalies: list


def stack_versions(store, name):
    """Return the states that a stack had."""
    checkpoints = store.conversations.thread(name).history()
    return [[int(message["content"]) for message in checkpoint.get("messages")] for checkpoint in checkpoints]


def check(history, final):
    """Return the anomalies of a history, and of its stacks."""
    if isinstance(final, dict):
        return histories.check(history, final)
    return final.anomalies + histories.check(history, final.lists)


# ---- real histories -------------------------------------------------------------------------------------------------


@pytest.mark.torture
def test_history_of_eight_processes_is_linearizable(opener, tmp_path):
    history, refused, final, _ = recorded(opener, tmp_path / "clients", 100_000)
    assert len(history) >= 100_000
    assert sum(each.status == "ok" for each in history) > 60_000
    began = time.perf_counter()
    assert check(history, final) == []
    report(history, refused, began)


@pytest.mark.parametrize("total", lengths(400, 100_000))
def test_histories_stay_linearizable_under_kills(opener, tmp_path, total):
    history, refused, final, clients = recorded(opener, tmp_path / "clients", total, every=0.06)
    assert clients.kills > 0
    assert clients.stops > 0
    assert sum(each.status == "ok" for each in history) > total * 0.6
    began = time.perf_counter()
    assert check(history, final) == []
    report(history, refused, began, clients)


def report(history, refused, began, clients=None):
    counts = {status: sum(each.status == status for each in history) for status in ("ok", "failed", "unknown")}
    seconds = (max(each.began for each in history) - min(each.began for each in history)) / 1e9
    disturbed = f", {clients.kills} kills, {clients.stops} stops" if clients else ""
    print(  # noqa: T201 - figures for docs/reliability.md
        f"\n{len(history)} operations in {seconds:.1f} s: {counts}{disturbed}, refused {refused}; "
        f"checked in {time.perf_counter() - began:.1f} s"
    )


# ---- clients with a fault -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def without_compare_and_swap():
    """The last writer wins: the state that a save was derived from is not checked."""
    real = backtrail.Thread.save

    def save(thread, state, *, expect, **options):
        return real(thread, state, expect=expect if expect is backtrail.NEW else None, **options)

    with mock.patch.object(backtrail.Thread, "save", save):
        yield


@contextlib.contextmanager
def with_a_stale_cache():
    real, kept = backtrail.Thread.load, {}

    def load(thread, *args):
        if thread._engine.session.overlay is not None:
            return real(thread, *args)
        if thread.id not in kept:
            kept[thread.id] = real(thread, *args)
        return kept[thread.id]

    with mock.patch.object(backtrail.Thread, "load", load):
        yield


@contextlib.contextmanager
def with_retries_that_forget_what_was_done():
    real, chance = LogWriter.save, random.Random(1)

    def save(*args, **options):
        done = real(*args, **options)
        return real(*args, **options) if chance.random() < 0.05 else done

    with mock.patch.object(LogWriter, "save", save):
        yield


@contextlib.contextmanager
def with_transactions_in_two_parts():
    real = Overlay._write

    def write(overlay):
        rows = overlay._rows
        for number in sorted(rows):
            overlay._rows = {number: rows[number]}
            real(overlay)
            time.sleep(0.003)

    with mock.patch.object(Overlay, "_write", write):
        yield


@contextlib.contextmanager
def with_decisions_on_what_a_handle_knew():
    """What a function raises counts, however old the state was that it saw."""
    real = writer.with_retries

    def with_retries(heads, key, attempt, known=None):
        if known is not None:
            try:
                return attempt(known)
            except writer.Decided as decided:
                raise decided.error from None
            except (Stale, backtrail.Error):
                pass
        return real(heads, key, attempt)

    with mock.patch.object(writer, "with_retries", with_retries):
        yield


@pytest.mark.torture
@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (with_decisions_on_what_a_handle_knew, {"stale decision", "stale read"}),
        (without_compare_and_swap, {"lost append"}),
        (with_a_stale_cache, {"stale read"}),
        (with_retries_that_forget_what_was_done, {"duplicate"}),
        (with_transactions_in_two_parts, {"aborted read", "G-single", "G-single in real time", "G1c in real time"}),
    ],
)
def test_a_fault_of_the_clients_is_found(tmp_path, seed, kinds):
    opener = partial(backtrail.open, tmp_path / "s.db", durability="relaxed")
    history, _, final, _ = recorded(opener, tmp_path / "clients", 500, seed=seed)
    found = {anomaly.kind for anomaly in check(history, final)}
    assert found & kinds, found


# ---- histories made by hand -----------------------------------------------------------------------------------------


def a(key, value):
    return (APPEND, key, value)


def r(key, *values):
    return (READ, key, list(values))


def of(*operations):
    """A history of (parts, began, ended, status), named by their places."""
    return [Operation(f"T{at}", tuple(parts), *more) for at, (parts, *more) in enumerate(operations)]


def test_good_histories_are_good():
    good = of(
        ([a("x", 1)], 0, 10),
        ([a("x", 2), a("y", 1)], 5, 20),
        ([r("x", 1), r("y")], 6, 15),
        ([a("x", 3), a("x", 4), r("x", 1, 2, 3, 4)], 21, 30),
        ([r("x")], 0, 50),  # it began before all of them
        ([a("y", 7)], 22, 60, FAILED),
        ([a("y", 8)], 22, FOREVER, UNKNOWN),
        ([a("x", 9), a("y", 9)], 22, FOREVER, UNKNOWN),
    )
    assert check(good, {"x": [1, 2, 3, 4, 9], "y": [1, 9]}) == []


BAD = {
    "lost append": (of(([a("x", 1)], 0, 1), ([a("x", 2)], 2, 3)), {"x": [2]}),
    "duplicate": (of(([a("x", 1)], 0, 1)), {"x": [1, 1]}),
    "invented": (of(([a("x", 1)], 0, 1)), {"x": [1, 5]}),
    "aborted read": (of(([a("x", 1)], 0, 1, FAILED)), {"x": [1]}),
    "torn": (of(([a("x", 1), a("y", 1)], 0, FOREVER, UNKNOWN)), {"x": [1], "y": []}),
    "no prefix": (of(([a("x", 1)], 0, 9), ([a("x", 2)], 0, 9), ([r("x", 2)], 0, 9)), {"x": [1, 2]}),
    "intermediate read": (of(([a("x", 1), a("x", 2)], 0, 9), ([r("x", 1)], 0, 9)), {"x": [1, 2]}),
    "internal": (of(([a("x", 1), r("x")], 0, 9)), {"x": [1]}),
    "stale read": (of(([a("x", 1)], 0, 1), ([r("x")], 2, 3)), {"x": [1]}),
    "G0": (of(([a("x", 1), a("y", 1)], 0, 9), ([a("x", 2), a("y", 2)], 0, 9)), {"x": [1, 2], "y": [2, 1]}),
    "G1c": (of(([a("x", 1), r("y", 1)], 0, 9), ([a("y", 1), r("x", 1)], 0, 9)), {"x": [1], "y": [1]}),
    "G-single": (of(([a("x", 1), a("y", 1)], 0, 9), ([r("x", 1), r("y")], 0, 9)), {"x": [1], "y": [1]}),
    "G2": (of(([r("x"), a("y", 1)], 0, 9), ([r("y"), a("x", 1)], 0, 9)), {"x": [1], "y": [1]}),
    "G0 in real time": (of(([a("x", 1)], 0, 1), ([a("x", 2)], 2, 3)), {"x": [2, 1]}),
    "G1c in real time": (of(([r("x", 1)], 0, 1), ([a("x", 1)], 2, 3)), {"x": [1]}),
    "G-single in real time": (  # who saw one half told another, who did not see the other half
        of(([a("x", 1), a("y", 1)], 0, 9), ([r("x", 1)], 1, 2), ([r("y")], 3, 4)),
        {"x": [1], "y": [1]},
    ),
    "G2 in real time": (
        of(([r("x"), a("y", 1)], 0, 9), ([a("x", 1)], 0, 1), ([r("y")], 2, 3)),
        {"x": [1], "y": [1]},
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_anomaly_is_found_and_named(kind):
    assert {anomaly.kind for anomaly in check(*BAD[kind])} == {kind}


def test_checker_finds_a_lost_update():
    """Both saw an empty list and appended to it."""
    history = of(([r("x"), a("x", 1)], 0, 9), ([r("x"), a("x", 2)], 0, 9))
    assert [anomaly.kind for anomaly in check(history, {"x": [1, 2]})] == ["G-single"]


# ---- stacks made by hand --------------------------------------------------------------------------------------------


def t(key, *values):
    return (TAKEN, key, list(values))


def s(key, *values):
    return (SAW, key, list(values))


def stack_anomalies(history, *states):
    changed, lists, found = unstacked(history, {"s": [list(state) for state in states]})
    return {anomaly.kind for anomaly in found or histories.check(changed, lists)}


def test_good_stacks_are_good():
    good = of(
        ([a("s", 1)], 0, 10),
        ([a("s", 2)], 11, 20),
        ([t("s", 1, 2)], 12, 30),
        ([t("s")], 15, 35),  # it was empty for a while
        ([s("s"), a("s", 3)], 15, 36),
        ([s("s", 3)], 34, 40),
        ([t("s", 3)], 38, 50, FAILED),
        ([(POP, "s", 1)], 38, FOREVER, UNKNOWN),
    )
    assert stack_anomalies(good, [], [1], [1, 2], [], [3], []) == set()


BAD_STACKS = {
    "stale decision": (of(([a("s", 1)], 0, 1), ([t("s")], 2, 3)), [[], [1]]),
    "taken twice": (of(([a("s", 1)], 0, 1), ([t("s", 1)], 2, 9), ([t("s", 1)], 2, 9)), [[], [1], []]),
    "lost append": (of(([a("s", 1)], 0, 1), ([t("s", 1)], 2, 3)), [[], [1]]),
    "invented": (of(([a("s", 1)], 0, 1), ([t("s", 1)], 2, 3, FAILED)), [[], [1], []]),
    "torn": (
        of(([a("s", 1), a("s", 2)], 0, 1), ([t("s", 1, 2)], 2, 9), ([a("s", 3)], 2, 9), ([t("s", 3)], 2, 9)),
        [[], [1, 2], [1], [1, 3], [1], []],
    ),
    "G-single in real time": (of(([a("s", 1)], 0, 3), ([s("s", 1)], 1, 2), ([s("s")], 2.5, 4)), [[], [1]]),
}


@pytest.mark.parametrize("kind", BAD_STACKS)
def test_every_anomaly_of_stacks_is_found(kind):
    history, states = BAD_STACKS[kind]
    assert kind in stack_anomalies(history, *states)
