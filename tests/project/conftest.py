"""What the tests of the project share: the tests that were collected stay out of Python's garbage collection."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def collected_tests_stay_frozen():
    """Keep the benchmark from unfreezing them: each collection of its loops would go through all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield
