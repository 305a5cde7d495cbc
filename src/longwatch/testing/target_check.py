"""The conformance suite that every kind of target of `longwatch.supervisor.target` must pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from longwatch.errors import DeadlineExceededError
from longwatch.testing.target_suite import (
    adopt_checks,
    exec_checks,
    life_checks,
    runtime_checks,
    stop_checks,
)
from longwatch.testing.target_suite.harness import TargetHarness
from longwatch.testing.target_suite.kit import TargetKit

Check = Callable[[TargetKit], Awaitable[None]]

TIMEOUT = 120.0
"""Real seconds after which a check counts as hanging."""


def check_target(harness: TargetHarness) -> None:
    """Raise AssertionError, which names the broken rule, unless the harness's targets keep every
    rule.

    Blocks for about ten seconds, because graces pass in real time. Do not call it in the thread of
    the harness's loop. After each check the harness ends everything that it made.
    """
    for check in _checks(harness):
        _run(check, harness)


def _checks(harness: TargetHarness | type[TargetHarness]) -> Iterator[Check]:
    yield from life_checks.CHECKS
    yield from stop_checks.CHECKS
    yield from exec_checks.CHECKS
    yield from adopt_checks.CHECKS
    if harness.lives_on:
        yield from adopt_checks.LIVES_ON_CHECKS
    else:
        yield from adopt_checks.DIES_WITH_US_CHECKS
    if harness.has_runtime:
        yield from runtime_checks.CHECKS


def _run(check: Check, harness: TargetHarness) -> None:
    """Run one check, and end what it made. Raises AssertionError if the check fails or hangs."""
    title = getattr(check, "__name__", str(check)).replace("_", " ")
    try:
        harness.loop.call(_checked(check, harness), timeout=TIMEOUT)
    except DeadlineExceededError as error:
        raise AssertionError(f"{title}: it ends within {TIMEOUT:g} s") from error
    except Exception as error:
        raise AssertionError(f"{title}: {error}") from error


async def _checked(check: Check, harness: TargetHarness) -> None:
    try:
        await check(TargetKit(harness))
    finally:
        await harness.clean_up()
