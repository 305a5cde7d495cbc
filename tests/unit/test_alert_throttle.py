"""One alert for an outage, however many failures it has."""

from __future__ import annotations

from longwatch.core.events.runner import EventSourceDegraded, EventSourceRecovered
from longwatch.runner.alert_throttle import AlertThrottle


def test_an_outage_is_announced_once_and_so_is_its_end() -> None:
    throttle = AlertThrottle("east", alert_after=3)
    alerts = [throttle.failed(now=10.0 + n, error=f"error {n}") for n in range(6)]
    degraded = EventSourceDegraded(cluster="east", failures=3, error="error 2")
    assert [None, None, degraded, None, None, None] == alerts
    recovered = EventSourceRecovered(cluster="east", downtime=90.0)
    assert [recovered, None] == [throttle.succeeded(now=100.0), throttle.succeeded(now=101.0)]


def test_a_short_row_of_failures_is_announced_neither_at_its_begin_nor_at_its_end() -> None:
    throttle = AlertThrottle("east", alert_after=3)
    for now in (1.0, 2.0, 3.0):
        assert throttle.failed(now=now, error="") is None
        assert throttle.failed(now=now, error="") is None
        assert throttle.succeeded(now=now) is None


def test_what_needs_a_person_is_announced_at_once() -> None:
    throttle = AlertThrottle("east", alert_after=3)
    first = throttle.failed(now=1.0, error="401", at_once=True)
    assert EventSourceDegraded(cluster="east", failures=1, error="401") == first
    assert throttle.failed(now=2.0, error="401", at_once=True) is None
