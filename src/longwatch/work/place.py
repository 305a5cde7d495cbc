"""Where an engine runs: alone, in a group, perhaps in a process that has a parent."""

from __future__ import annotations

from dataclasses import dataclass, field

from longwatch.core.events import Events
from longwatch.host.parent import ParentLine
from longwatch.work.solitude import Solitude
from longwatch.work.telling import told_to_logging

LEASE_UNDER_A_PARENT = 15.0
"""Seconds that leases last where a parent renews them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the surroundings of an engine share."""

    name: str
    events: Events = field(default_factory=told_to_logging)
    solitude: Solitude = field(default_factory=Solitude)
    parent: ParentLine | None = None
