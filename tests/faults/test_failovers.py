"""Failovers of a primary with a synchronous standby, one after the other, beside clients of all kinds."""

import contextlib
import itertools
import operator
import time

import pytest

from tests.support import servers
from tests.support.failover_clients import Clients
from tests.support.proxy import Proxy

ROUND_SECONDS = 2


class Cluster:
    """A primary and its synchronous standby. Each has an address that stays the same."""

    def __init__(self, proxy=None):
        self.primary = servers.Server()
        self.primary.start()
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.proxy = proxy
        self._join(servers.Standby(self.primary))
        self.primary.execute("SELECT pg_reload_conf()")
        self._wait_for_standby()
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = f"postgresql://postgres@{hosts}/postgres"

    def _join(self, standby):
        standby.start()
        self.standby = standby

    def _wait_for_standby(self):
        servers.wait_for(lambda: self.primary.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])

    def fail_over(self, kind):
        """Let the primary fail, and the standby take its place; then the former primary becomes its standby."""
        former = self.primary
        if kind == "kill":
            former.kill()
        elif kind == "switch":
            former.stop()
        else:
            former.freeze()
        self.standby.promote()
        self.primary = self.standby
        if self.proxy is not None:
            self.proxy.turn_to(self.primary.tcp_url)
        time.sleep(ROUND_SECONDS / 2)
        if kind == "freeze":
            former.thaw()  # it takes itself for the primary still
            time.sleep(ROUND_SECONDS / 4)
            former.kill()
        port = former.port
        former.remove()
        self._join(servers.Standby(self.primary, port=port))
        self._wait_for_standby()

    def remove(self):
        self.standby.remove()
        self.primary.remove()


@pytest.mark.parametrize(
    ("way", "rounds"),
    [
        ("hosts", 2),
        *(pytest.param(way, 25, marks=pytest.mark.torture) for way in ("hosts", "proxy")),
    ],
)
def test_failovers_lose_nothing(way, rounds):
    with contextlib.ExitStack() as stack:
        cluster = Cluster()
        stack.callback(cluster.remove)
        url = cluster.url
        if way == "proxy":
            cluster.proxy = stack.enter_context(Proxy(cluster.primary.tcp_url))
            url = cluster.proxy.url
        clients = Clients(url)
        clients.start()
        for kind in itertools.islice(itertools.cycle(["freeze", "kill", "switch"]), rounds):
            before = clients.progress()
            cluster.fail_over(kind)
            servers.wait_for(lambda before=before: all(map(operator.gt, clients.progress(), before)), seconds=90)
        clients.stop()
        clients.check(cluster.primary.tcp_url)
