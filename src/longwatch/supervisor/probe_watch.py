"""Probes one run of a program: startup until it passes once, then liveness and readiness to the
end.

                    ┌ grace, or startup probe ┐
    start ─ hold ─► │ passes within its time  │ ─► liveness ──── passes ──► readiness
                    └─── or the run ends ─────┘        │ threshold of failures: the run ends

Of each kind, one probe runs at a time, and each has a timeout. Results are counted per start. While
the target is paused, or its runtime does not answer, a probe is skipped: it neither passes nor
fails. If a probe can never run, because its script is missing, the watch ends as refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import RuntimeUnreachableError
from longwatch.host.loop import wait_until_done
from longwatch.host.periodic import Cadence, run_every
from longwatch.supervisor.probers import HeartbeatProber, ProbeRefusedError, make_prober
from longwatch.supervisor.probes import (
    HeartbeatProbe,
    ProbeKind,
    ProbePolicy,
    ProbeSet,
    ProbeState,
    StartupPolicy,
)
from longwatch.supervisor.target import LiveTarget


class ProbeSkippedError(Exception):
    """The probe could not run now, which shows nothing about the target."""


class ProbeCheck:
    """Runs one probe at a time of one run of a target, each within its timeout."""

    def __init__(
        self,
        policy: ProbePolicy | StartupPolicy,
        target: LiveTarget,
        *,
        heartbeat: HeartbeatProber,
        clock: Clock,
    ) -> None:
        self.policy = policy
        self._target = target
        self._clock = clock
        self._prober = make_prober(
            policy.probe, target, heartbeat=heartbeat, timeout=policy.timeout
        )

    async def check(self) -> str | None:
        """Probe once; return None if it is healthy, else why not.

        Takes no longer than the timeout; a command takes a moment more until its killed tree is
        gone. Raises ProbeRefusedError and ProbeSkippedError.
        """
        if self._target.is_paused:
            raise ProbeSkippedError
        probing = asyncio.ensure_future(self._probe())
        try:
            await wait_until_done(probing, self.policy.timeout, self._clock)
        finally:
            probing.cancel()
            await asyncio.wait({probing})
        reason = (
            self._prober.timeout_reason(self.policy.timeout)
            if probing.cancelled()
            else probing.result()
        )
        if reason is not None and self._target.is_paused:  # it was paused during the probe
            raise ProbeSkippedError
        return reason

    async def _probe(self) -> str | None:
        try:
            return await self._prober.probe()
        except RuntimeUnreachableError:
            raise ProbeSkippedError from None
        except ProbeRefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a probe that raises counts as failed
            return printable(
                f"the check itself failed: {describe_error(error)}", max_chars=MAX_LINE_CHARS
            )


@dataclass(slots=True)
class ProbeStatus:
    """The state of one probe of a run."""

    kind: ProbeKind
    state: ProbeState = ProbeState.PENDING
    failures: int = 0
    """Failures in a row."""
    successes: int = 0
    """Successes in a row."""
    reason: str = ""
    """Why the last probe failed; empty if it passed."""

    @classmethod
    def all_pending(cls, probes: ProbeSet) -> dict[ProbeKind, ProbeStatus]:
        """Return a pending status for each probe of the set, by kind."""
        return {
            kind: cls(kind)
            for kind in (ProbeKind.STARTUP, ProbeKind.LIVENESS, ProbeKind.READINESS)
            if getattr(probes, kind) is not None
        }

    def record(self, reason: str | None, *, to_fail: int, to_pass: int) -> None:
        """Count one result. The state changes only when a threshold is reached."""
        self.failures, self.successes = (
            (0, self.successes + 1) if reason is None else (self.failures + 1, 0)
        )
        self.reason = reason or ""
        if self.successes >= to_pass:
            self.state = ProbeState.SUCCESS
        elif self.failures >= to_fail:
            self.state = ProbeState.FAILED
        elif self.state is ProbeState.PENDING:
            self.state = ProbeState.RUNNING

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state.value, "failures": self.failures, "reason": self.reason}


OnProbeResult = Callable[[ProbeStatus, str | None], None]
"""Gets the status of a probe after each result, and the result: None for passed, else why not."""


class ProbeVerdict(NamedTuple):
    """Why a run has to end. `refused` if no later run could pass either."""

    reason: str
    refused: bool = False


class ProbeWatch:
    """Probes one run, from its start to its end. Used on the event loop; create one for each start.

    Probing starts after `hold` seconds: the crash-loop backoff.
    """

    def __init__(
        self,
        probes: ProbeSet,
        target: LiveTarget,
        *,
        clock: Clock,
        on_result: OnProbeResult,
        hold: float = 0.0,
    ) -> None:
        self.statuses = ProbeStatus.all_pending(probes)
        self._probes = probes
        self._target = target
        self._clock = clock
        self._on_result = on_result
        self._hold = hold
        self._heartbeat = HeartbeatProber(clock)
        self._started_at = clock.monotonic()
        self._startup_until = -inf
        self._alive = asyncio.Event()
        """Set once liveness has passed, or if there is no liveness probe."""

    def beat(self) -> None:
        """Record a `WATCHDOG=1` of the program."""
        self._heartbeat.beat()

    def extend_startup(self, seconds: float) -> None:
        """Let its start take at least this long from now. Has no effect once the start is over."""
        self._startup_until = max(self._startup_until, self._clock.monotonic() + seconds)

    def end_extension(self) -> None:
        """End the extension of its startup time: it has started."""
        self._startup_until = -inf

    async def run(self) -> ProbeVerdict:
        """Probe until the run has to end, and return why."""
        if self._hold:
            await self._clock.sleep(self._hold)
            self._started_at = self._clock.monotonic()
        try:
            if self._probes.startup is None:
                await self._wait_start_grace()
            elif failure := await self._await_startup(self._probes.startup):
                return ProbeVerdict(failure)
            return await self._watch_for_life()
        except ProbeRefusedError as error:
            return ProbeVerdict(str(error), refused=True)

    # --- during the start ---

    async def _wait_start_grace(self) -> None:
        while (left := self._time_left(_start_grace(self._probes))) > 0:
            await self._clock.sleep(left)

    async def _await_startup(self, policy: StartupPolicy) -> str:
        """Wait until it has passed; return an empty text, or why the run has to end."""
        check = self._check_of(policy)
        status = self.statuses[ProbeKind.STARTUP]

        async def one() -> bool:
            await self._ask(check, status, to_fail=0, to_pass=1)
            return status.state is not ProbeState.SUCCESS

        asking = asyncio.ensure_future(
            run_probes(Cadence(interval=policy.interval), one, "startup probe", self._clock)
        )
        try:
            while not asking.done() and (left := self._time_left(policy.within)) > 0:
                await wait_until_done(asking, left, self._clock)
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        if not asking.cancelled():
            asking.result()
            self._note_startup_as_liveness(policy)
            return ""
        status.state = ProbeState.FAILED
        return (
            f"not healthy {round(self._clock.monotonic() - self._started_at, 1):g} s after its "
            f"start: {status.reason or 'no answer yet'}"
        )

    def _note_startup_as_liveness(self, policy: StartupPolicy) -> None:
        """Count a passed startup probe for liveness too, if both probes are the same."""
        liveness = self._probes.liveness
        if liveness is not None and liveness.probe == policy.probe:
            self.statuses[ProbeKind.LIVENESS].state = ProbeState.SUCCESS
            self._alive.set()

    def _time_left(self, seconds: float) -> float:
        """Return the seconds left for its start, extensions included."""
        return max(self._started_at + seconds, self._startup_until) - self._clock.monotonic()

    # --- after the start ---

    async def _watch_for_life(self) -> ProbeVerdict:
        watches: list[asyncio.Task[ProbeVerdict]] = [
            asyncio.ensure_future(watch) for watch in self._watches()
        ]
        if not watches:
            await asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.wait(watches)

    def _watches(self) -> Iterator[Coroutine[Any, Any, ProbeVerdict]]:
        if self._probes.liveness is not None:
            yield self._watch_liveness(self._probes.liveness)
        else:
            self._alive.set()
        if self._probes.readiness is not None:
            yield self._watch_readiness(self._probes.readiness)

    async def _watch_liveness(self, policy: ProbePolicy) -> ProbeVerdict:
        """Probe until it has failed often enough in a row; return why the run has to end."""
        status = self.statuses[ProbeKind.LIVENESS]
        await self._probe_until(policy, status, lambda: status.failures >= policy.failures)
        several = "s in a row" if status.failures > 1 else ""
        return ProbeVerdict(f"{status.failures} failed health check{several}: {status.reason}")

    async def _watch_readiness(self, policy: ProbePolicy) -> ProbeVerdict:
        """Probe once liveness has passed. A failure never ends the run."""
        await self._alive.wait()
        await self._probe_until(policy, self.statuses[ProbeKind.READINESS], lambda: False)
        raise AssertionError("a readiness probe never ends")

    async def _probe_until(
        self, policy: ProbePolicy, status: ProbeStatus, is_over: Callable[[], bool]
    ) -> None:
        """Probe at its interval, and at the settled interval once it has passed."""
        check = self._check_of(policy)

        async def one() -> bool:
            await self._ask(check, status, to_fail=policy.failures, to_pass=policy.successes)
            if status.kind is ProbeKind.LIVENESS and status.state is ProbeState.SUCCESS:
                self._alive.set()
            return not is_over()

        async def until_settled() -> bool:
            return await one() and status.state is not ProbeState.SUCCESS

        name, settled = f"{status.kind} probe", status.state is ProbeState.SUCCESS
        if policy.settled_interval is not None and not settled:
            await run_probes(Cadence(interval=policy.interval), until_settled, name, self._clock)
            if is_over():
                return
            settled = True
        interval = policy.interval if policy.settled_interval is None else policy.settled_interval
        cadence = Cadence(interval=interval, immediately=not settled)
        await run_probes(cadence, one, name, self._clock)

    async def _ask(
        self, check: ProbeCheck, status: ProbeStatus, *, to_fail: int, to_pass: int
    ) -> None:
        """Run one probe, count the result and pass it on. A startup probe counts no failures: only
        its time is limited.
        """
        if status.state is ProbeState.PENDING:
            status.state = ProbeState.RUNNING
        try:
            reason = await check.check()
        except ProbeSkippedError:
            return
        status.record(reason, to_fail=to_fail or status.failures + 2, to_pass=to_pass)
        if not to_fail:
            status.failures = 0
        self._on_result(status, reason)

    def _check_of(self, policy: ProbePolicy | StartupPolicy) -> ProbeCheck:
        return ProbeCheck(policy, self._target, heartbeat=self._heartbeat, clock=self._clock)


async def run_probes(cadence: Cadence, one: Callable[[], Any], name: str, clock: Clock) -> None:
    """Call `one` at this cadence while it returns True. Raises the ProbeRefusedError that it
    raised.
    """
    refusal: list[ProbeRefusedError] = []

    async def contained() -> bool:
        try:
            return bool(await one())
        except ProbeRefusedError as error:
            refusal.append(error)
            return False

    await run_every(cadence, contained, name=name, clock=clock)
    if refusal:
        raise refusal[0]


def _start_grace(probes: ProbeSet) -> float:
    """Return how long a start may take. A program with a heartbeat probe gets at least one
    interval, because it has not beaten before.
    """
    first = probes.liveness or probes.readiness
    if first is None:
        return 0.0
    if isinstance(first.probe, HeartbeatProbe):
        return max(first.start_grace, first.interval)
    return first.start_grace
