from __future__ import annotations

from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed, ClaimSourceRecovered
from longwatch.core.fake_clock import FakeClock
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.engine.source_call import SourceCall
from longwatch.errors import StoreError
from longwatch.testing import RecordingObserver


def fails() -> None:
    raise StoreError("down")


class FakeEngine:
    def __init__(self) -> None:
        self.observer = RecordingObserver()
        events = Events()
        events.subscribe(self.observer)
        self.context = EngineContext(
            "engine", EnginePolicy(), FakeClock(), events, Heartbeat(FakeClock())
        )

    def failed_calls(self) -> list[str]:
        return [event.call for event in self.observer.of(ClaimSourceFailed)]


def test_an_outage_that_makes_every_call_fail_is_told_once() -> None:
    engine = FakeEngine()
    calls = [SourceCall(name, engine.context) for name in ("renew", "exchange", "sweep")]
    for _ in range(5):
        for call in calls:
            call.run(fails)
    assert ["renew"] == engine.failed_calls()
    for call in calls:
        call.run(lambda: 1)
    assert ["renew"] == [event.call for event in engine.observer.of(ClaimSourceRecovered)]


def test_a_call_that_failed_and_is_not_made_again_does_not_silence_the_next_outage() -> None:
    engine = FakeEngine()
    renew, exchange = SourceCall("renew", engine.context), SourceCall("exchange", engine.context)
    renew.run(fails)
    exchange.run(lambda: 1)
    exchange.run(fails)
    assert ["renew", "exchange"] == engine.failed_calls()
