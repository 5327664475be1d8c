"""Runs the tests of the Strands adapter (`strands_cases.py`) in an environment of its own: its pin of mcp conflicts."""

import pkgutil
import subprocess
import sys

import pytest

import backtrail.adapters
from tests.support.environments import run_cases


def test_a_missing_extra_is_named():
    try:
        import strands  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[strands\]'"):
            import backtrail.adapters.strands  # noqa: F401


BLOCKED = """
import importlib, sys
sys.modules.update(dict.fromkeys(["langgraph", "agents", "claude_agent_sdk", "pydantic_ai"]))
for name in sys.argv[1:]:
    importlib.import_module(f"backtrail.adapters.{name}")
"""


def test_parts_that_adapters_share_need_no_framework():
    shared = [each.name for each in pkgutil.iter_modules(backtrail.adapters.__path__) if not each.ispkg]
    subprocess.run([sys.executable, "-c", BLOCKED, *shared], check=True)


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    extras = "strands,postgres,langgraph,pydantic-ai"
    run_cases(tmp_path, extras, ["strands-agents==1.62.0"], "tests/adapters/strands_cases.py")
