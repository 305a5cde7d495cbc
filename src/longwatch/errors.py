"""Every exception that Longwatch raises on purpose.

LongwatchError                      exit code 1    any of the errors below
├── UsageError                      exit code 2    wrong use; the message says how to correct it
│   ├── ConfigError                                settings with faults, all of them listed
│   └── GraphError                                 a graph whose nodes do not fit together
├── TryAgainError                   exit code 75   the same call may work later
│   ├── DeadlineExceededError                      the call took longer than its deadline
│   │   └── ShutdownTimeoutError                   loops did not stop before their deadline
│   ├── GuardianLostError                          the guardian died; its children were killed
│   │   └── GuardianNotRunningError                the guardian was stopped, or not running
│   ├── ServiceStateError                          a service's state does not allow the call
│   └── StoreError                                 the store failed; nothing was written unless
│       │                                          the message says that this is unknown
│       ├── StoreBusyError                         locked or overloaded
│       ├── StoreFullError                         no space left
│       ├── StoreReadOnlyError                     cannot be written
│       ├── StoreUnreachableError                  cannot be opened or reached
│       │   ├── StoreLocationError      exit code 2    its location cannot be used
│       │   └── StoreAuthenticationError exit code 2   rejects this user and password
│       ├── StoreCorruptError                      damaged, or not a database
│       ├── StoreClosedError                       was closed
│       ├── SchemaTooNewError       exit code 2    made by a newer version of this product
│       └── SchemaTooOldError       exit code 2    made by an older version that cannot be migrated
├── NeedsOperatorError              exit code 100  a retry will not help; a person has to look
├── MailboxError                                   an error of messages and mailboxes
│   ├── ReceiptHandleExpiredError                  the lease was lost; another worker may have the
│   │                                              message
│   ├── MessageFinalizedError                      this delivery was already settled
│   ├── MailboxFullError                           the mailbox has as many messages as it may
│   ├── MailboxClosedError                         the mailbox was closed
│   ├── SerializationError                         a body cannot be serialized or read
│   ├── MailboxConnectionError                     the store cannot be reached, or the outcome is
│   │                                              unknown
│   ├── ReplyNotAvailableError                     the message has no reply address
│   ├── InvalidParameterError                      a value out of bounds; the message names them
│   └── UnsupportedError                           this backend does not support it
├── FlowError                                      an error of graphs and executions
│   ├── UnknownExecutionError       exit code 2    no execution has this id
│   ├── UnknownGraphError           exit code 2    its graph is not part of this Flow
│   ├── NotSetError                                the node has no value
│   └── ComputationFailedError                     the node's attempts are spent; it gets no value
├── CancelledError                                 the work was cancelled
├── PermanentError                                 raised by your code: this work never succeeds
├── Release                                        raised by your code: release this message
├── ContainerRuntimeError                          an error of Docker or Podman
│   ├── RuntimeUnreachableError     exit code 75   the runtime does not respond
│   └── RuntimeRefusedError                        the runtime refused the request
└── SpawnError                                     a child could not be started
    └── TargetRefusedError          exit code 100  cannot be started until a person changes
                                                   something
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

MAX_RELEASE_DELAY = 366 * 86_400.0
"""Longest delay of a `Release`, in seconds."""


class UnsafeSettingsWarning(UserWarning):
    """A server's settings allow it to lose data it has confirmed; the message names the setting."""


class LongwatchError(Exception):
    """The base class of all errors that Longwatch raises on purpose."""

    exit_code = 1


class UsageError(LongwatchError):
    """A call, command or setting is wrong; the message says how to correct it."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in the settings: where it is, what is wrong, and how to correct it."""

    where: str
    problem: str
    cure: str = ""

    def __str__(self) -> str:
        # A flag and its problem are one sentence: `--name takes letters …`.
        separator = " " if self.where.startswith("--") else ": "
        return f"{self.where}{separator}{self.problem}" + (f"; {self.cure}" if self.cure else "")


class ConfigError(UsageError):
    """The settings have faults; `faults` lists every one of them."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


class GraphError(UsageError):
    """A graph is not valid: a cycle, an unknown node or option, a function that cannot be called.

    Raised when the graph is defined.
    """


class TryAgainError(LongwatchError):
    """The call failed now; the same call may work later."""

    exit_code = 75


class DeadlineExceededError(TryAgainError):
    """A call was not done within its deadline."""


class ShutdownTimeoutError(DeadlineExceededError):
    """Loops were asked to stop and were still busy when their time was over; their threads still
    run.
    """


class GuardianLostError(TryAgainError):
    """The guardian process died; all its children were killed."""


class GuardianNotRunningError(GuardianLostError):
    """The guardian was stopped, or was not running: no child has killed it."""


class ServiceStateError(TryAgainError):
    """A service's current state does not allow the call."""


class StoreError(TryAgainError):
    """A store operation failed; nothing was written unless the message says the outcome
    is unknown.
    """


class StoreBusyError(StoreError):
    """The store is locked or overloaded; the same call may work later."""


class StoreFullError(StoreError):
    """There is no space left; nothing was written."""


class StoreReadOnlyError(StoreError):
    """The store cannot be written."""

    exit_code = 2


class StoreUnreachableError(StoreError):
    """The store cannot be opened or reached."""


class StoreLocationError(StoreUnreachableError):
    """The store's location cannot be used: a network disk, or a directory that does not exist."""

    exit_code = 2


class StoreAuthenticationError(StoreUnreachableError):
    """The server rejects this user and password."""

    exit_code = 2


class StoreCorruptError(StoreError):
    """The store is damaged, or the file is not a store."""

    exit_code = 100


class StoreClosedError(StoreError):
    """The store was closed."""


class SchemaTooNewError(StoreError):
    """A newer version of this product made the store."""

    exit_code = 2


class SchemaTooOldError(StoreError):
    """An older version of this product made the store, and no migration exists for it."""

    exit_code = 2


class NeedsOperatorError(LongwatchError):
    """A retry will not help; a person has to look at it."""

    exit_code = 100


class CancelledError(LongwatchError):
    """The work was cancelled; the message gives the reason."""


class PermanentError(LongwatchError):
    """Raise it, or a subclass, from your own code if this piece of work can never succeed.

    The work is not retried.
    """


def _is_release_delay(given: Any) -> bool:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and 0 <= given <= MAX_RELEASE_DELAY


class Release(LongwatchError):  # noqa: N818 - it is not an error: a handler raises it to release its message
    """Raise it from a handler to release its message without counting a failure.

    The message is delivered again after `delay` seconds, at least one second from the third time
    on. `reason` is for the log. Raises ValueError if the delay is not a number of seconds from 0
    up.
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
        """The delay; 0 if a subclass has set one that is not a number of seconds."""
        return float(self.delay) if _is_release_delay(self.delay) else 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it with its keywords, because a process pool may send it."""
        return partial(type(self), delay=self.delay, reason=self.reason), ()


class SpawnError(LongwatchError):
    """A child process could not be started; `errno` says why."""

    def __init__(self, message: str, *, errno: int = 0) -> None:
        super().__init__(message)
        self.errno = errno


class TargetRefusedError(SpawnError):
    """A target cannot be started and a retry will not help: a person has to change something."""

    exit_code = 100


class ContainerRuntimeError(LongwatchError):
    """A request to a container runtime failed."""


class RuntimeUnreachableError(ContainerRuntimeError):
    """The runtime cannot be reached or does not respond: nothing is known about its containers."""

    exit_code = 75


class RuntimeRefusedError(ContainerRuntimeError):
    """The runtime responded and refused; `status` is the HTTP status of its response."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class MailboxError(LongwatchError):
    """The base class of errors of messages and mailboxes."""


class ReceiptHandleExpiredError(MailboxError):
    """The lease of this delivery was lost; nothing was changed, and another worker may have the
    message.
    """


class MessageFinalizedError(MailboxError):
    """This delivery was already acknowledged or released."""


class MailboxFullError(MailboxError):
    """The mailbox has as many messages as it may, leased ones included."""

    exit_code = 75


class MailboxClosedError(MailboxError):
    """The mailbox was closed."""


class SerializationError(MailboxError):
    """A body cannot be serialized, or cannot be read as the expected type."""

    exit_code = 2


class MailboxConnectionError(MailboxError):
    """The mailbox's store cannot be reached; the message says whether the outcome is unknown."""

    exit_code = 75


class ReplyNotAvailableError(MailboxError):
    """The message has no reply address, or its reply mailbox is gone."""


class InvalidParameterError(MailboxError, ValueError):
    """A value is outside its bounds; the message names them."""

    exit_code = 2


class UnsupportedError(MailboxError):
    """This backend does not support the operation."""

    exit_code = 2


class FlowError(LongwatchError):
    """The base class of errors of graphs and executions."""


class UnknownExecutionError(FlowError):
    """No execution has this id."""

    exit_code = 2


class UnknownGraphError(FlowError):
    """The execution or node belongs to a graph that this Flow does not have."""

    exit_code = 2


class NotSetError(FlowError):
    """The node has no value now."""


class ComputationFailedError(FlowError):
    """The node has no value for its current inputs and will get none.

    Its attempts are spent, or its execution was cancelled.
    """
