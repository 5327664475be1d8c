"""Policies: what stays by count, calendar, age and marks; the report; writers beside a prune."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backtrail import Invalid, Message, NotFound, Policy
from tests.conformance.base import SECOND, Clock, Suite, before_hiding, fill, head, ids, steps
from tests.support.scene import agent, conversation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backtrail import Checkpoint, Store, Thread
    from tests.conformance.base import Opener

HOUR, DAY = 3600, 86400
RULES = ("keep_last", "keep_hourly", "keep_daily", "keep_weekly", "older_than")


def at(clock: Clock, text: str) -> None:
    """Set the clock, to a time in UTC."""
    clock.now = int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * SECOND


# -- a model: the checkpoints of a thread, and which of them stay -----------------------------------------


class Event(NamedTuple):
    """What happens to a thread: time passes, and a checkpoint is saved, or the head moved to an older one."""

    seconds: int
    label: str | None = None
    tags: tuple[str, ...] = ()
    back: int | None = None


events = st.builds(
    Event,
    st.sampled_from([-7 * DAY, -HOUR, 0, 1, 1200, HOUR, 7 * HOUR, DAY, 5 * DAY, 9 * DAY]),
    st.sampled_from([None, None, None, "x"]),
    st.sampled_from([(), (), (), ("a",), ("b",), ("a", "b")]),
    st.sampled_from([None, None, None, None, 1, 2, 5]),
)
counts = st.sampled_from([None, None, 0, 1, 2, 4])
policies = st.fixed_dictionaries(
    {
        "keep_last": counts,
        "keep_hourly": counts,
        "keep_daily": counts,
        "keep_weekly": counts,
        "older_than": st.sampled_from([None, None, HOUR, DAY, 10 * DAY]),
        "keep_tagged": st.sampled_from([True, True, False, ("a",), ("a", "c")]),
        "keep_labelled": st.booleans(),
    }
)


def played(thread: Thread[Any], clock: Clock, script: Sequence[Event]) -> list[Checkpoint[Any]]:
    """Let events happen to a thread; return its checkpoints, the newest last."""
    made = [thread.save({"n": 0})]
    for n, event in enumerate(script, 1):
        clock.advance(event.seconds)
        if event.back is None:
            made.append(thread.save({"n": n}, label=event.label, tags=event.tags))
        else:
            view = list(thread.history())
            thread.rewind(view[-1 - event.back % len(view)])
    return made


def naive(
    made: list[Checkpoint[Any]], seen: set[str], on_top: str, now: dt.datetime, given: dict[str, Any]
) -> set[str]:
    """Return the ids of those that stay, found in the most simple-minded way."""
    stay = {on_top}
    periods: list[tuple[str, Callable[[dt.datetime], Any]]] = [
        ("keep_hourly", lambda when: (when.date(), when.hour)),
        ("keep_daily", lambda when: when.date()),
        ("keep_weekly", lambda when: when.isocalendar()[:2]),
    ]
    for group in ([c for c in made if c.id in seen], [c for c in made if c.id not in seen]):
        newest_first = group[::-1]
        stay |= {c.id for c in newest_first[: given["keep_last"] or 0]}
        for name, period in periods:
            last = sorted({period(c.created_at) for c in group}, reverse=True)[: given[name] or 0]
            stay |= {next(c.id for c in newest_first if period(c.created_at) == each) for each in last}
    for c in made:
        young = given["older_than"] is not None and c.created_at >= now - dt.timedelta(seconds=given["older_than"])
        names = given["keep_tagged"]
        tagged = bool(set(c.tags) & set(names)) if isinstance(names, tuple) else names and bool(c.tags)
        if young or tagged or (given["keep_labelled"] and c.label is not None):
            stay.add(c.id)
    return stay


class Policies(Suite):
    """`Policy`, and what `prune` makes of it."""

    def test_policies_keep_the_same_as_the_model(self, store: Store) -> None:
        clock = Clock(store)
        numbers = itertools.count()

        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(events, max_size=14), policies)
        def check(script: list[Event], words: dict[str, Any]) -> None:
            thread: Thread[Any] = store.thread(f"t{next(numbers)}")
            at(clock, "2026-12-20T22:10:00")
            made = played(thread, clock, script)
            made = [thread.load(each) for each in made]  # a label or a tag is what it is now
            if not any(words[name] for name in RULES) and not isinstance(words["keep_tagged"], tuple):
                with pytest.raises(Invalid):
                    Policy(**words)
                return
            policy = Policy(**words)
            now = dt.datetime.fromtimestamp(clock.now / SECOND, dt.UTC)
            stay = naive(made, set(ids(thread.history())), head(thread).id, now, words)
            dry = store.prune(policy, threads=[thread.id], dry_run=True)
            alone = thread.prune(policy, dry_run=True)
            told = thread.prune(policy)
            assert {c.id for c in made if thread_has(store, c)} == stay
            assert ids([c for c in made if c.id not in stay]) == [which for which, _ in told.removed]
            assert [(which, thread.id) for which in ids(made) if which in stay] == [each[:2] for each in told.kept]
            assert all(reasons for _, _, reasons in told.kept)
            assert (alone.removed, alone.kept) == (told.removed, told.kept)
            assert dry.removed == told.removed
            assert dry.kept == (told.kept if told else ())
            assert thread.prune(policy) == 0

        check()
        store.gc()
        assert store.verify().ok

    def test_days_weeks_and_hours_are_those_of_the_calendar(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        times = ["2026-12-27T23:59", "2026-12-28T00:00", "2026-12-31T23:30", "2027-01-01T00:10", "2027-01-03T12:00"]
        times += ["2027-01-04T00:00", "2027-01-04T00:59", "2027-01-04T01:00"]
        for text in times:
            at(clock, text)
            thread.save({"at": text})

        def stays(**policy: Any) -> dict[str, tuple[str, ...]]:
            report = thread.prune(Policy(**policy), dry_run=True)
            return {thread.load(which).state["at"]: reasons for which, _, reasons in report.kept}

        assert stays(keep_weekly=3) == {
            "2026-12-27T23:59": ("week 2026-W52",),
            "2027-01-03T12:00": ("week 2026-W53",),  # the week of New Year is one
            "2027-01-04T01:00": ("head", "week 2027-W01"),
        }
        assert stays(keep_daily=4) == {
            "2026-12-31T23:30": ("day 2026-12-31",),
            "2027-01-01T00:10": ("day 2027-01-01",),
            "2027-01-03T12:00": ("day 2027-01-03",),
            "2027-01-04T01:00": ("head", "day 2027-01-04"),
        }
        assert stays(keep_hourly=2, keep_last=1) == {
            "2027-01-04T00:59": ("hour 2027-01-04 00:00",),
            "2027-01-04T01:00": ("head", "newest 1", "hour 2027-01-04 01:00"),
        }

    @pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process is set on Unix only")
    def test_the_time_zone_of_the_process_does_not_matter(
        self, store: Store, thread: Thread[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock(store)
        for text in ("2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T22:30", "2026-10-25T23:30"):
            at(clock, text)  # in Berlin it is 2:30 twice, and the last two are on Monday, the 26th
            thread.save({"at": text})
        told = []
        for zone in ("UTC", "Europe/Berlin", "Pacific/Kiritimati"):
            with monkeypatch.context() as patch:
                patch.setenv("TZ", zone)
                time.tzset()
                policies = Policy(keep_hourly=9), Policy(keep_daily=9), Policy(keep_weekly=9)
                told.append([list(thread.prune(policy, dry_run=True).kept) for policy in policies])
        time.tzset()
        assert told[0] == told[1] == told[2]
        assert list(map(len, told[0])) == [4, 1, 1]

    def test_last_save_wins_among_equal_times(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        fill(thread, 5)
        assert thread.prune(Policy(keep_daily=3)) == 4
        clock.advance(-2 * DAY)  # a clock that was set back: the order is that of the log
        fill(thread, 2)
        assert [reasons[0][:4] for _, _, reasons in thread.prune(Policy(keep_daily=1), dry_run=True).kept] == [
            "day ",
            "head",
        ]

    def test_checkpoint_exactly_older_than_stays(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        fill(thread, 2)
        clock.advance(60)
        fill(thread, 1)
        assert thread.prune(Policy(older_than=60)) == 0
        assert thread.prune(Policy(older_than=59)) == 2

    def test_reasons_are_reported(self, store: Store) -> None:
        clock = Clock(store)
        thread: Thread[Any] = store.thread("t")
        at(clock, "2026-11-14T10:00")
        fill(thread, 2)
        thread.save({}, label="release")
        thread.save({}, tags=["good", "cheap"])
        clock.advance(DAY)
        fill(thread, 3)
        policy = Policy(keep_last=2, keep_daily=2, older_than=HOUR, keep_tagged=("cheap",))
        clock.advance(HOUR + 1)
        report = thread.prune(policy)
        assert [(thread.load(which).step, name, reasons) for which, name, reasons in report.kept] == [
            (3, "t", ("labelled",)),
            (4, "t", ("day 2026-11-14", "tagged cheap")),
            (6, "t", ("newest 2",)),
            (7, "t", ("head", "newest 2", "day 2026-11-15")),
        ]
        why = "not among the newest 2 and not the newest of one of the last 2 days and older than 1:00:00"
        assert {each for _, each in report.removed} == {f"{why} and not tagged cheap"}

    def test_rewound_checkpoints_have_their_own_days(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        fill(thread, 5)
        thread.rewind(2)
        clock.advance(60)
        fill(thread, 2)
        report = thread.prune(Policy(keep_daily=1))
        assert (report, steps(thread.history())) == (5, [4])
        assert sorted(c.step for c in thread.history(everything=True)) == [4, 5]

    def test_fork_of_a_pruned_checkpoint_continues(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 4)
        fork = thread.fork("fork", at=2)
        assert thread.prune(Policy(keep_last=1)) == 3
        store.gc()
        assert fork.save({"n": "on"}).step == 3
        assert [c.state["n"] for c in fork.history()] == [2, "on"]
        assert store.verify().ok

    def test_policy_keeps_pinned_checkpoints(self, store: Store) -> None:
        store.agents.save(agent())
        store.conversations.save(conversation("c", "one"))
        store.agents.checkpoint("a", "first")
        held = store.conversations.thread("c").load()
        for n in range(4):
            store.conversations.append("c", Message.user(str(n)))
        report = store.prune(Policy(keep_last=1, keep_tagged=False, keep_labelled=False))
        assert (held.id, "c", ("held by a checkpoint of agent a",)) in report.kept
        assert held.id in ids(store.conversations.thread("c").history())
        assert report == 3

    def test_prune_ignores_pins_of_deleted_agent_checkpoints(self, store: Store) -> None:
        store.agents.save(agent())
        talk = store.conversations.thread("c")
        store.conversations.save(conversation("c", "one"))
        held, made = [], []
        for n in range(3):
            made.append(store.agents.checkpoint("a", str(n)))
            held.append(talk.load().id)
            store.conversations.append("c", Message.user(str(n)))
            store.conversations.append("c", Message.user("more"))
        store.agents.delete_checkpoint(made[0])
        store.agents.delete_checkpoint(made[2])
        for prune in (store.prune, talk.prune):
            report = prune(Policy(keep_last=1), dry_run=True)
            kept = {which: why for which, name, why in report.kept if name == "c"}
            assert kept == {held[1]: ("held by a checkpoint of agent a",), talk.load().id: ("head", "newest 1")}
        before = talk.load(held[1]).state
        assert {held[0], held[2]} < {which for which, _ in store.prune(Policy(keep_last=1)).removed}
        assert ids(talk.history()) == [held[1], talk.load().id]
        store.gc()
        store.agents.restore(made[1])
        assert talk.load().state == before
        assert store.verify().ok

    def test_checkpoint_pinned_during_a_prune_stays(self, store: Store) -> None:
        store.agents.save(agent())
        for name in ("c", "d"):
            store.conversations.save(conversation(name, "one"))
        gone = store.agents.checkpoint("a", "gone")
        for name in ("c", "d"):
            store.conversations.append(name, Message.user("two"))
        store.agents.delete_checkpoint(gone)
        held: list[str] = []

        def meanwhile(*_: object) -> None:
            if not held:
                for name in ("c", "d"):
                    store.conversations.thread(name).rewind(1)
                store.agents.checkpoint("a", "new")
                for name in ("c", "d"):
                    held.append(store.conversations.thread(name).load().id)
                    store.conversations.append(name, Message.user("three"))

        with before_hiding(store, meanwhile):
            store.prune(Policy(keep_last=1))
        assert len(held) == 2
        for name, which in zip(("c", "d"), held, strict=True):
            assert which in ids(store.conversations.thread(name).history())

    def test_prune_does_not_read_threads_with_few_checkpoints(self, store: Store) -> None:
        for n in range(4):
            fill(store.thread(f"t{n}"), 2 + 3 * (n == 3))
        store.thread("t2").delete_checkpoint(1)
        with mock.patch.object(store._backend, "rows", wraps=store._backend.rows) as rows:
            dry = store.prune(Policy(keep_last=3), dry_run=True)
        assert {call.args[0] for call in rows.call_args_list} == {store._backend.find_thread("thread", "t3").no}  # type: ignore[union-attr]
        report = store.prune(Policy(keep_last=3))
        assert (int(report), report.untouched, len(report.kept)) == (2, 3, 3)
        assert (dry.removed, dry.kept, dry.untouched) == (report.removed, report.kept, report.untouched)
        assert {name for _, name, _ in report.kept} == {"t3"}
        assert report.removed_from == dry.removed_from == [("thread", "t3")] * 2

    def test_one_agent_or_some_threads_are_pruned_alone(self, store: Store) -> None:
        for name, whose in (("a", "x"), ("b", "x"), ("c", None)):
            fill(store.thread(name, agent=whose), 3)
        assert store.prune(Policy(keep_last=1), threads=["a"]) == 2
        assert store.prune(Policy(keep_last=1), agent="x") == 2
        assert [len(store.thread(name)) for name in "abc"] == [1, 1, 3]
        assert store.prune(Policy(keep_last=1), agent="nobody") == 0
        with pytest.raises(NotFound):
            store.prune(Policy(keep_last=1), threads=["c", "none"])
        nonsense: list[dict[str, Any]] = [{"threads": "c"}, {"threads": []}, {"agent": ""}]
        for wrong in (*nonsense, {"agent": "x", "threads": ["a"]}):
            with pytest.raises(Invalid):
                store.prune(Policy(keep_last=1), **wrong)
        assert len(store.thread("c")) == 3

    def test_an_id_means_all_kinds_or_the_named_one(self, store: Store) -> None:
        talks: dict[str, Thread[Any]] = {
            "thread": store.thread("talk"),
            "conversation": store.conversations.thread("talk"),
        }
        fill(talks["thread"], 3)
        for n in range(3):
            store.conversations.append("talk", Message.user(str(n)), agent_id="a")
        before = {kind: len(thread) for kind, thread in talks.items()}
        for number, kind in enumerate(talks, 1):
            report = store.prune(Policy(keep_last=1), threads=["talk"], kind=kind)
            assert report == before[kind] - 1
            assert set(report.kinds) == {kind}
            assert [len(thread) for thread in talks.values()].count(1) == number
        fill(talks["thread"], 1)
        store.conversations.append("talk", Message.user("more"))
        report = store.prune(Policy(keep_last=1), threads=["talk"], dry_run=True)
        assert len(report.kinds) == len(report.kept)
        assert {(kind, name) for kind, (_, name, _) in zip(report.kinds, report.kept, strict=True)} == {
            ("thread", "talk"),
            ("conversation", "talk"),
        }
        with pytest.raises(NotFound, match="no agent 'talk'"):
            store.prune(Policy(keep_last=1), threads=["talk"], kind="agent")
        for wrong in ({"kind": "run"}, {"kind": "run", "agent": "a"}, {"kind": "tree", "threads": ["talk"]}):
            options: dict[str, Any] = wrong
            with pytest.raises(Invalid):
                store.prune(Policy(keep_last=1), **options)

    @pytest.mark.parametrize("kept", [True, ("good",)])
    def test_checkpoint_tagged_during_a_prune_stays(self, store: Store, opener: Opener, kept: Any) -> None:
        with opener() as other:
            for name in ("one", "all"):
                thread: Thread[Any] = store.thread(name)
                made = fill(thread, 5)
                thread.tag(made[1], "other")
                with before_hiding(store, partial(other.thread(name).tag, made[0], "good")):
                    prune = thread.prune if name == "one" else store.prune
                    report = prune(Policy(keep_last=1, keep_tagged=kept))
                assert (made[0].id, name, ("tagged good",)) in report.kept
                store.gc()
                assert ids(thread.history()) == ids([made[0], *made[1 : 1 + (kept is True)], made[4]])

    def test_runs_of_an_agent_are_pruned_each_by_itself(self, store: Store) -> None:
        for session, whose in (("one", "x"), ("two", "x"), ("other", "y")):
            with store.run(session, agent=whose) as run:
                for _ in zip(range(3), run.iterations(), strict=False):
                    run.checkpoint()
        fill(store.thread("t", agent="x"), 3)
        before = {name: len(store.runs.steps(name)) for name in ("one", "two", "other")}
        assert store.runs.prune("x", Policy(keep_last=1)) == before["one"] + before["two"] - 2 > 0
        assert [len(store.runs.steps(name)) for name in before] == [1, 1, before["other"]]
        assert len(store.thread("t")) == 3
        assert store.runs.load("one").status.name == "completed"

    def test_words_and_the_policy_of_them_are_the_same(self, store: Store, thread: Thread[Any]) -> None:
        clock = Clock(store)
        for n in range(8):
            tags = {2: ["good"], 3: ["other"]}.get(n, [])
            thread.save({"n": n}, label="x" if n == 1 else None, tags=tags)
            clock.advance(100)
        later = dt.timedelta(seconds=450)
        said: list[dict[str, Any]] = [{"keep_last": 3}, {"older_than": 450}, {"keep_last": 1, "older_than": later}]
        for words in said:
            told, same = thread.prune(**words, dry_run=True), thread.prune(Policy(**words), dry_run=True)
            assert (told.removed, told.kept) == (same.removed, same.kept)
            unmarked = Policy(**words, keep_tagged=False, keep_labelled=False)
            told = thread.prune(**words, keep_tagged=False, dry_run=True)
            assert told.removed == thread.prune(unmarked, dry_run=True).removed != same.removed
            for names in (("good",), ["good", "none"], ("none",), ()):
                told = thread.prune(**words, keep_tagged=names, dry_run=True)
                same = thread.prune(Policy(**words, keep_tagged=tuple(names)), dry_run=True)
                assert (told.removed, told.kept) == (same.removed, same.kept)
                assert int(told) == int(thread.prune(**words, dry_run=True)) + 2 - ("good" in names)
        for prune in (thread.prune, store.prune):
            for wrong in (None, 0, 1, "good"):
                with pytest.raises(Invalid):
                    prune(keep_last=1, keep_tagged=wrong)  # type: ignore[arg-type]
        assert thread.prune(keep_last=0, keep_tagged=["good"]) == 5
        assert steps(thread.history()) == [2, 3, 8]

    @pytest.mark.parametrize(
        "words",
        [
            {},
            {"keep_labelled": False},
            {"keep_tagged": False},
            {"keep_tagged": ()},
            {"keep_last": 0},
            {"keep_hourly": 0, "keep_weekly": 0},
            {"keep_last": 0, "keep_tagged": False, "keep_labelled": False},
            {"keep_last": 0, "keep_daily": 0, "keep_tagged": (), "keep_labelled": False},
            {"keep_daily": -1},
            {"keep_weekly": 1.5},
            {"keep_hourly": True},
            {"keep_last": 1, "older_than": 0},
            {"keep_last": 1, "keep_tagged": "release"},
            {"keep_last": 1, "keep_tagged": ["@pin"]},
            {"keep_last": 1, "keep_labelled": None},
        ],
    )
    def test_a_policy_that_keeps_nothing_is_invalid(self, words: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            Policy(**words)

    def test_a_policy_and_words_are_not_given_at_once(self, store: Store, thread: Thread[Any]) -> None:
        fill(thread, 3)
        both: list[dict[str, Any]] = [{"keep_last": 1}, {"older_than": 1}, {"keep_tagged": False}]
        for prune in (thread.prune, store.prune):
            for words in both:
                with pytest.raises(Invalid):
                    prune(Policy(keep_last=1), **words)
            for wrong in (3, {"keep_last": 1}, Policy):
                with pytest.raises(Invalid):
                    prune(wrong)  # type: ignore[arg-type]
        for marked in (True, False):
            with pytest.raises(Invalid):
                store.prune(keep_last=0, keep_tagged=marked)
        assert len(thread) == 3

    def test_interrupted_prune_continues_when_called_again(self, store: Store) -> None:
        for n in range(4):
            fill(store.thread(f"t{n}"), 3)

        def stop(what: str, count: int) -> None:
            assert what == "threads"
            if count == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.prune(Policy(keep_last=1), progress=stop)
        assert sorted(len(store.thread(f"t{n}")) for n in range(4)) == [1, 1, 3, 3]
        told: list[tuple[str, int]] = []
        assert store.prune(Policy(keep_last=1), progress=lambda *each: told.append(each)) == 4
        assert told == [("threads", n) for n in range(1, 5)]

    def test_a_long_thread_is_pruned_beside_appends(self, store: Store, opener: Opener) -> None:
        thread: Thread[Any] = store.thread("t")
        with store.transaction():
            thread.save({"l": []})
            for n in range(450):  # more than one slice
                thread.append("l", n)
        over = threading.Event()
        with opener() as other:

            def append() -> None:
                for n in itertools.count():
                    other.thread("t").append("l", f"more {n}")
                    if over.wait(0.01):
                        return

            writer = threading.Thread(target=append)
            writer.start()
            try:
                report = store.prune(Policy(keep_last=5))
                store.gc()
            finally:
                over.set()
                writer.join()
            removed = [which for which, _ in report.removed]
            assert len(set(removed)) == len(removed) >= 446
            assert not [which for which in removed if store.checkpoint(which)]
            state = head(thread).state["l"]
            assert state[:450] == list(range(450))
            assert state[450:] == [f"more {n}" for n in range(len(state) - 450)]
            assert store.verify().ok


def thread_has(store: Store, checkpoint: Checkpoint[Any]) -> bool:
    """Tell whether a checkpoint is there."""
    return store.checkpoint(checkpoint.id) is not None
