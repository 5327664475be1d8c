"""Hundreds of clients behind PgBouncer, and thousands of coroutines on one store: no call fails, nothing is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers

ROOT = Path(__file__).resolve().parents[2]


def run_clients(*arguments):
    """Run the clients of the benchmark, which end with an error if a call fails or a checkpoint is missing."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.clients", *map(str, arguments)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.torture
def test_500_clients_behind_pgbouncer_see_no_error():
    with servers.Server() as server, servers.pgbouncer(server, pool=20) as bouncer:
        run_clients("--url", bouncer.url, "--clients", 500, "--processes", 2)


@pytest.mark.torture
def test_5000_coroutines_on_one_store_see_no_error():
    with servers.Server() as server:
        run_clients("--url", server.url, "--coroutines", 5000, "--rounds", 5)
