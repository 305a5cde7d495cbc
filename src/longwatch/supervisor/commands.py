"""Runs the commands of operators, from the control socket and from code. Used on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ControlCommandReceived
from longwatch.core.suggest import did_you_mean
from longwatch.errors import StoreError, TryAgainError, UsageError
from longwatch.host.loop import wait_until_done
from longwatch.host.tree_usage import TreeUsage, usage_facts
from longwatch.supervisor.lifecycle import ProgramState
from longwatch.supervisor.managed_program import ManagedProgram, ProgramStatus
from longwatch.supervisor.program_registry import ProgramRegistry

START_TIMEOUT = 30.0
MIN_UPTIME = 0.3
"""Seconds that a program must be up before a start counts as successful: many fail at once."""
_HELD_BACK = frozenset({ProgramState.WAITING, ProgramState.BROKEN})
_FAILED_TO_START = frozenset({ProgramState.WAITING, ProgramState.BROKEN, ProgramState.ENDED})
"""The states of a program whose start failed."""


class ProgramCommands:
    """Changes the desired state of programs and waits until they reach it.

    Each command takes names, or none for all programs, and returns the statuses of those programs.
    `flush_records` returns when every change is on disk, so that an operator's stop survives this
    process. `refusal` returns why commands are refused, empty while they are accepted.
    `refresh_plans` reads the files of containers again. `shut_down` begins to stop everything.
    `measure` returns the usage of all programs, by the pids of their first processes.

    `unready_reasons` returns why programs are not ready by their own reports, by name. Statuses
    show it; no command waits for it.
    """

    def __init__(  # noqa: PLR0913 - the programs, and what commands need to change them
        self,
        registry: ProgramRegistry,
        *,
        clock: Clock,
        events: Events,
        flush_records: Callable[[], Awaitable[None]],
        refusal: Callable[[], str],
        refresh_plans: Callable[[], Awaitable[None]],
        shut_down: Callable[[], None],
        measure: Callable[[], Awaitable[Mapping[int, TreeUsage]]],
    ) -> None:
        self._registry = registry
        self._programs = registry.programs
        self._changes = registry.changes
        self._clock = clock
        self._events = events
        self._flush_records = flush_records
        self._refusal = refusal
        self._refresh_plans = refresh_plans
        self._shut_down = shut_down
        self._measure = measure
        self.unready_reasons: Callable[[], Mapping[str, str]] = dict

    async def status(self, *names: str) -> list[ProgramStatus]:
        return self._statuses(self._select(names))

    async def usage(self, *names: str) -> list[ProgramStatus]:
        """Return the usage of the process trees of running programs; None for values that are not
        visible on this host.
        """
        running = [managed for managed in self._select(names) if managed.up]
        usages = await self._measure() if running else {}
        now = self._clock.monotonic()
        return [
            {
                "name": managed.plan.name,
                "pid": managed.pid,
                "measured_at": now,
                **usage_facts(usages.get(managed.pid or 0)),
            }
            for managed in running
        ]

    async def shut_down(self) -> list[ProgramStatus]:
        """Begin to stop all programs, and then the supervisor; returns at once."""
        self._events.emit(ControlCommandReceived(command="down", programs=tuple(self._programs)))
        self._shut_down()
        return []

    async def start(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[ProgramStatus]:
        """Start them; return when they are up, or with `ready` when they are ready. Raises
        TryAgainError if one is not.
        """
        programs = [
            managed for managed in self._accept("start", names) if not managed.plan.on_demand
        ]
        starts_before = {
            managed: 0
            if managed.up or managed.state is ProgramState.STARTING
            else managed.program.record.starts
            for managed in programs
        }
        for managed in programs:
            managed.program.record.desired = True
            if not managed.up:
                managed.program.reset()
            managed.request_start()
        return await self._wait_until_up(starts_before, ready=ready, timeout=timeout)

    async def stop(self, *names: str) -> list[ProgramStatus]:
        """Stop them and keep them stopped; return when they are down, or another caller has started
        them again. Raises TryAgainError if processes of one may still run.
        """
        programs = self._accept("stop", names)
        were_up = [managed for managed in programs if managed.up]
        activations = {managed: managed.activations for managed in programs}
        for managed in programs:
            managed.mark_stopped()
            managed.stop()
        save_error = await self._save(programs)
        await self._changes.wait_until(
            lambda: all(
                managed.idle or managed.activations > activations[managed] for managed in programs
            )
        )
        _require_all_gone(were_up)
        return _require_saved(self._statuses(programs), save_error)

    async def restart(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[ProgramStatus]:
        """Stop and start them; return when they are up again. Without names, restarts only desired
        programs. Programs that run on demand only stop.
        """
        accepted = [
            managed for managed in self._accept("restart", names) if names or managed.desired
        ]
        programs = [managed for managed in accepted if not managed.plan.on_demand]
        for managed in accepted:
            if managed.plan.on_demand:
                managed.stop()
        at_once = [managed for managed in programs if not managed.plan.group]
        statuses = (
            await self._restart(at_once, ready=ready, timeout=timeout)
            if at_once or not programs
            else []
        )
        for managed in programs:
            if managed.plan.group:  # one after another, so that the others continue the work
                statuses += await self._restart([managed], ready=True, timeout=timeout)
        return statuses

    async def _restart(
        self, programs: Sequence[ManagedProgram], *, ready: bool, timeout: float
    ) -> list[ProgramStatus]:
        starts_before = {managed: managed.program.record.starts for managed in programs}
        for managed in programs:
            managed.program.record.desired = True
            managed.restart()
        await self._changes.wait_until(
            lambda: all(
                _run_has_ended(managed, starts) for managed, starts in starts_before.items()
            )
        )
        return await self._wait_until_up(starts_before, ready=ready, timeout=timeout)

    async def reset(self, *names: str) -> list[ProgramStatus]:
        """Forget their failures; programs that are broken or wait for a restart start now. Reads
        the files of containers again first.
        """
        self._select(names)
        await self._refresh_plans()
        programs = self._accept("reset", names)
        for managed in programs:
            managed.program.reset()
        await self._settle_reset(programs)
        save_error = await self._save(programs)
        return _require_saved(self._statuses(programs), save_error)

    async def _settle_reset(self, programs: Sequence[ManagedProgram]) -> None:
        """Wait a moment until programs that were broken or waited begin to start."""
        waiting = asyncio.ensure_future(
            self._changes.wait_until(
                lambda: not any(managed.state in _HELD_BACK for managed in programs)
            )
        )
        await wait_until_done(waiting, MIN_UPTIME, self._clock)
        waiting.cancel()

    async def clear_liveness(self, *names: str) -> list[ProgramStatus]:
        """Forget failed liveness and crash loops, and start the probes of running programs over."""
        programs = self._accept("clear-liveness", names)
        for managed in programs:
            managed.program.clear_liveness_state()
        save_error = await self._save(programs)
        return _require_saved(self._statuses(programs), save_error)

    def _statuses(self, programs: Iterable[ManagedProgram]) -> list[ProgramStatus]:
        reasons = self.unready_reasons()
        return [managed.status(reasons.get(managed.plan.name, "")) for managed in programs]

    # --- selection and waiting ---

    def _select(self, names: Sequence[str]) -> list[ManagedProgram]:
        found = (
            [each for name in names for each in self._resolve(name)]
            if names
            else list(self._programs)
        )
        return [self._programs[name] for name in dict.fromkeys(found)]

    def _resolve(self, name: str) -> list[str]:
        """Return the program of that name, or those of the group of that name."""
        here = {known: managed for known, managed in self._programs.items() if not managed.retired}
        if name in here:
            return [name]
        found = [known for known, managed in here.items() if name and managed.plan.group == name]
        if not found:
            raise UsageError(
                _unknown_program(
                    name,
                    {
                        *here,
                        *(managed.plan.group for managed in here.values() if managed.plan.group),
                    },
                )
            )
        return found

    def _accept(self, command: str, names: Sequence[str]) -> list[ManagedProgram]:
        programs = self._select(names)
        if reason := self._refusal():
            raise TryAgainError(reason)
        self._events.emit(
            ControlCommandReceived(
                command=command, programs=tuple(managed.plan.name for managed in programs)
            )
        )
        return programs

    async def _save(self, programs: Iterable[ManagedProgram]) -> str:
        """Write their records to disk; return why that failed, empty if it did not."""
        for managed in programs:
            self._registry.program_changed(managed.plan.name)
        try:
            await self._flush_records()
        except StoreError as error:
            return str(error)
        return ""

    async def _wait_until_up(
        self, starts_before: Mapping[ManagedProgram, int], *, ready: bool, timeout: float
    ) -> list[ProgramStatus]:
        """Wait until each is up after a new start, or has failed to start."""
        save_error = await self._save(starts_before)
        holds = partial(_all_started_or_failed, starts_before, ready=ready)
        waiting = asyncio.ensure_future(self._changes.wait_until(holds))
        await wait_until_done(waiting, timeout, self._clock)
        waiting.cancel()
        await self._clock.sleep(MIN_UPTIME)
        _require_all_up(starts_before, ready=ready)
        return _require_saved(self._statuses(starts_before), save_error)


def _require_saved(statuses: list[ProgramStatus], save_error: str) -> list[ProgramStatus]:
    if save_error:
        raise TryAgainError(
            f"it is done, but could not be saved for the next start of the supervisor: {save_error}"
        )
    return statuses


def _require_all_gone(programs: Iterable[ManagedProgram]) -> None:
    """Raise TryAgainError if a stop was given up: the runtime did not answer, for example."""
    left = [managed for managed in programs if managed.idle and managed.program.last_error]
    if left:
        raise TryAgainError(
            "; ".join(f"{each.plan.name}: {each.program.last_error}" for each in left)
        )


def _run_has_ended(managed: ManagedProgram, starts: int) -> bool:
    """Return whether the run from before has ended."""
    return not managed.up or managed.program.record.starts > starts


def _all_started_or_failed(starts_before: Mapping[ManagedProgram, int], *, ready: bool) -> bool:
    return all(
        _started_or_failed(managed, starts, ready=ready)
        for managed, starts in starts_before.items()
    )


def _started_or_failed(managed: ManagedProgram, starts_before: int, *, ready: bool) -> bool:
    """Return whether it is up (or ready) after a new start, or has failed to start for now."""
    if managed.idle:
        return True
    if managed.start_requested or managed.program.record.starts <= starts_before:
        return False
    return (
        managed.ready if ready else managed.state is ProgramState.UP
    ) or managed.state in _FAILED_TO_START


def _require_all_up(programs: Iterable[ManagedProgram], *, ready: bool) -> None:
    """Raise TryAgainError if one is not up, or with `ready` not ready."""
    late = [
        managed
        for managed in programs
        if not (managed.program.completed or (managed.ready if ready else managed.up))
    ]
    if late:
        raise TryAgainError("; ".join(_not_up_reason(managed, ready=ready) for managed in late))


def _not_up_reason(managed: ManagedProgram, *, ready: bool) -> str:
    end = managed.program.record.last_end
    name, state = managed.plan.name, managed.state
    if state is ProgramState.PENDING:
        return f"{name} waits for {', '.join(managed.waiting_for)}"
    if state in _FAILED_TO_START and end is not None:
        return f"{name} did not stay up ({end.cause}, {state}); see `longwatch logs {name}`"
    return f"{name} is {state}{', and not ready yet' if ready else ''}"


def _unknown_program(name: str, known: Iterable[str]) -> str:
    listed = ", ".join(sorted(known)) or "none"
    return f"no program {name!r}; {did_you_mean(name, known, default=f'there are: {listed[:300]}')}"
