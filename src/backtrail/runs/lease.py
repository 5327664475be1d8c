"""The lease of a run: one worker at a time has the run, and renews its lease until it leaves the run's block.

One thread per store renews all leases. It holds each lease weakly: if a run is dropped without leaving its block, its
lease is no longer renewed and expires.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from backtrail.errors import CommitUnknown, Conflict, Error, Invalid
from backtrail.loading import loading
from backtrail.models import when
from backtrail.validation import check_duration

if TYPE_CHECKING:
    import datetime as dt

    from backtrail.runs.recorder import Recorder
    from backtrail.transaction import Engine

LEASE_MAX: Final = 30 * 86400
"""The longest lease, in seconds."""
_BUSY: Final = 0.02
"""Seconds until the thread retries a renewal after it found the run writing."""


class Lease:
    """The exclusive right of one worker to a run, from entering the run's block to leaving it."""

    def __init__(
        self, engine: Engine, recorder: Recorder, session_id: str, duration: dt.timedelta | float, *, takeover: bool
    ) -> None:
        self._engine = engine
        self._recorder = recorder
        self._session_id = session_id
        self._seconds = check_duration(duration, "lease") / 1_000_000
        if self._seconds > LEASE_MAX:
            raise Invalid(f"a lease is {LEASE_MAX} seconds at most; it is renewed", code="invalid.argument")
        if type(takeover) is not bool:
            raise Invalid(f"takeover must be True or False, not {takeover!r:.100}", code="invalid.argument")
        self._takeover = takeover
        self._owner = ""
        self._pid = 0
        """The process that entered the run; 0 before."""
        self.is_open = False
        """Whether the worker is inside of the run's block."""

    def prepare(self) -> None:
        """Set the owner's name that other workers see: host and process id."""
        with loading:
            import socket  # noqa: PLC0415 - a process that only reads a store does not need it

        self._owner = f"{socket.gethostname()}:{os.getpid()}"

    def term(self, now: int) -> list[Any]:
        """Return the journal's form of a lease from `now`: owner, token, and end in microseconds since 1970."""
        return [self._owner, self._recorder.token, now + int(self._seconds * 1_000_000)]

    def check_free(self, data: dict[str, Any], now: int) -> None:
        """Raise `Conflict` if another worker has the run, unless this worker was told to take it over."""
        if not self._takeover:
            check_free(self._session_id, data, now)

    def begin(self) -> None:
        """Record that this process has entered the run."""
        self._pid = os.getpid()
        self.is_open = True

    def keep(self) -> None:
        """Start to renew the lease, each time after a third of its duration."""
        renewals_of(self._engine).add(self, self._seconds / 3)

    def renew(self) -> float | None:
        """Renew the lease; return the seconds until the next renewal, None if the lease is over."""
        recorder = self._recorder
        if not recorder.lock.acquire(blocking=False):
            return 0.0  # a write is in progress
        try:
            if not self.is_open or recorder.is_broken or not self.is_mine:
                return None
            now = self._engine.direct.reader.shared_time()
            recorder.renew(self.term(now))
        except Conflict:
            return None
        except CommitUnknown:
            recorder.doubt_renewal()
        except Error as error:  # the store is unavailable: the next renewal or write reports it
            if error.code == "unavailable.closed":
                return None
        finally:
            recorder.lock.release()
        return self._seconds / 3

    # -- checks -----------------------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        """Whether this process entered the run. False in a forked child of that process."""
        return self._pid == os.getpid()

    def check_entered(self) -> None:
        """Raise `Invalid` if the block of the run was never entered."""
        if not self._pid:
            text = f"run {self._session_id!r} is not open: enter it first, with store.run(...) as run:"
            raise Invalid(text, code="invalid.run")

    def check_process(self) -> None:
        """Raise `Invalid` in a forked child of the process that entered the run."""
        if not self.is_mine:
            text = f"run {self._session_id!r} was opened by another process: this one is a fork of it"
            raise Invalid(text, code="invalid.run")

    def check_open(self) -> None:
        """Raise an error unless the caller may write to the run."""
        if not self.is_open:
            raise Invalid("a run can only be used inside its block: with store.run(...) as run:", code="invalid.run")
        self._recorder.check()
        self.check_process()
        self.check_no_transaction()

    def check_no_transaction(self) -> None:
        """Raise `Invalid` if the caller has a transaction open."""
        if self._engine.session.overlay is not None:
            raise Invalid("a run commits its own writes: use it outside of a transaction", code="invalid.transaction")


def check_free(session_id: str, data: dict[str, Any], now: int) -> None:
    """Raise `Conflict` if the lease in a run's point has not ended; `now` is in microseconds since 1970."""
    term = data["lease"]
    if term is None or term[2] <= now:
        return
    until = when(term[2])
    raise Conflict(
        f"run {session_id!r} is being worked on by {term[0]}, until {until:%Y-%m-%d %H:%M:%S} UTC at least; wait, or "
        "open the run with takeover=True if that worker is gone",
        code="conflict.lease",
        owner=term[0],
        until=until,
    )


class Renewals:
    """The leases of one store, and the thread that renews them. The thread ends when no lease is left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Lease]]] = []
        self._numbers = itertools.count()
        self.thread: threading.Thread | None = None

    def add(self, lease: Lease, seconds: float) -> None:
        """Renew a lease regularly, the first time after this many seconds."""
        with self._changed:
            self._put(weakref.ref(lease), seconds)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._work, name="backtrail leases", daemon=True)
                self.thread.start()
            self._changed.notify()

    def _put(self, lease: weakref.ref[Lease], seconds: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), lease))

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self.thread = None
                    return
                wait = self._due[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                reference = heapq.heappop(self._due)[2]
            lease = reference()
            again = None if lease is None else lease.renew()
            del lease
            if again is not None:
                with self._changed:
                    self._put(reference, max(again, _BUSY))


class _Stores:
    """The `Renewals` of each store in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.renewals: weakref.WeakKeyDictionary[Any, Renewals] = weakref.WeakKeyDictionary()


_stores = [_Stores()]
os.register_at_fork(after_in_child=lambda: _stores.__setitem__(0, _Stores()))  # a parent's thread may hold the old lock


def renewals_of(engine: Engine) -> Renewals:
    """Return the `Renewals` of a store."""
    stores = _stores[0]
    with stores.lock:
        return stores.renewals.setdefault(engine, Renewals())
