"""Parts of the conformance suite on a scoped store: in its scope, a store does what every store does.

These are the parts that need one agent, no garbage collection and no count of chunks.
"""

import pytest

from tests import conformance as suite
from tests.support.places import in_memory


class TestScoped(
    suite.Saving,
    suite.Changing,
    suite.Editing,
    suite.Deciding,
    suite.Refs,
    suite.Expecting,
    suite.Appending,
    suite.Typed,
    suite.Messages,
    suite.Queries,
):
    @pytest.fixture
    def opener(self):
        with in_memory() as opener:
            yield lambda **options: opener(**options).scoped("a")
