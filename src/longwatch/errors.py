"""Every exception that Longwatch raises on purpose.

LongwatchError                      exit code 1    something went wrong
├── UsageError                      exit code 2    wrong use; the message says the cure
│   ├── ConfigError                                settings with faults, all of them listed
│   └── GraphError                                 a graph whose nodes do not fit together
├── TryAgainError                   exit code 75   the same call may work later
│   ├── DeadlineExceededError                      the call took longer than its deadline
│   │   └── ShutdownTimeoutError                   loops did not stop before their deadline
│   ├── GuardianLostError                          the guardian died; its children were killed
│   ├── ServiceStateError                          a service's state does not allow the call
│   └── StoreError                                 the store failed; nothing was written unless it
│       │                                          says unknown
│       ├── StoreBusyError                         locked or overloaded
│       ├── StoreFullError                         no space left
│       ├── StoreReadOnlyError                     may not be written
│       ├── StoreUnreachableError                  cannot be opened or reached
│       │   ├── StoreLocationError      exit code 2    is where it cannot be
│       │   └── StoreAuthenticationError exit code 2   refuses this user and password
│       ├── StoreCorruptError                      damaged, or not a database
│       ├── StoreClosedError                       was closed
│       ├── SchemaTooNewError       exit code 2    made by a newer version of this product
│       └── SchemaTooOldError       exit code 2    made by an older version that cannot be migrated
├── NeedsOperatorError              exit code 100  trying again will not help; a person has to look
├── MailboxError                                   an error of messages and mailboxes
│   ├── ReceiptHandleExpiredError                  the lease was lost; another worker may have the
│   │                                              message
│   ├── MessageFinalizedError                      this delivery was settled before
│   ├── MailboxFullError                           the mailbox holds as many messages as it may
│   ├── MailboxClosedError                         the mailbox was closed
│   ├── SerializationError                         a body cannot be written or read
│   ├── MailboxConnectionError                     the store cannot be reached, or the outcome is
│   │                                              unknown
│   ├── ReplyNotAvailableError                     the message has no reply address
│   ├── InvalidParameterError                      a value out of bounds; the message names them
│   └── UnsupportedError                           this backend cannot do that
├── FlowError                                      an error of graphs and executions
│   ├── UnknownExecutionError       exit code 2    no execution has this id
│   ├── UnknownGraphError           exit code 2    its graph was not given to this Flow
│   ├── NotSetError                                the node has no value
│   └── ComputationFailedError                     the node's attempts are spent; it gets no value
├── CancelledError                                 the work was cancelled
├── PermanentError                                 raised by your code: this work never succeeds
├── Release                                        raised by your code: give this message back
├── ContainerRuntimeError                          an error of Docker or Podman
│   ├── RuntimeUnreachableError     exit code 75   the runtime does not answer
│   └── RuntimeRefusedError                        the runtime said no
└── SpawnError                                     a child could not be started
    └── TargetRefusedError          exit code 100  it cannot be started until a person changes
                                                   something
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

MAX_RELEASE_DELAY = 366 * 86_400.0
"""Seconds for which a handler can give work back, at most."""


class UnsafeSettingsWarning(UserWarning):
    """A server's settings allow it to lose what it has confirmed; the message names the setting."""


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


class GraphError(UsageError):
    """A graph does not hold together: a cycle, an unknown node or option, a function that cannot
    be called; said when defined.
    """


class TryAgainError(LongwatchError):
    """It did not work now; the same call may work later."""

    exit_code = 75


class DeadlineExceededError(TryAgainError):
    """Something was not done within its deadline."""


class ShutdownTimeoutError(DeadlineExceededError):
    """Loops were told to stop and were still busy when their time was over; their threads are
    left behind.
    """


class GuardianLostError(TryAgainError):
    """The guardian process died; every child it held was killed."""


class GuardianNotRunningError(GuardianLostError):
    """The guardian was stopped, or was not running: no child has ended it."""


class ServiceStateError(TryAgainError):
    """A service was asked for something that its present state does not allow."""


class StoreError(TryAgainError):
    """The store did not do what it was asked; unless the message says that the outcome is
    unknown, nothing was written.
    """


class StoreBusyError(StoreError):
    """The store is locked or overloaded; the same call may work later."""


class StoreFullError(StoreError):
    """There is no space left; nothing was written."""


class StoreReadOnlyError(StoreError):
    """The store may not be written."""

    exit_code = 2


class StoreUnreachableError(StoreError):
    """The store cannot be opened or reached."""


class StoreLocationError(StoreUnreachableError):
    """The store is where it cannot be: on a network disk, in a directory that does not exist."""

    exit_code = 2


class StoreAuthenticationError(StoreUnreachableError):
    """The server is there and lets nobody in with this user and password."""

    exit_code = 2


class StoreCorruptError(StoreError):
    """The store is damaged, or is no store at all."""

    exit_code = 100


class StoreClosedError(StoreError):
    """The store was closed."""


class SchemaTooNewError(StoreError):
    """The store was made by a newer version of this product."""

    exit_code = 2


class SchemaTooOldError(StoreError):
    """The store was made by an older version of this product, and no migration leads from it."""

    exit_code = 2


class NeedsOperatorError(LongwatchError):
    """Trying again will not help; a person has to look at it."""

    exit_code = 100


class CancelledError(LongwatchError):
    """The work was told to stop; the reason is in the message."""


class PermanentError(LongwatchError):
    """Raise it, or a subclass, from your own code: this piece of work will never succeed, so it
    is not tried again.
    """


def _is_release_delay(given: Any) -> bool:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and 0 <= given <= MAX_RELEASE_DELAY


class Release(LongwatchError):  # noqa: N818 - it is no error: a handler raises it to give work back
    """Raise it from a handler to give its message back without blame; it is delivered again after
    `delay` seconds, at least one second from the third time on.

    `reason` is for the log. ValueError if the delay is no number of seconds from 0 up.
    """

    delay: float = 0.0
    reason: str = ""

    def __init__(self, *, delay: float = 0.0, reason: str = "") -> None:
        if not _is_release_delay(delay):
            raise ValueError(
                f"delay must be a number of seconds from 0 to {MAX_RELEASE_DELAY:.0f}, not "
                f"{delay!r}"
            )
        super().__init__(reason or f"released for {delay} s")
        self.delay = float(delay)
        self.reason = reason

    @property
    def safe_delay(self) -> float:
        """The delay; 0 if a subclass has set one that is no number of seconds."""
        return float(self.delay) if _is_release_delay(self.delay) else 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its keywords: a pool of processes may carry it."""
        return partial(type(self), delay=self.delay, reason=self.reason), ()


class SpawnError(LongwatchError):
    """A child process could not be started; `errno` says why."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class TargetRefusedError(SpawnError):
    """It cannot be started, and no later try would do better: a person has to change something."""

    exit_code = 100


class ContainerRuntimeError(LongwatchError):
    """A container runtime did not do what it was asked."""


class RuntimeUnreachableError(ContainerRuntimeError):
    """The runtime cannot be reached or does not answer: nothing is known about its containers."""

    exit_code = 75


class RuntimeRefusedError(ContainerRuntimeError):
    """The runtime answered and refused; `status` is the HTTP status of its answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class MailboxError(LongwatchError):
    """Something about messages went wrong."""


class ReceiptHandleExpiredError(MailboxError):
    """The lease of this delivery was lost: nothing was changed, and somebody else has the
    message or had it.
    """


class MessageFinalizedError(MailboxError):
    """This delivery was acknowledged or given back already."""


class MailboxFullError(MailboxError):
    """The mailbox holds as many messages as it may, leased ones included."""

    exit_code = 75


class MailboxClosedError(MailboxError):
    """The mailbox was closed."""


class SerializationError(MailboxError):
    """A body cannot be written, or cannot be read as what it should be."""

    exit_code = 2


class MailboxConnectionError(MailboxError):
    """The mailbox's store cannot be reached; the message says whether the outcome is unknown."""

    exit_code = 75


class ReplyNotAvailableError(MailboxError):
    """The message names nowhere to reply to, or that place is gone."""


class InvalidParameterError(MailboxError, ValueError):
    """A value is outside its bounds; the message names them."""

    exit_code = 2


class UnsupportedError(MailboxError):
    """This backend cannot do what was asked."""

    exit_code = 2


class FlowError(LongwatchError):
    """Something about graphs and their executions went wrong."""


class UnknownExecutionError(FlowError):
    """There is no execution of that id."""

    exit_code = 2


class UnknownGraphError(FlowError):
    """The execution, or what was asked for, is of a graph that was not given to this Flow."""

    exit_code = 2


class NotSetError(FlowError):
    """The node has no value at present."""


class ComputationFailedError(FlowError):
    """The node has no value for its present inputs and will get none: its attempts are spent, or
    its execution was cancelled.
    """
