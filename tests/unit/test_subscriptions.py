"""Wakeups by channel, and the channels that linger for a connection that subscribes to them."""

from __future__ import annotations

from longwatch.core.clock import Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.store.notify.listener import Subscriptions


def test_only_the_wakeups_of_a_channel_are_set() -> None:
    subscriptions, here, elsewhere = Subscriptions(), Wakeup(), Wakeup()
    subscriptions.add(["a", "b"], here)
    subscriptions.add(["c"], elsewhere)
    subscriptions.wake(["b", "x"])
    assert (True, False) == (here.is_set(), elsewhere.is_set())
    subscriptions.wake(None)
    assert elsewhere.is_set()


class CallRecorder(Wakeup):
    """Records which of its methods were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def set(self) -> None:
        self.calls.append("set")

    def hint(self) -> None:
        self.calls.append("hint")

    def poll(self) -> None:
        self.calls.append("poll")


def test_a_wakeup_of_several_channels_is_called_once_and_learns_the_reason() -> None:
    subscriptions, wakeup = Subscriptions(), CallRecorder()
    subscriptions.add(["a", "b"], wakeup)
    subscriptions.wake(["a", "b"])
    subscriptions.hint(["a", "b"])
    subscriptions.hint(None)
    subscriptions.hint(["c"])
    subscriptions.poll()
    assert ["set", "hint", "hint", "poll"] == wakeup.calls


def test_a_wakeup_is_set_for_every_reason_unless_it_overrides_that() -> None:
    for call in (Subscriptions.poll, lambda each: each.hint(["a"])):
        subscriptions, wakeup = Subscriptions(), Wakeup()
        subscriptions.add(["a"], wakeup)
        call(subscriptions)
        assert wakeup.is_set()


def test_a_channel_is_new_until_its_last_wakeup_is_removed() -> None:
    subscriptions, wakeup = Subscriptions(), Wakeup()
    assert [True, False] == [subscriptions.add(["a"], wakeup), subscriptions.add(["a"], Wakeup())]
    subscriptions.remove(["a"], wakeup)
    assert {"a"} == subscriptions.channels()
    other = Subscriptions()
    other.add(["a"], wakeup)
    for _ in range(2):
        other.remove(["a"], wakeup)
    assert (set(), 0, True) == (other.channels(), len(other), other.add(["a"], wakeup))


def test_a_channel_lingers_and_is_forgotten_only_if_unused_all_the_time() -> None:
    clock = FakeClock()
    subscriptions, wakeup = Subscriptions(linger=60.0, now=clock.monotonic), Wakeup()
    subscriptions.add(["a", "b"], wakeup)
    subscriptions.remove(["a", "b"], wakeup)
    clock.advance(40)
    assert not subscriptions.add(["a"], wakeup)
    subscriptions.remove(["a"], wakeup)
    clock.advance(21)
    assert {"a"} == subscriptions.channels()
    assert subscriptions.add(["b"], wakeup)


def test_a_lingering_channel_wakes_nobody_and_is_not_prolonged_by_a_second_removal() -> None:
    clock = FakeClock()
    subscriptions, wakeup = Subscriptions(linger=60.0, now=clock.monotonic), Wakeup()
    subscriptions.add(["a"], wakeup)
    subscriptions.remove(["a"], wakeup)
    subscriptions.wake(["a"])
    assert not wakeup.is_set()
    clock.advance(50)
    subscriptions.remove(["a"], wakeup)
    clock.advance(11)
    assert set() == subscriptions.channels()
