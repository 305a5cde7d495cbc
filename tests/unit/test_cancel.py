from __future__ import annotations

import gc
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.cancel import CancelToken
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import CancelledError


def test_a_fresh_token_is_not_cancelled_and_has_no_reason() -> None:
    token = CancelToken()
    token.raise_if_cancelled()

    assert (False, "") == (token.cancelled, token.reason)


def test_a_cancelled_token_raises_with_its_reason() -> None:
    token = CancelToken()
    token.cancel("lease_lost")

    with pytest.raises(CancelledError, match=r"^lease_lost$"):
        token.raise_if_cancelled()


@given(reasons=st.lists(st.text(min_size=1), min_size=1))
def test_the_first_reason_stays(reasons: list[str]) -> None:
    token = CancelToken()
    for reason in reasons:
        token.cancel(reason)

    assert (True, reasons[0]) == (token.cancelled, token.reason)


def test_an_empty_reason_is_still_a_reason() -> None:
    token = CancelToken()
    token.cancel("")

    assert "cancelled" == token.reason


def test_listeners_are_called_once_however_often_it_is_cancelled() -> None:
    token = CancelToken()
    reasons: list[str] = []
    token.on_cancel(lambda: reasons.append(token.reason))
    token.cancel("first")
    token.cancel("second")

    assert ["first"] == reasons


def test_who_listens_after_the_fact_is_called_at_once() -> None:
    token = CancelToken()
    token.cancel("timeout")
    reasons: list[str] = []
    token.on_cancel(lambda: reasons.append(token.reason))

    assert ["timeout"] == reasons


def test_who_was_taken_off_is_not_called() -> None:
    token = CancelToken()
    token.on_cancel(lambda: pytest.fail("it was called"))()
    token.cancel()


def test_a_child_is_cancelled_with_its_parent_and_for_its_reason() -> None:
    parent = CancelToken()
    grandchild = CancelToken(CancelToken(parent))
    parent.cancel("shutdown")

    assert (True, "shutdown") == (grandchild.cancelled, grandchild.reason)


def test_a_child_of_a_cancelled_parent_is_born_cancelled() -> None:
    parent = CancelToken()
    parent.cancel("shutdown")

    assert "shutdown" == CancelToken(parent).reason


def test_a_cancelled_child_leaves_its_parent_and_its_siblings_alone() -> None:
    parent = CancelToken()
    child, sibling = CancelToken(parent), CancelToken(parent)
    child.cancel("timeout")
    unharmed = parent.cancelled or sibling.cancelled
    parent.cancel("shutdown")

    assert (False, "timeout", "shutdown") == (unharmed, child.reason, sibling.reason)


def test_a_detached_child_is_not_cancelled_and_not_held() -> None:
    parent = CancelToken()
    child = CancelToken(parent)
    child.detach()
    parent.cancel()
    cancelled = child.cancelled
    gone = weakref.ref(child.wakeup._event)
    del child
    gc.collect()

    assert (False, None) == (cancelled, gone())


def test_a_listener_that_raises_keeps_no_child_from_being_cancelled() -> None:
    parent = CancelToken()
    parent.on_cancel(lambda: pytest.fail("a broken listener"))
    child = CancelToken(parent)

    with pytest.raises(pytest.fail.Exception):
        parent.cancel("shutdown")
    assert "shutdown" == child.reason


def test_a_waiter_wakes_when_its_token_is_cancelled() -> None:
    clock = FakeClock()
    token = CancelToken()
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(clock.wait(token.wakeup, 1000)))
    thread.start()
    clock.await_parked(1)
    token.cancel()
    thread.join()

    assert [True] == woken


def test_of_many_threads_that_cancel_at_once_exactly_one_gives_the_reason() -> None:
    token = CancelToken()
    calls: list[str] = []
    token.on_cancel(lambda: calls.append(token.reason))
    together = threading.Barrier(8)

    def cancel(reason: str) -> None:
        together.wait()
        token.cancel(reason)

    threads = [threading.Thread(target=cancel, args=(str(n),)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [token.reason] == calls
