"""What every test shares: how hard hypothesis tries."""

from __future__ import annotations

import os

from hypothesis import settings

# In CI the same examples each time: red means the change. Elsewhere new ones, and a failure is kept.
# No deadline: a slow machine is no defect, and pytest's timeout catches a hang.
settings.register_profile("full", max_examples=200, deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("quick", max_examples=25, deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("full")
