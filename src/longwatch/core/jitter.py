"""Random numbers that do not use the seed of the program and differ in forked children."""

from __future__ import annotations

import random

_system = random.SystemRandom()


def random_fraction() -> float:
    """Return a random number from 0 to 1."""
    return _system.random()
