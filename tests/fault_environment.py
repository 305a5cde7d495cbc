"""The environment of `fault_client.py`, which imports this before anything of Longwatch.

FAULT_CLOCK     seconds that its wall clock is off
FAULT_BOOT      the boot of the machine it seems to run on
FAULT_PATIENCE  seconds after which a call to the store is given up, instead of the usual ones
"""

from __future__ import annotations

import os
import time

from longwatch.host import incarnation
from longwatch.store import database

_CLOCK_OFFSET = float(os.environ.get("FAULT_CLOCK", "0"))
_BOOT = os.environ.get("FAULT_BOOT", "")
_time, _time_ns = time.time, time.time_ns

if _CLOCK_OFFSET:
    time.time = lambda: _time() + _CLOCK_OFFSET
    time.time_ns = lambda: _time_ns() + int(_CLOCK_OFFSET * 1e9)
if _BOOT:
    incarnation.boot_id = lambda: _BOOT  # type: ignore[assignment]
database.CALL_TIMEOUT = float(os.environ.get("FAULT_PATIENCE", database.CALL_TIMEOUT))
