"""Builds what a release publishes, in dist/, and tries it: `make dist`.

1. The sdist, and the wheel from the sdist.
2. The wheel is installed into an empty environment, and tools/smoke_test.py runs there, outside of the repository.
   `--python` names further interpreters to try.
3. An SBOM of that environment (CycloneDX): the wheel and the exact versions that it was tried with.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
UNWANTED = (".venv/", "build/", "__pycache__/", ".cache/")


def run(*words: str | Path, cwd: Path = ROOT) -> None:
    """Run a program; end if it fails."""
    subprocess.run([str(word) for word in words], check=True, cwd=cwd)  # noqa: S603 - our own arguments


def build() -> Path:
    """Build the sdist and the wheel, look at what is in them, and return the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    source = {f"backtrail/{path.relative_to(ROOT / 'src' / 'backtrail')}" for path in _source()}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    missing = [*sorted(source - in_wheel), *sorted({f"src/{name}" for name in source} - in_sdist)]
    strange = [name for name in in_wheel if not name.startswith(("backtrail/", "backtrail-"))]
    strange += [name for name in in_sdist if any(each in f"{name}/" for each in UNWANTED)]
    assert not missing, f"not packed: {missing}"
    assert not strange, f"packed by mistake: {strange}"
    return wheel


def _source() -> list[Path]:
    found = (ROOT / "src" / "backtrail").rglob("*")
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def try_out(wheel: Path, python: str, place: Path) -> Path:
    """Install the wheel into an empty environment and run the smoke test; return the environment's Python."""
    run(python, "-m", "venv", place)
    inside = place / "bin" / "python"
    run(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    run(inside, "-m", "pip", "check", "--disable-pip-version-check")
    script = shutil.copy(ROOT / "tools" / "smoke_test.py", place)
    run(inside, "-I", script, cwd=place)
    run(inside, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip", "--disable-pip-version-check")
    return inside


def main() -> None:
    """Build, try, and write the SBOM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="another interpreter to try the wheel with")
    others = parser.parse_args().python
    wheel = build()
    bill = DIST / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="backtrail-") as place:
        inside = try_out(wheel, sys.executable, Path(place, "own"))
        for at, python in enumerate(others):
            try_out(wheel, python, Path(place, str(at)))
        run(
            *(sys.executable, "-m", "cyclonedx_py", "environment", inside, "--pyproject", ROOT / "pyproject.toml"),
            *("--output-reproducible", "--output-format", "JSON", "--output-file", bill),
        )
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")


if __name__ == "__main__":
    main()
