"""The port's suite on every backend.

`tests/backends/sqlite` and its neighbours have the tests of a single backend.
"""

from contextlib import closing, contextmanager

from backtrail.backends.file.backend import FileBackend
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.testing import BackendConformance
from tests.support.schemas import swept


class TestMemory(BackendConformance):
    persistent = False

    def open_backend(self, folder):
        return closing(MemoryBackend())


class TestFiles(BackendConformance):
    def open_backend(self, folder):
        return closing(FileBackend(folder / "files", durability="relaxed"))


class TestSqlite(BackendConformance):
    def open_backend(self, folder):
        return closing(SqliteBackend(folder / "store", durability="relaxed"))


class TestPostgres(BackendConformance):
    persistent = False  # each place is another schema

    @contextmanager
    def open_backend(self, folder):
        with swept() as opener, opener(durability="relaxed") as store:
            yield store._backend
