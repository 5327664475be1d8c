"""A server of a store: in this process, and as a process of its own."""

import json
import subprocess
import sys
from contextlib import contextmanager

from starlette.testclient import TestClient

from backtrail import server

TOKEN = "token-of-the-tests"


def client(store, **options):
    """Return a client of a store's server that sends the token."""
    app = server.app(store, **{"tokens": TOKEN, "write": True, **options})
    return TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"})


@contextmanager
def serving(url, *options, port=0):
    """Run `backtrail serve` in a process; give its link and the process."""
    words = [sys.executable, "-m", "backtrail", "serve", str(url), "--port", str(port), "--token", TOKEN, "--json"]
    process = subprocess.Popen([*words, *options], stdout=subprocess.PIPE, text=True)
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "the server has ended"
            text += line
        yield json.loads(text)["url"], process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
