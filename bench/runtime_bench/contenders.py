"""A LoopGroup with everything on, and the peer of each store that it is compared to."""

from __future__ import annotations

from queue_bench.contenders import BASELINES, CONTENDERS, QueueContender

STORES = ("sqlite", "redis", "postgresql")
GROUP = QueueContender(
    "longwatch, LoopGroup with 8 slots",
    "longwatch_app",
    50_000,
    ("APP", "group"),
    reports_settled=True,
)


def contenders(kind: str) -> tuple[QueueContender, ...]:
    return (GROUP, *(each for each in CONTENDERS[kind] if each.name == BASELINES[kind]))
