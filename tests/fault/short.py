"""Runs campaigns: in a short form, or at full length with HEADRACE_FAULT=full (`make fault`)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

FULL = os.environ.get("HEADRACE_FAULT") == "full"
#: In CI the same runs each time: red means the change.  Elsewhere new ones.
SEED = 1 if os.environ.get("CI") else random.randrange(1 << 31)

#: Of a campaign that has to find a fault, until it does.
SEEDS = (1, 2, 3)


def campaign(script: str, *options: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, result and the words of a campaign."""
    place = Path(__file__).with_name(script)
    command = [sys.executable, str(place), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def noticed(script: str, *options: str, faults: tuple[str, ...]) -> bool:
    """Return whether a campaign with a rule switched off finds one of the faults, and ends accordingly.

    What it takes has to happen at the right moment: on a busy machine one seed may not be enough.
    """
    for seed in SEEDS:
        code, result, _ = campaign(script, f"--seed={seed}", *options)
        if code == 1 and sum(result[fault] for fault in faults) > 0:
            return True
    return False
