"""Checks that this machine has what the runner needs, and makes the plan by which `longwatch up`
keeps the runner up.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec

from longwatch.app.startup_checks import check_command, path_problem
from longwatch.config.runner import PREFIX, RunnerSettings, SourceSettings
from longwatch.config.runner_specs import agent_spec, missing_variables
from longwatch.config.settings import RUNNER_PROGRAM, Settings
from longwatch.config.settings_reader import toml_key
from longwatch.core.error_text import os_reason
from longwatch.core.extras import install_command
from longwatch.errors import Fault, UsageError
from longwatch.host.process import ProcessSpec, StopPolicy
from longwatch.runner.policy import AgentSpec
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.plan import ProgramPlan, child_environment
from longwatch.supervisor.probes import NO_PROBES, HeartbeatProbe, ProbePolicy, ProbeSet

SHELL_EXAMPLE = '["sh", "-c", "…"]'
EXTRA_GRACE = 10.0
"""Seconds between the end of the drain with the grace of agents and the kill of the runner."""
DIGEST_VARIABLE = f"{PREFIX}SETTINGS_DIGEST"
"""The variable with a digest of the settings. It changes with them, so that a reload restarts the
runner.
"""
_FILES = ("token_file", "ca_file", "cert_file", "key_file")
_LIBRARIES = {"sse": ("aiohttp", "runner"), "mcp": ("mcp", "mcp")}


def runner_plan(settings: Settings, *, config: Path, environ: Mapping[str, str]) -> ProgramPlan:
    """The plan of `longwatch runner` on this file. Its ports are off unless they are set."""
    runner = settings.runner
    assert runner is not None
    options = [
        word
        for option, port in (
            ("--health-port", runner.health_port),
            ("--metrics-port", runner.metrics_port),
        )
        if port is None
        for word in (option, "off")
    ]
    level = settings.supervisor.log.level.value
    own = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    own[DIGEST_VARIABLE] = hashlib.sha256(msgspec.json.encode(runner)).hexdigest()[:16]
    return ProgramPlan(
        name=RUNNER_PROGRAM,
        spec=ProcessSpec(
            argv=(
                *(sys.executable, "-m", "longwatch", "runner", "--config", str(config)),
                *(*options, "--log-level", level, "--state-dir", "off"),
            ),
            env=child_environment(environ, own),
            cwd=str(config.parent),
        ),
        stop=StopPolicy(
            grace=runner.shutdown_timeout + runner.agent.stop_grace + EXTRA_GRACE,
        ),
        probes=ProbeSet(liveness=ProbePolicy(probe=HeartbeatProbe()))
        if settings.supervisor.health_checks
        else NO_PROBES,
        readiness=Readiness.NOTIFY,
    )


def runner_faults(
    runner: RunnerSettings, *, base: Path, environ: Mapping[str, str]
) -> Iterator[Fault]:
    """Yield everything that this machine lacks. `where` begins at the table of the runner."""
    for name, source in runner.source.items():
        for fault in _source_faults(source, base, environ):
            yield Fault(f"source.{toml_key(name)}.{fault.where}", fault.problem, fault.cure)
    agent = agent_spec(runner.agent, base=base)
    try:
        check_command(
            agent.command,
            cwd=base,
            env=agent_environment(agent, environ),
            shell_example=SHELL_EXAMPLE,
        )
    except UsageError as error:
        yield Fault("agent.command", str(error))
    if agent.prompt is not None and (problem := _file_problem(agent.prompt)):
        yield Fault("agent.prompt", f"{str(agent.prompt)!r} {problem}", "name a file that is there")
    if problem := _workspace_problem(agent.workspace):
        yield Fault(
            "agent.workspace",
            f"{str(agent.workspace)!r} {problem}",
            "name a directory that this user may write to",
        )


def agent_environment(agent: AgentSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an agent, without those of its run."""
    passed = {name: environ[name] for name in agent.env_names if name in environ}
    return {**passed, **agent.env}


def make_workspace(root: Path) -> None:
    """Make the directory of the workspaces. Raises UsageError if that fails."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the workspace {str(root)!r} ({os_reason(error)}); name a directory that "
            "this user may write to as workspace of [runner.agent]"
        ) from None


def store_url(url: str, base: Path) -> str:
    """The URL of a store with the path of a SQLite file made absolute."""
    scheme, _, path = url.partition(":///")
    if scheme.lower() != "sqlite" or path.startswith("/"):
        return url
    return f"{scheme}:///{quote(str(base))}/{path}"


def _source_faults(
    source: SourceSettings, base: Path, environ: Mapping[str, str]
) -> Iterator[Fault]:
    for header, variable in missing_variables(source, environ):
        yield Fault(
            f"headers.{toml_key(header)}",
            f"takes its value from the variable {variable}, which is not set",
            "set it, or name another",
        )
    for key in _FILES:
        path = getattr(source, key)
        if path is not None and (problem := _file_problem(base / path)):
            yield Fault(key, f"{str(base / path)!r} {problem}", "name a file that is there")
    library, extra = _LIBRARIES[source.kind]
    if find_spec(library) is None:
        yield Fault(
            "kind",
            f"is {source.kind!r} and needs {library}, which is not installed",
            f"run: {install_command(extra)}",
        )


def _file_problem(path: Path) -> str:
    if problem := path_problem(path):
        return problem
    if path.is_dir():
        return "is a directory"
    return "" if os.access(path, os.R_OK) else "cannot be read (permission denied)"


def _workspace_problem(path: Path) -> str:
    """Why no workspace can be made there; empty if one can."""
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not there.is_dir():
        return "is not a directory" if there == path else f"is below {str(there)!r}, a file"
    return "" if os.access(there, os.W_OK | os.X_OK) else "is not writable (permission denied)"
