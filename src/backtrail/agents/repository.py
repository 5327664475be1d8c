"""Agents: who an agent is, and the points to which it and all its conversations can be brought back.

The state of an agent's thread is its `AgentState`, as plain data. Its checkpoints are in a thread of their own, as
pointers: see `backtrail.agents.checkpoints`. States of an older `version` are brought up to date when they are read,
by the upcasters of `AgentState`.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.checkpoints import Manifests, manifests_of
from backtrail.agents.scheduler import AutoCheckpoint
from backtrail.collection import Collection, Kept, cursor_of
from backtrail.engine import pins
from backtrail.engine.pins import AGENT
from backtrail.engine.schema.versions import upcasted
from backtrail.engine.writer import Key
from backtrail.entities import AgentState, newest_version, to_data
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.models import AgentCheckpoint, AgentInfo, Diff
from backtrail.runs.history import since, tell
from backtrail.validation import check_count, check_duration, check_id, check_kind, plain

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.pins import Note
    from backtrail.runs.strategies import ToolCallRecord
    from backtrail.thread import Ref, Thread
    from backtrail.transaction import Desk, Engine

    PastCalls = list[ToolCallRecord]
    AgentCheckpoints = list[AgentCheckpoint]
    AgentInfos = list[AgentInfo]
    AgentVersions = list["AgentVersion"]


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """What an agent's state was at some time, and what had changed in it."""

    id: str
    """Of the checkpoint in the agent's thread."""
    step: int
    created_at: dt.datetime
    kind: str
    state: AgentState
    changes: Diff
    """Since the version before; `modified_at` is left out."""


_TEXTS_MAX: Final = 3000


class Agents(Collection):
    """The agents of a store: `store.agents`."""

    _space = AGENT
    _what = "an agent"
    _missing = "not_found.agent"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._kept: Kept[Manifests] = Kept(lambda name: Manifests(engine, name))
        self._schedulers: weakref.WeakSet[AutoCheckpoint] = weakref.WeakSet()

    def _close(self) -> None:
        """Stop what makes automatic checkpoints: the store is being closed."""
        for scheduler in list(self._schedulers):
            scheduler.stop()

    def save(self, state: AgentState, *, replace: bool = False) -> AgentState:
        """Save an agent's state, on top of what it came from; a new one must be the first of its id, or `replace`."""
        if not isinstance(state, AgentState):
            raise Invalid(f"this is {type(state).__name__}, not an AgentState", code="invalid.value")
        self._put(state.agent_id, state.agent_id, to_data(state), state._saved, replace=replace)  # noqa: SLF001
        return state

    def load(self, agent_id: str, *, at: Ref = "@") -> AgentState:
        """Return an agent's state, or `NotFound`; `at` a checkpoint of its thread, or of the agent, not the newest."""
        checkpoint = self._load(agent_id, at)
        found = _state(checkpoint)
        self._came_from(found._saved, checkpoint)  # noqa: SLF001
        return found

    def get(self, agent_id: str) -> AgentState | None:
        """Return an agent's state, or None."""
        try:
            return self.load(agent_id)
        except NotFound:
            return None

    def list(self, *, limit: int | None = None, after: str | None = None) -> AgentInfos:
        """Return the agents that have a state, newest activity first; one whose state is damaged says so.

        `after` goes on behind an entry of an earlier listing: its `cursor`.
        """
        listed = islice(self._headers(None, after), None if limit is None else check_count(limit, "limit"))
        return [_info(record.name, header, cursor_of(record, newest)) for record, newest, header in listed]

    def history(self, agent_id: str, *, newest_first: bool = False, limit: int | None = None) -> AgentVersions:
        """Return the versions of an agent's state that are in view, each with what changed in it."""
        thread = self._thread(agent_id)
        if limit is not None:
            check_count(limit, "limit")
        checkpoints = list(thread.history(newest_first=True, limit=None if limit is None else limit + 1))
        found = []
        for at, checkpoint in enumerate(checkpoints[:limit]):
            before = checkpoints[at + 1] if at + 1 < len(checkpoints) else None
            changes = () if before is None else tuple(thread.diff(before, checkpoint))
            found.append(_version(checkpoint, Diff(tuple(c for c in changes if c.path != "modified_at"))))
        return found if newest_first else found[::-1]

    def thread(self, agent_id: str) -> Thread[Any]:
        """Return a handle of the agent's thread: its states are plain data."""
        return self._thread(agent_id)

    def delete(self, agent_id: str) -> bool:
        """Delete an agent with all that belongs to it: conversations, runs, threads, checkpoints. Say if there was any.

        Nothing brings it back. `gc` then removes what it held.
        """
        agent_id = check_id(agent_id, "an agent's id")

        def work(desk: Desk) -> bool:
            keys = {(pins.SPACE, agent_id)}
            keys |= {(s.record.space, s.record.name) for s in desk.heads.backend.standings(agent_id, touched=False)}
            deleted = {key for key in sorted(keys) if desk.moves.delete_thread(Key(*key))[0]}
            if deleted and (pins.SPACE, agent_id) not in deleted:
                self._manifests(agent_id).begin(desk)  # so that a first checkpoint that is made meanwhile is a conflict
                desk.moves.delete_thread(Key(pins.SPACE, agent_id))
            return bool(deleted)

        return self._engine.atomic(work)

    # -- checkpoints ------------------------------------------------------------------------------------

    def checkpoint(
        self,
        agent_id: str,
        name: str,
        *,
        description: str | None = None,
        kind: str = "manual",
        keep: int | None = None,
    ) -> AgentCheckpoint:
        """Make a point to which the agent and all its conversations can be brought back; it costs what changed.

        `keep` keeps so many automatic ones of this agent, the newest.
        """
        check_kind(kind)
        name, description = _check_texts(name, description)
        manifests = self._manifests(agent_id)
        made, note = manifests.make(
            name, description, kind, None if keep is None else check_count(keep, "keep", least=1)
        )
        return _checkpoint(manifests.id, made, note)

    def checkpoints(self, agent_id: str) -> AgentCheckpoints:
        """Return an agent's checkpoints, newest first."""
        manifests = self._manifests(agent_id)
        return [_checkpoint(manifests.id, made, note) for made, note in reversed(manifests.listed())]

    def get_checkpoint(self, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return an agent's checkpoint, or None."""
        try:
            manifests, seq = self._found(checkpoint_id)
            return _checkpoint(manifests.id, *manifests.found(seq))
        except NotFound:
            return None

    def restore(self, checkpoint_id: str | AgentCheckpoint, *, agent_id: str | None = None) -> AgentState:
        """Bring an agent and all its conversations back to a checkpoint, exactly, all or nothing.

        It is verified first. Conversations that were made later go out of view, deleted ones are back; `undo` takes it
        back. If `agent_id` is given, it must be that agent's.
        """
        manifests, seq = self._found(checkpoint_id)
        if agent_id is not None and manifests.id != agent_id:
            raise Invalid(
                f"this checkpoint belongs to agent {manifests.id!r}, not {agent_id!r}",
                code="invalid.argument",
            )
        tell(self._since(manifests, seq))
        manifests.restore(seq, _check_state)
        return self.load(manifests.id)

    def irreversible(self, checkpoint_id: str | AgentCheckpoint) -> PastCalls:
        """Return the calls of the agent's runs that were made after a checkpoint and cannot be undone outside."""
        return self._since(*self._found(checkpoint_id))

    def _since(self, manifests: Manifests, seq: int) -> PastCalls:
        return since(self._engine, manifests.id, manifests.found(seq)[0].created_at)

    def undo(self, agent_id: str, *, force: bool = False) -> AgentState | None:
        """Take back the last restore, everything as it was before it; return the agent's state, if it had one.

        `Conflict` if the agent or conversations of it have moved on since, which it names; `force` goes back all the
        same.
        """
        self._manifests(agent_id).undo(_check_state, force=force)
        return self.get(agent_id)

    def forget_undos(self, agent_id: str) -> int:
        """Let go of what restores could be undone to, for good, and say how many restores that were.

        What an undo can bring back is kept; after this, only checkpoints keep what was deleted.
        """
        return self._manifests(agent_id).forget_undos()

    def delete_checkpoint(self, checkpoint_id: str | AgentCheckpoint) -> bool:
        """Delete an agent's checkpoint and say whether there was one."""
        try:
            manifests, seq = self._found(checkpoint_id)
        except NotFound:
            return False
        return manifests.delete(seq)

    @contextmanager
    def guard(self, agent_id: str, name: str, *, rollback: bool = False) -> Iterator[AgentCheckpoint]:
        """Make a checkpoint before a block that may go wrong.

        With `rollback`, an exception brings the agent back to it, and a checkpoint of kind recovery says so.
        """
        made = self.checkpoint(agent_id, name, kind="pre_operation")
        try:
            yield made
        except BaseException as error:
            if rollback:
                self._roll_back(made, error)
            raise

    def _roll_back(self, made: AgentCheckpoint, error: BaseException) -> None:
        self.restore(made.id)
        try:
            told = f"rolled back: {error!r:.200}"
        except Exception:  # noqa: BLE001 - the exception is the user's, and so is what it says of itself
            told = f"rolled back: {type(error).__name__}"
        self.checkpoint(made.agent_id, f"After {made.name:.200}", description=told, kind="recovery")

    def autocheckpoint(
        self,
        agent_ids: str | Iterable[str],
        *,
        enabled: bool = True,
        interval: dt.timedelta | float = 300,
        keep: int = 10,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> AutoCheckpoint:
        """Make a checkpoint of each of these agents now and every `interval` seconds, until it is stopped.

        Agents that are not there are skipped. Errors go to the log and to `on_error`, with the agent's id. It keeps the
        newest `keep` automatic checkpoints of each agent. Not `enabled`, it does nothing.
        """
        ids = check_ids(agent_ids)
        seconds = check_duration(interval, "interval") / 1_000_000
        made = AutoCheckpoint(self, ids, seconds, check_count(keep, "keep", least=1), on_error)
        self._schedulers.add(made)
        if enabled:
            made.start()
        return made

    def _manifests(self, agent_id: str) -> Manifests:
        return self._kept(check_id(agent_id, "an agent's id"))

    def _found(self, checkpoint_id: str | AgentCheckpoint) -> tuple[Manifests, int]:
        """Return the manifests that a checkpoint is one of, and its seq."""
        found = manifests_of(self._engine, checkpoint_id)
        if found is None:
            raise NotFound(f"there is no agent checkpoint {checkpoint_id!r}", code="not_found.checkpoint")
        return self._manifests(found[0]), found[1]


def check_ids(agent_ids: Any) -> list[str]:
    """Return the ids of agents, given one or several."""
    try:
        ids = [agent_ids] if isinstance(agent_ids, str) else [*agent_ids]
    except TypeError:
        raise Invalid(f"name one agent, or several: ids, not {agent_ids!r:.100}", code="invalid.argument") from None
    return [check_id(agent_id, "an agent's id") for agent_id in ids]


def _check_texts(name: Any, description: Any) -> tuple[str, str | None]:
    for what, text in (("name", name), ("description", "" if description is None else description)):
        if not isinstance(text, str):
            raise Invalid(f"the {what} of a checkpoint is a string, not {text!r:.100}", code="invalid.argument")
    size = len(f"{name}{description or ''}".encode("utf-8", "surrogatepass"))
    if size > _TEXTS_MAX:
        raise Invalid(
            f"the name and the description of a checkpoint have at most {_TEXTS_MAX} bytes; these have {size}",
            code="invalid.argument",
        )
    return plain(name), None if description is None else plain(description)


def current(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an agent's state as the newest version has it, by the upcasters of `AgentState`."""
    if not isinstance(data, dict):
        raise Corrupt(f"the state of an agent is a dict, not {type(data).__name__}", code="corrupt.state")
    newest, version = newest_version(), data.get("version", 1)
    if newest == 1:  # no upcasters: versions are the user's own business
        return data
    fields = upcasted(AgentState, "AgentState", version, newest, deepcopy(data))  # they may change what is in it
    return {**fields, "version": newest}


def _check_state(data: Any) -> None:
    AgentState.from_data(current(data))


def _state(checkpoint: Checkpoint[Any]) -> AgentState:
    return AgentState.from_data(current(checkpoint.state))


def _version(checkpoint: Checkpoint[Any], changes: Diff) -> AgentVersion:
    state = _state(checkpoint)
    return AgentVersion(
        id=checkpoint.id,
        step=checkpoint.step,
        created_at=checkpoint.created_at,
        kind=checkpoint.kind,
        state=state,
        changes=changes,
    )


def _checkpoint(agent_id: str, made: Checkpoint[Any], note: Note) -> AgentCheckpoint:
    return AgentCheckpoint(
        id=made.id,
        agent_id=agent_id,
        name=note.name,
        description=note.description,
        kind=made.kind,
        created_at=made.created_at,
        size_bytes=note.size,
        checksum=made.root,
        conversations=note.held,
        damaged=made.damaged,
    )


def _info(name: str, header: dict[str, Any] | str, cursor: str) -> AgentInfo:
    try:
        header = header if isinstance(header, str) else current(header)
    except Invalid as error:  # an upcaster fails: the others are still listed
        header = str(error)
    if isinstance(header, str):
        return AgentInfo(name, None, None, None, None, None, header, cursor)
    fields = ("name", "agent_type", "version", "created_at", "modified_at")
    return AgentInfo(name, **{field: header.get(field) for field in fields}, cursor=cursor)
