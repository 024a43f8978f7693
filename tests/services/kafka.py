"""Real Kafka brokers: one, or a cluster; each node can be stopped, killed and started again."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from tests.services import fetch
from tests.services.certificates import Identity
from tests.services.ports import LOOPBACK, free_ports, is_listening
from tests.services.process import Process, ServiceFailed
from tests.services.server_properties import DATA, MECHANISMS, QUICK_START, Options, Ports, server_properties

#: Ten times what a loaded machine took.
FORMAT_SECONDS_MAX = 30.0
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
#: For one answer of a broker that listens.
ANSWER_SECONDS_MAX = 5.0

#: Made by `train`; brokers start without it too.
ARCHIVE = "classes.jsa"


class Node:
    """One server, broker and controller in one: its folder, its ports, its process."""

    def __init__(
        self, number: int, ports: Ports, controllers: dict[int, int], folder: Path, options: Options
    ) -> None:
        self.number = number
        self._ports, self._options, self._folder = ports, options, folder
        self._process: Process | None = None
        self._properties = folder / "server.properties"
        folder.mkdir()
        properties = server_properties(number, ports, controllers, folder, options)
        self._properties.touch(0o600)  # passwords are in it
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))

    @property
    def bootstrap(self) -> str:
        """Where the administrator comes in: no password, all rights."""
        return f"{LOOPBACK}:{self._ports.plain}"

    @property
    def process(self) -> Process:
        """The process that runs, or ran last."""
        if self._process is None:
            raise ServiceFailed(f"node {self.number} was never started")
        return self._process

    @property
    def is_alive(self) -> bool:
        """Does it run?"""
        return self._process is not None and self._process.is_alive

    def by_password(
        self, user: str, password: str, mechanism: str = MECHANISMS[0]
    ) -> dict[str, str | int | float | bool]:
        """Return the settings of a client that says who it is by a password."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self._ports.sasl}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def by_certificate(self, identity: Identity) -> dict[str, str | int | float | bool]:
        """Return the settings of a client that says who it is by a certificate."""
        return {
            "bootstrap.servers": f"{LOOPBACK}:{self._ports.tls}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(identity.authority),
            "ssl.certificate.location": str(identity.pem),
            "ssl.key.location": str(identity.pem),
        }

    def format(self, cluster: str) -> None:
        """Write an empty storage that knows the cluster's name and the users' passwords."""
        users = [f"SCRAM-SHA-256=[name={u},password={p}]" for u, p in self._options.users.items()]
        scram = [word for user in users for word in ("--add-scram", user)]
        # With the sign of equality, for it may begin with a hyphen.
        asked = ["format", f"--cluster-id={cluster}", f"--config={self._properties}", *scram]
        command = [*_java(), *QUICK_START, "kafka.tools.StorageTool", *asked]
        Process.start(command, self._folder / "format.log").finish(FORMAT_SECONDS_MAX)

    def copy_storage(self, other: Self) -> None:
        """Take over the empty storage of another node, but for the numbers of node and folder.

        A folder without one draws it at its first start. Saves a start of Java.
        """
        shutil.copytree(other._folder / DATA, self._folder / DATA)
        properties = self._folder / DATA / "meta.properties"
        known = dict(line.split("=", 1) for line in properties.read_text().splitlines() if "=" in line)
        known["node.id"] = str(self.number)
        del known["directory.id"]
        properties.write_text("".join(f"{name}={value}\n" for name, value in known.items()))

    def begin(self) -> None:
        """Start the process and do not wait for it."""
        options = [f"-Xmx{self._options.heap_mebibytes}m", *self._options.java_options]
        command = [*_java(), *options, "kafka.Kafka", str(self._properties)]
        self._process = Process.start(command, self._folder / "server.log")

    def await_answer(self, nodes: set[int]) -> None:
        """Wait until it takes requests, and knows these nodes to be up."""
        self.process.await_that(lambda: is_listening(self._ports.plain), START_SECONDS_MAX)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.process.await_that(lambda: nodes <= _known_nodes(admin), START_SECONDS_MAX)

    def stop(self) -> None:
        """Let it end in order."""
        if self.is_alive:
            self.process.stop(STOP_SECONDS_MAX)

    def kill(self) -> None:
        """End it at once by SIGKILL."""
        if self.is_alive:
            self.process.kill()

    def restart(self) -> None:
        """Start it, after a stop in order if it runs: same data, same ports."""
        self.stop()
        self.begin()
        self.await_answer({self.number})


class Cluster:
    """Some nodes, each of which may fail; of three, one may be down and nothing stops."""

    def __init__(self, size: int = 3, options: Options | None = None) -> None:
        self._size, self._options = size, options or Options()
        self.nodes: list[Node] = []
        self._folder: Path | None = None

    @property
    def bootstrap(self) -> str:
        """Where the administrator comes in: no password, all rights."""
        return ",".join(node.bootstrap for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        ports = _draw_ports(self._size)
        controllers = {number: each.controller for number, each in ports.items()}
        self.nodes += [
            Node(number, each, controllers, self._folder / str(number), self._options)
            for number, each in ports.items()
        ]
        first, *others = self.nodes
        first.format(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="))
        for node in others:
            node.copy_storage(first)
        for node in self.nodes:
            node.begin()
        for node in self.nodes:
            node.await_answer(set(ports))

    def _remove(self) -> None:
        """Kill what runs, for nobody will ask for the data, and remove the folder."""
        for node in self.nodes:
            node.kill()
        if self._folder:
            shutil.rmtree(self._folder)


class Broker:
    """A cluster of one: `with Broker() as node`."""

    def __init__(self, options: Options | None = None) -> None:
        self._cluster = Cluster(1, options)

    def __enter__(self) -> Node:
        return self._cluster.__enter__().nodes[0]

    def __exit__(self, *error: object) -> None:
        self._cluster.__exit__(*error)


def train() -> None:
    """Keep the classes that a starting broker loads in a file: the next starts take 0.8 s less each.

    Another Java than the one that made the file takes no notice of it.
    """
    archive = fetch.kafka_jars() / ARCHIVE
    if archive.exists():
        return
    scratch = archive.with_suffix(f".{os.getpid()}")
    options = Options(java_options=(*QUICK_START, f"-XX:ArchiveClassesAtExit={scratch}"))
    with Broker(options) as broker:
        broker.stop()
    if scratch.exists():  # a Java without an archive of its own cannot make one
        with scratch.open("rb") as file:
            os.fsync(file.fileno())  # half a file would crash Java
        scratch.replace(archive)


def _draw_ports(nodes: int) -> dict[int, Ports]:
    """Return ports for the nodes 1, 2, ..."""
    width = len(Ports._fields)
    drawn = free_ports(nodes * width)
    return {number + 1: Ports(*drawn[number * width : (number + 1) * width]) for number in range(nodes)}


def _java() -> list[str]:
    """Return the words that begin a command of Kafka's."""
    jars = fetch.kafka_jars()
    archive = jars / ARCHIVE
    known = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
    path = ":".join(str(jar) for jar in sorted(jars.glob("*.jar")))
    quiet = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn"
    return [fetch.java(), *known, "-cp", path, quiet, "-Dorg.slf4j.simpleLogger.showDateTime=true"]


def _known_nodes(admin: AdminClient) -> set[int]:
    """Return the nodes that are up, as the one that is asked knows them."""
    try:
        return set(admin.list_topics(timeout=ANSWER_SECONDS_MAX).brokers)
    except KafkaException:  # not ready yet
        return set()
