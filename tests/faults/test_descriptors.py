"""A process that may open no more files: every call works, or raises one of backtrail's errors."""

import subprocess
import sys

import pytest

from tests.support import servers

resource = pytest.importorskip("resource")

CODE = """
import os, resource, sys
import backtrail

url, schema, place, warm = sys.argv[1:]
store = backtrail.open(url, **({"schema": schema} if schema else {}))
thread = store.thread("t")


def run():
    with store.run("r", agent="a") as run:
        for _ in run.iterations():
            run.tool("f", lambda: 1)
            run.halt("done")


def step():
    with thread.step() as state:
        state["k"] = 1


def transaction():
    with store.transaction():
        store.thread("u").save({"n": 1})


CALLS = {
    "save": lambda: thread.save({"messages": [{"role": "user", "content": "hello " * 500}]}),
    "append": lambda: thread.append("messages", {"role": "user", "content": "x" * 200}),
    "load": lambda: thread.load().state,
    "history": lambda: list(thread.history()),
    "fork": lambda: thread.fork(os.urandom(4).hex()),
    "search": lambda: store.search("hello"),
    "stats": lambda: store.stats(),
    "agent": lambda: store.agents.save(backtrail.AgentState("a", "A", "gpt-5"), replace=True),
    "append message": lambda: store.conversations.append("c", backtrail.Message.user("hi"), agent_id="a"),
    "checkpoint": lambda: store.agents.checkpoint("a", "here"),
    "run": run,
    "runs": lambda: list(store.runs.list()),
    "step": step,
    "transaction": transaction,
    "prune": lambda: store.prune(backtrail.Policy(keep_last=1)),
    "gc": lambda: store.gc(),
    "verify": lambda: store.verify(),
    "migrate": lambda: store.migrate(),
    "export": lambda: store.export(place + "/" + os.urandom(4).hex()),
    "backup": lambda: store.backup(place + "/" + os.urandom(4).hex()),
    "copy": lambda: backtrail.copy(store, "memory://"),
    "bytes": lambda: thread.latest() and thread.latest().to_bytes(),
    "builtins": lambda: backtrail.builtins.call(store, "agent_list", {}),
    "sqlite": lambda: backtrail.open(place + "/other.db").close(),
    "files": lambda: backtrail.open("file://" + place + "/other").close(),
    "memory": lambda: backtrail.open("memory://").close(),
}
if warm:
    for call in CALLS.values():
        try:
            call()
        except Exception as error:
            print("not warm", repr(error))
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1, limits[1]))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
found = []
for name, call in CALLS.items():
    try:
        call()
    except backtrail.Error as error:
        if "Too many open files" not in str(error) and "too many files" not in str(error):
            found.append((name, error.code) if error.code.startswith(("not_found", "invalid")) else (name, str(error)))
    except BaseException as error:
        found.append((name, repr(error)))
for fd in held:
    os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print(*[each for each in found if not each[1].startswith("not_found")], sep="\\n", end="")
CALLS["save"]()
CALLS["verify"]()
store.close()
"""


@pytest.mark.parametrize("warm", ["", "warm"])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "file", "postgres"])
def test_without_descriptors_no_error_is_raw(kind, warm, tmp_path):
    urls = {"memory": "memory://", "sqlite": str(tmp_path / "s.db"), "file": (tmp_path / "s").as_uri()}
    if kind != "postgres":
        check(urls[kind], "", tmp_path, warm)
        return
    with servers.place() as opener:
        check(opener.args[0], opener.keywords["schema"], tmp_path, warm)


def check(url, schema, place, warm):
    code = [sys.executable, "-c", CODE, url, schema, str(place), warm]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr
