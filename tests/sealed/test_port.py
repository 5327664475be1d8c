"""The port's suite on sealed backends of every kind: what a plain backend promises, a sealed one promises."""

from contextlib import closing, contextmanager

from backtrail.backends.file.backend import FileBackend
from backtrail.backends.memory import MemoryBackend
from backtrail.backends.sqlite.backend import SqliteBackend
from backtrail.sealed.opening import sealed
from backtrail.testing import BackendConformance
from tests.support.schemas import swept
from tests.support.sealing import KEY


class TestSealedMemory(BackendConformance):
    persistent = False

    def open_backend(self, folder):
        return closing(sealed(MemoryBackend(), KEY, lambda _: MemoryBackend()))


class TestSealedFiles(BackendConformance):
    def open_backend(self, folder):
        below = FileBackend(folder / "files", durability="relaxed")
        return closing(sealed(below, KEY, lambda _: FileBackend(folder / "keys", durability="relaxed")))


class TestSealedSqlite(BackendConformance):
    def open_backend(self, folder):
        below = SqliteBackend(folder / "store", durability="relaxed")
        return closing(sealed(below, KEY, lambda _: SqliteBackend(folder / "keys", durability="relaxed")))


class TestSealedPostgres(BackendConformance):
    persistent = False  # each place is another schema

    @contextmanager
    def open_backend(self, folder):
        with swept() as opener, opener(durability="relaxed") as store:
            yield sealed(store._backend, KEY, lambda _: MemoryBackend())
