"""Chance that leaves alone what a program may have seeded, and that a forked child does not
share with its parent.
"""

from __future__ import annotations

import random

_system = random.SystemRandom()


def random_fraction() -> float:
    """A number from 0 to 1, another one each time."""
    return _system.random()
