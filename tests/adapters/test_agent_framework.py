"""Runs the tests of the Agent Framework adapter (`agent_framework_cases.py`) in an environment of its own."""

import pytest

from tests.support.environments import run_cases


def test_a_missing_extra_is_named():
    try:
        import agent_framework  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[agent-framework\]'"):
            import backtrail.adapters.agent_framework  # noqa: F401


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    needed = ["agent-framework-core==1.23.0"]
    run_cases(tmp_path, "agent-framework,postgres", needed, "tests/adapters/agent_framework_cases.py")
