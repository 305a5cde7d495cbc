"""Creates the target of a plan: a process of the guardian, or a container of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from longwatch.host.capture import LineSink
from longwatch.host.process import ProcessSpec
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.process_target import ProcessSpawner, ProcessTarget
from longwatch.supervisor.target import Target

if TYPE_CHECKING:
    from longwatch.supervisor.containers.container_host import ContainerHost


class Streams(NamedTuple):
    """The input and output of a program, as in ProcessSpec. A container has no input, and all its
    output goes to `stdout`.
    """

    stdin: int | None = None
    stdout: LineSink | int | None = 1
    stderr: LineSink | int | None = 2
    since: Callable[[], float] | None = None
    """Called when a container is adopted: returns the wall time from which its output is copied.
    None to copy from now on.
    """


INHERITED_STREAMS = Streams()


class TargetFactory(Protocol):
    """Creates a target for each start."""

    def make(self, plan: ProgramPlan, streams: Streams, env: Mapping[str, str]) -> Target:
        """Create the target of the plan; a process gets `env` added to its own."""

    def facts(self, plan: ProgramPlan) -> dict[str, Any]:
        """Return the facts of this kind for `status` while no run is watched, in plain JSON
        types.
        """


def inherited_streams(_: ProgramPlan) -> Streams:
    """Return streams that share the output of this process."""
    return Streams()


class Targets:
    """Creates the targets of one supervisor. `container_host` is called for the first container."""

    def __init__(
        self, guardian: ProcessSpawner, container_host: Callable[[], ContainerHost]
    ) -> None:
        self._guardian = guardian
        self._container_host = container_host

    def make(self, plan: ProgramPlan, streams: Streams, env: Mapping[str, str]) -> Target:
        if not isinstance(plan.spec, ProcessSpec):
            from longwatch.supervisor.containers.container_target import ContainerTarget  # noqa: PLC0415 - loaded only with containers

            return ContainerTarget(
                plan.spec, host=self._container_host(), streams=streams, stop=plan.stop
            )
        spec = replace(
            plan.spec,
            env={**plan.spec.env, **env},
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return ProcessTarget(spec, guardian=self._guardian)

    def facts(self, plan: ProgramPlan) -> dict[str, Any]:
        if isinstance(plan.spec, ProcessSpec):
            return {}
        host = self._container_host()
        status = "unwatched" if host.is_known else "unknown"
        return {"container": {"id": None, "status": status, **host.status()}}
