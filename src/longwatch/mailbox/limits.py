"""When a mailbox gives a message up, and how many messages it takes."""

from __future__ import annotations

from dataclasses import dataclass

from longwatch.mailbox import validation


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxLimits:
    """When a mailbox gives a message up, and how many it takes.

    `max_failures` failures or `max_crashes` crashes and it is dead, checked when it would be handed
    out. `max_size` counts what is ready, delayed and leased; None: no limit. Dead letters older
    than `dead_retention` seconds are removed; None: never.
    """

    max_failures: int = 5
    max_crashes: int = 3
    max_size: int | None = None
    dead_retention: float | None = None

    def __post_init__(self) -> None:
        validation.validate_positive_int("max_failures", self.max_failures)
        validation.validate_positive_int("max_crashes", self.max_crashes)
        if self.max_size is not None:
            validation.validate_positive_int("max_size", self.max_size)
        if self.dead_retention is not None:
            validation.validate_retention(self.dead_retention)
