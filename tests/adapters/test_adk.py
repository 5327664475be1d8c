"""Runs the tests of `BacktrailSessionService` (`adk_cases.py`) in an environment of its own: ADK's pins conflict."""

import pytest

from tests.support.environments import run_cases


def test_a_missing_extra_is_named():
    try:
        import google.adk  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[adk\]'"):
            import backtrail.adapters.adk  # noqa: F401


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    run_cases(
        tmp_path,
        "adk,postgres",
        ["google-adk==2.13.0", "aiosqlite", "sqlalchemy[asyncio]"],
        "tests/adapters/adk_cases.py",
    )
