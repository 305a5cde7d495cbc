"""How an agent run ended: its cause and status, and the settlement of its event.

    cause                                   status      event
    exit 0, with the promised output        success     done, outcome `run`
    exit n, signal n, spawn_error,          failure     a failure more: retried after a backoff,
      stalled, invalid_output                           dead-lettered as `failed` after the last
    timeout                                 timeout     as after a failure
    cancelled                               cancelled   dead-lettered as `cancelled`
    shutdown                                cancelled   back to the queue, no attempt spent
    lease_lost                              cancelled   belongs to another runner, or goes back; if
                                                        the guardian died, one crash more:
                                                        dead-lettered as `poison` after the last

A cause is decided once the whole process tree is gone.
"""

from __future__ import annotations

import signal
from enum import StrEnum

import msgspec

from longwatch.core.duration import format_duration
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.core.error_text import MAX_ERROR_LENGTH
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import printable, sanitize
from longwatch.host.task import TaskEnd, TaskEndReason
from longwatch.runner.workspace import Artifact

TIMEOUT = "timeout"
STALLED = "stalled"
CANCELLED = "cancelled"
SPAWN_ERROR = "spawn_error"
INVALID_OUTPUT = "invalid_output"
SHUTDOWN = "shutdown"
LEASE_LOST = "lease_lost"
_SUCCESS = "exit 0"

_MAX_LAST_LINE = 300
_MAX_OUTPUT_LENGTH = 32_768
"""Characters. The two tails have fewer, unless they are full of zero bytes."""


class RunStatus(StrEnum):
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class EventOutcome(StrEnum):
    """The outcomes of a stream event that dispatch decides."""

    RUN = "run"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead-lettered"


_STATUS_BY_CAUSE = {
    _SUCCESS: RunStatus.SUCCESS,
    TIMEOUT: RunStatus.TIMEOUT,
    CANCELLED: RunStatus.CANCELLED,
    SHUTDOWN: RunStatus.CANCELLED,
    LEASE_LOST: RunStatus.CANCELLED,
}


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The stored end of a run. `output`: the end of the agent's output. `duration`: seconds."""

    status: RunStatus
    cause: str
    duration: float
    error: str = ""
    output: str = ""
    artifacts: tuple[Artifact, ...] = ()
    cpu_seconds: float = 0.0
    max_rss: int = 0

    @property
    def is_success(self) -> bool | None:
        """Whether the agent succeeded; None if the end says nothing about the agent."""
        return None if self.status is RunStatus.CANCELLED else self.status is RunStatus.SUCCESS

    def lost(self) -> RunEnd:
        """Return this end for a run whose lease was lost, so that its result does not count."""
        return msgspec.structs.replace(self, status=RunStatus.CANCELLED, cause=LEASE_LOST)


class RunSettlement(msgspec.Struct, frozen=True, kw_only=True):
    """The value of `Settlement.result`: how a run ended, and the outcome of its event. `end` None:
    there was no run. `outcome` None: the event is queued again.
    """

    event: str
    run: str = ""
    end: RunEnd | None = None
    outcome: EventOutcome | None = None
    reason: str = ""


def status_of_cause(cause: str) -> RunStatus:
    return _STATUS_BY_CAUSE.get(cause, RunStatus.FAILURE)


def cause_of(end: TaskEnd) -> str:
    """Return the cause by the end of the process. Does not check the promised output."""
    match end.reason:
        case TaskEndReason.TIMEOUT:
            return TIMEOUT
        case TaskEndReason.STALLED:
            return STALLED
        case TaskEndReason.CANCELLED:
            return end.cancel_reason
    if end.process.cause.kind is EndKind.MEMORY:
        return str(EndCause.signal(signal.SIGKILL))
    return str(end.process.cause)


def is_success(cause: str) -> bool:
    """Return whether the cause is a success, if the promised output exists."""
    return cause == _SUCCESS


def describe_end(end: TaskEnd, *, timeout: float | None, progress_timeout: float | None) -> str:
    """Describe the end in one sentence, for the record, the log and the dead letter."""
    match end.reason:
        case TaskEndReason.TIMEOUT:
            limit = format_duration(timeout or 0.0)
            return f"it ran for longer than {limit} and was ended{_kills(end)}"
        case TaskEndReason.STALLED:
            silent = format_duration(progress_timeout or 0.0)
            return f"it wrote nothing for {silent} and was ended{_kills(end)}"
        case TaskEndReason.CANCELLED:
            return f"it was ended: {end.cancel_reason}{_kills(end)}"
    if end.process.cause.kind is EndKind.MEMORY:
        return "it needed more memory than its limit"
    return f"it ended with {end.process.cause.display_name}"


def last_line(output: bytes) -> str:
    """Return the last line that is not blank, as printable text."""
    for line in reversed(output.splitlines()):
        if text := line.decode(errors="replace").strip():
            return printable(mask_text(text), max_chars=_MAX_LAST_LINE)
    return ""


def output_text(stdout: bytes, stderr: bytes) -> str:
    """Return the ends of both streams under their names, masked."""
    parts = []
    for name, data in (("stdout", stdout), ("stderr", stderr)):
        if text := data.decode(errors="replace").strip():
            parts.append(f"--- {name}\n{mask_text(text)}\n")
    return sanitize("".join(parts), max_length=_MAX_OUTPUT_LENGTH)


def bounded_error(text: str) -> str:
    return sanitize(mask_text(text), max_length=MAX_ERROR_LENGTH)


def _kills(end: TaskEnd) -> str:
    """Describe the processes that had to be killed."""
    killed, survivors = end.process.killed, end.process.survivors
    text = f"; {killed} of its processes had to be killed" if killed else ""
    return f"{text}; {survivors} processes survived SIGKILL" if survivors else text
