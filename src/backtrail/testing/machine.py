"""A state machine that does at random whatever can be done with threads, and holds the store against the model.

After every step the thread that was touched is compared with its line in the model: head, history, steps, labels,
tags, and the states of a few of its checkpoints, in view and out of view, to the last type. At the end every
checkpoint of every thread is.

A backend's test says where a store is to be made: `run(place)`, with `place` a context manager that gives a function
which opens the same store each time. In half of the runs states are cut into small chunks.
"""

from __future__ import annotations

import copy
import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from backtrail import NEW, Conflict, Invalid, NotFound
from backtrail.testing import states
from backtrail.testing.chunks import small_chunks
from backtrail.testing.exact import same
from backtrail.testing.model import UNKNOWN, Hand, Line, Point

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from backtrail import Checkpoint, Store, Thread

    Opener = Callable[..., Store]
    Place = Callable[[], AbstractContextManager[Opener]]

NAMES: Final = ("a", "b", "a_b")
LABELS: Final = (None, None, None, "before", "after")
TAGS: Final = ("good", "odd")

WRITES: Final = (
    "save",
    "save",
    "save",
    "append",
    "append",
    "look",
    "set",
    "delete_at",
    "step",
    "update",
    "save_expecting",
)
MOVES: Final = ("undo", "undo", "undo", "redo", "redo", "redo", "rewind", "rewind")
REMOVALS: Final = ("delete_checkpoint", "delete_checkpoint", "delete_head", "prune", "prune", "delete")
OTHERS: Final = ("fork", "tag", "refs", "diff", "gc", "reopen", "transaction")
KINDS: Final = (*WRITES, *WRITES, *MOVES, *REMOVALS, *OTHERS)

names = st.sampled_from(("a", "a", "a", *NAMES))
seeds = st.integers(0, 0xFFFF)


def run(place: Place, chosen: settings | None = None) -> None:
    """Run the machine on stores that are made in `place`, as the current hypothesis profile says."""
    quiet = settings(chosen or settings.default, deadline=None, suppress_health_check=list(HealthCheck))
    made: Any = lambda: ThreadMachine(place)  # noqa: E731 - called where a class is asked for
    run_state_machine_as_test(made, settings=quiet)


class Aborted(Exception):  # noqa: N818 - not an error: how a transaction is given up
    """Raised inside a step or a transaction to give it up."""


class ThreadMachine(RuleBasedStateMachine):
    """Random histories of three threads, each through two handles, against the model."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._open = self._stack.enter_context(place())
        self._random = random.Random(0)  # noqa: S311 - picks what is looked at
        self.store: Store | None = None
        self.lines = {name: Line() for name in NAMES}
        self.seed = 0
        self.without: frozenset[str] = frozenset()
        self.touched: str | None = None
        """The thread that a step has touched, until it is compared."""

    @initialize(
        small=st.booleans(),
        seed=seeds,
        without=st.frozensets(st.sampled_from(sorted({*MOVES, *REMOVALS, *OTHERS})), max_size=5),
    )
    def begin(self, small: bool, seed: int, without: frozenset[str]) -> None:  # noqa: FBT001 - drawn
        """Open a store; `without` says what this run does not do, so that runs differ."""
        if small:
            self._stack.enter_context(small_chunks())
        self.seed = seed
        self._random.seed(seed)
        self._stack.enter_context(mock.patch("os.urandom", random.Random(seed).randbytes))  # noqa: S311 - ids that repeat
        self.without = without
        self._start()

    def _start(self) -> None:
        store = self.store = self._open()
        self.hands = {name: (Hand(name), Hand(name)) for name in NAMES}
        self.threads: dict[Hand, Thread[Any]] = {
            hand: store.thread(name) for name, pair in self.hands.items() for hand in pair
        }

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def teardown(self) -> None:
        try:
            if self.store is not None and self.touched is None:  # else a step failed, and what it found is what counts
                self._check_everything()
                self.store.close()
        finally:
            self._stack.close()

    # -- one step -----------------------------------------------------------------------------------

    @rule(name=names, who=st.integers(0, 1), kind=st.sampled_from(KINDS), seed=seeds)
    def act(self, name: str, who: int, kind: str, seed: int) -> None:
        """Do one thing: this is what an example that fails is reduced to."""
        self._do(name, who, kind, random.Random(f"{self.seed} {seed}"))  # noqa: S311

    @rule(name=names, count=st.integers(2, 6), seed=seeds)
    def play(self, name: str, count: int, seed: int) -> None:
        """Do several things: this is how examples come to differ."""
        rnd = random.Random(f"{self.seed} {seed}")  # noqa: S311
        for _ in range(count):
            self._do(name, rnd.randrange(2), rnd.choice(KINDS), rnd)

    def _do(self, name: str, who: int, kind: str, rnd: random.Random) -> None:
        self.touched = name
        hand = self.hands[name][who]
        what = "save" if kind in self.without else kind
        getattr(self, f"_{what}")(self.lines[name], hand, self.threads[hand], rnd)

    def _transaction(self, _line: Line, hand: Hand, _thread: Thread[Any], rnd: random.Random) -> None:
        """Do several things at once, and perhaps give them up."""
        names = [hand.name, *rnd.choices(NAMES, k=rnd.randrange(5))]
        lines, expected = {name: self.lines[name].copy() for name in NAMES}, {h: h.expected for h in self.threads}
        try:
            with self.opened.transaction():
                for name in names:
                    self._do(name, rnd.randrange(2), rnd.choice((*WRITES, *MOVES)), rnd)
                    self._check_line(name)
                if rnd.random() < 0.4:
                    raise Aborted  # noqa: TRY301
        except Aborted:
            self.lines.update(lines)
            for each, head in expected.items():
                each.expected = head
        for name in names:
            self._check_line(name)

    # -- writing ------------------------------------------------------------------------------------

    def _meta(self, rnd: random.Random) -> dict[str, Any]:
        """Return options of a save."""
        meta: dict[str, Any] = {"label": rnd.choice(LABELS)}
        if rnd.random() < 0.2:
            meta["tags"] = rnd.sample(TAGS, rnd.randrange(1, 3))
        if rnd.random() < 0.2:
            meta["metadata"] = {"n": rnd.randrange(3)}
        if rnd.random() < 0.2:
            meta["kind"] = rnd.choice(("automatic", "recovery", "pre_operation"))
        return meta

    def _saved(self, line: Line, made: Checkpoint[Any], state: Any, meta: dict[str, Any]) -> Point:
        """Take what a save returned into the model."""
        head = line.head
        point = Point(
            id=made.id,
            step=head.step + 1 if head else 1,
            parent=head,
            state=state,
            root=made.root,
            label=meta.get("label"),
            tags=list(meta.get("tags", ())),
            metadata=meta.get("metadata", {}),
            kind=meta.get("kind", "manual"),
        )
        assert made.id not in {other.id for other in line.points}, "an id was given twice"
        if head is not None:
            assert (made.root == head.root) is same(state, head.state), "equal states, and only those, have equal roots"
        line.save(point)
        self._agree(made, point)
        return point

    def _write(
        self, hand: Hand, line: Line, state: Any, meta: dict[str, Any], write: Callable[[], Checkpoint[Any]]
    ) -> None:
        """Do a write that is a `Conflict` exactly if the handle's expectation is not the head."""
        if hand.expected is not UNKNOWN and hand.expected is not line.head:
            with pytest.raises(Conflict) as caught:
                write()
            assert caught.value.actual == (line.head.id if line.head else None)
            return
        hand.expected = self._saved(line, write(), state, meta)

    def _look(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.7 or line.head is None:
            latest = thread.latest()
            assert (latest and latest.id) == (line.head and line.head.id)
        else:
            assert thread.load(line.head.id).id == line.head.id
        hand.expected = line.head

    def _save(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.4:
            self._look(line, hand, thread, rnd)
        before = line.head.state if line.head else None
        state = states.edited(rnd, before) if line.head and rnd.random() < 0.7 else states.state(rnd)
        meta = self._meta(rnd)
        self._write(hand, line, state, meta, lambda: thread.save(copy.deepcopy(state), **meta))

    def _save_expecting(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        state = states.state(rnd)
        expected = rnd.choice((None, line.head, *line.points[-3:]))
        if expected is line.head:
            made = thread.save(state, expect=expected.id if expected else NEW)
            hand.expected = self._saved(line, made, copy.deepcopy(state), {})
        else:
            with pytest.raises(Conflict) as caught:
                thread.save(state, expect=expected.id if expected else NEW)
            assert caught.value.actual == (line.head.id if line.head else None)

    def _append(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.head is None:
            with pytest.raises(NotFound):
                thread.append("messages", 1)
            return
        state = copy.deepcopy(line.head.state)
        lists = [path for path, place in states.containers(state) if isinstance(place, list)]
        if not lists:
            return
        path = rnd.choice(lists)
        items = [states.message(rnd) for _ in range(rnd.choice((1, 1, 2, 9)))]
        states.at(state, path).extend(copy.deepcopy(items))
        meta = self._meta(rnd)
        seen = hand.expected in (UNKNOWN, line.head)
        point = self._saved(line, thread.append(path, *items, **meta), state, meta)
        if seen:  # else it went behind what this handle has not read, which its next save is to find out
            hand.expected = point

    def _set(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.head is None:
            return
        state = copy.deepcopy(line.head.state)
        path, place = rnd.choice([*states.containers(state), ((), None)])
        value = states.value(rnd, 1)
        if isinstance(place, dict):
            path = (*path, rnd.choice([*place, "new", 7]))
        elif place:
            path = (*path, rnd.randrange(len(place)))
        state = states.replaced(state, path, copy.deepcopy(value))
        self._write(hand, line, state, {}, lambda: thread.set(path, value))

    def _delete_at(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.head is None:
            return
        state = copy.deepcopy(line.head.state)
        filled = [(path, place) for path, place in states.containers(state) if place]
        if not filled:
            return
        path, place = rnd.choice(filled)
        step = rnd.choice(list(place)) if isinstance(place, dict) else rnd.randrange(len(place))
        del place[step]
        self._write(hand, line, state, {}, lambda: thread.delete_at((*path, step)))

    def _step(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.head is None or not isinstance(line.head.state, dict | list):
            return
        state = states.edited(rnd, line.head.state)
        if type(state) is not type(line.head.state):
            return
        fails, label = rnd.random() < 0.3, rnd.choice(LABELS)

        def change(draft: Any) -> None:
            draft.clear()
            (draft.update if isinstance(draft, dict) else draft.extend)(copy.deepcopy(state))
            if fails:
                raise Aborted

        if fails:
            with pytest.raises(Aborted), thread.step(label) as draft:
                change(draft)
            hand.expected = line.head
            return
        with thread.step(label) as draft:
            change(draft)
        latest = thread.latest()
        assert latest is not None
        hand.expected = self._saved(line, latest, state, {"label": label})

    def _update(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        before = line.head.state if line.head else None
        state = states.edited(rnd, before)

        def change(old: Any) -> Any:
            assert same(old, before)
            return copy.deepcopy(state)

        if state is not None:
            hand.expected = self._saved(line, thread.update(change), state, {})

    # -- travelling ---------------------------------------------------------------------------------

    def _rewind(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            with pytest.raises(NotFound):
                thread.rewind("@")
            return
        point = rnd.choice(points)
        history = line.history()
        back = len(history) - 1 - history.index(point) if point in history and rnd.random() < 0.5 else None
        made = thread.rewind(point.id if back is None else f"@~{back}")
        line.rewind(point)
        hand.expected = point
        self._agree(made, point)

    def _undo(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
        self._go(line, hand, thread.undo, line.undo)

    def _redo(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
        self._go(line, hand, thread.redo, line.redo)

    def _go(
        self, line: Line, hand: Hand, really: Callable[[], Checkpoint[Any]], modelled: Callable[[], Point | None]
    ) -> None:
        missing = line.head is None
        point = modelled()
        if point is None:
            with pytest.raises(NotFound if missing else Invalid):
                really()
        else:
            self._agree(really(), point)
            hand.expected = point

    def _fork(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            return
        point, onto = rnd.choice(points), rnd.choice(NAMES)
        if self.lines[onto].head is not None:
            with pytest.raises(Conflict):
                thread.fork(onto, at=point.id)
            return
        forked = thread.fork(onto, at=point.id)
        made = forked.load()
        twin = Point(
            id=made.id,
            step=point.step,
            parent=None,
            state=point.state,
            root=point.root,
            label=point.label,
            tags=list(point.tags),
            metadata=point.metadata,
            kind=point.kind,
            origin=point.id,
        )
        self.lines[onto].save(twin)
        self._agree(made, twin)
        hand = Hand(onto, twin)
        self.hands[onto] = (hand, self.hands[onto][1])
        self.threads[hand] = forked
        self._check_line(onto)

    # -- removing -----------------------------------------------------------------------------------

    def _delete_checkpoint(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.points:
            self._drop(line, hand, thread, rnd.choice(line.points))
        else:
            assert thread.delete_checkpoint("nothing") is False

    def _delete_head(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
        if line.head is not None:
            self._drop(line, hand, thread, line.head)
        else:
            assert thread.delete_checkpoint("@") is False

    def _drop(self, line: Line, hand: Hand, thread: Thread[Any], point: Point) -> None:
        seen = point is line.head and hand.expected in (UNKNOWN, point)
        assert thread.delete_checkpoint(point.id) is point.alive
        line.delete_checkpoint(point)
        if seen:
            hand.expected = line.head
        self._sometimes_collect()

    def _delete(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.5:
            return
        something = bool(line.alive())
        assert thread.delete() is something
        line.delete()
        if something:
            hand.expected = UNKNOWN

    def _prune(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        keep, tagged, dry = rnd.randrange(5), rnd.random() < 0.6, rnd.random() < 0.2
        gone = line.prunable(keep, keep_tagged=tagged)
        report = thread.prune(keep_last=keep, keep_tagged=tagged, dry_run=dry)
        assert sorted(which for which, _ in report.removed) == sorted(point.id for point in gone)
        assert report == len(gone)
        for point in gone:
            point.alive = dry
        self._sometimes_collect()

    def _sometimes_collect(self) -> None:
        if "gc" not in self.without and self._random.random() < 0.3:
            self._collect()

    def _gc(self, _line: Line, _hand: Hand, _thread: Thread[Any], _: random.Random) -> None:
        self._collect()

    def _collect(self) -> None:
        self.opened.gc()
        for name in NAMES:
            self._check_line(name)
        report = self.opened.verify()
        assert report.ok
        assert report.checkpoints == sum(len(line.alive()) for line in self.lines.values())

    def _reopen(self, _line: Line, _hand: Hand, _thread: Thread[Any], _: random.Random) -> None:
        self.opened.close()
        self._start()

    # -- finding ------------------------------------------------------------------------------------

    def _tag(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            return
        point, tag, off = rnd.choice(points), rnd.choice(TAGS), rnd.random() < 0.4
        made = thread.untag(point.id, tag) if off else thread.tag(point.id, tag)
        if off and tag in point.tags:
            point.tags.remove(tag)
        elif not off and tag not in point.tags:
            point.tags.append(tag)
        self._agree(made, point)

    def _refs(self, line: Line, hand: Hand, _: Thread[Any], rnd: random.Random) -> None:
        thread: Thread[Any] = self.opened.thread(hand.name)
        for ref, point in self._some_refs(line, rnd):
            if point is None:
                with pytest.raises(NotFound):
                    thread.load(ref)
            else:
                assert thread.load(ref).id == point.id, ref
        for label in ("before", "after"):
            assert [c.id for c in thread.find(label=label)] == [p.id for p in line.history() if p.label == label]
        for tag in TAGS:
            assert [c.id for c in thread.find(tag=tag)] == [p.id for p in line.history() if tag in p.tags]

    def _some_refs(self, line: Line, rnd: random.Random) -> list[tuple[Any, Point | None]]:
        history = line.history()
        found: list[tuple[Any, Point | None]] = [("@", line.head), ("@-", history[-2] if len(history) > 1 else None)]
        if line.head is None:
            return [*found, (1, None)]
        back = rnd.randrange(len(history) + 1)
        found.append((f"@~{back}", history[-1 - back] if back < len(history) else None))
        step = rnd.randrange(line.head.step + 2)
        found.append((step, next((p for p in line.path() if p.step == step and p.alive), None)))
        found += [(label, line.with_label(label)) for label in ("before", "after")]
        found += [(tag, line.with_tag(tag)) for tag in TAGS]
        prefix = rnd.choice(line.points).id[: rnd.randrange(1, 12)]
        matching = line.with_prefix(prefix)
        if len(matching) < 2:
            found.append((prefix, matching[0] if matching else None))
        return found

    def _diff(self, line: Line, hand: Hand, _: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            return
        old, new = rnd.choice(points), rnd.choice(points)
        changes = list(self.opened.thread(hand.name).diff(old.id, new.id))
        assert bool(changes) is not same(old.state, new.state)
        for change in changes:
            if change.op == "+" and not isinstance(states.at(new.state, change.path), set | frozenset):
                assert same(states.at(new.state, change.path), change.new)

    # -- comparing ----------------------------------------------------------------------------------

    @invariant()
    def touched_thread_is_as_the_model_says(self) -> None:
        if self.touched is not None:
            self._check_line(self.touched)
            self.touched = None

    def _agree(self, made: Checkpoint[Any], point: Point) -> None:
        """Compare a checkpoint with its point, all but the state."""
        assert made.id == point.id
        assert made.step == point.step
        assert made.parent_id == point.parent_id
        assert made.label == point.label
        assert sorted(made.tags) == sorted(point.tags)
        assert made.metadata == point.metadata
        assert made.kind == point.kind
        assert made.root == point.root

    def _check_line(self, name: str) -> None:
        line = self.lines[name]
        thread: Thread[Any] = self.opened.thread(name)
        history = line.history()
        latest = thread.latest()
        assert (latest is None) is (line.head is None)
        if latest is not None and line.head is not None:
            self._agree(latest, line.head)
            assert same(latest.state, line.head.state)
        listed = list(thread.history())
        assert [made.id for made in listed] == [point.id for point in history]
        for made, point in zip(listed, history, strict=True):
            self._agree(made, point)
        assert len(thread) == len(history)
        assert thread.current_step == (line.head.step if line.head else 0)
        alive = line.alive()
        for point in self._random.sample(alive, min(2, len(alive))):
            assert same(thread.load(point.id).state, point.state)
        dead = [point for point in line.points if not point.alive]
        for point in self._random.sample(dead, min(1, len(dead))):
            with pytest.raises(NotFound):
                thread.load(point.id)

    def _check_everything(self) -> None:
        store = self.opened
        for name, line in self.lines.items():
            self._check_line(name)
            for point in line.alive():
                made = store.checkpoint(point.id)
                assert made is not None
                self._agree(made, point)
                assert same(made.state, point.state)
        assert store.stats().checkpoints == sum(len(line.alive()) for line in self.lines.values())
        assert {info.id: info.checkpoints for info in store.threads()} == {
            name: len(line.history()) for name, line in self.lines.items() if line.head
        }
