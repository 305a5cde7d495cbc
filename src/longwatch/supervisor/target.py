"""The seam between a program and what it keeps up: a process of the guardian, or a container.

A `Target` is what a plan describes. It is started, or adopted if an earlier supervisor left it
running; both return a `LiveTarget`, one life of it from its start to its end. Backoff, breaker,
ledger, desired state, probes, status and commands know nothing else of what runs.

    Target ── start, adopt ──► LiveTarget ── wait ──► ProcessEnd

Rules that every kind keeps, certified by `longwatch.testing.check_target`:

- `start` returns once it runs. It raises SpawnError if it cannot, TargetRefusedError if no later
  try would do better. A start that is cancelled leaves nothing running that `adopt` would not find.
- `wait` returns once nothing of it runs any more, and for every caller the same end. It never
  returns because the runtime cannot be asked: "unknown" is not "ended". Only a stop that was asked
  for ends in bounded time all the same: then the end has `survivors`.
- A stop is one signal, a grace and a kill. A second stop can only hasten the first.
- `exec` leaves no process behind, however it ends. Cancelling it kills what it started.
- Lines of output go to the sinks that the target was given, live, in their order.
- `detach` ends the watching and leaves it running where that can be; `wait` then says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from longwatch.core.end_cause import EndCause
from longwatch.host.capture import LineSink
from longwatch.host.process import ProcessEnd, StopPolicy


class Target(Protocol):
    """What a program keeps up. Used on the loop; one start at a time."""

    async def start(self) -> LiveTarget:
        """Start it and return once it runs. A container waits for its runtime for as long as that
        takes. Raises SpawnError, TargetRefusedError.
        """

    async def adopt(self) -> LiveTarget | None:
        """Take over a life that an earlier supervisor left running; None if there is none.
        Idempotent. Never starts anything.
        """

    async def stop_unwatched(self, policy: StopPolicy) -> None:
        """Stop what runs of it though nothing watches it, and wait for its end. Nothing if nothing
        does, or if that cannot be asked now.
        """


class LiveTarget(Protocol):
    """One life of a target. Used on the loop. Nothing here blocks it."""

    @property
    def pid(self) -> int | None:
        """The first process, as this host numbers it; None if it cannot be seen from here."""

    @property
    def started_at(self) -> float:
        """When it started, on the monotonic clock; for an adopted one that may be below 0."""

    @property
    def is_running(self) -> bool:
        """Whether it runs, as far as is known now."""

    def signal(self, signum: int) -> None:
        """Pass a signal on. Nothing once it has ended."""

    def begin_stop(self, policy: StopPolicy) -> None:
        """Signal, grace, kill; returns at once. `wait` returns its end. Idempotent: a second call
        sends no second signal, it can only bring the kill forward.
        """

    def extend_stop(self, seconds: float) -> None:
        """While it is being stopped, let its grace last at least so long from now."""

    def detach(self) -> bool:
        """Stop watching it and leave it running; `wait` returns with `detached`. False, and nothing
        changes, if it cannot live without us.
        """

    async def wait(self) -> ProcessEnd:
        """How it ended, once nothing of it runs any more."""

    async def exec(
        self, argv: Sequence[str], *, output: LineSink, in_scripts: bool, timeout: float
    ) -> EndCause:
        """Run a command where the target runs, and return how it ended.

        It takes as long as it takes: the caller cancels it, which kills what was started and waits
        until that is gone. `timeout` is when the caller will; a runtime that cannot be reached then
        kills by itself. `in_scripts` runs it in the directory of probe scripts. Raises SpawnError
        if it could not be started, RuntimeUnreachableError if its runtime does not answer.
        """

    async def script_fault(self, name: str) -> str | None:
        """Why a probe script cannot be run; None if it is there, or cannot be looked for now."""

    async def probe_address(self, port: int) -> tuple[str, int]:
        """Host and port where a port of it can be reached from here. Raises SpawnError if it cannot
        be.
        """

    @property
    def is_paused(self) -> bool:
        """Whether an operator has frozen it: it is up, and cannot be asked."""

    def facts(self) -> dict[str, Any]:
        """What only this kind knows, for `status`; plain JSON types."""
