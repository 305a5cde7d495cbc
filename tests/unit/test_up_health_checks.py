"""What the health and metrics port of `longwatch up` says, by what the supervisor says of its
programs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from longwatch.app.up import _ConfigFile
from longwatch.app.up_health import ANSWER_TIMEOUT, UpHealth, program_gauges
from longwatch.config.discovery import load_config
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import Settings, load_settings
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.programs import CircuitBreakerTripped
from longwatch.core.health import Aspect, Health, HealthReason
from longwatch.errors import ConfigError, UsageError
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.supervisor import Supervisor
from loopback import free_port
from polling import eventually
from worker_process import parse_metrics

Facts = dict[str, Any]
TRIPPED = CircuitBreakerTripped(program="web", restarts=6, window=60.0, reason="too often")


def program(name: str, **facts: object) -> Facts:
    """What the supervisor says of a program that is up and ready, but for these facts."""
    return {
        "name": name,
        "kind": "command",
        "state": "up",
        "desired": "up",
        "up": True,
        "ready": True,
        "unready_reason": "",
        "breaker": {"phase": "closed"},
        "probes": {},
        "last_end": None,
        **facts,
    }


class SteppedClock(SystemClock):
    """Real time, and more of it when a test says so."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class FakeSupervisor:
    """A supervisor with a real loop, which says of its programs what the test says."""

    def __init__(self) -> None:
        self.started = True
        self.is_shutting_down = False
        self.events = Events()
        self.loop = EventLoopThread()
        self.commands = self
        self.programs: list[Facts] = []
        self.usages: list[Facts] = []
        self.loop.start()

    async def status(self) -> list[Facts]:
        return self.programs

    async def usage(self) -> list[Facts]:
        return self.usages

    def block_loop(self) -> Callable[[], None]:
        """Have the loop hang until the returned function is called."""
        release, hangs = threading.Event(), threading.Event()

        def hang() -> None:
            hangs.set()
            release.wait()

        self.loop.loop().call_soon_threadsafe(hang)
        assert hangs.wait(10)
        return release.set


@pytest.fixture
def supervisor() -> Iterator[FakeSupervisor]:
    fake = FakeSupervisor()
    yield fake
    fake.loop.stop()


def make_health(
    supervisor: FakeSupervisor,
    *,
    settings: Settings | None = None,
    runtime_up: bool | None = None,
    clock: SystemClock | None = None,
) -> UpHealth:
    return UpHealth(
        cast("Supervisor", supervisor),
        clock=clock or SystemClock(),
        settings=lambda: settings or Settings(),
        worker_monitor=lambda: None,
        runtime_up=lambda: runtime_up,
    )


def answer(health: UpHealth, aspect: Aspect) -> tuple[HealthReason, str]:
    """The worst that the checks of an aspect say: why, and in which words."""
    report = Health(health.checks(), SystemClock()).report(aspect)
    worst = (*report.failing, *report.results)[0]
    return worst.reason, worst.text


def series(health: UpHealth) -> dict[str, float]:
    """The page, each series as Prometheus spells it but for the prefix."""
    return {
        f"{name.removeprefix('longwatch_')}{{{','.join(value for _, value in labels)}}}": value
        for (name, labels), value in parse_metrics(health.exposition().decode()).items()
    }


# --- the gauges of one program ---


def gauges(**facts: object) -> dict[str, float]:
    return {
        f"{sample.name.removeprefix('longwatch_')}{{{','.join(sample.labels)}}}": cast(
            "float", sample.value
        )
        for sample in program_gauges(program("web", **facts))
    }


def test_a_program_is_up_ready_and_its_breaker_open_or_not() -> None:
    assert {
        "program_up{web}": 1.0,
        "program_ready{web}": 1.0,
        "program_breaker_open{web}": 0.0,
    } == gauges()
    assert {
        "program_up{web}": 1.0,
        "program_ready{web}": 0.0,
        "program_breaker_open{web}": 0.0,
    } == gauges(ready=False)


@pytest.mark.parametrize(("phase", "value"), [("closed", 0.0), ("half_open", 0.0), ("open", 1.0)])
def test_a_breaker_on_trial_is_not_open(phase: str, value: float) -> None:
    assert value == gauges(breaker={"phase": phase})["program_breaker_open{web}"]


def test_a_probe_has_a_gauge_once_it_has_passed_or_failed() -> None:
    probes = {
        "startup": {"state": "success"},
        "liveness": {"state": "failed"},
        "readiness": {"state": "running"},
    }
    found = gauges(probes=probes)
    assert {"probe_success{web,startup}": 1.0, "probe_success{web,liveness}": 0.0} == {
        name: value for name, value in found.items() if name.startswith("probe")
    }
    assert "probe_success{web,readiness}" not in gauges(probes={"readiness": {"state": "pending"}})


# --- ready ---


def test_ready_is_when_every_program_is_that_is_wanted_up(supervisor: FakeSupervisor) -> None:
    health = make_health(supervisor)
    assert (HealthReason.OK, "") == answer(health, Aspect.READY)
    supervisor.programs = [
        program("web"),
        program("off", desired="stopped", state="stopped", up=False, ready=False),
    ]
    assert (HealthReason.OK, "") == answer(health, Aspect.READY)
    assert 1.0 == series(health)["health_ready{}"]


def test_programs_that_are_not_ready_are_named_with_their_state(
    supervisor: FakeSupervisor,
) -> None:
    supervisor.programs = [
        program("web"),
        program("slow", ready=False),
        program("sick", state="waiting", up=False, ready=False),
    ]
    health = make_health(supervisor)
    assert (HealthReason.FAILED, "not ready: slow (up), sick (waiting)") == answer(
        health, Aspect.READY
    )
    assert 0.0 == series(health)["health_ready{}"]


def test_an_answer_names_so_many_programs_at_most(supervisor: FakeSupervisor) -> None:
    supervisor.programs = [program(f"p{number}", ready=False) for number in range(23)]
    _, text = answer(make_health(supervisor), Aspect.READY)
    assert text.endswith("p19 (up) and 3 more")


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [("clean_exit", HealthReason.OK), ("configuration_error", HealthReason.FAILED)],
)
def test_a_program_that_has_done_its_work_need_not_be_ready(
    supervisor: FakeSupervisor, verdict: str, reason: HealthReason
) -> None:
    supervisor.programs = [
        program("setup", state="ended", up=False, ready=False, last_end={"verdict": verdict})
    ]
    assert reason is answer(make_health(supervisor), Aspect.READY)[0]


def test_processes_that_run_suspects_for_a_while_need_not_be_ready(
    supervisor: FakeSupervisor,
) -> None:
    supervisor.programs = [program("jobs-suspect-1", ready=False)]
    settings = Settings(worker={"jobs": WorkerSettings(target="app:group")})
    assert HealthReason.OK is answer(make_health(supervisor, settings=settings), Aspect.READY)[0]
    assert HealthReason.FAILED is answer(make_health(supervisor), Aspect.READY)[0]


def test_programs_that_report_themselves_why_they_are_not_ready_are_named_with_that(
    supervisor: FakeSupervisor,
) -> None:
    """A runner and a worker do. The status page never counts."""
    supervisor.programs = [
        program("runner", kind="runner", ready=False, unready_reason="a: off, b: off"),
        program("jobs", kind="worker", ready=False, unready_reason="unreachable"),
        program("slow", kind="worker", ready=False, state="starting"),
        program("page", kind="page", ready=False, unready_reason="c: d"),
    ]
    health = make_health(supervisor)
    assert (
        HealthReason.FAILED,
        "not ready: runner (a: off, b: off), jobs (unreachable), slow (starting)",
    ) == answer(health, Aspect.READY)
    found = series(health)
    assert (0.0, 0.0, 0.0) == tuple(
        found[name] for name in ("health_ready{}", "program_ready{runner}", "program_ready{jobs}")
    )


def test_a_supervisor_that_has_not_started_or_stops_is_not_ready(
    supervisor: FakeSupervisor,
) -> None:
    health = make_health(supervisor)
    supervisor.started = False
    assert HealthReason.NOT_STARTED is answer(health, Aspect.READY)[0]
    assert HealthReason.NOT_STARTED is answer(health, Aspect.STARTED)[0]
    assert {} == series(health)
    supervisor.started = supervisor.is_shutting_down = True
    assert HealthReason.DRAINING is answer(health, Aspect.READY)[0]
    assert HealthReason.OK is answer(health, Aspect.STARTED)[0]
    assert 0.0 == series(health)["health_ready{}"]


# --- what programs use ---


def usage(name: str, pid: int, cpu: float | None, memory: int | None = 10) -> Facts:
    return {"name": name, "pid": pid, "cpu_seconds": cpu, "memory_bytes": memory}


def test_memory_is_as_measured_and_cpu_time_goes_on_over_restarts_and_never_back(
    supervisor: FakeSupervisor,
) -> None:
    health = make_health(supervisor)
    measured = [usage("web", 7, 2.0), usage("hidden", 8, None, None)], [usage("web", 7, 1.5)]
    found = []
    for supervisor.usages in (*measured, [usage("web", 9, 0.5, 30)], []):
        page = series(health)
        found.append(
            (page.get("program_cpu_seconds_total{web}"), page.get("program_memory_bytes{web}"))
        )
        assert not any("hidden" in name for name in page)
    assert [(2.0, 10.0), (2.0, 10.0), (2.5, 30.0), (2.5, None)] == found


# --- a loop that hangs ---


def test_a_supervisor_that_does_not_answer_gives_counters_and_no_gauges_soon(
    supervisor: FakeSupervisor,
) -> None:
    supervisor.programs = [program("web")]
    health = make_health(supervisor, runtime_up=True)
    with health.serving(host="127.0.0.1", port=free_port()):
        supervisor.events.emit(TRIPPED)
        assert 1.0 == series(health)["program_up{web}"]
        release = supervisor.block_loop()
        try:
            began = time.monotonic()
            assert {"breaker_trips_total{web}": 1.0} == series(health)
            assert HealthReason.UNREACHABLE is answer(health, Aspect.READY)[0]
            assert 2 * ANSWER_TIMEOUT <= time.monotonic() - began < 6 * ANSWER_TIMEOUT
        finally:
            release()
        assert 1.0 == series(health)["program_up{web}"]


def test_live_is_as_long_as_the_loop_turns(supervisor: FakeSupervisor) -> None:
    """The beat is the loop's own: a loop that hangs gives none, whatever other threads do."""
    clock = SteppedClock()
    health = make_health(supervisor, clock=clock)
    with health.serving(host="127.0.0.1", port=free_port()):
        release = supervisor.block_loop()
        try:
            assert HealthReason.OK is answer(health, Aspect.LIVE)[0]
            clock.ahead += 31.0
            assert HealthReason.STALE is answer(health, Aspect.LIVE)[0]
        finally:
            release()
        assert eventually(lambda: answer(health, Aspect.LIVE)[0] is HealthReason.OK)


# --- the runtime of containers ---


@pytest.mark.parametrize(("runtime_up", "value"), [(True, 1.0), (False, 0.0), (None, None)])
def test_a_container_runtime_has_a_gauge_where_one_is_needed(
    supervisor: FakeSupervisor, *, runtime_up: bool | None, value: float | None
) -> None:
    health = make_health(supervisor, runtime_up=runtime_up)
    assert value == series(health).get("container_runtime_up{}")


def test_a_runtime_is_needed_once_a_container_of_the_file_has_asked_for_it(tmp_path: Path) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text("container.agent.image = 'busybox'")
    config_file = _ConfigFile(lambda: load_config(path, {}, {}), {})
    assert config_file.runtime_up() is None
    host = config_file.container_host()
    assert False is config_file.runtime_up()
    host._known.set()
    assert True is config_file.runtime_up()
    path.write_text("")
    config_file.loaded = load_config(path, {}, {})
    assert config_file.runtime_up() is None


# --- the port ---


def test_a_port_that_is_taken_is_refused_with_the_key_to_change(
    supervisor: FakeSupervisor,
) -> None:
    health, port = make_health(supervisor), free_port()
    with (
        health.serving(host="127.0.0.1", port=port),
        pytest.raises(UsageError, match=rf"\[supervisor\] metrics_port {port} .* is in use; "),
        make_health(supervisor).serving(host="127.0.0.1", port=port),
    ):
        pass


def fault_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "longwatch.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path=path, environ={}, flags={})
    (fault,) = caught.value.faults
    return str(fault).removeprefix(f"{path}: ")


@pytest.mark.parametrize("value", ["0", "65536", "-1", "'on'", "80.5", "true"])
def test_a_port_is_a_number_or_off(tmp_path: Path, value: str) -> None:
    fault = fault_of(tmp_path, f"supervisor.metrics_port = {value}")
    assert fault.startswith(
        'supervisor.metrics_port: must be a whole number from 1 to 65535 or "off", not '
    )


def test_an_empty_host_is_refused(tmp_path: Path) -> None:
    assert 'supervisor.metrics_host: must be text that is not empty, not ""' == fault_of(
        tmp_path, "supervisor.metrics_host = ''"
    )


@pytest.mark.parametrize("autostart", ["true", "false"])
def test_no_program_is_probed_on_the_metrics_port(tmp_path: Path, autostart: str) -> None:
    """The probe would ask us, and we are healthy."""
    fault = fault_of(
        tmp_path,
        f"""
        supervisor.metrics_port = 8080
        [program.web]
        command = "true"
        autostart = {autostart}
        health.path = "/"
        """,
    )
    assert (
        "program.web.health.port: is 8080, as metrics_port of [supervisor] is; give each its own"
        == fault
    )
