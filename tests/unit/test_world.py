"""The real chance: bytes that nobody else has, also in a forked child."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from headrace.world import DRAWN_BYTES, SystemChance

#: Forks while other threads draw: a child that waits for what they held would never end.
FORKS = """
import os, signal, sys, threading
from headrace.world import SystemChance

chance, over = SystemChance(), threading.Event()

def draw():
    while not over.is_set():
        chance.bytes(16)

threads = [threading.Thread(target=draw) for _ in range(2)]
for thread in threads:
    thread.start()
seen = {chance.bytes(16)}
for _ in range(20):
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        os.write(outlet, chance.bytes(16))
        os._exit(0)
    os.close(outlet)
    seen.add(os.read(inlet, 16))
    os.close(inlet)
    assert os.waitpid(child, 0)[1] == 0, "the child hung"
    seen.add(chance.bytes(16))
over.set()
print(len(seen))
"""


def test_threads_draw_different_bytes() -> None:
    """Sizes that fit into what is drawn at once, and one that does not."""
    chance, many = SystemChance(), 2_000
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: chance.bytes(16), range(many)))
    assert len(set(drawn)) == many
    assert {len(one) for one in drawn} == {16}
    assert len(chance.bytes(DRAWN_BYTES + 1)) == DRAWN_BYTES + 1
    assert chance.bytes(0) == b""


def test_a_forked_child_has_bytes_of_its_own() -> None:
    """Neither those of its parent, nor a lock that nobody opens any more."""
    ran = subprocess.run(
        [sys.executable, "-Wignore", "-c", FORKS], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) == 41
