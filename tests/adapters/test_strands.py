"""Runs the tests of the Strands adapter (`strands_cases.py`) in an environment of its own: its pin of mcp conflicts."""

import pytest

from tests.support.environments import run_cases


def test_a_missing_extra_is_named():
    try:
        import strands  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[strands\]'"):
            import backtrail.adapters.strands  # noqa: F401


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    extras = "strands,postgres,langgraph,pydantic-ai"
    run_cases(tmp_path, extras, ["strands-agents==1.62.0"], "tests/adapters/strands_cases.py")
