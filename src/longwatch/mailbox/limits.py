"""The limits of a mailbox, and the one rule by which it gives a message up.

A message is given up when it would be claimed, in the transaction of that claim, so no worker runs
it again. The rule looks at three facts of the message, in this order:

    crashes reach `max_crashes`     poison    kept as a dead letter
    failures reach `max_failures`   failed    kept as a dead letter
    its expiry time has passed      expired   kept only if the sender asked for it, else removed

A sweep also gives up expired messages that no worker claims. `give_up_reason` decides for the
memory and SQL backends; whether a row has expired is an expression in SQL, because the store's
clock decides it. Redis claims in a script, so `exchange.lua` has the same rule under the same
names. `tests/integration/test_give_up_rule.py` compares all four backends with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from longwatch.mailbox import validation

POISON = "poison"
LOST = "lost"
FAILED = "failed"
UNANSWERED = "unanswered"
EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxLimits:
    """When a mailbox gives a message up, and how many messages it takes.

    A message is dead-lettered after `max_failures` failures or `max_crashes` crashes, when it would
    be claimed next. `max_size` counts ready, delayed and leased messages; None: no limit. Dead
    letters older than `dead_retention` seconds are removed; None: never.
    """

    max_failures: int = 5
    max_crashes: int = 3
    max_lost: int = 5
    max_size: int | None = None
    dead_retention: float | None = None

    def __post_init__(self) -> None:
        validation.validate_positive_int("max_failures", self.max_failures)
        validation.validate_positive_int("max_crashes", self.max_crashes)
        validation.validate_positive_int("max_lost", self.max_lost)
        if self.max_size is not None:
            validation.validate_positive_int("max_size", self.max_size)
        if self.dead_retention is not None:
            validation.validate_retention(self.dead_retention)


def give_up_reason(
    limits: MailboxLimits, *, crashes: int, failures: int, is_expired: bool
) -> str | None:
    """Why a message is given up instead of claimed; None if it is claimed."""
    if crashes >= limits.max_crashes:
        return POISON
    if failures >= limits.max_failures:
        return FAILED
    return EXPIRED if is_expired else None


def is_kept(reason: str, *, keep_expired: bool) -> bool:
    """Whether a message that is given up becomes a dead letter."""
    return reason != EXPIRED or keep_expired
