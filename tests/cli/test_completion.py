"""Shell completion: stored ids are offered as words of a command, and never run as commands."""

import fcntl
import os
import pty
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time

import pytest

import backtrail
from tests.cli.test_terminal import environment
from tests.support.commands import docs

SAFE = ("trip", "user@example.org:7", "a/b+c_d.e-f", "旅行", "Ünïcode")
HOSTILE = (
    "evil-$(touch$IFS$9ran)",
    "evil-`touch${IFS}ran`",
    "evil-;touch ran;",
    "evil-|touch ran",
    "evil-&touch ran&",
    "evil->ran",
    "evil-\ntouch ran\n",
    "evil-\x15touch ran\r",
    "evil-'",
    'evil-"',
    "evil-\\",
    "evil-*",
    "evil-{a,b}",
    "evil-!!",
    "evil-<(touch ran)",
    "evil- touch",
    "evil-\u202e",
    "~root",
    "=ls",
    "--yes",
)


@pytest.fixture
def shelved(trip_store):
    """A store with ids that a shell would run, or read as something else."""
    with backtrail.open(docs.URL) as store:
        for name in (*SAFE[1:], *HOSTILE):
            store.thread(name).save({"n": 1})
            store.agents.save(backtrail.AgentState(name, "n", "t"))
            store.conversations.append(name, backtrail.Message.user("hi"), agent_id="planner")
    script = trip_store / "bin" / "backtrail"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m backtrail "$@"\n')
    script.chmod(0o755)
    return trip_store


def asked(shell, line, at):
    """Return the words that a shell is offered."""
    more = {"_BACKTRAIL_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": str(at)}
    script = "import sys; sys.argv = ['backtrail']; from backtrail.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment(**more), check=False
    )
    lines = done.stdout.splitlines()
    if shell == "zsh":
        return [word.replace("\\:", ":") for word in lines[1::3]]
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    "words", [["log"], ["show"], ["threads", "--kind", "agent"], ["prune", "--thread"]], ids=" ".join
)
def test_only_ids_of_safe_characters_are_offered(shelved, shell, words):
    line = " ".join(["backtrail", *words, ""])
    offered = asked(shell, line, "" if shell == "fish" else len(words) + 1)
    assert {*SAFE[1:]} <= {*offered}
    assert not {*HOSTILE} & {*offered}
    assert not [word for word in offered if shlex.quote(word) != word and word.isascii()]


class Shell:
    """An interactive shell in a terminal."""

    def __init__(self, words, folder):
        self.lead, follow = pty.openpty()
        fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.child = subprocess.Popen(
            words,
            stdin=follow,
            stdout=follow,
            stderr=follow,
            cwd=folder,
            env=environment(PATH=path, PS1="ready> ", HISTFILE="", HOME=str(folder), INPUTRC="/dev/null"),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - the shell controls its jobs
        )
        os.close(follow)

    def type(self, keys, until, seconds=60):
        """Type keys, and return the output of the terminal up to a text."""
        os.write(self.lead, keys.encode())
        got, end = "", time.monotonic() + seconds
        while until not in got and time.monotonic() < end:
            if select.select([self.lead], [], [], 1)[0]:
                got += os.read(self.lead, 65_536).decode(errors="replace")
        assert until in got, got
        return got

    def complete(self, keys, seconds=3):
        """Type keys, and wait until the shell has asked backtrail: it rings the bell, or the time is over."""
        os.write(self.lead, keys.encode())
        got, end = "", time.monotonic() + seconds
        while "\a" not in got and (left := end - time.monotonic()) > 0:
            if select.select([self.lead], [], [], left)[0]:
                got += os.read(self.lead, 65_536).decode(errors="replace")

    def close(self):
        os.close(self.lead)
        self.child.kill()
        self.child.wait(60)


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(_BACKTRAIL_COMPLETE=bash_source backtrail)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1="ready> "; autoload -U compinit; compinit -u; eval "$(_BACKTRAIL_COMPLETE=zsh_source backtrail)"',
    ),
}


@pytest.mark.parametrize("name", SHELLS)
def test_a_real_shell_completes_and_runs_nothing_stored(shelved, name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    words, setup = SHELLS[name]
    shell = Shell(words, shelved)
    try:
        shell.type(f"{setup}; echo set''up\n", "setup")
        shell.complete("backtrail log evil\t\t")
        shell.type("; echo do''ne\n", "done")
        shell.type("backtrail show user\t", "user@example.org:7")
        shell.type("\x15echo do''ne\n", "done")
    finally:
        shell.close()
    assert not (shelved / "ran").exists()


def test_one_hostile_id_is_not_run_by_bash(shelved):
    """A shell inserts the only match completely."""
    with backtrail.open(docs.URL) as store:
        store.thread("only-$(touch${IFS}ran)").save({"n": 1})
    shell = Shell(SHELLS["bash"][0], shelved)
    try:
        shell.type(f"{SHELLS['bash'][1]}; echo set''up\n", "setup")
        shell.complete("backtrail log only\t")
        shell.type("; echo do''ne\n", "done")
    finally:
        shell.close()
    assert not (shelved / "ran").exists()
