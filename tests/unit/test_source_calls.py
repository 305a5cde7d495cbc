from __future__ import annotations

from longwatch.core.events import Events, SourceFailed, SourceRecovered
from longwatch.core.fake_clock import FakeClock
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import StoreError
from longwatch.testing import RecordingObserver
from longwatch.work.calls import SourceCall
from longwatch.work.policy import EnginePolicy, Surroundings


def fails() -> None:
    raise StoreError("down")


class Engine:
    def __init__(self) -> None:
        self.observer = RecordingObserver()
        events = Events()
        events.subscribe(self.observer)
        self.around = Surroundings(
            "engine", EnginePolicy(), FakeClock(), events, Heartbeat(FakeClock())
        )

    def told(self) -> list[str]:
        return [event.call for event in self.observer.of(SourceFailed)]


def test_an_outage_that_makes_every_call_fail_is_told_once() -> None:
    engine = Engine()
    calls = [SourceCall(name, engine.around) for name in ("renew", "exchange", "sweep")]
    for _ in range(5):
        for call in calls:
            call.make(fails)
    assert ["renew"] == engine.told()
    for call in calls:
        call.make(lambda: 1)
    assert ["renew"] == [event.call for event in engine.observer.of(SourceRecovered)]


def test_a_call_that_failed_and_is_not_made_again_does_not_silence_the_next_outage() -> None:
    engine = Engine()
    renew, exchange = SourceCall("renew", engine.around), SourceCall("exchange", engine.around)
    renew.make(fails)
    exchange.make(lambda: 1)
    exchange.make(fails)
    assert ["renew", "exchange"] == engine.told()
