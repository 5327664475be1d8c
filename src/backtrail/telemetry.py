"""Spans and metrics for OpenTelemetry: `backtrail.open(url, telemetry=True)`. Extra `telemetry`; docs/telemetry.md.

`TracedBackend` is a backend on top of another one. A store without telemetry does not have it, and pays nothing.

- Each call of the storage that moves data is counted, and can become a span: `backtrail.commit`, `backtrail.search` ...
- A span costs a fourth of an append. So a commit or a read becomes one only if it was slow or failed, unless the user
  asked for every span. All other calls are rarer, and do more: each becomes a span.
- Spans have ids, counts and error codes, never contents: no state, no message, no label, no query, no error text.
- A span is made when its call has ended, with the times of the call: then it is known whether the call was slow. If the
  current span is not recorded (sampled out), nothing is made.
- Metrics are sums that the reader of metrics asks for. So they cost a call two additions.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from backtrail.errors import Error, Unavailable

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise Unavailable(
        "telemetry needs opentelemetry-api: pip install 'backtrail[telemetry]'", code="unavailable.extra"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from backtrail.backends.port import Backend, Batch, ThreadRecord

_SPANS: Final = {
    "commit": "commit",
    "rows": "read",
    "rows_of": "read",
    "chunks": "read",
    "threads": "list",
    "tips": "list",
    "find": "search",
    "index": "index",
    "usage": "stats",
    "check": "check",
    "repair": "repair",
    "rewrite": "gc",
    "remove_rows": "gc",
    "remove_chunks": "gc",
    "reclaim": "gc",
    "backup": "backup",
}
"""The methods of a backend that become spans, and the names of the spans. All others are passed on as they are."""
_FREQUENT: Final = ("commit", "read", "group")
"""A call of these becomes a span if it failed or was slow, or if the user asked for every span."""
_SLOW: Final = 50_000_000
"""From this many nanoseconds on a call is slow: a span is less than a hundredth of it."""
_RECORDS: Final = ("find_thread", "thread", "thread_with_uid")
_KINDS: Final = {
    "thread": "gen_ai.conversation.id",
    "conversation": "gen_ai.conversation.id",
    "agent": "gen_ai.agent.id",
    "run": "backtrail.run.id",
}
"""The attribute that holds a thread's name, by name space."""
_SYSTEMS: Final = {"postgres": "postgresql", "sqlite": "sqlite", "file": "file", "memory": "memory"}
_KNOWN_MAX: Final = 10_000
_NONE: Final[dict[str, str]] = {}
_CLIENT: Final = trace.SpanKind.CLIENT
_NO_SPAN: Final = trace.INVALID_SPAN
_current_span: Final = trace.get_current_span


class _Sum:
    """The calls of one operation with one outcome: how many, and their nanoseconds."""

    __slots__ = ("attributes", "count", "nanoseconds", "span")

    def __init__(self, operation: str, attributes: dict[str, str]) -> None:
        self.span = f"backtrail.{operation}"
        self.attributes = attributes
        self.count = 0
        self.nanoseconds = 0


class StoreCounters:
    """The sums of this process. The instruments read them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._sums: dict[tuple[str, str, str | None], _Sum] = {}
        os.register_at_fork(after_in_child=self._renew)  # the lock may be held by a thread that the child has not
        meter = metrics.get_meter("backtrail")
        meter.create_observable_counter(
            "backtrail.operation.count", [self._counts], "{operation}", "Calls of the storage."
        )
        meter.create_observable_counter(
            "backtrail.operation.time", [self._seconds], "s", "Seconds in calls of the storage."
        )

    def _renew(self) -> None:
        self.lock = threading.Lock()

    def sum(self, system: str, operation: str, error: str | None) -> _Sum:
        """Return a sum. Change it only with the lock."""
        attributes = {"db.system.name": system, "db.operation.name": operation}
        if error is not None:
            attributes["error.type"] = error
        with self.lock:
            return self._sums.setdefault((system, operation, error), _Sum(operation, attributes))

    def _counts(self, _: object) -> Iterable[metrics.Observation]:
        with self.lock:
            return [metrics.Observation(each.count, each.attributes) for each in self._sums.values()]

    def _seconds(self, _: object) -> Iterable[metrics.Observation]:
        with self.lock:
            return [metrics.Observation(each.nanoseconds / 1e9, each.attributes) for each in self._sums.values()]


_making: Final = threading.Lock()
_totals: list[StoreCounters] = []
"""At most one: the instruments of a process are made when its first store with telemetry is opened."""


def _the_totals() -> StoreCounters:
    with _making:
        if not _totals:
            _totals.append(StoreCounters())
        return _totals[0]


class TracedBackend:
    """A backend whose calls become spans and are counted."""

    def __init__(self, below: Backend, provider: trace.TracerProvider | None = None, *, every: bool = False) -> None:
        self._below = below
        self._every = every
        package = type(below).__module__.removeprefix("backtrail.backends.").partition(".")[0]
        self._system = _SYSTEMS.get(package, "other")
        self._tracer = trace.get_tracer("backtrail", tracer_provider=provider)
        self._totals = _the_totals()
        self._sums: dict[tuple[str, str | None], _Sum] = {}
        self._known: dict[int, dict[str, str]] = {}
        """The attributes of threads by their numbers."""
        # Set on the instance: calls find them at once, and so does isinstance with a protocol.
        for name in dir(below):
            if not name.startswith("_") and callable(method := getattr(below, name)):
                setattr(self, name, self._traced(_SPANS[name], method) if name in _SPANS else method)
        for name in _RECORDS:
            setattr(self, name, self._noted(getattr(below, name)))
        if hasattr(below, "beside"):
            self.beside = below.beside
        self.commit = self._commit(below.commit)
        self.group = self._group

    def __getattr__(self, name: str) -> Any:
        """Return what is no method: it may change."""
        return getattr(self._below, name)

    # -- calls ----------------------------------------------------------------------------------------

    def _traced(self, operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.time_ns()
            try:
                answer = method(*args, **kwargs)
            except BaseException as error:
                self._ended(operation, start, _first(args), error)
                raise
            self._ended(operation, start, _first(args))
            return answer

        return call

    def _commit(self, method: Callable[[Batch], tuple[int, ...]]) -> Callable[[Batch], tuple[int, ...]]:
        def commit(batch: Batch) -> tuple[int, ...]:
            start = time.time_ns()
            number = batch.rows[0][0] if batch.rows else 0
            try:
                created = method(batch)
            except BaseException as error:
                self._ended("commit", start, number, error)
                raise
            if created:
                for no, new in zip(created, batch.threads, strict=True):
                    self._note(no, new.space, new.name, new.agent)
                number = created[-number - 1] if number < 0 else number
            self._ended("commit", start, number)
            return created

        return commit

    @contextmanager
    def _group(self) -> Iterator[None]:
        start = time.time_ns()
        try:
            with self._below.group():
                yield
        except BaseException as error:
            self._ended("group", start, 0, error)
            raise
        self._ended("group", start, 0)

    # -- threads --------------------------------------------------------------------------------------

    def _noted(self, method: Callable[..., ThreadRecord | None]) -> Callable[..., ThreadRecord | None]:
        def call(*args: Any) -> ThreadRecord | None:
            record = method(*args)
            if record is not None and record.no not in self._known:
                self._note(record.no, record.space, record.name, record.agent)
            return record

        return call

    def _note(self, no: int, space: str, name: str, agent: str | None) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        about = {} if agent is None else {"gen_ai.agent.id": agent}
        if space in _KINDS:
            about[_KINDS[space]] = name
        self._known[no] = about

    # -- spans and sums -------------------------------------------------------------------------------

    def _ended(self, operation: str, start: int, thread: int, error: BaseException | None = None) -> None:
        """Count a call, and make its span if it gets one and the span around it is recorded."""
        end = time.time_ns()
        kind = None if error is None else error.code if isinstance(error, Error) else type(error).__name__
        found = self._sums.get((operation, kind))
        if found is None:
            found = self._sums[operation, kind] = self._totals.sum(self._system, operation, kind)
        with self._totals.lock:
            found.count += 1
            if end > start:  # else the clock was set back
                found.nanoseconds += end - start
        if not (self._every or end - start >= _SLOW or isinstance(error, Error) or operation not in _FREQUENT):
            return
        around = _current_span()
        if around is not _NO_SPAN and not around.is_recording():
            return
        span = self._tracer.start_span(
            found.span,
            None,  # its parent is the current span
            _CLIENT,
            found.attributes | self._known.get(thread, _NONE),
            start_time=start,
        )
        if isinstance(error, Error):  # others are answers for the engine: it tries again
            span.set_status(trace.StatusCode.ERROR)
        span.end(end)


def _first(args: tuple[Any, ...]) -> int:
    """Return the number of the thread that a call is about; 0 if it is about none, or several."""
    return args[0] if args and isinstance(args[0], int) else 0


def traced(backend: Backend, provider: trace.TracerProvider | None, *, every: bool) -> Backend:
    """Return the backend with telemetry; without a provider, with that of the process."""
    return cast("Backend", TracedBackend(backend, provider, every=every))
