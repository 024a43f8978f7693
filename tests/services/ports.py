"""Free ports on loopback that stay free while a service is down."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"
#: Below are the ports of well-known services.
LOWEST = 10_000
HIGHEST = 65_535
#: If nothing is free after that many draws, something else is wrong.
DRAWS_MAX = 200


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on.

    They lie below those that the kernel gives to outgoing connections. A client that tries again and again to
    reach a killed broker would otherwise come, sooner or later, from the very port it wants to reach, be
    connected to itself, and keep the broker from coming back.
    """
    ports: list[int] = []
    outgoing = _first_outgoing()
    end = outgoing if outgoing > LOWEST + DRAWS_MAX else HIGHEST
    with ExitStack() as held:
        for _ in range(DRAWS_MAX):
            if len(ports) == count:
                return ports
            listener = held.enter_context(socket.socket())
            port = random.randrange(LOWEST, end)
            try:
                listener.bind((LOOPBACK, port))
            except OSError:  # somebody else's
                continue
            ports.append(port)
    raise OSError(f"no {count} free ports on {LOOPBACK} after {DRAWS_MAX} draws")


def _first_outgoing() -> int:
    """Return the lowest port that the kernel gives to outgoing connections (Linux: 32768 by default)."""
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def is_listening(port: int) -> bool:
    """Does anybody take connections there?"""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True
