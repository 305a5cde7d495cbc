"""How tracing is switched on, and what it costs while it is off."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from longwatch.core import tracing as seam
from longwatch.errors import UsageError
from longwatch.observe import tracing

WORK_WITHOUT_TRACING = """
    import sys
    from longwatch.flow import Flow, Graph, compute, input
    from longwatch.mailbox import open_mailbox, open_store
    from longwatch.observe.tracing import install_if_wanted
    from longwatch.runtime import MainLoop
    import longwatch.workers.worker_process, longwatch.app.runner, longwatch.runner.dispatch

    class Jobs(MainLoop):
        def handle(self, request, context):
            assert context.trace_headers == {}
            return request

    install_if_wanted({})
    with open_store("memory://") as store:
        mailbox = open_mailbox(store, "jobs")
        mailbox.send(1)
        Jobs(requests=mailbox).run(max_iterations=1, wait_time_seconds=0)
        assert mailbox.approximate_count() == 0
        mailbox.send(1)
        assert mailbox.receive()[0].headers == {}
    print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
WORK_WITHOUT_THE_PACKAGE = """
    import sys
    sys.modules["opentelemetry"] = None
    from longwatch.errors import UsageError
    from longwatch.observe import tracing
    try:
        tracing.install()
    except UsageError as error:
        print(error)
"""
WITH_A_LOADED_SDK = """
    from opentelemetry.sdk.trace import TracerProvider
    from longwatch.core import tracing
    from longwatch.observe.tracing import install_if_wanted
    install_if_wanted({"LONGWATCH_TRACING": "off"})
    print(tracing.active())
    install_if_wanted({})
    print(type(tracing.active()).__name__)
"""


def output_of(code: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False
    )
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout.strip()


def test_while_it_is_off_nothing_imports_opentelemetry() -> None:
    assert "[]" == output_of(WORK_WITHOUT_TRACING)


def test_without_the_package_install_says_how_to_get_it() -> None:
    expected = "tracing needs the package opentelemetry; run: pip install 'opentelemetry-api>=1.27'"
    assert expected == output_of(WORK_WITHOUT_THE_PACKAGE)


def test_a_process_with_the_sdk_has_tracing_on_unless_the_variable_says_off() -> None:
    assert ["None", "OpenTelemetryTracer"] == output_of(WITH_A_LOADED_SDK).split("\n")


def test_the_variable_switches_it_on_and_uninstall_off() -> None:
    try:
        tracing.install_if_wanted({"LONGWATCH_TRACING": " ON "})
        assert seam.active() is not None
    finally:
        tracing.uninstall()
    assert seam.active() is None


def test_another_value_of_the_variable_is_refused() -> None:
    with pytest.raises(UsageError, match="LONGWATCH_TRACING must be on or off, not 'perhaps'"):
        tracing.install_if_wanted({"LONGWATCH_TRACING": "perhaps"})


def test_variables_for_a_child_are_those_of_w3c_and_no_other_header() -> None:
    headers = {"traceparent": "1", "tracestate": "2", "baggage": "3", "x-other": "4"}
    expected = {"TRACEPARENT": "1", "TRACESTATE": "2", "BAGGAGE": "3"}
    assert expected == seam.environment(headers)
    assert {} == seam.environment({})
