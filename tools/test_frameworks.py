"""Run the frameworks' own tests with our classes in the place of theirs, and print both results side by side.

The tests come from the packages' sdists, which pip downloads into a temporary directory; nothing of them is kept. The
plugin `frameworks_swap` puts our classes in. A case that fails with ours is listed by name; KNOWN says why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PLUGINS = ["pytest-asyncio", "pytest-retry"]


class Suite(NamedTuple):
    """Tests of one sdist."""

    package: str
    files: tuple[str, ...]
    theirs: bool
    """Whether their own class can run here: PostgreSQL's needs a server with its own settings."""


SUITES = [
    Suite("langgraph-checkpoint-sqlite", ("test_store.py", "test_async_store.py", "test_ttl.py"), theirs=True),
    Suite("langgraph-checkpoint-postgres", ("test_store.py", "test_async_store.py"), theirs=False),
]
KNOWN = {
    "test_vector_store_initialization": "looks at the tables and the settings of their class",
    "test_sql_injection_vulnerability": "wants an odd filter key refused: their SQL would contain it, ours does not",
    "test_no_running_loop": "wants synchronous calls refused in an event loop: ours work",
    "test_ttl_override_default": "wants no refresh by default, against the documentation of refresh_on_read",
    "test_omit_expired_refresh_ttl_only_refreshes_live_rows": "wants an expiry put off right after the put: ours waits",
    "test_abatch_uses_single_pool_checkout": "counts the connections that their class takes from its pool",
    "test_large_batches_async": "makes 60,000 calls at once: theirs does them in batches, ours one by one",
    "test_large_batches": "as above, from threads",
    "test_scores": "wants the scores of other distances than the cosine",
    "test_non_ascii": "wants the scores of other distances than the cosine",
    "test_vector_search_pagination": "wants the order of other distances than the cosine",
}


def download(packages: list[str], place: Path) -> None:
    """Download sdists of the installed versions, and unpack them."""
    pins = [f"{name}=={version(name)}" for name in packages]
    pip("download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(place), *pins)
    for archive in place.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")


def version(package: str) -> str:
    """Return the installed version of a package."""
    import importlib.metadata  # noqa: PLC0415

    return importlib.metadata.version(package)


def pip(*words: str) -> None:
    """Run pip without our pins: those are not for the tools that build an sdist."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True, env=env)  # noqa: S603


def run(suite: Suite, place: Path, plugins: Path, *, swap: bool) -> tuple[int, dict[str, str]]:
    """Run a suite; return the number of cases that passed, and the first words of each other case's failure."""
    (root,) = place.glob(f"{suite.package.replace('-', '_')}-*/")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    command += ["-p", "frameworks_swap", "-p", "pytest_asyncio", "-c", os.devnull, "--rootdir", ".", "-rfE"]
    command += [
        "-p",
        "pytest_timeout",
        "--timeout",
        "60",
        "-o",
        "asyncio_mode=auto",
        *(f"tests/{name}" for name in suite.files),
    ]
    path = os.pathsep.join([str(plugins), str(HERE)])
    env = {**os.environ, "PYTHONPATH": path, "BACKTRAIL_SWAP": "yes" if swap else "no", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    counted = re.search(r"(\d+) passed", done.stdout)
    if counted is None:
        sys.exit(f"{suite.package}: no tests ran\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = re.findall(r"(?m)^(?:FAILED|ERROR) tests/(\S+)(?: - (.*))?$", done.stdout)
    return int(counted[1]), dict(lines)


def main() -> int:
    """Run everything, print the table, and return 1 if a case fails for no known reason."""
    unknown = 0
    with tempfile.TemporaryDirectory() as directory:
        place, plugins = Path(directory), Path(directory) / "plugins"
        pip("install", "-q", "--no-deps", "--target", str(plugins), *PLUGINS)
        download([suite.package for suite in SUITES], place)
        rows = []
        for suite in SUITES:
            passed, failures = run(suite, place, plugins, swap=True)
            total = passed + len(failures)
            theirs = "-"
            if suite.theirs:
                their_passed, their_failures = run(suite, place, plugins, swap=False)
                theirs = f"{their_passed} of {their_passed + len(their_failures)}"
            rows.append((suite.package, theirs, f"{passed} of {total}"))
            for case, words in failures.items():
                name = case.partition("::")[2].rpartition("::")[2].partition("[")[0]
                unknown += name not in KNOWN
                print(f"{suite.package} {case}: {KNOWN.get(name, 'UNKNOWN: ' + words)}")
    print(f"\n{'tests of':32} {'theirs':>12} {'ours':>12}")
    for row in rows:
        print("{:32} {:>12} {:>12}".format(*row))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
