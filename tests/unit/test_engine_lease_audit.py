"""The lease audit beside reservations: a claim is released only if no reservation explains it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from longwatch.core.events.base import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.lease_audit import LeaseAudit
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.engine.reservations import Reservation, Reservations
from longwatch.store.claims import Claim
from longwatch.testing import FakeClock

OWNER = 7
CLAIM = Claim(1, OWNER, 1)


class Rig:
    """An audit over the claims in `found`, with real reservations."""

    def __init__(self) -> None:
        clock = FakeClock()
        context = EngineContext("test", EnginePolicy(), clock, Events(), Heartbeat(clock))
        self.found: list[Claim] = []
        self.reservations = Reservations(lambda _: None)
        source: Any = SimpleNamespace(held=lambda *, owner: [*self.found])
        trust: Any = SimpleNamespace(owner=OWNER)
        pool: Any = SimpleNamespace(running=list)
        self._audit = LeaseAudit(source, trust, pool, self.reservations, context)
        self._audit.request()

    def reserve(self) -> Reservation:
        made = self.reservations.reserve(lambda: 1, owner=OWNER)
        assert made is not None
        return made

    def run(self, *known: Claim) -> list[Claim]:
        return self._audit.run(set(known), set())

    @property
    def is_due(self) -> bool:
        return self._audit.is_due


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_unknown_claim_without_reservations_is_released_at_once(rig: Rig) -> None:
    rig.found = [CLAIM]
    assert [CLAIM] == rig.run()
    assert not rig.is_due


def test_a_claim_is_kept_in_every_audit_while_an_older_reservation_is_open(rig: Rig) -> None:
    rig.reserve()
    rig.found = [CLAIM]
    assert [[], [], []] == [rig.run() for _ in range(3)]
    assert rig.is_due


def test_a_claim_is_kept_while_its_delivered_row_waits_to_be_accepted(rig: Rig) -> None:
    reservation = rig.reserve()
    rig.found = [CLAIM]
    rig.reservations.delivered.append(([], 0.0))
    reservation.close()
    assert [[], []] == [rig.run() for _ in range(2)]


def test_an_accepted_row_is_not_released(rig: Rig) -> None:
    reservation = rig.reserve()
    rig.found = [CLAIM]
    rig.run()
    reservation.close()
    assert [] == rig.run(CLAIM)
    assert not rig.is_due


def test_a_claim_is_released_once_the_older_reservations_closed_without_it(rig: Rig) -> None:
    reservation = rig.reserve()
    rig.found = [CLAIM]
    rig.run()
    reservation.close()
    assert [CLAIM] == rig.run()


def test_reservations_made_after_the_claim_was_found_do_not_delay_its_release(rig: Rig) -> None:
    older = rig.reserve()
    rig.found = [CLAIM]
    rig.run()
    rig.reserve()
    older.close()
    assert [CLAIM] == rig.run()
