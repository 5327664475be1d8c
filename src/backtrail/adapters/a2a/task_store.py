"""`BacktrailTaskStore`: the tasks of A2A servers in a backtrail store.

A task is a thread, so it has a history: each save is a checkpoint. A task belongs to the user that made it; other users
do not see it. A save on top of a save that another process has made since is a `Conflict`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from a2a.server.owner_resolver import resolve_user_scope
from a2a.server.tasks import TaskStore
from a2a.types.a2a_pb2 import ListTasksResponse, Task
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    decode_list_tasks_cursor,
    decode_page_token,
    encode_list_tasks_cursor,
)

from backtrail.adapters.a2a.task_states import LISTED, ListedTask, listed_of, state_of, task_of
from backtrail.adapters.adapter_store import AdapterStore
from backtrail.adapters.thread_ids import id_prefixes, joined, joined_id
from backtrail.validation import check_id

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator

    from a2a.server.context import ServerCallContext
    from a2a.server.owner_resolver import OwnerResolver
    from a2a.types.a2a_pb2 import ListTasksRequest

    from backtrail import Thread, aio
    from backtrail.adapters.adapter_store import StoreSource

_KIND: Final = "a2a"
_KNOWN_MAX: Final = 10_000
"""Tasks whose last checkpoint this process remembers. For others, the last save wins, as in the framework's stores."""


class BacktrailTaskStore(TaskStore):  # type: ignore[misc]  # the linters do not have the framework
    """A task store for A2A: `DefaultRequestHandler(executor, BacktrailTaskStore("sqlite:///agents.db"), card)`.

    `source` is a synchronous or asynchronous store, or a URL: `close` or `aclose` closes the store of a URL.
    `owner_resolver` is the framework's: it returns the user of a call. `agent` owns the threads.
    """

    def __init__(
        self, source: StoreSource, *, owner_resolver: OwnerResolver = resolve_user_scope, agent: str | None = None
    ) -> None:
        self._adapter_store = AdapterStore(source)
        self._agent = None if agent is None else check_id(agent, "an agent's id")
        self._owner = owner_resolver
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By owner and task: the checkpoint that this process read or wrote last."""
        self._lock = threading.Lock()

    # -- the framework's interface ----------------------------------------------------------------------

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Save a task, durable on return. `Conflict` if another process saved it since this one read or saved it."""
        owner = self._owner(context)
        state = state_of(owner, task)
        await self._adapter_store.write(partial(self._save, owner, task.id, state), [state], surely=True)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return a task of the caller, or None."""
        return await self._adapter_store.read(partial(self._get, self._owner(context), task_id))

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks, those whose status changed last first."""
        return await self._adapter_store.read(partial(self._list, self._owner(context), params))

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Delete a task of the caller, if it exists."""
        await self._adapter_store.write(partial(self._delete, self._owner(context), task_id), [], surely=True)

    # -- the user's API -----------------------------------------------------------------------------------

    @property
    def store(self) -> aio.Store:
        """The store, with its asynchronous interface."""
        return self._adapter_store.aio

    def thread(self, task_id: str, *, owner: str = "") -> Thread[Any]:
        """Return a handle of the thread of a task: `history`, `diff`, `rewind`, `undo`, `watch` ..."""
        return self._adapter_store.sync.thread(joined_id(_KIND, owner, task_id), agent=self._agent)

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

    # -- one task -----------------------------------------------------------------------------------------

    def _save(self, owner: str, task_id: str, state: dict[str, Any]) -> None:
        known = self._known_head(owner, task_id)
        self._remember(owner, task_id, self.thread(task_id, owner=owner).save(state, expect=known).id)

    def _get(self, owner: str, task_id: str) -> Task | None:
        known = self._known_head(owner, task_id)
        head = self.thread(task_id, owner=owner).latest()
        with self._lock:
            if self._known.get((owner, task_id)) == known:  # else a save has ended meanwhile, and knows a newer head
                self._keep(owner, task_id, None if head is None else head.id)
        return None if head is None else task_of(head.state)

    def _delete(self, owner: str, task_id: str) -> None:
        self.thread(task_id, owner=owner).delete()
        self._remember(owner, task_id, None)

    def _known_head(self, owner: str, task_id: str) -> str | None:
        with self._lock:
            return self._known.get((owner, task_id))

    def _remember(self, owner: str, task_id: str, checkpoint_id: str | None) -> None:
        with self._lock:
            self._keep(owner, task_id, checkpoint_id)

    def _keep(self, owner: str, task_id: str, checkpoint_id: str | None) -> None:
        """Set the known checkpoint of a task. The caller has the lock."""
        self._known.pop((owner, task_id), None)
        if checkpoint_id is not None:
            self._known[owner, task_id] = checkpoint_id
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    # -- listings -----------------------------------------------------------------------------------------

    def _list(self, owner: str, params: ListTasksRequest) -> ListTasksResponse:
        after = params.status_timestamp_after.ToNanoseconds() if params.HasField("status_timestamp_after") else None
        found = [
            each
            for each in self._listed(owner)
            if (not params.context_id or each.context_id == params.context_id)
            and (not params.status or each.state == params.status)
            and (after is None or (each.timestamp is not None and each.timestamp >= after))
        ]
        found.sort(key=lambda each: each.order, reverse=True)
        start = _start(found, params.page_token) if params.page_token else 0
        size = params.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        page = found[start : start + size]
        is_last = start + size >= len(found)
        token = None if is_last else encode_list_tasks_cursor(ListTasksCursor(page[-1].timestamp, page[-1].id))
        heads = (self.thread(each.id, owner=owner).latest() for each in page)
        return ListTasksResponse(
            next_page_token=token,
            tasks=[task_of(head.state) for head in heads if head is not None],
            total_size=len(found),
            page_size=size,
        )

    def _listed(self, owner: str) -> Iterator[ListedTask]:
        """Give the tasks of a user. A task that is deleted meanwhile is left out."""
        for prefix in id_prefixes(_KIND, f"{joined(owner)}/"):
            for info in self._adapter_store.sync.threads(prefix=prefix):
                head = self._adapter_store.sync.thread(info.id).latest()
                listed = None if head is None else listed_of(head.get((LISTED,), None))
                if listed is not None and listed.owner == owner:
                    yield listed


def _start(found: builtins.list[ListedTask], token: str) -> int:
    """Return the place in a listing at which a page begins. Older tokens name the first task of the page."""
    cursor = decode_list_tasks_cursor(token)
    if cursor is not None:
        after = cursor.sort_key()
        return next((at for at, each in enumerate(found) if each.order < after), len(found))
    name = decode_page_token(token)
    for at, each in enumerate(found):
        if each.id == name:
            return at
    raise InvalidParamsError(f"Invalid page token: {token}")
