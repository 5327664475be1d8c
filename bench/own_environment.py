"""Groups of `make bench-peers` whose frameworks need an environment of their own, since their pins conflict with ours.

`python -m bench.own_environment MODULE DIRECTORY full|quick` runs a group there and writes its results as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.clock import Cost
from bench.figures import Figure
from bench.sides import FULL, QUICK, Compared, Race, Side

if TYPE_CHECKING:
    from bench.sides import Scale

ROOT = Path(__file__).resolve().parent.parent
_RESULTS = "results.json"


def measured(module: str, needs: list[str], directory: Path, scale: Scale) -> Compared:
    """Make an environment, run a group in it, and return its results; a figure with the reason if that fails."""
    venv.create(directory / "env", with_pip=True)
    python = str(directory / "env" / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    stores = directory / "stores"
    stores.mkdir()
    commands = [
        [python, "-m", "pip", "install", "-q", str(ROOT), *needs],
        [python, "-m", "bench.own_environment", module, str(stores), "full" if scale == FULL else "quick"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            return Compared([Figure(needs[0], None, note=why)])
    return _read(json.loads((stores / _RESULTS).read_text()))


def _read(data: dict[str, Any]) -> Compared:
    sides = [
        Side(
            name=each["name"],
            note=each["note"],
            taken=[Cost(*cost) for cost in each["taken"]],
            bytes={int(turns): size for turns, size in each["bytes"].items()},
            reads=each["reads"],
            races={what: Race(*counts, tuple(errors)) for what, (*counts, errors) in each["races"].items()},
        )
        for each in data["sides"]
    ]
    return Compared([Figure(**each) for each in data["figures"]], sides=sides)


def main(module: str, directory: str, scale: str) -> None:
    """Run a group in this environment."""
    found = import_module(f"bench.{module}").measured(Path(directory), FULL if scale == "full" else QUICK)
    data = {"figures": [asdict(each) for each in found.figures], "sides": [asdict(each) for each in found.sides]}
    (Path(directory) / _RESULTS).write_text(json.dumps(data), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
