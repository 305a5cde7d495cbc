"""What the page says about a worker process. Pure."""

from __future__ import annotations

from typing import Any

from longwatch.page.program_facts import BAD, INFO, OFF, OK, WARN, Badge, Problem
from longwatch.page.view import path_to

JsonObject = dict[str, Any]

_LATE_SHARE = 0.5
"""The part of the threshold after which a beat is late."""


def worker_badge(worker: JsonObject) -> Badge:
    """The state of a worker process."""
    if worker["stalled"]:
        return Badge(kind=BAD, text="stalled")
    if worker["stopping"]:
        return Badge(kind=OFF, text="stopping")
    if not worker["joined"]:
        return Badge(kind=INFO, text="starting")
    if not worker["ready"]:
        return Badge(kind=WARN, text="not ready")
    return Badge(kind=OK, text="ready")


def worker_problem(worker: JsonObject) -> Problem | None:
    """Why a worker process is unhealthy; None if it is not."""
    badge = worker_badge(worker)
    late = [each for each in worker["loops"] if is_late(each, worker)]
    if badge.kind not in {BAD, WARN} and not late:
        return None
    silent = ", ".join(f"{each['name']} gave no beat for {each['age']:.0f} s" for each in late)
    reasons = [*worker["failing"], silent]
    return Problem(
        kind=badge.kind if badge.kind in {BAD, WARN} else WARN,
        subject=worker["program"],
        what=f"worker {badge.text}" if badge.kind in {BAD, WARN} else "late beats",
        why="; ".join(filter(None, reasons)) or str(worker["reason"]),
        href=path_to("programs", worker["program"]),
    )


def is_late(loop: JsonObject, worker: JsonObject) -> bool:
    """Whether the beat of a loop is so old that its process may soon be killed."""
    threshold, age = worker.get("threshold"), loop.get("age")
    return bool(threshold and age is not None and age > threshold * _LATE_SHARE)
