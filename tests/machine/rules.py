"""The operations on threads: each is done to the store and to the model, and both must give the same answer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import pytest

from backtrail import NEW, Conflict, Invalid, NotFound
from tests.machine import states
from tests.machine.compare import NAMES, Beside
from tests.machine.model import UNKNOWN, Hand, Line, Point
from tests.support.exact import same

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from backtrail import Checkpoint, Thread

LABELS: Final = (None, None, None, "before", "after")
TAGS: Final = ("good", "odd")


class Aborted(Exception):  # noqa: N818 - not an error: how a step or a transaction is given up
    """Raised inside a step or a transaction to give it up."""


class Deeds(Beside):
    """One method for each kind of operation, with its name."""

    collects = True
    """Whether some removals are followed by a collection."""
    written: set[str] | None = None
    """The threads that the open transaction has written to; None if there is none."""

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

    def _saved(self, hand: Hand, line: Line, made: Checkpoint[Any], state: Any, meta: dict[str, Any]) -> Point:
        """Add the result of a save to the model."""
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
        self.agree(made, point)
        if self.written is not None:
            self.written.add(hand.name)
        return point

    def _has_read(self, hand: Hand, line: Line) -> None:
        hand.expected = line.head
        if self.written is None or hand.name not in self.written:
            hand.settled = line.head

    def _has_written(self, hand: Hand, point: Point | None) -> None:
        hand.expected = point
        if self.written is None:
            hand.settled = point
        else:
            self.written.add(hand.name)

    def _write(
        self, hand: Hand, line: Line, state: Any, meta: dict[str, Any], write: Callable[[], Checkpoint[Any]]
    ) -> None:
        """Do a write that is a `Conflict` exactly if the handle's expectation is not the head."""
        if hand.expected is not UNKNOWN and hand.expected is not line.head:
            with pytest.raises(Conflict) as caught:
                write()
            assert caught.value.actual == (line.head.id if line.head else None)
            return
        self._has_written(hand, self._saved(hand, line, write(), state, meta))

    def do_look(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.7 or line.head is None:
            latest = thread.latest()
            assert (latest and latest.id) == (line.head and line.head.id)
        else:
            assert thread.load(line.head.id).id == line.head.id
        self._has_read(hand, line)

    def do_save(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.4:
            self.do_look(line, hand, thread, rnd)
        before = line.head.state if line.head else None
        state = states.edited(rnd, before) if line.head and rnd.random() < 0.7 else states.state(rnd)
        meta = self._meta(rnd)
        self._write(hand, line, state, meta, lambda: thread.save(copy.deepcopy(state), **meta))

    def do_save_expecting(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        state = states.state(rnd)
        expected = rnd.choice((None, line.head, *line.points[-3:]))
        if expected is line.head:
            made = thread.save(state, expect=expected.id if expected else NEW)
            self._has_written(hand, self._saved(hand, line, made, copy.deepcopy(state), {}))
        else:
            with pytest.raises(Conflict) as caught:
                thread.save(state, expect=expected.id if expected else NEW)
            assert caught.value.actual == (line.head.id if line.head else None)

    def do_append(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
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
        point = self._saved(hand, line, thread.append(path, *items, **meta), state, meta)
        if seen:  # else it went behind what this handle has not read, which its next save is to find out
            self._has_written(hand, point)

    def do_grow(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        """Append one by one, which is how chunks come to hold what rows hold."""
        for _ in range(rnd.randrange(3, 9)):
            state = copy.deepcopy(line.head.state) if line.head else None
            if not isinstance(state, dict) or not isinstance(state.get("grown"), list):
                self._write(hand, line, {"grown": []}, {}, lambda: thread.save({"grown": []}))
                continue
            item = states.message(rnd)
            state["grown"].append(copy.deepcopy(item))
            seen = hand.expected in (UNKNOWN, line.head)
            point = self._saved(hand, line, thread.append("grown", item), state, {})
            if seen:
                self._has_written(hand, point)

    def do_set(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.head is None:
            return
        state = copy.deepcopy(line.head.state)
        path, place = rnd.choice([*states.containers(state), ((), None)])
        value = states.value(rnd, 1)
        if rnd.random() < 0.3:  # what is there already
            value = copy.deepcopy(rnd.choice(states.containers([state]))[1])
        if isinstance(place, dict):
            path = (*path, rnd.choice([*place, "new", 7]))
        elif place:
            path = (*path, rnd.randrange(len(place)))
        state = states.replaced(state, path, copy.deepcopy(value))
        self._write(hand, line, state, {}, lambda: thread.set(path, value))

    def do_delete_at(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
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

    def do_step(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
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

        self._has_read(hand, line)
        if fails:
            with pytest.raises(Aborted), thread.step(label) as draft:
                change(draft)
            return
        with thread.step(label) as draft:
            change(draft)
        latest = thread.latest()
        assert latest is not None
        self._has_written(hand, self._saved(hand, line, latest, state, {"label": label}))

    def do_update(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        before = line.head.state if line.head else None
        state = states.edited(rnd, before)

        def change(old: Any) -> Any:
            assert same(old, before)
            return copy.deepcopy(state)

        if state is not None:
            self._has_read(hand, line)
            self._has_written(hand, self._saved(hand, line, thread.update(change), state, {}))

    # -- travelling ---------------------------------------------------------------------------------

    def do_rewind(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
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
        self._has_written(hand, point)
        self.agree(made, point)

    def do_undo(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
        self._go(line, hand, thread.undo, line.undo)

    def do_redo(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
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
            self.agree(really(), point)
            self._has_written(hand, point)

    def do_fork(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
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
        self.agree(made, twin)
        hand = Hand(onto, twin, twin)
        self.hands[onto] = (hand, self.hands[onto][1])
        self.threads[hand] = forked
        self.check_line(onto)

    # -- removing -----------------------------------------------------------------------------------

    def do_delete_checkpoint(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if line.points:
            self._drop(line, hand, thread, rnd.choice(line.points))
        else:
            assert thread.delete_checkpoint("nothing") is False

    def do_delete_head(self, line: Line, hand: Hand, thread: Thread[Any], _: random.Random) -> None:
        if line.head is not None:
            self._drop(line, hand, thread, line.head)
        else:
            assert thread.delete_checkpoint("@") is False

    def _drop(self, line: Line, hand: Hand, thread: Thread[Any], point: Point) -> None:
        seen = point is line.head and hand.expected in (UNKNOWN, point)
        assert thread.delete_checkpoint(point.id) is point.alive
        line.delete_checkpoint(point)
        if seen:
            self._has_written(hand, line.head)
        self._sometimes_collect()

    def do_regret(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        """Rewind, and delete all later checkpoints: remaining rows may be stored beside chunks that gc then removes."""
        if self.collects:
            self._collect()
        history = line.history()
        if len(history) > 1:
            keep = rnd.randrange(len(history) - 1)
            thread.rewind(history[keep].id)
            line.rewind(history[keep])
            self._has_written(hand, history[keep])
            for point in history[keep + 1 :]:
                self._drop(line, hand, thread, point)
        if self.collects:
            self._collect()

    def do_delete(self, line: Line, hand: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        if rnd.random() < 0.5:
            return
        something = bool(line.alive())
        assert thread.delete() is something
        line.delete()
        if something:
            self._has_written(hand, None)

    def do_prune(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        keep, tagged, dry = rnd.randrange(5), rnd.random() < 0.6, rnd.random() < 0.2
        gone = line.prunable(keep, keep_tagged=tagged)
        report = thread.prune(keep_last=keep, keep_tagged=tagged, dry_run=dry)
        assert sorted(which for which, _ in report.removed) == sorted(point.id for point in gone)
        assert report == len(gone)
        for point in gone:
            point.alive = dry
        self._sometimes_collect()

    def _sometimes_collect(self) -> None:
        if self.collects and self.random.random() < 0.3:
            self._collect()

    def do_gc(self, _line: Line, _hand: Hand, _thread: Thread[Any], _: random.Random) -> None:
        self._collect()

    def _collect(self) -> None:
        self.opened.gc()
        for name in NAMES:
            self.check_line(name)
        report = self.opened.verify()
        assert report.ok
        assert report.checkpoints == sum(len(line.alive()) for line in self.lines.values())

    # -- finding ------------------------------------------------------------------------------------

    def do_tag(self, line: Line, _: Hand, thread: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            return
        point, tag, off = rnd.choice(points), rnd.choice(TAGS), rnd.random() < 0.4
        made = thread.untag(point.id, tag) if off else thread.tag(point.id, tag)
        if off and tag in point.tags:
            point.tags.remove(tag)
        elif not off and tag not in point.tags:
            point.tags.append(tag)
        self.agree(made, point)

    def do_refs(self, line: Line, hand: Hand, _: Thread[Any], rnd: random.Random) -> None:
        thread: Thread[Any] = self.opened.thread(hand.name)
        for ref, points in self._some_refs(line, rnd):
            if not points:
                with pytest.raises(NotFound):
                    thread.load(ref)
            else:
                assert thread.load(ref).id in [point.id for point in points], ref
        for label in ("before", "after"):
            assert [c.id for c in thread.find(label=label)] == [p.id for p in line.history() if p.label == label]
        for tag in TAGS:
            assert [c.id for c in thread.find(tag=tag)] == [p.id for p in line.history() if tag in p.tags]
        ancestors = [point.id for point in self._ancestors(line)]
        assert [c.id for c in thread.history(newest_first=True, ancestors=True)][len(thread) :] == ancestors

    def _ancestors(self, line: Line) -> list[Point]:
        """Return the checkpoints that a fork comes from, the nearest first, as far as they are there."""
        known = {point.id: point for each in self.lines.values() for point in each.points}
        found: list[Point] = []
        root = line.path()[0] if line.head else None
        while root is not None and root.origin is not None:
            forked = known[root.origin]
            path = forked.path()
            above = [point for point in path[-2::-1] if point.alive]
            if not forked.alive and not above:
                break
            found += above
            root = path[0]
        return found

    def _some_refs(self, line: Line, rnd: random.Random) -> list[tuple[Any, list[Point]]]:
        """Return refs, each with the checkpoints that it may mean: those of the thread, else its ancestors."""
        if line.head is None:
            return [("@", []), ("@-", []), (1, [])]
        ancestors = self._ancestors(line)
        whole = [*line.history()[::-1], *ancestors]
        back = rnd.randrange(len(whole) + 1)
        step = rnd.randrange(line.head.step + 2)
        found: list[tuple[Any, list[Point]]] = [("@", [line.head]), ("@-", whole[1:2]), (f"@~{back}", whole[back:][:1])]
        here = [point for point in line.path() if point.step == step and point.alive]
        found.append((step, here or [point for point in ancestors if point.step == step]))
        for label in ("before", "after"):
            named = line.with_label(label)
            found.append((label, [named] if named else [point for point in ancestors if point.label == label]))
        for tag in TAGS:
            named = line.with_tag(tag)
            found.append((tag, [named] if named else [point for point in ancestors if tag in point.tags]))
        prefix = rnd.choice(line.points).id[: rnd.randrange(1, 12)]
        matching = line.with_prefix(prefix)
        above = [point for point in ancestors if point.id.startswith(prefix)]
        if len(matching) < 2 and (matching or len(above) < 2):
            found.append((prefix, matching or above))
        return found

    def do_diff(self, line: Line, hand: Hand, _: Thread[Any], rnd: random.Random) -> None:
        points = line.alive()
        if not points:
            return
        old, new = rnd.choice(points), rnd.choice(points)
        changes = list(self.opened.thread(hand.name).diff(old.id, new.id))
        assert bool(changes) is not same(old.state, new.state)
        for change in changes:
            if change.op == "+" and not isinstance(states.at(new.state, change.path), set | frozenset):
                assert same(states.at(new.state, change.path), change.new)
