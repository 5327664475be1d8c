"""The k-th disk call fails, for every k, once or forever: each failure raises, and no acknowledged write is lost.

The same operations go to a memory store, as long as the disk works. The two stores are compared after every operation.
"""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress

import apsw
import pytest

import backtrail
from backtrail import CommitUnknown, Unavailable
from backtrail.backends.file import backend, log, storage
from backtrail.backends.sqlite import commit, connection
from tests.support.disks import traced
from tests.support.disks_sqlite import traced_sqlite
from tests.support.lab import DEEDS, picture, quick_directory, small_wal

KINDS = {"sqlite": traced_sqlite, "files": traced}
ERRORS = {
    ("sqlite", "io"): lambda what: apsw.exception_for(_IO[what]),
    ("sqlite", "full"): lambda what: apsw.exception_for(apsw.SQLITE_FULL if what == "write" else _IO[what]),
    ("files", "io"): lambda what: OSError(errno.EIO, os.strerror(errno.EIO)),
    ("files", "full"): lambda what: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
}
_IO = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "unlink": apsw.SQLITE_IOERR_DELETE,
}
FEW = [entry for entry in DEEDS[:20] if entry[0] not in ("answer", "step")]
SHORT = [*FEW[:3], *FEW[4:10], ("gc", dict(DEEDS)["gc"]), FEW[1]]


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "FILE_BYTES", 30_000)  # so that the log has several files
    with quick_directory(tmp_path) as made:
        yield made


class Trouble:
    """A disk that counts its calls and lets some of them fail."""

    def __init__(self, disk, error, first, *, once):
        self.count = self.fired = 0
        self.kinds: set[str] = set()
        self.copying = False
        """Whether a call for SQLite's file itself has failed, and not one for its WAL."""
        self._disk, self._error, self._first, self._once = disk, error, first, once
        self.begin()

    def begin(self):
        self._disk.before = self._before

    def end(self):
        self._disk.before = lambda call: None

    def _before(self, call):
        self.count += 1
        self.kinds.add(call.what)
        if self.count == self._first or (self.count > self._first > 0 and not self._once):
            self.fired += 1
            self.copying |= call.name.endswith(".db")
            raise self._error(call.what)


class Twins:
    """A store whose disk has trouble, and one in memory that has none."""

    def __init__(self, url, trouble):
        self.url = url
        self.trouble = trouble
        self.store = None
        self.twin = backtrail.open("memory://")
        self.refused: list[backtrail.Error] = []

    def do(self, deeds):
        for name, deed in deeds:
            try:
                if self.store is None:
                    self.store = backtrail.open(self.url)
                    small_wal(self.store)
                deed(self.store)
                failed = None
            except backtrail.Error as error:
                failed = error
            self.trouble.end()
            self.compare(name, deed, failed)
            self.trouble.begin()

    def compare(self, name, deed, failed):
        """Repeat the operation on the memory store, and compare the two."""
        there = {} if self.store is None else picture(self.store, exact=False)
        if failed is None:
            deed(self.twin)
        elif self.may_be_there(failed) and there != picture(self.twin, exact=False):
            self.refused.append(failed)
            deed(self.twin)  # it was done after all: then all of it
        elif isinstance(failed, (Unavailable, CommitUnknown)):
            self.refused.append(failed)
        else:
            with pytest.raises(type(failed)):  # what the trouble has left out is missed
                deed(self.twin)
        assert there == picture(self.twin, exact=False), name

    def may_be_there(self, failed):
        # When a commit is done, SQLite copies the WAL, and passes over a failure of that. apsw raises it all the same.
        passed_over = self.trouble.copying and failed.code == "unavailable.full"
        return passed_over or isinstance(failed, CommitUnknown)

    def close(self):
        """Without faults, the same store and another handle can continue."""
        self.trouble.end()
        for name, store in (("same", self.store), ("another", None)):
            with backtrail.open(self.url) if store is None else store as found:
                assert picture(found, exact=False) == picture(self.twin, exact=False)
                for each in (found, self.twin):
                    each.thread("after").save({"by": name})
                assert found.thread("after").load().state == {"by": name}
                assert found.verify().ok
                assert picture(found, exact=False) == picture(self.twin, exact=False)
        self.twin.close()


def url_of(kind, path):
    return str(path / "s.db") if kind == "sqlite" else path.as_uri()


def run(kind, path, code, first, *, once, deeds):
    """Do the operations while call number `first` fails; return the outcome."""
    with KINDS[kind]() as disk:
        disk.reads = True
        trouble = Trouble(disk, ERRORS[kind, code], first, once=once)
        twins = Twins(url_of(kind, path), trouble)
        twins.do(deeds)
        twins.close()
    return trouble, twins.refused


def every(kind, quick, code, *, once, deeds, step):
    """Let every step-th call fail; return how many were tried, how many errors there were, and which calls failed."""
    total, refused = run(kind, quick / "count", code, 0, once=once, deeds=deeds)
    assert not refused
    assert total.kinds >= {"open", "read", "write", "sync", "unlink"}
    tried = fired = loud = 0
    for first in range(1, total.count + 1, step):
        trouble, refused = run(kind, quick / str(first), code, first, once=once, deeds=deeds)
        tried += 1
        fired += bool(trouble.fired)
        loud += bool(refused)
    return tried, fired, loud


@pytest.mark.parametrize("once", [True, False], ids=["once", "for good"])
@pytest.mark.parametrize("code", ["io", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_failing_call_is_loud_and_store_survives(kind, quick, code, once):
    tried, fired, loud = every(kind, quick, code, once=once, deeds=SHORT, step=83 if kind == "sqlite" else 31)
    assert tried > 4
    assert fired == tried
    assert loud > tried / 8  # SQLite's log may fail to be marked, or to be copied into the file: what is in it is there


@pytest.mark.torture
@pytest.mark.parametrize("once", [True, False], ids=["once", "for good"])
@pytest.mark.parametrize("code", ["io", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_failing_call_is_loud_and_store_survives(kind, quick, code, once):
    found = every(kind, quick, code, once=once, deeds=FEW, step=1)
    print(f"{kind}, {code}, {'once' if once else 'for good'}: {found}")  # noqa: T201 - for docs/reliability.md
    assert found[0] > 100


# -- seeded faults: each is found --------------------------------------------------------------------


def _swallowed(patch):
    told = commit.end

    def end(*args):
        with suppress(apsw.IOError):
            told(*args)

    patch.setattr(commit, "end", end)


def _not_translated(patch):
    patch.setattr(connection, "translated", lambda error, path: error)


def _not_written(patch):
    told = log.write_at

    def write_at(*args):
        with suppress(OSError):
            told(*args)

    patch.setattr(log, "write_at", write_at)


def _not_translated_in_files(patch):
    for module in (backend, storage):
        patch.setattr(module, "translated", lambda error, path: error)


SEEDED = [
    ("sqlite", _swallowed, AssertionError),
    ("sqlite", _not_translated, apsw.Error),
    ("files", _not_written, (AssertionError, pytest.fail.Exception, backtrail.Error)),
    ("files", _not_translated_in_files, OSError),
]


@pytest.mark.torture
@pytest.mark.parametrize(
    ("kind", "fault", "found"), SEEDED, ids=[f"{kind}{fault.__name__}" for kind, fault, _ in SEEDED]
)
def test_seeded_faults_are_found(kind, fault, found, quick, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(found):
        every(kind, quick, "io", once=True, deeds=SHORT[:4] if kind == "sqlite" else SHORT, step=3)


# -- what was found here ------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [lambda thread: thread.undo(), lambda thread: thread.tag("@", "x")])
def test_failed_read_after_a_write_is_not_a_refusal(move, monkeypatch):
    with backtrail.open("memory://") as store:
        thread = store.thread("t")
        for at in range(3):
            thread.save({"n": at})

        def refuse(*_):
            raise Unavailable("the disk fails", code="unavailable.io")

        with monkeypatch.context() as patch:
            patch.setattr(store._backend, "tags", refuse)
            with pytest.raises(CommitUnknown) as caught:
                move(thread)
        assert caught.value.code == "commit_unknown.read"


@pytest.mark.parametrize("what", ["append", "gc", "open"])
def test_unreadable_file_is_reported_and_store_survives(what, quick):
    url = (quick / "s").as_uri()
    with backtrail.open(url) as store:
        store.thread("t").save({"messages": []})
        store.thread("t").save({"messages": [1]})
        store.thread("t").prune(keep_last=1)

    def append(store):
        for at in range(20):
            store.thread("t").append("messages", random.Random(at).randbytes(3000).hex())

    def again(_):
        backtrail.open(url).close()

    work = {"append": append, "gc": lambda store: store.gc(), "open": again}[what]
    with backtrail.open(url) as store, traced() as disk:
        disk.reads = True

        def before(call):
            asked = "read" if what == "open" else "open"
            if call.what == asked and not (asked == "open" and "log" not in call.name):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        disk.before = before
        with pytest.raises(Unavailable):
            work(store)
        disk.before = lambda call: None
        work(store)
        assert store.verify().ok
    with backtrail.open(url) as store:
        assert store.verify().ok
