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
import venv
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PLUGINS = ["pytest-asyncio", "pytest-retry"]


class Suite(NamedTuple):
    """Tests of one sdist."""

    package: str
    files: tuple[str, ...]
    theirs: bool = True
    """Whether their own class can run here: PostgreSQL's needs a server with its own settings."""
    plugin: str = "frameworks_swap"
    needs: tuple[str, ...] = ()
    """What an environment of its own needs, if the package's pins conflict with ours; else it runs in this one."""


SUITES = [
    Suite("langgraph-checkpoint-sqlite", ("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py")),
    Suite("langgraph-checkpoint-postgres", ("tests/test_store.py", "tests/test_async_store.py"), theirs=False),
    Suite(
        "strands-agents",
        (
            "tests/strands/session/test_repository_session_manager.py",
            "tests/strands/session/test_snapshot_session_manager.py",
            "tests/strands/storage/test_in_memory_storage.py",
            "tests/strands/storage/test_storage.py",
            "tests/strands/storage/search",
            "tests/strands/_context_manager",
            "tests/strands/agent/test_agent_storage.py",
        ),
        plugin="frameworks_swap_strands",
        needs=("strands-agents==1.62.0", "moto", "pytest", "pytest-timeout"),
    ),
]
KNOWN = {
    "test_vector_store_initialization": "looks at the tables and the settings of their class",
    "test_sql_injection_vulnerability": "wants an odd filter key refused: their SQL would contain it, ours does not",
    "test_no_running_loop": "wants synchronous calls refused in an event loop: ours work",
    "test_ttl_override_default": "wants no refresh by default, against the documentation of refresh_on_read",
    "test_omit_expired_refresh_ttl_only_refreshes_live_rows": "wants an expiry put off right after the put: ours waits",
    "test_abatch_uses_single_pool_checkout": "counts the connections that their class takes from its pool",
    "test_scores": "wants the scores of other distances than the cosine",
    "test_non_ascii": "wants the scores of other distances than the cosine",
    "test_vector_search_pagination": "wants the order of other distances than the cosine",
    "test_save_includes_inline_stash_for_ephemeral_storage": "wants a storage that does not survive the process",
    "test_save_omits_stash_when_empty": "as above",
    "test_immutable_snapshot_includes_stash": "as above",
    "test_ephemeral_detection_survives_namespacing": "as above",
    "test_false_with_namespaced_in_memory_storage": "as above",
    "test_skips_keys_where_read_returns_none": "looks at the dict of their class",
    "test_returns_class_name_of_base_storage": "wants the name of their class",
}


_LONG = 1200
"""Seconds after which a suite is ended, so that the table is printed in any case."""


def download(pin: str, place: Path) -> Path:
    """Download an sdist, unpack it, and return its directory."""
    pip(sys.executable, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(place), pin)
    name = pin.partition("==")[0].replace("-", "_")
    (archive,) = place.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def pip(python: str, *words: str) -> None:
    """Run pip without our pins: those are not for the tools that build an sdist."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("CONSTRAINT")}
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *words], check=True, env=env)  # noqa: S603


def python_for(suite: Suite, place: Path) -> str:
    """Return the Python of an environment for a suite: this one, or a new one with the package and ours."""
    if not suite.needs:
        return sys.executable
    environment = place / f"env-{suite.package}"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    pip(python, "install", "-q", str(HERE.parent), *suite.needs)
    return python


def run(suite: Suite, python: str, root: Path, plugins: Path, *, swap: str) -> tuple[int, dict[str, str]]:
    """Run a suite; return the number of cases that passed, and the first words of each other case's failure."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin"]
    command += ["-p", suite.plugin, "-p", "pytest_asyncio", "-c", os.devnull, "--rootdir", ".", "-rfE"]
    command += ["--timeout", "120", "-W", "ignore", "-o", "asyncio_mode=auto", *suite.files]
    path = os.pathsep.join([str(plugins), str(HERE)])
    env = {**os.environ, "PYTHONPATH": path, "BACKTRAIL_SWAP": swap, "COLUMNS": "200"}
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=root, env=env, capture_output=True, text=True, check=False, timeout=_LONG
        )
    except subprocess.TimeoutExpired:
        return 0, {f"{suite.files[0]}::all": f"not finished after {_LONG} seconds"}
    counted = re.search(r"(\d+) passed", done.stdout)
    if counted is None:
        return 0, {f"{suite.files[0]}::all": f"no tests ran: {(done.stdout + done.stderr)[-1000:]}"}
    lines = re.findall(r"(?m)^(?:FAILED|ERROR) tests/(\S+)(?: - (.*))?$", done.stdout)
    return int(counted[1]), dict(lines)


def main() -> int:
    """Run everything, print the table, and return 1 if a case fails for no known reason."""
    unknown = 0
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        place, plugins = Path(directory), Path(directory) / "plugins"
        pip(sys.executable, "install", "-q", "--no-deps", "--target", str(plugins), *PLUGINS)
        for suite in SUITES:
            print(f"{suite.package} ...", flush=True)
            pin = suite.needs[0] if suite.needs else f"{suite.package}=={version(suite.package)}"
            root, python = download(pin, place), python_for(suite, place)
            passed, failures = run(suite, python, root, plugins, swap="sqlite")
            theirs = "-"
            if suite.theirs:
                their_passed, their_failures = run(suite, python, root, plugins, swap="no")
                theirs = f"{their_passed} of {their_passed + len(their_failures)}"
            rows.append((suite.package, theirs, f"{passed} of {passed + len(failures)}"))
            for case, words in failures.items():
                name = case.rpartition("::")[2].partition("[")[0]
                unknown += name not in KNOWN
                print(f"{suite.package} {case}: {KNOWN.get(name, 'UNKNOWN: ' + words)}", flush=True)
    print(f"\n{'tests of':32} {'theirs':>14} {'ours':>14}")
    for row in rows:
        print("{:32} {:>14} {:>14}".format(*row))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
