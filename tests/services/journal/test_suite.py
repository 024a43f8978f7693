"""The tests of `tests/journal`, collected once more for the journals of this folder."""

# ruff: noqa: F403 - each module brings what it has: a test that is added there is run here, too

from tests.journal.test_claims import *
from tests.journal.test_leases import *
from tests.journal.test_order import *
from tests.journal.test_outcomes import *
from tests.journal.test_publish import *
from tests.journal.test_redrive import *
from tests.journal.test_takeover import *
from tests.journal.test_versions import *
