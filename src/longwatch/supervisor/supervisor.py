"""Supervises programs, as a service of any process, and behind `longwatch up` and `longwatch run`.

The steps: lock the state directory → read the ledger → start the guardian → open the control socket
→ start every desired program → … → stop them, dependents first, under one deadline → stop the
guardian → write the ledger. Everything except the public methods runs on one event loop, so there
are no locks. Code that acts on starts and ends of programs is a `ProgramListener`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.end_cause import EndCause
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import (
    ConfigReloaded,
    ProgramListenerFailed,
    ProgramsLeftStopped,
)
from longwatch.errors import GuardianLostError, ServiceStateError, TargetRefusedError
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import KILL_NOW, StopPolicy
from longwatch.host.service import Service
from longwatch.supervisor.commands import START_TIMEOUT, ProgramCommands
from longwatch.supervisor.control_requests import ControlRequests, ExtraRequest
from longwatch.supervisor.end_judge import EndJudge, EndJudges
from longwatch.supervisor.managed_program import ManagedProgram, ProgramStatus
from longwatch.supervisor.plan import Plans, ProgramKind, ProgramPlan, validate_plans
from longwatch.supervisor.plan_follower import PlanFollower
from longwatch.supervisor.program import EXIT_NEEDS_OPERATOR
from longwatch.supervisor.program_listener import ProgramListener, ProgramListeners
from longwatch.supervisor.program_record import ProgramRecord
from longwatch.supervisor.program_registry import ProgramRegistry
from longwatch.supervisor.shutdown import ShutdownKillCounter, stop_in_waves
from longwatch.supervisor.socket_directory import SocketDirectory
from longwatch.supervisor.state_directory import StateDirectory
from longwatch.supervisor.target_factory import Streams, Targets, inherited_streams
from longwatch.supervisor.usage_meter import UsageMeter

if TYPE_CHECKING:
    from longwatch.supervisor.containers.container_host import ContainerHost

T = TypeVar("T")

FAST_SHUTDOWN_GRACE = 0.7
"""The grace of the other programs after a critical one broke: all end within a second."""
THIRTY_DAYS = 30 * 86_400.0
_START_BATCH = 10


class Supervisor(Service):
    """Keeps programs up in the background of this process.

    `start` starts the desired programs and `stop` stops all. `wait` returns when the supervisor
    ends by itself: a critical program is broken or failed for good (100), the `main_program` ended
    (its code), the guardian was lost (GuardianLostError), or a listener raised (its error).
    `status`, `start_programs`, `stop_programs`, `restart_programs`, `reset_programs` and `reload`
    are thread-safe.

    With a `state_dir`, the records of programs survive this process, and commands such as
    `longwatch status` can reach it. One supervisor at a time can own a directory. With
    `shares_state_dir`, this process does not own it, and no record survives. `command` is the
    Longwatch command that this process runs. `plan_source` returns the plans for a reload, and
    `extra_status` is added to the supervisor's part of `longwatch status --json`. `extra_requests`
    are further commands of the control socket, by name. With `subreaper`, this process inherits the
    orphans of its programs. `on_guardian_started` is called once the guardian runs, before anything
    else is opened. Programs do not inherit what it changes. `container_host` connects to a
    container runtime; it is called on the loop for the first container. `refresh_plans` is called
    in a thread before a reset. It returns the new plans, or None if they are unchanged.
    """

    def __init__(  # noqa: PLR0913 - each is optional and has its own meaning
        self,
        plans: Plans,
        *,
        state_dir: Path | None = None,
        streams: Callable[[ProgramPlan], Streams] = inherited_streams,
        events: Events | None = None,
        clock: Clock | None = None,
        main_program: str | None = None,
        plan_source: Callable[[], Plans] | None = None,
        shutdown_timeout: float | None = None,
        forget_after: float = THIRTY_DAYS,
        extra_status: Mapping[str, str] | None = None,
        extra_requests: Mapping[str, ExtraRequest] | None = None,
        on_guardian_started: Callable[[], None] = lambda: None,
        subreaper: bool = False,
        cgroups: bool = True,
        container_host: Callable[[], ContainerHost] | None = None,
        refresh_plans: Callable[[], Plans | None] | None = None,
        command: str = "",
        shares_state_dir: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        super().__init__(name="supervisor", clock=self.clock)
        self.events = events or Events()
        self.state_dir = state_dir
        self.loop = EventLoopThread(clock=self.clock)
        self._kill_counter = ShutdownKillCounter(lambda: self.is_shutting_down)
        self._listeners = ProgramListeners(on_error=self._on_listener_error)
        self._listeners.add(self._kill_counter)
        self._end_judges = EndJudges(self.events)
        self.guardian = GuardianClient(
            self.loop,
            clock=self.clock,
            events=self.events,
            subreaper=subreaper,
            cgroups=cgroups,
            on_lost=self._on_guardian_lost,
            is_spared=lambda pid: bool(
                self._container_host and self._container_host.owns_process(pid)
            ),
        )
        self._plan_follower = PlanFollower(
            validate_plans(plans),
            events=self.events,
            source=plan_source,
            refresh_source=refresh_plans,
            check_running=self._check_running,
        )
        self._main_program = main_program
        self._shutdown_timeout, self._forget_after = shutdown_timeout, forget_after
        self._extra_status = {"command": command, **(extra_status or {})}
        self._extra_requests = extra_requests
        self._on_guardian_started = on_guardian_started
        self._state_directory: StateDirectory | None = None
        if state_dir is not None:
            self._state_directory = StateDirectory(
                state_dir,
                clock=self.clock,
                events=self.events,
                command=command,
                shared=shares_state_dir,
            )
        self._make_container_host = container_host
        self._registry = ProgramRegistry(
            targets=Targets(self.guardian, self._open_container_host),
            clock=self.clock,
            events=self.events,
            listener=self._listeners,
            end_judges=self._end_judges,
            streams=streams,
            save_record=self._save_record,
            on_finished=self._on_program_finished,
            on_error=self._fail,
        )
        self._reset()
        self.commands = self._make_commands()

    def _make_commands(self) -> ProgramCommands:
        return ProgramCommands(
            self._registry,
            clock=self.clock,
            events=self.events,
            flush_records=self._flush_records,
            refusal=lambda: "the supervisor is shutting down" if self.is_shutting_down else "",
            refresh_plans=lambda: self._plan_follower.refresh(self._registry),
            shut_down=self._begin_shutdown,
            measure=UsageMeter(self.guardian, self._registry).measure,
        )

    def _reset(self) -> None:
        """Reset the state that belongs to one start of the supervisor."""
        self._socket_directory: SocketDirectory | None = None
        self._container_host: ContainerHost | None = None
        self._finished = Wakeup()
        self._shutdown_task: asyncio.Task[None] | None = None
        self._kill_counter.killed = 0
        self._exit_code: int | None = None
        self._error: BaseException | None = None

    # --- from any thread ---

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; return the exit code to pass on, None if the timeout passes first.
        Raises the error that caused the end.
        """
        if not self.clock.wait(self._finished, timeout):
            return None
        if self._error is not None:
            raise self._error
        return int(self._kill_counter.killed > 0) if self._exit_code is None else self._exit_code

    @property
    def is_shutting_down(self) -> bool:
        """Whether it has begun to stop all programs."""
        return self._shutdown_task is not None

    def status(self, *names: str) -> list[ProgramStatus]:
        """Return the status of these programs, or of all."""
        return self._call_on_loop(self.commands.status(*names))

    def start_programs(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[ProgramStatus]:
        """Start them and wait until they are up. Raises TryAgainError if one is not up in time."""
        return self._call_on_loop(self.commands.start(*names, ready=ready, timeout=timeout))

    def stop_programs(self, *names: str) -> list[ProgramStatus]:
        """Stop them until a command starts them again, even if the supervisor restarts."""
        return self._call_on_loop(self.commands.stop(*names))

    def restart_programs(
        self, *names: str, ready: bool = False, timeout: float = START_TIMEOUT
    ) -> list[ProgramStatus]:
        """Stop and start them. Raises TryAgainError if one is not up again in time."""
        return self._call_on_loop(self.commands.restart(*names, ready=ready, timeout=timeout))

    def reset_programs(self, *names: str) -> list[ProgramStatus]:
        """Forget their failures; broken programs start."""
        return self._call_on_loop(self.commands.reset(*names))

    def clear_liveness_state(self, name: str) -> None:
        """Forget the failed liveness and the crash loops of a program: its probes start over."""
        self._call_on_loop(self.commands.clear_liveness(name))

    def reload(self, plans: Plans) -> ConfigReloaded:
        """Start new, stop removed and restart changed programs; leave the others as they are."""
        return self._call_on_loop(self._plan_follower.follow(self._registry, validate_plans(plans)))

    def shut_down(self, policy: StopPolicy | None = None) -> None:
        """Begin to stop all programs; `wait` returns when that is done. A given policy replaces
        that of each program.
        """
        self._call_soon(lambda: self._begin_shutdown(policy=policy))

    def kill(self) -> None:
        """Begin to kill all programs."""
        self._call_soon(lambda: self._begin_shutdown(policy=KILL_NOW, escalate=True))

    def kill_unhealthy(self, pid: int, reason: str) -> None:
        """Kill the program with this process, like a failed health check; its policy applies."""
        self._call_soon(lambda: self._registry.kill_unhealthy(pid, reason))

    def add_listener(self, listener: ProgramListener) -> None:
        """Call this listener from now on, as the last. Add it before `start` to miss nothing."""
        self._listeners.add(listener)

    def set_end_judge(self, judge: EndJudge) -> None:
        """Use this judge for facts about the ends of worker processes."""
        self._end_judges.judge = judge

    def run_on_demand(
        self, choose: Callable[[Mapping[str, ProgramPlan]], Iterable[ProgramPlan]]
    ) -> None:
        """Run the plans that `choose` returns for the current ones, by name, each once. `choose` is
        called on the loop and must not block. Nothing runs while the supervisor shuts down.
        """
        self._call_on_loop(self._run_on_demand(choose))

    def stop_on_demand(self, group: str) -> None:
        """Stop the programs of the group that run on demand. Returns at once."""
        self._call_soon(lambda: self._registry.stop_on_demand(group))

    def set_shutdown_timeout(self, seconds: float | None) -> None:
        """Set how long a shutdown may take; None if every program has its own grace."""
        self._shutdown_timeout = seconds

    def signal(self, signum: int) -> None:
        """Pass a signal on to every program's process group."""
        self._call_soon(lambda: self._registry.signal(signum))

    def request_reload(self) -> None:
        """Begin to read the source of plans again and switch to them. An error is only emitted."""
        if self.loop.started:
            self.loop.spawn(self._plan_follower.reload_quietly(self._registry))

    # --- the service contract ---

    @property
    def in_own_thread(self) -> bool:
        return self.loop.in_own_thread

    def _start(self) -> None:
        self._reset()
        with ExitStack() as undo:
            records: Mapping[str, ProgramRecord] = {}
            if self._state_directory is not None:
                undo.callback(self._close_state_directory, Deadline.never(self.clock))
                records = self._state_directory.open(
                    self._plan_follower.plans, forget_after=self._forget_after
                )
            self._socket_directory = SocketDirectory.create()
            undo.callback(self._close_socket_directory)
            undo.callback(self.loop.stop)
            self.guardian.start()
            undo.callback(self.guardian.stop)
            self._on_guardian_started()
            self.loop.call(self._start_on_loop(records), timeout=START_TIMEOUT)
            undo.pop_all()

    def _stop(self, deadline: Deadline) -> bool:
        """Stop the programs with the grace that is left, then the guardian, the loop and the
        files.
        """
        if not self._finished.is_set():
            self.loop.call(self._shut_down_by(deadline), timeout=None)
        stopped = self.guardian.stop(deadline=deadline)
        if self.loop.started:
            self.loop.call(self._close_on_loop(), timeout=None)
        stopped = self.loop.stop(deadline=deadline) and stopped
        stopped = self._close_state_directory(deadline) and stopped
        self._close_socket_directory()
        return stopped

    def _close_state_directory(self, deadline: Deadline) -> bool:
        return self._state_directory is None or self._state_directory.close(deadline)

    def _close_socket_directory(self) -> None:
        if self._socket_directory is not None:
            self._socket_directory.close()
        self._socket_directory = None

    # --- on the loop: start and shutdown ---

    async def _start_on_loop(self, records: Mapping[str, ProgramRecord]) -> None:
        assert self._socket_directory is not None
        self._registry.programs.clear()
        self._registry.records = dict(records)
        self._registry.socket_path = self._socket_directory.socket_path
        if self._state_directory is not None:
            requests = ControlRequests(
                self.commands,
                lambda: self._plan_follower.reload(self._registry),
                self._state_directory.path.absolute(),
                self.guardian,
                clock=self.clock,
                extra_status=self._extra_status,
                extra_requests=self._extra_requests,
            )
            await self._state_directory.open_control(
                self._socket_directory.path / "control", requests.handle
            )
        for number, plan in enumerate(self._plan_follower.plans.values(), 1):
            self._registry.add(
                self._registry.prepare(plan), strict=plan.name == self._main_program
            ).start_if_desired()
            if not number % _START_BATCH:
                await asyncio.sleep(0)  # the guardian starts these while we prepare the next
        if stopped := tuple(
            name
            for name, managed in self._registry.programs.items()
            if managed.program.record.desired is False
        ):
            self.events.emit(ProgramsLeftStopped(programs=stopped))

    async def _run_on_demand(
        self, choose: Callable[[Mapping[str, ProgramPlan]], Iterable[ProgramPlan]]
    ) -> None:
        if self._shutdown_task is None:
            programs = self._registry.programs
            for plan in choose({name: managed.plan for name, managed in programs.items()}):
                self._registry.run_on_demand(plan)

    def _on_program_finished(self, managed: ManagedProgram, code: int) -> None:
        if managed.start_requested:  # a restart
            return
        if managed.plan.name == self._main_program:
            self._begin_shutdown(code)
        elif managed.plan.critical and (code == EXIT_NEEDS_OPERATOR or managed.program.failed):
            self._begin_shutdown(EXIT_NEEDS_OPERATOR, timeout=FAST_SHUTDOWN_GRACE)

    def _on_guardian_lost(self) -> None:
        """Fail if only containers run, because none of them notices the guardian's death."""
        self._listeners.guardian_lost()
        runs = [managed for managed in self._registry.programs.values() if managed.up]
        if all(managed.plan.kind is ProgramKind.CONTAINER for managed in runs):
            self._fail(GuardianLostError("the guardian died; no process was running"))

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._finished.set()

    def _on_listener_error(self, listener: ProgramListener, error: BaseException) -> None:
        """Stop all programs with their grace; `wait` then raises the first error."""
        self.events.emit(
            ProgramListenerFailed(listener=type(listener).__name__, error=describe_error(error))
        )
        self._error = self._error or error
        self._begin_shutdown()

    def _begin_shutdown(
        self,
        code: int | None = None,
        *,
        policy: StopPolicy | None = None,
        timeout: float | None = None,
        escalate: bool = False,
    ) -> None:
        """Begin to stop all programs. A second call has an effect only with `escalate`."""
        if self._shutdown_task is not None:
            if not escalate:
                return
            self._shutdown_task.cancel()
        else:
            self._exit_code = code
        self._shutdown_task = asyncio.ensure_future(
            self._stop_all(policy, self._shutdown_timeout if timeout is None else timeout)
        )

    async def _stop_all(self, policy: StopPolicy | None, timeout: float | None) -> None:
        try:
            await stop_in_waves(
                self._registry.programs,
                self._registry.changes,
                policy=policy,
                timeout=timeout,
                clock=self.clock,
            )
        except Exception as error:  # noqa: BLE001 - `wait` must raise any error
            self._fail(error)
        if self._exit_code is None and self._main_program is not None:
            self._exit_code = self._main_exit_code(policy)
        self._finished.set()

    def _main_exit_code(self, policy: StopPolicy | None) -> int:
        """Return the exit code of its last activation; that of the signal if it never ran."""
        managed = self._registry.programs[self._main_program or ""]
        signal_code = EndCause.signal((policy or managed.plan.stop).signal).exit_code
        return signal_code if managed.exit_code is None else managed.exit_code

    async def _shut_down_by(self, deadline: Deadline) -> None:
        """Stop all programs before the deadline; kill those that are left near it."""
        self._begin_shutdown()
        left = deadline.remaining()
        assert self._shutdown_task is not None
        done, _ = await asyncio.wait(
            {self._shutdown_task},
            timeout=None if left is None else max(left - FAST_SHUTDOWN_GRACE, 0.0),
        )
        if not done:
            self._begin_shutdown(policy=KILL_NOW, escalate=True)
            with suppress(asyncio.CancelledError):
                await self._shutdown_task

    def _open_container_host(self) -> ContainerHost:
        """Return the one connection to the runtime, which is opened for the first container."""
        if self._container_host is None:
            if self._make_container_host is None:
                raise TargetRefusedError(
                    "this supervisor has no container runtime; pass container_host="
                )
            self._container_host = self._make_container_host()
            self._container_host.on_started = self._on_started_elsewhere
            self._container_host.on_stopped = self._registry.stopped_elsewhere
            self._container_host.open()
        return self._container_host

    def _on_started_elsewhere(self, name: str, started_at: float) -> None:
        """Handle an unwatched container, unless the shutdown left it running."""
        if not self.is_shutting_down:
            self._registry.started_elsewhere(name, started_at)

    @property
    def known_children(self) -> set[int]:
        """The children of this process that our code waits for; no other code may reap them."""
        host = self._container_host
        return {self.guardian.pid or 0, *(host.child_pids() if host is not None else ())}

    async def _close_on_loop(self) -> None:
        self._registry.close()
        if self._container_host is not None:
            await self._container_host.close()
        self._container_host = None
        if self._state_directory is not None:
            await self._state_directory.close_control()

    # --- on the loop: records and plans ---

    def _save_record(self, name: str, record: ProgramRecord) -> None:
        if self._state_directory is not None:
            self._state_directory.save_record(name, record)

    async def _flush_records(self) -> None:
        if self._state_directory is not None:
            await self._state_directory.flush_records()

    def _check_running(self) -> None:
        if self.is_shutting_down:
            raise ServiceStateError("the supervisor is shutting down")

    # --- calls from other threads ---

    def _call_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if not self.started:
            work.close()
            raise ServiceStateError("the supervisor is not running; start() it first")
        return self.loop.call(work, timeout=None)

    def _call_soon(self, act: Callable[[], object]) -> None:
        if self.loop.started:
            self.loop.loop().call_soon_threadsafe(act)
