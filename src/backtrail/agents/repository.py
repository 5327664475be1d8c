"""`store.agents`: the states of agents, and checkpoints of an agent with all its conversations.

The state of an agent's thread is its `AgentState`, as plain data. Its checkpoints are pointers in a separate thread:
see `backtrail.agents.checkpoints`. When a state of an older `version` is read, the upcasters of `AgentState` update it.
"""

from __future__ import annotations

import warnings
import weakref
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from backtrail.agents.checkpoints import Manifests, manifests_of
from backtrail.agents.models import AgentState, newest_version
from backtrail.agents.scheduler import AutoCheckpoint
from backtrail.collection import Collection, ObjectCache, cursor_of
from backtrail.engine.manifests import AGENT, SPACE, erased_names
from backtrail.engine.schema.upcast import upcasted
from backtrail.engine.writer import ThreadKey
from backtrail.errors import Corrupt, Invalid, NotFound
from backtrail.models import AgentCheckpoint, AgentInfo, Diff
from backtrail.runs.history import since, tell
from backtrail.validation import check_count, check_duration, check_id, check_kind, check_period, plain, to_data

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator

    from backtrail.checkpoint import Checkpoint
    from backtrail.engine.manifests import ManifestInfo
    from backtrail.models import ErasureReport
    from backtrail.runs.strategies import ToolCallRecord
    from backtrail.thread import Ref, Thread
    from backtrail.transaction import Engine, Session

    PastCalls = list[ToolCallRecord]
    AgentCheckpoints = list[AgentCheckpoint]
    AgentInfos = list[AgentInfo]
    AgentVersions = list["AgentVersion"]


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """A version of an agent's state, and its changes since the version before."""

    id: str
    """The id of the checkpoint in the agent's thread."""
    step: int
    created_at: dt.datetime
    kind: str
    state: AgentState
    changes: Diff
    """The changes since the version before, without `modified_at`."""


class Erased(UserWarning):
    """The warning that a restore skips conversations that were erased; `conversations` lists their ids.

    It comes before anything is written. `AgentCheckpoint.erased` lists the same ids.
    """

    def __init__(self, conversations: tuple[str, ...]) -> None:
        shown = ", ".join(map(repr, conversations[:5])) + (", ..." if len(conversations) > 5 else "")  # noqa: PLR2004
        super().__init__(f"these conversations of the checkpoint were erased, and do not return: {shown}")
        self.conversations = conversations


_TEXTS_MAX: Final = 3000


class Agents(Collection):
    """The agents of a store: `store.agents`."""

    _space = AGENT
    _what = "an agent"
    _missing = "not_found.agent"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._manifests_cache: ObjectCache[Manifests] = ObjectCache(lambda name: Manifests(engine, name))
        self._schedulers: weakref.WeakSet[AutoCheckpoint] = weakref.WeakSet()

    def _close(self) -> None:
        """Stop all schedulers of automatic checkpoints, because the store is being closed."""
        for scheduler in list(self._schedulers):
            scheduler.stop()

    def save(self, state: AgentState, *, replace: bool = False) -> AgentState:
        """Save an agent's state on top of the version it was loaded from; `Conflict` if there is a newer version.

        A new state needs an id that does not exist yet. `replace` saves in both cases.
        """
        if not isinstance(state, AgentState):
            raise Invalid(f"save() takes an AgentState, not {type(state).__name__}", code="invalid.value")
        self._put(state.agent_id, state.agent_id, to_data(state), state._saved, replace=replace)  # noqa: SLF001
        return state

    def load(self, agent_id: str, *, at: Ref = "@") -> AgentState:
        """Return an agent's state, or raise `NotFound`.

        `at` names an older state: by a checkpoint of the state's own thread, or by a checkpoint of the agent.
        """
        checkpoint = self._load(agent_id, at)
        state = _state(checkpoint)
        self._set_head(state._saved, checkpoint)  # noqa: SLF001
        return state

    def get(self, agent_id: str) -> AgentState | None:
        """Return an agent's state, or None."""
        try:
            return self.load(agent_id)
        except NotFound:
            return None

    def list(
        self,
        *,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AgentInfos:
        """Return the agents that have a state, newest activity first. A damaged state is listed with its error.

        `since` and `until` list agents whose state was last written in that time. `after` continues after an entry of
        an earlier listing: its `cursor`.
        """
        headers = self._headers(None, after, period=check_period(since, until))
        entries = islice(headers, None if limit is None else check_count(limit, "limit"))
        return [_info(record.name, header, cursor_of(record, newest)) for record, newest, header in entries]

    def history(self, agent_id: str, *, newest_first: bool = False, limit: int | None = None) -> AgentVersions:
        """Return the visible versions of an agent's state, each with its changes."""
        thread = self._thread(agent_id)
        if limit is not None:
            check_count(limit, "limit")
        checkpoints = list(thread.history(newest_first=True, limit=None if limit is None else limit + 1))
        versions = []
        for at, checkpoint in enumerate(checkpoints[:limit]):
            before = checkpoints[at + 1] if at + 1 < len(checkpoints) else None
            changes = () if before is None else tuple(thread.diff(before, checkpoint))
            versions.append(_version(checkpoint, Diff(tuple(c for c in changes if c.path != "modified_at"))))
        return versions if newest_first else versions[::-1]

    def thread(self, agent_id: str) -> Thread[Any]:
        """Return a handle of the agent's thread. Its states are plain data."""
        return self._thread(agent_id)

    def erase(
        self,
        agent_id: str | Iterable[str],
        *,
        forks: bool = True,
        force: bool = False,
        progress: Callable[[str, int], None] | None = None,
    ) -> ErasureReport:
        """Erase an agent, or several, with their conversations, runs, threads and checkpoints, and every byte of them.

        Unlike `delete`, nothing can bring it back. `forks=False` keeps what was forked from its threads and belongs to
        other agents. A run with a worker is a `Conflict`, unless `force` is set. An interrupted call is finished by the
        next one. See docs/erasure.md.
        """
        return self._erase(agent_id, forks=forks, force=force, progress=progress)

    def delete(self, agent_id: str) -> bool:
        """Delete an agent with its conversations, runs, threads and checkpoints; return whether anything existed.

        This cannot be undone. `gc` then frees the space.
        """
        agent_id = check_id(agent_id, "an agent's id")

        def work(session: Session) -> bool:
            keys = {(SPACE, agent_id)}
            keys |= {(s.record.space, s.record.name) for s in session.reader.backend.tips(agent_id, touched=False)}
            deleted = {key for key in sorted(keys) if session.mover.delete_thread(ThreadKey(*key))[0]}
            if deleted and (SPACE, agent_id) not in deleted:
                # so that a concurrent first checkpoint of the agent gets a conflict
                self._manifests(agent_id).begin(session)
                session.mover.delete_thread(ThreadKey(SPACE, agent_id))
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
        """Make a checkpoint of the agent with all its conversations. Its cost depends on the changes since the last.

        With `keep`, hide all but the newest `keep` automatic checkpoints of this agent.
        """
        check_kind(kind)
        name, description = _check_texts(name, description)
        redact = self._engine.options.redact
        if redact is not None:
            name, description = redact((name, description), self._engine.types)
        manifests = self._manifests(agent_id)
        made, info = manifests.make(
            name, description, kind, None if keep is None else check_count(keep, "keep", least=1)
        )
        return self._checkpoint(manifests.id, made, info)

    def checkpoints(self, agent_id: str) -> AgentCheckpoints:
        """Return an agent's checkpoints, newest first."""
        manifests = self._manifests(agent_id)
        return [self._checkpoint(manifests.id, made, info) for made, info in reversed(manifests.checkpoints())]

    def get_checkpoint(self, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return an agent's checkpoint, or None."""
        try:
            manifests, seq = self._manifests_with(checkpoint_id)
            return self._checkpoint(manifests.id, *manifests.checkpoint(seq))
        except NotFound:
            return None

    def restore(self, checkpoint_id: str | AgentCheckpoint, *, agent_id: str | None = None) -> AgentState:
        """Restore an agent and all its conversations from a checkpoint, all or nothing; return the agent's state.

        The checkpoint is verified first. Later conversations go out of view, and deleted ones return. Erased ones do
        not: the warning `Erased` names them. `undo` reverts the restore. `agent_id`, if given, must be the agent of the
        checkpoint.
        """
        manifests, seq = self._manifests_with(checkpoint_id)
        if agent_id is not None and manifests.id != agent_id:
            raise Invalid(
                f"this checkpoint belongs to agent {manifests.id!r}, not {agent_id!r}",
                code="invalid.argument",
            )
        made, _ = manifests.checkpoint(seq)
        tell(since(self._engine, manifests.id, made.created_at))
        known = erased_names(self._engine.session.reader, made.tags)
        if known:
            warnings.warn(Erased(known), stacklevel=2)
        more = {*manifests.restore(seq, _check_state)}.difference(known)
        if more:  # erased meanwhile, or in the store that this checkpoint was imported from
            warnings.warn(Erased(tuple(sorted(more))), stacklevel=2)
        return self.load(manifests.id)

    def irreversible(self, checkpoint_id: str | AgentCheckpoint) -> PastCalls:
        """Return the irreversible calls that the agent's runs made after a checkpoint."""
        return self._since(*self._manifests_with(checkpoint_id))

    def _since(self, manifests: Manifests, seq: int) -> PastCalls:
        return since(self._engine, manifests.id, manifests.checkpoint(seq)[0].created_at)

    def undo(self, agent_id: str, *, force: bool = False) -> AgentState | None:
        """Undo the last restore; return the agent's state from before the restore, if it had one.

        `Conflict` if the agent or its conversations have changed since the restore; the error names them. `force`
        undoes the restore anyway.
        """
        self._manifests(agent_id).undo(_check_state, force=force)
        return self.get(agent_id)

    def forget_undos(self, agent_id: str) -> int:
        """Make all restores permanent, and return how many could be undone before.

        Until this call, the store keeps the data that an undo needs. After it, only checkpoints keep deleted data.
        """
        return self._manifests(agent_id).forget_undos()

    def delete_checkpoint(self, checkpoint_id: str | AgentCheckpoint) -> bool:
        """Delete an agent's checkpoint and return whether it existed."""
        try:
            manifests, seq = self._manifests_with(checkpoint_id)
        except NotFound:
            return False
        return manifests.delete(seq)

    @contextmanager
    def guard(self, agent_id: str, name: str, *, rollback: bool = False) -> Iterator[AgentCheckpoint]:
        """Make a checkpoint before a block that may fail.

        With `rollback`, an exception in the block restores the agent, and makes a checkpoint of kind "recovery".
        """
        checkpoint = self.checkpoint(agent_id, name, kind="pre_operation")
        try:
            yield checkpoint
        except BaseException as error:
            if rollback:
                self._roll_back(checkpoint, error)
            raise

    def _roll_back(self, checkpoint: AgentCheckpoint, error: BaseException) -> None:
        self.restore(checkpoint.id)
        try:
            why = f"rolled back: {error!r:.200}"
        except Exception:  # noqa: BLE001 - the repr is the user's code
            why = f"rolled back: {type(error).__name__}"
        self.checkpoint(checkpoint.agent_id, f"After {checkpoint.name:.200}", description=why, kind="recovery")

    def autocheckpoint(
        self,
        agent_ids: str | Iterable[str],
        *,
        enabled: bool = True,
        interval: dt.timedelta | float = 300,
        keep: int = 10,
        on_error: Callable[[str, Exception], None] | None = None,
    ) -> AutoCheckpoint:
        """Make a checkpoint of each agent now and every `interval` seconds, until the returned scheduler is stopped.

        It skips agents without a state. Errors go to the log and to `on_error`, with the agent's id. It keeps the
        newest `keep` automatic checkpoints of each agent. With `enabled=False`, it does not start.
        """
        ids = check_ids(agent_ids)
        seconds = check_duration(interval, "interval") / 1_000_000
        scheduler = AutoCheckpoint(self, ids, seconds, check_count(keep, "keep", least=1), on_error)
        self._schedulers.add(scheduler)
        if enabled:
            scheduler.start()
        return scheduler

    def _checkpoint(self, agent_id: str, checkpoint: Checkpoint[Any], info: ManifestInfo) -> AgentCheckpoint:
        return AgentCheckpoint(
            id=checkpoint.id,
            agent_id=agent_id,
            name=info.name,
            description=info.description,
            kind=checkpoint.kind,
            created_at=checkpoint.created_at,
            size_bytes=info.size,
            checksum=checkpoint.root,
            conversations=info.conversations,
            damaged=checkpoint.damaged,
            erased=erased_names(self._engine.session.reader, checkpoint.tags),
        )

    def _manifests(self, agent_id: str) -> Manifests:
        return self._manifests_cache(check_id(agent_id, "an agent's id"))

    def _manifests_with(self, checkpoint_id: str | AgentCheckpoint) -> tuple[Manifests, int]:
        """Return the manifests of the agent of a checkpoint, and the seq of the checkpoint's row."""
        place = manifests_of(self._engine, checkpoint_id)
        if place is None:
            raise NotFound(
                f"there is no agent checkpoint {checkpoint_id!r}: store.agents.checkpoints(agent_id) lists them",
                code="not_found.checkpoint",
            )
        return self._manifests(place[0]), place[1]


def check_ids(agent_ids: Any) -> list[str]:
    """Return a list of agent ids, given one id or several."""
    try:
        ids = [agent_ids] if isinstance(agent_ids, str) else [*agent_ids]
    except TypeError:
        raise Invalid(
            f"agent_ids must be an id or a list of ids, not {agent_ids!r:.100}", code="invalid.argument"
        ) from None
    return [check_id(agent_id, "an agent's id") for agent_id in ids]


def _check_texts(name: Any, description: Any) -> tuple[str, str | None]:
    for what, text in (("name", name), ("description", "" if description is None else description)):
        if not isinstance(text, str):
            raise Invalid(f"the {what} of a checkpoint must be a string, not {text!r:.100}", code="invalid.argument")
    size = len(f"{name}{description or ''}".encode("utf-8", "surrogatepass"))
    if size > _TEXTS_MAX:
        raise Invalid(
            f"the name and the description of a checkpoint have at most {_TEXTS_MAX} bytes; these have {size}",
            code="invalid.argument",
        )
    return plain(name), None if description is None else plain(description)


def current(data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an agent's state in the newest version, updated by the upcasters of `AgentState`."""
    if not isinstance(data, dict):
        raise Corrupt(f"the state of an agent must be a dict, not {type(data).__name__}", code="corrupt.state")
    newest, version = newest_version(), data.get("version", 1)
    if newest == 1:  # without upcasters, a version means what the user wants
        return data
    fields = upcasted(AgentState, "AgentState", version, newest, deepcopy(data))  # upcasters may change it
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


def _info(name: str, header: dict[str, Any] | str, cursor: str) -> AgentInfo:
    try:
        header = header if isinstance(header, str) else current(header)
    except Invalid as error:  # a failing upcaster must not stop the listing
        header = str(error)
    if isinstance(header, str):
        return AgentInfo(name, None, None, None, None, None, header, cursor)
    fields = ("name", "agent_type", "version", "created_at", "modified_at")
    return AgentInfo(name, **{field: header.get(field) for field in fields}, cursor=cursor)
