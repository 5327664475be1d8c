"""A random script of operations on agents, and a model in plain dicts.

The model of an agent is what it shows: its state and its conversations, each as a plain value with a token that is new
whenever it is written to. An agent checkpoint is a copy of that; a restore puts the copy back, and keeps what was there
for its undo. After every deed what the store shows is compared with what the model says.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from backtrail import AgentState, Conflict, Conversation, Invalid, Message, NotFound
from tests.support.scene import agent, view

if TYPE_CHECKING:
    import random

    from backtrail import Store
    from tests.machine.compare import Opener

UNDOS: Final = 10
"""So many restores can be undone."""
KEEP: Final = 3
"""So many automatic checkpoints are kept."""
SAID: Final = ("converse", "append", "append", "update", "resave", "delete", "fork", "edit")
TOGETHER: Final = (*SAID, "change", "checkpoint", "restore", "undo", "force")
DEEDS: Final = (
    *SAID,
    *SAID,
    *("change", "change", "held", "checkpoint", "checkpoint", "automatic", "restore", "restore", "undo", "undo"),
    *("force", "forget", "gc", "prune", "reopen", "search", "transaction", "erase"),
)


class Entry(NamedTuple):
    """A value, and which write of it this is."""

    token: int
    value: Any


Shown = dict[str, Entry]
"""What an agent shows: its state under "", its conversations under their ids."""


class Restore(NamedTuple):
    """A restore that can be undone."""

    before: Shown
    after: Shown


@dataclass(eq=False)
class Point:
    """An agent checkpoint."""

    agent_id: str
    name: str
    kind: str
    shown: Shown


class Aborted(Exception):  # noqa: N818 - it is no error
    """Drops a transaction."""


class AgentScript:
    """A store of a few agents, beside its model."""

    def __init__(self, opener: Opener, rnd: random.Random, agents: tuple[str, ...] = ("a", "a_b")) -> None:
        self._opener = opener
        self.rnd = rnd
        self.store: Store = opener()
        self.agents = agents
        self.shown: dict[str, Shown] = {name: {} for name in agents}
        self.points: dict[str, Point] = {}
        """By id, oldest first."""
        self.undos: dict[str, list[Restore]] = defaultdict(list)
        self.held: dict[str, Entry] = {}
        self.log: list[str] = []
        """The log of all operations, for the message of a failed test."""
        self._tokens = itertools.count(1)
        self._inside = False

    # -- doing ------------------------------------------------------------------------------------------

    def step(self, kinds: tuple[str, ...] = DEEDS) -> None:
        """Do one thing, and compare."""
        name, kind = self.rnd.choice(self.agents), self.rnd.choice(kinds)
        self.log.append(f"{kind} {name}")
        getattr(self, f"do_{kind}")(name)
        for each in self.agents:
            self.check(each)

    def check(self, name: str) -> None:
        """Compare an agent in the store with the model."""
        state, said = view(self.store, name)
        shown = self.shown[name]
        own = shown.get("")
        assert state == (own.value if own else None), self.log
        assert said == {which: entry.value for which, entry in sorted(shown.items()) if which}, self.log
        points = [(which, point) for which, point in self.points.items() if point.agent_id == name]
        made = self.store.agents.checkpoints(name)
        assert [(point.id, point.name, point.kind, point.conversations) for point in made] == [
            (which, point.name, point.kind, len(point.shown) - 1) for which, point in reversed(points)
        ], self.log

    def _new(self, value: Any) -> Entry:
        return Entry(next(self._tokens), value)

    def _message(self) -> Message:
        return Message.user(f"word{next(self._tokens)} " + "and more " * self.rnd.randrange(20))

    def _pick(self, name: str) -> str | None:
        """Choose a conversation of an agent."""
        ids = sorted(which for which in self.shown[name] if which)
        return self.rnd.choice(ids) if ids else None

    def _free(self, name: str) -> str:
        """Choose the id of a conversation that is not there, but may have been."""
        return self.rnd.choice([which for which in (f"{name}/{n}" for n in range(12)) if which not in self.shown[name]])

    # -- agents -----------------------------------------------------------------------------------------

    def do_change(self, name: str) -> None:
        own = self.shown[name].get("")
        state: AgentState = self.store.agents.load(name) if own else agent(name)
        changed = state.set_state(self.rnd.choice("kl"), next(self._tokens))
        self.store.agents.save(changed, replace=self._inside)
        self.shown[name][""] = self._new(changed)
        if self.rnd.random() < 0.5 and not self._inside:
            self.held[name] = Entry(self.shown[name][""].token, changed)

    def do_held(self, name: str) -> None:
        """Save a value that was loaded some time ago: a conflict, unless the stored value has not changed."""
        if name not in self.held:
            return
        token, value = self.held[name]
        own = self.shown[name].get("")
        if own is not None and own.token == token:
            self.store.agents.save(value)
            self.held[name] = self.shown[name][""] = self._new(value)
        else:
            with pytest.raises(Conflict):
                self.store.agents.save(value)

    def do_erase(self, name: str) -> None:
        if self.rnd.random() < 0.7:
            return
        there = bool(self.shown[name] or self.undos[name] or self._points(name))
        erased = self.store.agents.delete(name)
        assert erased or not there, self.log
        self.shown[name], self.undos[name] = {}, []
        self.points = {which: point for which, point in self.points.items() if point.agent_id != name}
        assert self.store.agents.delete(name) is False, self.log

    # -- conversations ------------------------------------------------------------------------------------

    def do_converse(self, name: str) -> None:
        if len(self.shown[name]) > 8:
            return
        which = self._free(name)
        said = Conversation(name, id=which, messages=[self._message() for _ in range(self.rnd.randrange(4))])
        self.store.conversations.save(said)
        self.shown[name][which] = self._new(said)

    def do_append(self, name: str) -> None:
        which = self._pick(name)
        messages = [self._message() for _ in range(self.rnd.randrange(1, 4))]
        if which is None:
            with pytest.raises(NotFound):
                self.store.conversations.append(self._free(name), *messages)
            return
        self.store.conversations.append(which, *messages)
        said = self.shown[name][which].value
        self.shown[name][which] = self._new(replace(said, messages=[*said.messages, *messages]))

    def do_update(self, name: str) -> None:
        which = self._pick(name)
        if which is None:
            return
        change: dict[str, Any] = self.rnd.choice(
            ({"title": str(next(self._tokens))}, {"archived": True}, {"archived": False}, {"metadata": {"k": "v"}})
        )
        self.store.conversations.update(which, **change)
        self.shown[name][which] = self._new(replace(self.shown[name][which].value, **change))

    def do_resave(self, name: str) -> None:
        which = self._pick(name)
        if which is None:
            return
        said = self.store.conversations.load(which).add_message(self._message())
        self.store.conversations.save(said, replace=self._inside)
        self.shown[name][which] = self._new(said)

    def do_delete(self, name: str) -> None:
        which = self._pick(name)
        if which is None or self.rnd.random() < 0.5:
            return
        assert self.store.conversations.delete(which) is True
        del self.shown[name][which]

    def do_fork(self, name: str) -> None:
        self._branch(name, edit=False)

    def do_edit(self, name: str) -> None:
        self._branch(name, edit=True)

    def _branch(self, name: str, *, edit: bool) -> None:
        which = self._pick(name)
        if which is None or len(self.shown[name]) > 8:
            return
        said = self.shown[name][which].value
        if not said.messages:
            return
        at, new = self.rnd.randrange(len(said.messages)), self._free(name)
        if edit:
            made = self.store.conversations.edit(which, said.messages[at].id, "edited", new_id=new)
            assert made.messages[:-1] == said.messages[:at], self.log
            assert made.messages[-1].content == "edited"
        else:
            made = self.store.conversations.fork(which, at=said.messages[at].id, new_id=new)
            assert made.messages == said.messages[: at + 1], self.log
        assert (made.id, made.forked_from, made.title) == (new, which, said.title)
        self.shown[name][new] = self._new(made)

    # -- checkpoints ------------------------------------------------------------------------------------

    def do_checkpoint(self, name: str) -> None:
        self._checkpoint(name, "manual", None)

    def do_automatic(self, name: str) -> None:
        self._checkpoint(name, "automatic", KEEP)
        automatic = [which for which, point in self._points(name).items() if point.kind == "automatic"]
        for which in automatic[:-KEEP]:
            del self.points[which]

    def _checkpoint(self, name: str, kind: str, keep: int | None) -> None:
        title = f"point {next(self._tokens)}"
        if "" not in self.shown[name]:
            with pytest.raises(NotFound):
                self.store.agents.checkpoint(name, title, kind=kind, keep=keep)
            return
        made = self.store.agents.checkpoint(name, title, kind=kind, keep=keep)
        self.points[made.id] = Point(name, title, kind, dict(self.shown[name]))
        heads = [self.store.agents.thread(name).latest()]
        heads += [self.store.conversations.thread(which).latest() for which in self.shown[name] if which]
        assert made.size_bytes == sum(head.size for head in heads if head), self.log

    def _points(self, name: str) -> dict[str, Point]:
        return {which: point for which, point in self.points.items() if point.agent_id == name}

    def do_restore(self, name: str) -> None:
        points = self._points(name)
        if points:
            self.restore(self.rnd.choice(sorted(points)))

    def restore(self, which: str) -> None:
        """Restore a checkpoint, in the store and in the model."""
        point = self.points[which]
        name = point.agent_id
        assert self.store.agents.restore(which, agent_id=name) == point.shown[""].value
        self.undos[name] = [*self.undos[name], Restore(self.shown[name], dict(point.shown))][-UNDOS:]
        self.shown[name] = dict(point.shown)

    def do_undo(self, name: str) -> None:
        restores = self.undos[name]
        if not restores:
            with pytest.raises(Invalid):
                self.store.agents.undo(name)
            return
        now, after = self.shown[name], restores[-1].after
        moved = {which for which in now.keys() | after.keys() if now.get(which) != after.get(which)}
        if moved:
            with pytest.raises(Conflict) as caught:
                self.store.agents.undo(name)
            assert caught.value.details["conversations"] == sorted(moved - {""}), self.log
        else:
            self.undo(name)

    def do_force(self, name: str) -> None:
        if self.undos[name]:
            self.undo(name, force=True)

    def undo(self, name: str, *, force: bool = False) -> None:
        """Undo a restore, in the store and in the model."""
        before = self.undos[name].pop().before
        assert self.store.agents.undo(name, force=force) == before[""].value
        self.shown[name] = dict(before)

    def do_forget(self, name: str) -> None:
        points = self._points(name)
        if points:
            which = self.rnd.choice(sorted(points))
            assert self.store.agents.delete_checkpoint(which) is True
            assert self.store.agents.delete_checkpoint(which) is False
            del self.points[which]
            with pytest.raises(NotFound):
                self.store.agents.restore(which)

    # -- the store ----------------------------------------------------------------------------------------

    def do_gc(self, _: str) -> None:
        self.store.gc()

    def do_prune(self, name: str) -> None:
        """Prune threads that checkpoints point at, without mercy."""
        for which in self.shown[name]:
            thread = self.store.conversations.thread(which) if which else self.store.agents.thread(name)
            thread.prune(keep_last=self.rnd.randrange(2), keep_tagged=False)

    def do_reopen(self, _: str) -> None:
        self.store.close()
        self.store = self._opener()

    def do_search(self, name: str) -> None:
        """Look for a message: it is in the conversations in which it is shown, and in no others."""
        told = [
            (which, message.content.split()[0])
            for shown in (self.shown[name], *(point.shown for point in self._points(name).values()))
            for which, entry in shown.items()
            if which
            for message in entry.value.messages
        ]
        if told:
            word = self.rnd.choice(told)[1]
            wanted = {
                which
                for which, entry in self.shown[name].items()
                if which and any(message.content.split()[0] == word for message in entry.value.messages)
            }
            hits = self.store.conversations.search(word, agent_id=name, limit=100, contains=False)
            assert {hit.conversation_id for hit in hits} == wanted, self.log

    def do_transaction(self, _: str) -> None:
        """Do several things at once, and perhaps give them up."""
        kept = {name: dict(shown) for name, shown in self.shown.items()}
        points, undos = dict(self.points), {name: list(stack) for name, stack in self.undos.items()}
        self._inside = True
        try:
            with self.store.transaction():
                for _step in range(self.rnd.randrange(1, 5)):
                    self.step(TOGETHER)
                if self.rnd.random() < 0.4:
                    raise Aborted  # noqa: TRY301
        except Aborted:
            self.shown, self.points = kept, points
            self.undos = defaultdict(list, undos)
            self.log.append("dropped")
        finally:
            self._inside = False
