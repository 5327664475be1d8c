"""What all tests share: how hard hypothesis tries, and asserts of the shipped suite that explain themselves.

`default` is for every day. `torture` is for `make torture`, by --hypothesis-profile or $HYPOTHESIS_PROFILE.
"""

import os

import pytest
from hypothesis import settings

from tests.commands import trip_files, trip_store  # noqa: F401 - fixtures, for those who ask for them by name

pytest.register_assert_rewrite("backtrail.testing")

settings.register_profile("default", deadline=None, max_examples=60, stateful_step_count=30)
settings.register_profile("torture", deadline=None, max_examples=5000, stateful_step_count=50)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
