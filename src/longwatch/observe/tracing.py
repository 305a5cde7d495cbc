"""Switches OpenTelemetry on: `install()` in your program, LONGWATCH_TRACING for the commands.

Nothing here imports OpenTelemetry before tracing is switched on. `core/tracing.py` says which spans
there are, `observe/opentelemetry_tracer.py` makes them.

How to switch it on
    your own program           configure OpenTelemetry, then call `install()`
    worker processes           run `opentelemetry-instrument longwatch worker …`, or configure the
    and the runner             SDK in the module of your loops. Tracing is on as soon as the process
                               has loaded the SDK.
    LONGWATCH_TRACING=on       on also without the SDK: traces of others are passed on
    LONGWATCH_TRACING=off      off in any case

The environment is read where a process starts, never at import. Whether an SDK is configured is
asked of `sys.modules`, so a process without it pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from longwatch.core import tracing
from longwatch.core.extras import install_command
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

VARIABLE = "LONGWATCH_TRACING"
_SDK_MODULE = "opentelemetry.sdk.trace"


def install(tracer_provider: TracerProvider | None = None) -> None:
    """Switch tracing on in this process, with this provider or the global one of OpenTelemetry.

    The global one may be set later. A second call replaces the first. Raises UsageError if
    OpenTelemetry is not installed.
    """
    try:
        from longwatch.observe.opentelemetry_tracer import OpenTelemetryTracer  # noqa: PLC0415 - only for tracing
    except ModuleNotFoundError as error:
        raise UsageError(
            f"tracing needs the package {error.name}; run: {install_command('otel')}"
        ) from None
    tracing.install(OpenTelemetryTracer(tracer_provider))


def uninstall() -> None:
    """Switch tracing off. Open spans end as usual."""
    tracing.install(None)


def install_if_wanted(environ: Mapping[str, str]) -> None:
    """Switch tracing on in a process of Longwatch, by LONGWATCH_TRACING; without it, if the process
    has loaded the SDK. Raises UsageError for another value than on, off or nothing.
    """
    wanted = environ.get(VARIABLE, "").strip().lower()
    if wanted not in {"", "on", "off"}:
        raise UsageError(f"{VARIABLE} must be on or off, not {ascii(wanted)[:100]}")
    if wanted == "on" or (not wanted and _SDK_MODULE in sys.modules):
        install()


def flush(timeout: float) -> None:
    """Export the spans that ended, before the process is ended. Blocks for up to `timeout` seconds.
    Does nothing while tracing is off.
    """
    if tracing.active() is not None:
        from longwatch.observe.opentelemetry_tracer import flush_provider  # noqa: PLC0415 - only for tracing

        flush_provider(timeout)
