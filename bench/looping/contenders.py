"""A LoopGroup with everything on, and the peer of each store that it is compared to."""

from __future__ import annotations

from queueing.contenders import CONTENDERS, YARDSTICKS, Contender

STORES = ("sqlite", "redis", "postgresql")
GROUP = Contender(
    "longwatch, LoopGroup with 8 slots", "longwatch_app", 50_000, ("APP", "group"), settles=True
)


def contenders(kind: str) -> tuple[Contender, ...]:
    return (GROUP, *(each for each in CONTENDERS[kind] if each.name == YARDSTICKS[kind]))
