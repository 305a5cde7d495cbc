"""One agent run: workspace → process below the guardian → end, with its evidence.

The thread of a slot calls `execute` and waits in it. The process, its deadlines and its output are
on the event loop (`host.task`). `cancel` comes from any thread, at any time.

Invariants
    1. `AgentRunStarted` is emitted once, and `AgentRunEnded` once after it, whatever happens. A run
       whose process could not be spawned has both.
    2. The values of the event are in files of the workspace. Arguments are the agent's own; the
       environment has names and paths only.
    3. When `execute` returns, nothing of the process tree is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError as CancelledFuture
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.error_text import describe_error, error_text, os_reason
from longwatch.core.events.base import Events
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunInterrupted,
    AgentRunStarted,
    AgentRunTimedOut,
)
from longwatch.core.tracing import SpanKind, Work
from longwatch.core.tracing import active as active_tracer
from longwatch.core.tracing import environment as trace_variables
from longwatch.errors import (
    GuardianLostError,
    GuardianNotRunningError,
    ServiceStateError,
    SpawnError,
    StoreError,
)
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import Child, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.host.task import OutputFile, Task, TaskEnd, TaskSpec
from longwatch.host.writer_thread import WriterThread
from longwatch.runner import run_end
from longwatch.runner.policy import AgentSpec, RunnerPolicy, SourceSpec
from longwatch.runner.run_end import RunEnd
from longwatch.runner.run_store import NewRun, QueuedEvent
from longwatch.runner.stream_event import event_document
from longwatch.runner.workspace import Workspace

_BEAT_INTERVAL = 1.0
"""Seconds between the beats of a slot that waits for its agent."""
_CLOSE_TIMEOUT = 5.0
"""Seconds that the disk has for the last lines of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHost:
    """The settings and services that all runs of a dispatcher share."""

    agent: AgentSpec
    policy: RunnerPolicy
    loop: EventLoopThread
    guardian: GuardianClient
    clock: Clock
    events: Events
    writer_thread: WriterThread
    record_pid: Callable[[str, int, int], None]
    """Called with run id, pid and start time, in the slot's thread; it may raise StoreError."""


class AgentRun:
    """One run of the agent for one event. `execute` is called once; `cancel` is thread-safe."""

    def __init__(
        self, run: NewRun, event: QueuedEvent, source: SourceSpec | None, host: RunHost
    ) -> None:
        self.run = run
        self.pid: int | None = None
        self.was_guardian_lost = False
        """Whether the guardian was gone at the end of the run, so that the next run needs a new
        one.
        """
        self.may_have_killed_guardian = False
        """Whether the guardian died during the run: this or another agent may have killed it."""
        self._event = event
        self._source = source
        self._host = host
        self._workspace = Workspace(host.agent.workspace, run.id)
        self._started_at = host.clock.monotonic()
        self._task: Task | None = None
        self._spawned_child: Child | None = None
        self._changed = Wakeup()
        self._cancelled: tuple[str, float | None] | None = None
        self._has_started = False
        self._trace_headers: dict[str, str] = {}

    def cancel(self, reason: str, *, grace: float | None = None) -> None:
        """End the process, or do not start it. The first reason counts. A later call may shorten
        the grace.
        """
        if self._cancelled is None:
            self._cancelled = reason, grace
        if self._task is not None:
            self._task.cancel(reason, grace=grace)

    def execute(self, beat: Callable[[], None]) -> RunEnd:
        """Run the agent and wait for its end. Never raises for a fault of agent, disk or guardian.

        Calls `beat` about once a second meanwhile.
        """
        if (tracer := active_tracer()) is None:
            return self._execute(beat)
        with tracer.span(self._describe_work()) as span:
            self._trace_headers = span.headers()
            end = self._execute(beat)
            span.set({"longwatch.run.status": str(end.status), "longwatch.run.cause": end.cause})
            if not end.is_success:
                span.fail(end.cause, end.error)
        return end

    def _describe_work(self) -> Work:
        run = self.run
        return Work(
            name=f"run {run.source}",
            kind=SpanKind.CONSUMER,
            attributes={
                "longwatch.source": run.source,
                "longwatch.event.id": run.event,
                "longwatch.run.id": run.id,
                "longwatch.run.attempt": run.attempt,
            },
        )

    def _execute(self, beat: Callable[[], None]) -> RunEnd:
        self._started_at = self._host.clock.monotonic()
        try:
            return self._run_agent(beat)
        except SpawnError as error:
            command = self._host.agent.command[0]
            return self._end_lost(run_end.SPAWN_ERROR, f"cannot start {command}: {error}")
        except OSError as error:
            place = error.filename or self._host.agent.workspace
            text = (
                f"cannot prepare its workspace: {place}: {os_reason(error)}; make room there, or "
                f"set another workspace"
            )
            return self._end_lost(run_end.SPAWN_ERROR, text)
        except GuardianLostError as error:
            return self._end_without_guardian(error)
        except (CancelledFuture, ServiceStateError) as error:  # the loop is stopping
            return self._end_lost(run_end.SHUTDOWN, error_text(error))
        except Exception as error:  # noqa: BLE001 - a run has an end even after a bug here
            return self._end_lost(run_end.SPAWN_ERROR, describe_error(error))

    # --- the run ---

    def _run_agent(self, beat: Callable[[], None]) -> RunEnd:
        with ExitStack() as stack:
            self._make_workspace()
            stdout = self._open_output(stack, self._workspace.stdout_log)
            stderr = self._open_output(stack, self._workspace.stderr_log)
            stdin = os.open(self._workspace.input_file, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, stdin)
            process = self._process_spec(stdin, stdout, stderr)
            task = self._task = self._make_task(process)
            if self._cancelled is not None:  # `cancel` has not seen the task
                task.cancel(self._cancelled[0], grace=self._cancelled[1])
            ended = self._host.loop.spawn(task.run(self._host.guardian))
            end = self._wait(ended, beat)
        return self._conclude(end, stdout.tail, stderr.tail)

    def _make_workspace(self) -> None:
        event = _event_json(self._run_facts(), self._event)
        prompt = None
        if self._host.agent.prompt is not None:
            text = self._host.agent.prompt.read_bytes().rstrip()
            quoted = event.replace(b"`", rb"\u0060")  # which would end the block
            prompt = text + b"\n\n```json\n" + quoted + b"\n```\n"
        Workspace.create(self._host.agent.workspace, self.run.id, event=event, prompt=prompt)

    def _run_facts(self) -> dict[str, object]:
        return {
            "run": self.run.id,
            "event": self.run.event,
            "source": self.run.source,
            "attempt": self.run.attempt,
            "severity": self._event.severity,
            "received_at": _iso_time(self._event.received_at),
            "labels": dict(self._source.labels) if self._source is not None else {},
        }

    def _open_output(self, stack: ExitStack, path: Path) -> OutputFile:
        output = OutputFile(
            path, max_bytes=self._host.agent.max_output_bytes, thread=self._host.writer_thread
        )
        stack.callback(output.close, _CLOSE_TIMEOUT)
        return output

    def _process_spec(self, stdin: int, stdout: OutputFile, stderr: OutputFile) -> ProcessSpec:
        agent = self._host.agent
        return ProcessSpec(
            argv=agent.command,
            env=self._environment(os.environ),
            cwd=str(self._workspace.path),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            limits=agent.limits,
        )

    def _environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        agent, timeout = self._host.agent, self._host.policy.agent_timeout
        deadline = "" if timeout is None else _iso_time(self._host.clock.wall() + timeout)
        allowed = {name: environment[name] for name in agent.env_names if name in environment}
        return {
            **allowed,
            **agent.env,
            **trace_variables(self._trace_headers),
            "LONGWATCH_RUN_ID": self.run.id,
            "LONGWATCH_SOURCE": self.run.source,
            "LONGWATCH_EVENT": str(self._workspace.event_file),
            "LONGWATCH_DEADLINE": deadline,
        }

    def _make_task(self, process: ProcessSpec) -> Task:
        policy = self._host.policy
        spec = TaskSpec(
            process=process,
            timeout=policy.agent_timeout,
            progress_timeout=policy.progress_timeout,
            stop=StopPolicy(grace=self._host.agent.stop_grace),
        )
        return Task(spec, clock=self._host.clock, on_spawned=self._on_spawned)

    def _on_spawned(self, child: Child) -> None:
        """Pass the process to the slot's thread. Runs on the loop."""
        self.pid, self._spawned_child = child.pid, child
        self._emit_started()
        self._changed.set()

    def _wait(self, ended: Future[TaskEnd], beat: Callable[[], None]) -> TaskEnd:
        """Record the pid once there is one, and beat until the end."""
        ended.add_done_callback(lambda _: self._changed.set())
        is_recorded = False
        while not ended.done():
            self._host.clock.wait(self._changed, _BEAT_INTERVAL)
            self._changed.clear()
            beat()
            if not is_recorded and (child := self._spawned_child) is not None:
                is_recorded = True
                with suppress(StoreError):  # the next start finds the process by its run id
                    self._host.record_pid(self.run.id, child.pid, child.start)
        return ended.result()

    # --- the end ---

    def _conclude(self, end: TaskEnd, stdout: bytes, stderr: bytes) -> RunEnd:
        policy = self._host.policy
        cause = run_end.cause_of(end)
        error = ""
        if not run_end.is_success(cause):
            error = run_end.describe_end(
                end, timeout=policy.agent_timeout, progress_timeout=policy.progress_timeout
            )
            if said := run_end.last_line(stderr) or run_end.last_line(stdout):
                error = f"{error}; it last wrote: {said}"
        elif self._host.agent.success is not None:
            error = self._workspace.missing_output(self._host.agent.success)
            cause = run_end.INVALID_OUTPUT if error else cause
        process = end.process
        concluded = RunEnd(
            status=run_end.status_of_cause(cause),
            cause=cause,
            duration=self._duration(),
            error=run_end.bounded_error(error),
            output=run_end.output_text(stdout, stderr),
            artifacts=tuple(self._workspace.artifacts()),
            cpu_seconds=process.cpu_seconds,
            max_rss=process.max_rss,
        )
        self._emit_cause(concluded, process)
        self._emit_started()
        self._emit_ended(concluded, process.survivors)
        return concluded

    def _end_lost(self, cause: str, error: str) -> RunEnd:
        """The end of a run that has no process, or whose process was lost."""
        end = RunEnd(
            status=run_end.status_of_cause(cause),
            cause=cause,
            duration=self._duration(),
            error=run_end.bounded_error(error),
        )
        self._emit_started()
        self._emit_ended(end, 0)
        return end

    def _end_without_guardian(self, error: GuardianLostError) -> RunEnd:
        """Return the end of a run without a guardian; `cancelled` if it was cancelled before."""
        self.was_guardian_lost = True
        if self._cancelled is not None:
            return self._end_lost(self._cancelled[0], error_text(error))
        self.may_have_killed_guardian = not isinstance(error, GuardianNotRunningError)
        return self._end_lost(run_end.LEASE_LOST, error_text(error))

    def _duration(self) -> float:
        return max(self._host.clock.monotonic() - self._started_at, 0.0)

    # --- events ---

    def _emit_started(self) -> None:
        """Emit the start once. A run that never had a process emits it at its end."""
        if self._has_started:
            return
        self._has_started = True
        self._host.events.emit(
            AgentRunStarted(
                cluster=self.run.source,
                run_id=self.run.id,
                event_id=self.run.event,
                attempt=self.run.attempt,
                pid=self.pid,
            )
        )

    def _emit_cause(self, end: RunEnd, process: ProcessEnd) -> None:
        if end.cause == run_end.TIMEOUT:
            self._host.events.emit(
                AgentRunTimedOut(
                    cluster=self.run.source,
                    run_id=self.run.id,
                    duration=end.duration,
                    timeout=self._host.policy.agent_timeout or 0.0,
                )
            )
        elif end.cause == run_end.SHUTDOWN:
            self._host.events.emit(
                AgentRunInterrupted(
                    run_id=self.run.id, cluster=self.run.source, pid=process.pid or 0
                )
            )

    def _emit_ended(self, end: RunEnd, survivors: int) -> None:
        self._host.events.emit(
            AgentRunEnded(
                cluster=self.run.source,
                run_id=self.run.id,
                event_id=self.run.event,
                attempt=self.run.attempt,
                status=end.status,
                cause=end.cause,
                duration=end.duration,
                error=end.error,
                survivors=survivors,
            )
        )


def _event_json(facts: Mapping[str, object], event: QueuedEvent) -> bytes:
    """Return the event as the server sent it, with the facts of the run added."""
    document = event_document(event.data, source=str(facts["source"]))
    return msgspec.json.format(msgspec.json.encode({**document, "longwatch": facts}), indent=2)


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
