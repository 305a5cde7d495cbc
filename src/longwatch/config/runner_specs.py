"""The settings of the runner as the values that it is made of (`runner/policy.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from longwatch.config.fields import argv
from longwatch.config.runner import (
    AgentSettings,
    EnvironmentReference,
    RunnerSettings,
    SourceSettings,
)
from longwatch.core.masking import MASK, mask_mapping
from longwatch.host.process import ResourceLimits
from longwatch.runner.health import ProcessLimits
from longwatch.runner.policy import (
    DAY,
    AgentSpec,
    OutputCheck,
    RunnerPolicy,
    Severity,
    SourceKind,
    SourceSpec,
    Subscription,
)


def runner_policy(settings: RunnerSettings) -> RunnerPolicy:
    return RunnerPolicy(
        agent_timeout=_none_if_off(settings.agent_timeout),
        progress_timeout=_none_if_off(settings.progress_timeout),
        max_queue_age=_none_if_off(settings.max_queue_age),
        queue_sweep_interval=settings.queue_sweep_interval,
        shutdown_timeout=settings.shutdown_timeout,
        reconnect_initial_delay=settings.sse_reconnect_initial_delay,
        reconnect_max_delay=settings.sse_reconnect_max_delay,
        read_timeout=settings.sse_read_timeout,
        severity_threshold=Severity(settings.severity_threshold),
        max_concurrent_agents=settings.max_concurrent_agents,
        max_concurrent_per_source=settings.max_concurrent_per_source,
        source_queue_size=settings.source_queue_size,
        overflow=settings.queue_overflow_policy,
        dedup_window=_none_if_off(settings.dedup_window) or 0.0,
        max_attempts=settings.max_attempts,
        work_breaker_failures=settings.work_breaker_failures,
        work_breaker_cooldown=settings.work_breaker_cooldown,
        breaker_affects_readiness=settings.breaker_affects_readiness,
        alert_after_failures=settings.alert_after_failures,
        max_event_bytes=settings.max_event_bytes,
        run_retention=settings.run_retention_days * DAY,
        event_retention=settings.event_retention_days * DAY,
        retry_delay=settings.retry_delay,
    )


def source_spec(
    name: str, settings: SourceSettings, *, base: Path, environ: Mapping[str, str]
) -> SourceSpec:
    """The source with its secrets; a variable that is not set is empty here, and a fault of
    `missing_variables`.
    """
    return SourceSpec(
        name=name,
        url=settings.url,
        kind=SourceKind(settings.kind),
        enabled=settings.enabled,
        headers={
            header: value if isinstance(value, str) else environ.get(value.env, "")
            for header, value in settings.headers.items()
        },
        token_file=_below(base, settings.token_file),
        ca_file=_below(base, settings.ca_file),
        cert_file=_below(base, settings.cert_file),
        key_file=_below(base, settings.key_file),
        labels=dict(settings.labels),
        subscription=Subscription(
            tool=settings.subscribe.tool,
            arguments=settings.subscribe.arguments,
            logger=settings.logger,
        ),
    )


def missing_variables(
    settings: SourceSettings, environ: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The headers whose variable is not set, each with the variable."""
    for header, value in settings.headers.items():
        if isinstance(value, EnvironmentReference) and not environ.get(value.env):
            yield header, value.env


def agent_spec(settings: AgentSettings, *, base: Path) -> AgentSpec:
    success, limits = settings.success, settings.limits
    program, *arguments = settings.argv
    return AgentSpec(
        command=(str(base / program) if "/" in program else program, *arguments),
        workspace=base / settings.workspace,
        prompt=_below(base, settings.prompt),
        success=None
        if success is None
        else OutputCheck(file=success.file, min_bytes=success.min_bytes),
        env_names=tuple(settings.env_names),
        env=dict(settings.env),
        limits=ResourceLimits(
            memory=limits.memory_bytes, open_files=limits.open_files, nice=limits.nice
        ),
        stop_grace=settings.stop_grace,
        max_output_bytes=settings.max_output_bytes,
    )


def process_limits(settings: RunnerSettings) -> ProcessLimits:
    """The limits above which the process of the runner counts as unhealthy."""
    counts = (settings.max_threads, settings.max_tasks, settings.max_rss_mb)
    threads, tasks, rss_mb = (None if isinstance(each, str) else each for each in counts)
    return ProcessLimits(threads=threads, tasks=tasks, rss_mb=rss_mb)


def masked_runner_settings(settings: RunnerSettings) -> dict[str, object]:
    """The settings in effect as plain values, for the log. No value of a header is shown."""
    plain: dict[str, Any] = msgspec.to_builtins(settings)
    for source in plain["source"].values():
        source["headers"] = {
            name: value if isinstance(value, dict) else MASK
            for name, value in source["headers"].items()
        }
    plain["agent"]["command"] = argv(plain["agent"]["command"])
    headers = {name: source.pop("headers") for name, source in plain["source"].items()}
    masked: dict[str, Any] = mask_mapping(plain)
    for name, shown in headers.items():
        masked["source"][name]["headers"] = shown
    return masked


def _none_if_off(value: float | str) -> float | None:
    return None if isinstance(value, str) else value


def _below(base: Path, path: str | None) -> Path | None:
    return None if path is None else base / path
