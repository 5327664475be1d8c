"""`BacktrailCheckpointStorage`: the checkpoints of Agent Framework's workflows in a backtrail store, without pickle.

A workflow's name is a thread. Each of its checkpoints is a checkpoint there, with the framework's id as its label. The
order is that of the saves; clocks do not matter.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from backtrail.adapters.adapter_store import AdapterStore
from backtrail.adapters.agent_framework.framework_types import all_types
from backtrail.adapters.thread_ids import id_prefixes, joined_id
from backtrail.errors import Corrupt, Invalid
from backtrail.validation import check_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backtrail import Checkpoint, Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

_KIND: Final = "agent-framework"
_WORKFLOW: Final = "workflow_name"


class BacktrailCheckpointStorage:
    """A checkpoint storage: `WorkflowBuilder(..., checkpoint_storage=BacktrailCheckpointStorage("sqlite:///a.db"))`.

    `source` is a synchronous or asynchronous store, or a URL: `close` or `aclose` closes the store of a URL. `types`
    are the classes of your messages and states: see docs/threads.md. `agent` owns the threads.
    """

    def __init__(self, source: StoreSource, *, types: Iterable[Any] = (), agent: str | None = None) -> None:
        self._adapter_store = AdapterStore(source)
        self._agent = None if agent is None else check_id(agent, "an agent's id")
        self._types = all_types(types)

    # -- the framework's interface ----------------------------------------------------------------------

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, durable on return, and return its id. A checkpoint with this id is replaced."""
        if not isinstance(checkpoint, WorkflowCheckpoint):
            raise Invalid(f"a storage keeps checkpoints of workflows, not {checkpoint!r:.100}", code="invalid.argument")
        name = check_id(checkpoint.checkpoint_id, "a checkpoint's id")
        thread, state = self.thread(checkpoint.workflow_name), checkpoint.to_dict()
        await self._adapter_store.write(partial(thread.save, state, label=name), [state], surely=True)
        return name

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; the framework's error if there is none with this id."""
        found = await self._adapter_store.read(partial(self._named, checkpoint_id))
        if not found:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return await self._adapter_store.read(partial(_checkpoint, found[-1]))

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        return await self._adapter_store.read(lambda: [_checkpoint(row) for row in self._rows(workflow_name)])

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and return whether there was one."""
        return await self._adapter_store.write(partial(self._delete, checkpoint_id), [], surely=True)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow that was saved last, or None."""
        return await self._adapter_store.read(partial(self._latest, workflow_name))

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        rows = await self._adapter_store.read(partial(self._rows, workflow_name))
        return [str(row.label) for row in rows]

    # -- the user's API -----------------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store, with its asynchronous interface."""
        return self._adapter_store.aio

    def thread(self, workflow_name: str) -> Thread[Any]:
        """Return a handle of the thread of a workflow: `history`, `diff`, `watch` ..."""
        return self._thread(joined_id(_KIND, workflow_name))

    def close(self) -> None:
        """Close the store if it was opened from a URL. A second call does nothing."""
        self._adapter_store.close()

    async def aclose(self) -> None:
        """Wait for calls in progress, and close the store if it was opened from a URL."""
        await self._adapter_store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- threads ------------------------------------------------------------------------------------------

    def _thread(self, thread_id: str) -> Thread[Any]:
        return self._adapter_store.sync.thread(thread_id, types=self._types, agent=self._agent)

    def _rows(self, workflow_name: str) -> list[Checkpoint[Any]]:
        """Return the rows of a workflow: of those with one id the last, in the place of the first."""
        rows = self.thread(workflow_name).history()
        return list({row.label: row for row in rows if row.label is not None}.values())

    def _latest(self, workflow_name: str) -> WorkflowCheckpoint | None:
        head = self.thread(workflow_name).latest()
        return None if head is None else _checkpoint(head)

    def _named(self, checkpoint_id: str) -> list[Checkpoint[Any]]:
        """Return the rows with a checkpoint's id, oldest first. Workflows are few, so each is asked."""
        if not checkpoint_id or not isinstance(checkpoint_id, str):
            return []
        infos = [info for prefix in id_prefixes(_KIND, "") for info in self._adapter_store.sync.threads(prefix=prefix)]
        found = [row for info in infos for row in self._thread(info.id).find(label=checkpoint_id)]
        return sorted(found, key=lambda row: row.created_at)

    def _delete(self, checkpoint_id: str) -> bool:
        rows = self._named(checkpoint_id)
        for row in rows:
            self._thread(row.thread_id).delete_checkpoint(row.id)
        return bool(rows)


def _checkpoint(row: Checkpoint[Any]) -> WorkflowCheckpoint:
    state = row.state
    if not isinstance(state, dict) or _WORKFLOW not in state:
        raise Corrupt(f"checkpoint {row.id} is not one of a workflow", code="corrupt.state", checkpoint_id=row.id)
    return WorkflowCheckpoint.from_dict(state)
