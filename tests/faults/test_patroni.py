"""Failovers of a real Patroni cluster: killed, switched, frozen and cut-off primaries, beside clients of all kinds."""

import itertools
import operator
import os
import time

import pytest

from tests.support.failover_clients import Clients
from tests.support.patroni import PatroniCluster
from tests.support.servers import wait_for

ROUNDS = int(os.environ.get("BACKTRAIL_FAILOVERS", "25"))
KINDS = ["switch", "kill", "freeze", "switch", "cut"]


@pytest.mark.torture
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("way", ["hosts", "haproxy"])
def test_failovers_of_patroni_lose_nothing(way):
    with PatroniCluster() as cluster:
        clients = Clients(cluster.url if way == "hosts" else cluster.proxy_url)
        clients.start()
        faults = []
        for kind in itertools.islice(itertools.cycle(KINDS), ROUNDS):
            before = clients.progress()
            faults.append((kind, time.time()))
            cluster.fail_over(kind, time.sleep)
            wait_for(lambda before=before: all(map(operator.gt, clients.progress(), before)), seconds=120)
        clients.stop()
        try:
            clients.check(cluster.primary_url())
        except AssertionError as error:
            raise AssertionError(f"{error}\nfaults: {faults}\n{cluster.report()}") from error
