"""Which budgets a caller has set, and which of them hold."""

from __future__ import annotations

import pickle

from longwatch.mailbox.limits import MailboxLimits


def test_a_budget_that_is_left_out_is_its_default_and_counts_as_not_set() -> None:
    limits = MailboxLimits(max_crashes=7, max_size=3)
    assert (5, 7, 5) == (limits.max_failures, limits.max_crashes, limits.max_lost)
    assert {"max_failures": None, "max_crashes": 7, "max_lost": None} == limits.set_budgets


def test_a_budget_that_is_set_to_its_default_counts_as_set() -> None:
    limits = MailboxLimits(max_failures=5)
    assert limits == MailboxLimits()
    assert 5 == limits.set_budgets["max_failures"]
    assert limits.must_be_stored((2, None, None))
    assert not MailboxLimits().must_be_stored((2, None, None))


def test_set_budgets_hold_then_stored_ones_then_defaults() -> None:
    limits = MailboxLimits(max_failures=1, dead_retention=60).with_stored((2, 4, None))
    assert (1, 4, 5, 60) == (
        limits.max_failures,
        limits.max_crashes,
        limits.max_lost,
        limits.dead_retention,
    )


def test_budgets_are_stored_only_if_they_differ() -> None:
    limits = MailboxLimits(max_failures=1, max_lost=2)
    stored = [(1, None, 2), (1, 9, 2), (None, None, None), (1, None, 3)]
    assert [False, False, True, True] == [limits.must_be_stored(each) for each in stored]


def test_a_copy_from_another_process_knows_what_was_set() -> None:
    copy = pickle.loads(pickle.dumps(MailboxLimits(max_lost=2)))
    assert (None, 2) == (copy.set_budgets["max_failures"], copy.set_budgets["max_lost"])
    assert type(copy.max_failures) is int
