"""The limits of a mailbox, and the one rule by which it gives a message up.

Three budgets limit how often a message may fail, crash its process and be lost. A message that
spends one is given up in the transaction that counts the last event, so no worker runs it again:

    event              counted by                               budget spent
    crash, loss        the sweep                                dead letter `poison` or `lost`
    failure            the settlement FAILED                    dead letter `failed`
    crash              the settlement CRASHED                   dead letter `poison`
    last failure       the settlement DEAD by the worker        dead letter `failed`, `unanswered`

A claim applies the rule once more, because the limits may have been lowered since then, and because
a message expires by time alone. The rule checks four facts of the message, in this order:

    crashes reach `max_crashes`     poison    kept as a dead letter
    losses reach `max_lost`         lost      kept as a dead letter
    failures reach `max_failures`   failed    kept as a dead letter
    its expiry time has passed      expired   kept only if the sender asked for it, else removed

A sweep also gives up expired messages that no worker claims. `give_up_reason` decides for the
memory and SQL backends. SQL computes whether a row has expired, because the store's clock decides
it. Redis claims in a script, so `claim.lua` has the same rule under the same names.
`tests/integration/test_give_up_rule.py` compares all four backends with it.

The budgets are stored with the mailbox, because a sweep reclaims rows of every mailbox and applies
the budgets of each. A process that sets a budget stores it when it first uses the mailbox. A
process that leaves it out uses the stored one, or the default if no process has set it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from longwatch.mailbox import validation

POISON = "poison"
LOST = "lost"
FAILED = "failed"
UNANSWERED = "unanswered"
EXPIRED = "expired"
COUNTED_AS_FAILURE = frozenset({FAILED, UNANSWERED})
"""The reasons of a DEAD settlement that count as one more failure."""
BUDGETS = ("max_failures", "max_crashes", "max_lost")


class _Unset(int):
    """The default of a budget that the caller has not set."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxLimits:
    """When a mailbox gives a message up, and how many messages it accepts.

    A message is dead-lettered with its failure number `max_failures`, its crash number
    `max_crashes` or its loss number `max_lost`. These budgets are stored with the mailbox. A budget
    that is left out has the stored value. `max_size` counts ready, delayed and leased messages;
    None: no limit. Dead letters older than `dead_retention` seconds are deleted; None: never.
    """

    max_failures: int = _Unset(5)
    max_crashes: int = _Unset(3)
    max_lost: int = _Unset(5)
    max_size: int | None = None
    dead_retention: float | None = None
    _set: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in BUDGETS}
        names = {name for name, value in given.items() if not isinstance(value, _Unset)}
        object.__setattr__(self, "_set", frozenset(names))
        for name in set(BUDGETS) - names:
            object.__setattr__(self, name, int(given[name]))
        validation.validate_positive_int("max_failures", self.max_failures)
        validation.validate_positive_int("max_crashes", self.max_crashes)
        validation.validate_positive_int("max_lost", self.max_lost)
        if self.max_size is not None:
            validation.validate_positive_int("max_size", self.max_size)
        if self.dead_retention is not None:
            validation.validate_retention(self.dead_retention)

    @property
    def set_budgets(self) -> dict[str, int | None]:
        """The budgets by name; None for a budget that the caller has not set."""
        return {name: getattr(self, name) if name in self._set else None for name in BUDGETS}

    def with_stored(self, stored: Sequence[int | None]) -> MailboxLimits:
        """Return these limits with stored values for the budgets that the caller has not set.
        `stored` is in the order of `BUDGETS`.
        """
        unset: dict[str, Any] = {
            name: value
            for name, value in zip(BUDGETS, stored, strict=True)
            if value is not None and name not in self._set
        }
        return replace(self, **unset) if unset else self

    def must_be_stored(self, stored: Sequence[int | None]) -> bool:
        """Return whether the caller has set a budget to another value than the stored one."""
        return any(
            value not in {None, other}
            for value, other in zip(self.set_budgets.values(), stored, strict=True)
        )


def give_up_reason(
    limits: MailboxLimits, *, crashes: int, failures: int, is_expired: bool, lost: int = 0
) -> str | None:
    """Return why a message is given up; None if it is not."""
    if crashes >= limits.max_crashes:
        return POISON
    if lost >= limits.max_lost:
        return LOST
    if failures >= limits.max_failures:
        return FAILED
    return EXPIRED if is_expired else None


def is_kept(reason: str, *, keep_expired: bool) -> bool:
    """Return whether a message that is given up becomes a dead letter."""
    return reason != EXPIRED or keep_expired
