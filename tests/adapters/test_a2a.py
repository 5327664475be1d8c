"""Runs the tests of the A2A adapter (`a2a_cases.py`) in an environment of its own."""

import pytest

from tests.support.environments import run_cases


def test_a_missing_extra_is_named():
    try:
        import a2a  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[a2a\]'"):
            import backtrail.adapters.a2a  # noqa: F401


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    run_cases(tmp_path, "a2a,postgres", ["a2a-sdk==1.3.0"], "tests/adapters/a2a_cases.py")
