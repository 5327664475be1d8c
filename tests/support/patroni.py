"""A cluster of three PostgreSQL servers that Patroni manages, with etcd and HAProxy, all from Debian's packages.

Each server is in a network namespace of its own, so that its network can be cut. etcd and HAProxy are in the namespace
of the tests. It needs root: namespaces and interfaces are made for the time of the cluster, and removed with it.
"""

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.support.servers import free_port, wait_for

NET = "10.213.7"
BRIDGE = "bt-ha"
NODES = (1, 2, 3)
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
FREEZE_SECONDS = 40
"""Longer than Patroni's lease on being the primary (20 s): another server takes its place meanwhile."""
MORTAL = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it ends with the process that started it."""
COMPLETE = [[("leader", "running"), ("replica", state), ("sync_standby", state)] for state in ("running", "streaming")]

NODE = """\
scope: backtrail
name: node{n}
restapi: {{listen: "{ip}:8008", connect_address: "{ip}:8008"}}
etcd3: {{host: "{net}.254:2379"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 2
    retry_timeout: 4
    maximum_lag_on_failover: 1048576
    synchronous_mode: true
    synchronous_mode_strict: true
    postgresql:
      use_pg_rewind: true
      parameters: {{wal_log_hints: "on", max_connections: 80, shared_buffers: 16MB, wal_keep_size: 256MB}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}, data-checksums]
postgresql:
  listen: "{ip}:5432"
  connect_address: "{ip}:5432"
  data_dir: {home}/node{n}
  bin_dir: {programs}
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}}}
  parameters: {{unix_socket_directories: "{home}/sockets{n}"}}
  pg_hba: ["local all all trust", "host all all {net}.0/24 trust", "host replication all {net}.0/24 trust"]
"""
HAPROXY = """\
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  timeout check 2s
listen primary
  bind 127.0.0.1:{port}
  option httpchk OPTIONS /primary
  http-check expect status 200
  default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
"""


def required():
    """Skip the test where the cluster cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    missing = [name for name in ("patroni", "etcd", "haproxy", "ip", "setpriv") if shutil.which(name) is None]
    if missing or not PROGRAMS.exists():
        pytest.skip(f"not installed: {', '.join(missing) or PROGRAMS}; make torture-ha installs it")


def run(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


class PatroniCluster:
    """Three servers, one of which is the primary, with a synchronous standby. A context manager."""

    def __init__(self):
        required()
        self._processes = []
        self._patronis = {}
        """The latest Patroni of each server."""
        self._home = Path(tempfile.mkdtemp(prefix="backtrail-ha-"))
        account = pwd.getpwnam("postgres")
        for directory in (self._home, *(self._home / f"sockets{n}" for n in NODES)):
            directory.mkdir(exist_ok=True)
            os.chown(directory, account.pw_uid, account.pw_gid)
        self._port = free_port()
        hosts = ",".join(f"{ip(n)}:5432" for n in NODES)
        self.url = f"postgresql://postgres@{hosts}/postgres?connect_timeout=3"
        self.proxy_url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres?connect_timeout=3"

    def __enter__(self):
        self._only_one = (Path(tempfile.gettempdir()) / "backtrail-ha.lock").open("w")
        fcntl.flock(self._only_one, fcntl.LOCK_EX)  # the names of the network are fixed
        try:
            self._make_network()
            self._start_etcd()
            for n in NODES:
                self._start(n)
            self._start_proxy()
            wait_for(lambda: self.primary() is not None and self._is_complete(), seconds=180)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes:
            process.kill()
            process.wait()
        self._remove_network()
        shutil.rmtree(self._home, ignore_errors=True)
        self._only_one.close()

    # -- the servers ----------------------------------------------------------------------------------

    def primary(self):
        """The number of the server that is the primary, as Patroni tells it; None while there is none."""
        statuses = {n: self._status(n) for n in NODES}
        return next(
            (n for n in NODES if (statuses[n].get("role"), statuses[n].get("state")) == ("master", "running")), None
        )

    def primary_url(self):
        return f"postgresql://postgres@{ip(self.primary())}:5432/postgres"

    def _status(self, n, path=""):
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://{ip(n)}:8008/{path}", timeout=2) as got,
        ):
            return json.load(got)
        return {}

    def _is_complete(self):
        """Whether Patroni knows a primary, a synchronous standby that may take its place, and another standby."""
        primary = self.primary()
        members = self._status(primary, "cluster").get("members", ()) if primary else ()
        return sorted((each["role"], each["state"]) for each in members) in COMPLETE

    def _start(self, n):
        config = self._home / f"node{n}.yml"
        config.write_text(NODE.format(n=n, ip=ip(n), net=NET, home=self._home, programs=PROGRAMS))
        account = ("--reuid=postgres", "--regid=postgres", "--init-groups")
        self._patronis[n] = self._spawn(
            f"patroni{n}", "ip", "netns", "exec", f"{BRIDGE}-{n}", *MORTAL, *account, "patroni", config
        )

    def _spawn(self, name, *command):
        with (self._home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", process_group=0,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _start_etcd(self):
        clients, peers = f"http://{NET}.254:2379", f"http://{NET}.254:2380"
        options = {
            "data-dir": self._home / "etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
        }
        self._spawn("etcd", *MORTAL, "etcd", *(f"--{name}={value}" for name, value in options.items()))

    def _start_proxy(self):
        config = self._home / "haproxy.cfg"
        servers = "".join(f"  server node{n} {ip(n)}:5432 check port 8008\n" for n in NODES)
        config.write_text(HAPROXY.format(port=self._port) + servers)
        self._spawn("haproxy", *MORTAL, "haproxy", "-f", config, "-db")

    def _signal(self, n, number):
        """Send a signal to all processes of a server's namespace."""
        listed = subprocess.run(["ip", "netns", "pids", f"{BRIDGE}-{n}"], check=False, capture_output=True, text=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    # -- faults ---------------------------------------------------------------------------------------

    def fail_over(self, kind, sleep):
        """Let the primary fail; return when another server is the primary and the cluster is complete again."""
        former = self.primary()
        try:
            getattr(self, f"_{kind}")(former, sleep)
            wait_for(lambda: self.primary() not in (None, former), seconds=120)
            wait_for(self._is_complete, seconds=180)
        except AssertionError as error:
            raise AssertionError(f"{kind} of server {former}: {error}\n{self.report()}") from error

    def report(self):
        """What the servers tell of themselves, and where copies of their logs are."""
        copies = tempfile.mkdtemp(prefix="backtrail-ha-logs-")
        for log in (*self._home.glob("*.log"), *self._home.glob("node?/log/*")):
            shutil.copy(log, copies)
        statuses = "".join(f"{n}: {self._status(n)}\n" for n in NODES)
        return f"{statuses}history: {self._status(self.primary(), 'history')}\nlogs: {copies}"

    def _kill(self, n, sleep):
        self._signal(n, signal.SIGKILL)
        sleep(1)
        wait_for(lambda: self.primary() not in (None, n), seconds=120)
        self._start(n)

    def _switch(self, n, sleep):
        body = json.dumps({"leader": f"node{n}"}).encode()
        asked = urllib.request.Request(f"http://{ip(n)}:8008/switchover", body, {"Content-Type": "application/json"})
        while self.primary() in (n, None):  # None also if a server answers late
            with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=60):  # Patroni may refuse a while
                pass
            sleep(1)

    def _freeze(self, n, sleep):
        self._signal(n, signal.SIGSTOP)
        sleep(FREEZE_SECONDS)
        # A Patroni that wakes may take the leadership back, and drop what the new primary has acknowledged (seen with
        # 3.0.2). A watchdog prevents that: it would reset the machine. PostgreSQL wakes, and believes that it is the
        # primary until Patroni starts again.
        self._patronis[n].kill()
        self._signal(n, signal.SIGCONT)
        self._patronis[n].wait()
        self._start(n)

    def _cut(self, n, sleep):
        run("ip", "link", "set", f"{BRIDGE}-v{n}", "down")
        sleep(FREEZE_SECONDS)
        run("ip", "link", "set", f"{BRIDGE}-v{n}", "up")

    # -- the network ----------------------------------------------------------------------------------

    def _make_network(self):
        self._remove_network()  # what a killed test left
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for n in NODES:
            space = f"{BRIDGE}-{n}"
            run("ip", "netns", "add", space)
            run("ip", "link", "add", f"{BRIDGE}-v{n}", "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", f"{BRIDGE}-v{n}", "master", BRIDGE, "up")
            run("ip", "-n", space, "addr", "add", f"{ip(n)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def _remove_network(self):
        for n in NODES:
            self._signal(n, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}-{n}"], check=False, capture_output=True)
            subprocess.run(["ip", "link", "del", f"{BRIDGE}-v{n}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


def ip(n):
    return f"{NET}.{n}"
