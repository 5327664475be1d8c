"""The port's test suite, for authors of backends. It needs pytest and hypothesis.

`BackendConformance` tests all promises of `backtrail.backends.port`. Its parts can be used alone. A test class only has
to open an empty store:

    class TestMyBackend(BackendConformance):
        def open_backend(self, folder):
            return contextlib.closing(MyBackend(folder / "store"))

docs/backends.md shows more.
"""

import pytest

# pytest explains failed asserts in these modules, as in a test file.
_PARTS = ("against_memory", "change_feed", "lifecycle", "maintenance", "reader_writer", "search_index")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from backtrail.testing.change_feed import ChangeFeedConformance  # noqa: E402
from backtrail.testing.lifecycle import LifecycleConformance  # noqa: E402
from backtrail.testing.maintenance import MaintenanceConformance  # noqa: E402
from backtrail.testing.reader_writer import ReaderWriterConformance  # noqa: E402
from backtrail.testing.search_index import SearchIndexConformance  # noqa: E402

__all__ = [
    "BackendConformance",
    "ChangeFeedConformance",
    "LifecycleConformance",
    "MaintenanceConformance",
    "ReaderWriterConformance",
    "SearchIndexConformance",
]


class BackendConformance(
    ReaderWriterConformance,
    LifecycleConformance,
    SearchIndexConformance,
    ChangeFeedConformance,
    MaintenanceConformance,
):
    """All that the port promises."""
