"""Becomes the program it is given, one that ends with the process that asked for it.

Run as a file, in a Python without site-packages: `launch.py PARENT SIGNAL UID GID COMMAND...`.
Between fork and exec only C may safely run in a process with threads, so this runs after an exec of its own.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, on_orphaned: int, uid: int, gid: int, command: list[str]) -> None:
    """Give up the rights of root if asked to, tie the own life to the parent's, become the command."""
    if uid != os.getuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user: that change undoes it.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, on_orphaned, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
