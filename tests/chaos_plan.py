"""How long and with which seed a chaos test runs: short and fixed in `make test`, long and
random in `make chaos`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class ChaosPlan:
    """What the fixture `chaos` hands to a test marked `chaos`."""

    seed: int
    seconds: float

    def random(self) -> random.Random:
        return random.Random(self.seed)
