"""The cache of what the last poll of a graph's queues found, and the wakeup that invalidates it."""

from __future__ import annotations

import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.flow.claimer import QueueCache


class Engine(Wakeup):
    """A wakeup that records which of its methods were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def set(self) -> None:
        self.calls.append("set")

    def hint(self) -> None:
        self.calls.append("hint")

    def poll(self) -> None:
        self.calls.append("poll")


@pytest.mark.parametrize("call", ["set", "hint", "poll"])
def test_each_call_invalidates_the_cache_and_reaches_the_engine_as_itself(call: str) -> None:
    engine, cache = Engine(), QueueCache(FakeClock())
    notified, _ = cache.listen(engine)
    cache.record_poll(has_waiting=False)
    assert cache.is_known_empty
    getattr(notified, call)()
    assert ([call], False) == (engine.calls, cache.is_known_empty)


def test_nothing_is_known_when_no_worker_listens() -> None:
    cache = QueueCache(FakeClock())
    _, leave = cache.listen(Wakeup())
    cache.record_poll(has_waiting=False)
    leave()
    assert not cache.is_known_empty
