"""Every exception that Longwatch raises on purpose.

LongwatchError                      exit code 1    something went wrong
├── UsageError                      exit code 2    asked for wrongly; the message says the cure
│   └── ConfigError                                settings with faults, all of them listed
├── TryAgainError                   exit code 75   the same call may work later
│   ├── DeadlineExceededError                      it was not done in its time
│   ├── GuardianLostError                          the guardian died; its children were killed
│   └── ServiceStateError                          a service was asked for what its state does not allow
├── NeedsPersonError                exit code 100  trying again will not help; someone has to look
├── CancelledError                                 the work was told to stop
└── SpawnError                                     a child could not be started
"""

from __future__ import annotations

from dataclasses import dataclass


class LongwatchError(Exception):
    """The root: catch this to catch everything Longwatch raises on purpose."""

    exit_code = 1


class UsageError(LongwatchError):
    """Longwatch was asked for something it cannot do as asked."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the settings: where it stands, what is wrong, and how to cure it."""

    where: str
    problem: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f"; {self.cure}" if self.cure else "")


class ConfigError(UsageError):
    """The settings have faults; `faults` lists every one of them."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class TryAgainError(LongwatchError):
    """It did not work now; the same call may work later."""

    exit_code = 75


class DeadlineExceededError(TryAgainError):
    """Something was not done within its deadline."""


class GuardianLostError(TryAgainError):
    """The guardian process died; every child it held was killed."""


class ServiceStateError(TryAgainError):
    """A service was asked for something that its present state does not allow."""


class NeedsPersonError(LongwatchError):
    """Trying again will not help; a person has to look at it."""

    exit_code = 100


class CancelledError(LongwatchError):
    """The work was told to stop; the reason is in the message."""


class SpawnError(LongwatchError):
    """A child process could not be started; `errno` says why."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno
