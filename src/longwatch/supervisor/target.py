"""The interface between a program and the process or container that it keeps up.

A `Target` is the process or container of a plan. It is started, or adopted if an earlier supervisor
left it running. Both return a `LiveTarget`: one run of it, from its start to its end. Backoff,
breaker, ledger, desired state, probes, status and commands use only this interface.

    Target ── start, adopt ──► LiveTarget ── wait ──► ProcessEnd

Rules that every kind keeps, which `longwatch.testing.check_target` certifies:

- `start` returns once it runs. It raises SpawnError if it cannot, TargetRefusedError if no later
  try can succeed. A cancelled start leaves nothing running that `adopt` would not find.
- `wait` returns once none of its processes runs, and with the same end for every caller. It never
  returns because the runtime does not answer: "unknown" is not "ended". Only after a requested
  stop it returns in bounded time even so: then the end has `survivors`.
- A stop is one signal, a grace and a kill. A second stop can only shorten the first.
- `exec` leaves no process behind, however it ends. Cancelling it kills its processes.
- Lines of output go to the sinks of the target, as they come and in order.
- `detach` ends the watching and leaves the target running if it can; `wait` then reports that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from longwatch.core.end_cause import EndCause
from longwatch.host.capture import LineSink
from longwatch.host.process import ProcessEnd, StopPolicy


class Target(Protocol):
    """The process or container that a program keeps up. Used on the event loop; one start at a
    time.
    """

    async def start(self) -> LiveTarget:
        """Start it and return once it runs. A container waits for its runtime without a limit.
        Raises SpawnError and TargetRefusedError.
        """

    async def adopt(self) -> LiveTarget | None:
        """Take over a run that an earlier supervisor left running; None if there is none. Starts
        nothing. Idempotent.
        """

    async def stop_unwatched(self, policy: StopPolicy) -> None:
        """Stop it if it runs unwatched, and wait for its end. Does nothing if it does not run, or
        if its runtime does not answer now.
        """


class LiveTarget(Protocol):
    """One run of a target. Used on the event loop. No method blocks."""

    @property
    def pid(self) -> int | None:
        """The pid of the first process on this host; None if it is not visible."""

    @property
    def started_at(self) -> float:
        """When it started, on the monotonic clock. It may be below 0 for an adopted target."""

    @property
    def is_running(self) -> bool:
        """Whether it runs, as far as known now."""

    def signal(self, signum: int) -> None:
        """Pass a signal on. Does nothing once it has ended."""

    def begin_stop(self, policy: StopPolicy) -> None:
        """Begin to stop it (signal, grace, kill) and return at once; `wait` returns its end.
        Idempotent: a second call sends no second signal, and can only bring the kill forward.
        """

    def extend_stop(self, seconds: float) -> None:
        """While it is being stopped, let its grace last at least this long from now."""

    def detach(self) -> bool:
        """Stop watching it and leave it running; `wait` returns with `detached`. Returns False,
        without an effect, if it cannot live without us.
        """

    async def wait(self) -> ProcessEnd:
        """Wait until none of its processes runs, and return how it ended."""

    async def exec(
        self, argv: Sequence[str], *, output: LineSink, in_scripts: bool, timeout: float
    ) -> EndCause:
        """Run a command where the target runs, and return how it ended.

        It has no time limit: the caller cancels it, which kills its processes and waits until they
        are gone. `timeout` is when the caller will cancel it, so that the command is killed even if
        the runtime does not answer then. `in_scripts` runs it in the directory of probe scripts.
        Raises SpawnError if it could not be started, RuntimeUnreachableError if its runtime does
        not answer.
        """

    async def script_fault(self, name: str) -> str | None:
        """Return why a probe script cannot be run; None if it exists, or cannot be looked for
        now.
        """

    async def probe_address(self, port: int) -> tuple[str, int]:
        """Return host and port where this process reaches a port of it. Raises SpawnError if it
        cannot.
        """

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused it: it is up, but answers no probe."""

    def facts(self) -> dict[str, Any]:
        """Return the facts that only this kind of target has, for `status`, in plain JSON types."""
