"""ContainerMonitor over a runtime in memory: registry, manifests, commands, many containers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.containers import (
    ContainerRegistryLoaded,
    ContainerRegistryRejected,
    ContainerRegistryWarning,
    ContainerRuntimeUnavailable,
)
from longwatch.core.events.programs import ProgramAdopted, ProgramStarted
from longwatch.errors import GuardianLostError, TryAgainError, UsageError
from longwatch.supervisor.containers import live_container
from longwatch.supervisor.containers.monitor import ContainerMonitor, MonitorConfig
from longwatch.supervisor.containers.runtime import ContainerState, RuntimeAction
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.target_factory import Streams
from longwatch.testing import FakeRuntime, RecordingObserver
from polling import eventually

T = TypeVar("T")
Facts = dict[str, Any]

POLL = 0.05
TIMEOUT = 20.0


def no_streams(_: ProgramPlan) -> Streams:
    return Streams(None, None, None)


class MonitorRig:
    """A registry in a directory, a runtime, and a monitor over both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "agents.json"
        self.observer = RecordingObserver()
        self.runtime = FakeRuntime(SystemClock())
        self.runtime.add_image("agent:1")
        self.monitor = self.new_monitor()

    def new_monitor(self, **config: Any) -> ContainerMonitor:
        return ContainerMonitor(
            MonitorConfig(registry=self.registry, poll_interval=POLL, **config),
            state_dir=self.folder / "state",
            events=Events(self.observer),
            connect=self.runtime.connect,
            streams=no_streams,
        )

    def write(self, **agents: object) -> None:
        """The registry, in one piece."""
        half = self.registry.with_suffix(".half")
        half.write_text(json.dumps(agents), encoding="utf-8")
        half.replace(self.registry)

    def add_manifest(self, name: str, **content: object) -> Path:
        path = self.folder / "repos" / "r" / name / "manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half")
        half.write_text(json.dumps(content), encoding="utf-8")
        return half.replace(path)

    def agent(self, name: str, **more: object) -> Facts:
        self.add_manifest(name)
        return {"type": "agent", "agentName": name, "repoName": "r", "image": "agent:1", **more}

    def on_loop(self, act: Callable[[], T]) -> T:
        supervisor = self.monitor._supervisor
        assert supervisor is not None

        async def acted() -> T:
            return act()

        return supervisor.loop.call(acted(), timeout=TIMEOUT)

    def status(self, name: str) -> Facts:
        found = [facts for facts in self.monitor.status() if facts["name"] == name]
        return found[0] if found else {}

    def names(self) -> list[str]:
        return [facts["name"] for facts in self.monitor.status()]

    def comes_to(self, name: str, **wanted: object) -> bool:
        return eventually(
            lambda: wanted.items() <= self.status(name).items(),
        )

    def is_up(self, name: str) -> bool:
        state = self.runtime.state(name)
        return state is not None and state.is_up


@pytest.fixture
def rig(tmp_path: Path) -> MonitorRig:
    return MonitorRig(tmp_path)


@contextmanager
def running(rig: MonitorRig, *names: str) -> Iterator[MonitorRig]:
    if names:
        rig.write(**{name: rig.agent(name) for name in names})
    with rig.monitor:
        for name in names:
            assert rig.comes_to(name, state="up")
        yield rig


def test_a_config_without_registry_and_plans_is_refused() -> None:
    with pytest.raises(UsageError, match="registry"):
        ContainerMonitor(MonitorConfig())


def test_agents_of_the_registry_are_started_and_run_on_when_the_monitor_stops(
    rig: MonitorRig,
) -> None:
    with running(rig, "a", "b"):
        pass
    assert (True, True) == (rig.is_up("a"), rig.is_up("b"))


def test_stop_on_exit_stops_them(rig: MonitorRig) -> None:
    rig.monitor = rig.new_monitor(stop_on_exit=True)
    with running(rig, "a"):
        pass
    assert not rig.is_up("a")


def test_a_second_monitor_adopts_what_the_first_left(rig: MonitorRig) -> None:
    with running(rig, "a"):
        first = rig.runtime.state("a")
    rig.monitor = rig.new_monitor()
    with running(rig):
        assert rig.comes_to("a", state="up")
    assert (first, 1, 1) == (
        rig.runtime.state("a"),
        len(rig.observer.of(ProgramAdopted)),
        len(rig.observer.of(ProgramStarted)),
    )


def test_an_agent_that_is_added_is_started(rig: MonitorRig) -> None:
    with running(rig, "a"):
        rig.write(a=rig.agent("a"), b=rig.agent("b"))
        assert rig.comes_to("b", state="up")
        assert rig.status("a")["total_restarts"] == 0


def test_an_agent_that_is_removed_is_not_monitored_and_runs_on(rig: MonitorRig) -> None:
    with running(rig, "a", "b"):
        rig.write(a=rig.agent("a"))
        assert eventually(lambda: ["a"] == rig.names())
        assert rig.is_up("b")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": ', "\x00", "null"])
def test_a_corrupt_registry_keeps_the_former_targets_and_is_reported_once(
    rig: MonitorRig, text: str
) -> None:
    with running(rig, "a"):
        rig.registry.write_text(text, encoding="utf-8")
        assert eventually(lambda: bool(rig.observer.of(ContainerRegistryRejected)))
        for _ in range(3):
            stat = rig.registry.stat()
            os.utime(rig.registry, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
            assert eventually(
                lambda: rig.monitor._watch is not None and not rig.monitor._watch.has_changed()
            )
        assert (["a"], True) == (rig.names(), rig.is_up("a"))
        assert 1 == len(rig.observer.of(ContainerRegistryRejected))
        rig.write(a=rig.agent("a"), b=rig.agent("b"))
        assert rig.comes_to("b", state="up")


def test_a_registry_that_comes_later_is_followed(rig: MonitorRig) -> None:
    with running(rig):
        assert [] == rig.names()
        assert 1 == len(rig.observer.of(ContainerRegistryRejected))
        rig.write(a=rig.agent("a"))
        assert rig.comes_to("a", state="up")
    assert [("a",)] == [event.agents for event in rig.observer.of(ContainerRegistryLoaded)]


def test_a_missing_manifest_trips_its_agent_alone_and_reset_readopts_it(rig: MonitorRig) -> None:
    bad = rig.agent("b")
    (rig.folder / "repos/r/b/manifest.json").unlink()
    rig.write(a=rig.agent("a"), b=bad)
    with running(rig):
        assert rig.comes_to("a", state="up")
        assert rig.comes_to("b", state="broken")
        assert "manifest" in rig.status("b")["breaker"]["reason"]
        assert None is rig.status("b")["breaker"]["cooldown_left"]
        rig.add_manifest("b")
        rig.monitor.reset("b")
        assert rig.comes_to("b", state="up")


def test_a_manifest_that_breaks_leaves_the_container_running(rig: MonitorRig) -> None:
    with running(rig, "a"):
        (rig.folder / "repos/r/a/manifest.json").write_text("{", encoding="utf-8")
        assert rig.comes_to("a", state="broken")
        assert rig.is_up("a")
        rig.add_manifest("a")
        rig.monitor.reset("a")
        assert rig.comes_to("a", state="up")
    assert 1 == len(rig.observer.of(ProgramStarted))


def test_new_probes_in_a_manifest_are_followed_without_a_restart(rig: MonitorRig) -> None:
    rig.runtime.script("a").files = {"/code/ready.sh"}
    rig.runtime.on_exec("a", lambda *_: 1)
    with running(rig, "a"):
        assert rig.status("a")["ready"]
        rig.add_manifest("a", health={"readiness": {"script": "ready.sh", "interval": 0.05}})
        assert eventually(
            lambda: rig.status("a").get("probes", {}).get("readiness", {}).get("state") == "failed"
        )
        assert (False, 0) == (rig.status("a")["ready"], rig.status("a")["total_restarts"])


def test_another_image_in_the_registry_makes_the_container_anew(rig: MonitorRig) -> None:
    rig.runtime.add_image("agent:2")
    with running(rig, "a"):
        first = rig.runtime.state("a")
        rig.write(a=rig.agent("a") | {"image": "agent:2"})
        assert eventually(lambda: rig.is_up("a") and rig.runtime.state("a") != first)
        assert "agent:2" == rig.status("a")["image"]


def test_bad_numbers_of_a_manifest_are_warned_about_once(rig: MonitorRig) -> None:
    with running(rig, "a"):
        rig.add_manifest("a", health={"liveness": {"tcp": {"port": 1}, "timeout": -3}})
        assert eventually(lambda: bool(rig.observer.of(ContainerRegistryWarning)))
        rig.write(a=rig.agent("a"), b=rig.agent("b"))
        rig.add_manifest("a", health={"liveness": {"tcp": {"port": 1}, "timeout": -3}})
        assert rig.comes_to("b", state="up")
    warnings = [event.problem for event in rig.observer.of(ContainerRegistryWarning)]
    assert len(warnings) == len(set(warnings))
    assert "timeout" in warnings[0]


def test_clear_targets_stops_monitoring_and_leaves_all_running(rig: MonitorRig) -> None:
    with running(rig, "a", "b"):
        rig.monitor.clear_targets()
        assert [] == rig.names()
        assert (True, True) == (rig.is_up("a"), rig.is_up("b"))


def test_a_container_that_a_person_starts_again_is_adopted(rig: MonitorRig) -> None:
    with running(rig, "a"):
        rig.on_loop(lambda: rig.runtime.operator_stop("a"))
        assert rig.comes_to("a", state="stopped", desired="stopped")
        rig.on_loop(lambda: rig.runtime.operator_start("a"))
        assert rig.comes_to("a", state="up", desired="up")
    assert 1 == len(rig.observer.of(ProgramStarted))


def test_a_stop_that_the_runtime_reports_after_the_end_counts_all_the_same(
    rig: MonitorRig,
) -> None:
    with running(rig, "a"):
        daemon = rig.runtime._daemon
        rig.on_loop(lambda: rig.runtime.end("a", 143))
        assert rig.comes_to("a", state="waiting")
        rig.on_loop(lambda: daemon.emit(RuntimeAction.STOP, daemon.expect("a")))
        assert rig.comes_to("a", state="stopped", desired="stopped")
    assert 1 == len(rig.observer.of(ProgramStarted))


def test_a_removal_that_is_reported_as_a_stop_after_the_end_is_no_stop(rig: MonitorRig) -> None:
    with running(rig, "a"):
        daemon = rig.runtime._daemon
        first = rig.on_loop(lambda: daemon.expect("a"))
        rig.on_loop(lambda: rig.runtime.end("a", 137))
        assert rig.comes_to("a", state="waiting")

        def remove() -> None:
            daemon.emit(RuntimeAction.STOP, first)
            daemon.remove(first)

        rig.on_loop(remove)
        assert rig.comes_to("a", state="up", desired="up")
        assert rig.on_loop(lambda: daemon.expect("a").id) != first.id


def test_a_lost_guardian_ends_a_monitor_of_containers_and_leaves_them_running(
    rig: MonitorRig,
) -> None:
    with running(rig, "a"):
        supervisor = rig.monitor._supervisor
        assert supervisor is not None
        supervisor.guardian.abort()
        with pytest.raises(GuardianLostError):
            supervisor.wait(TIMEOUT)
        assert rig.is_up("a")


def test_a_stop_that_did_not_get_through_is_repeated_and_not_undone(
    rig: MonitorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_container, "KILL_TIMEOUT", 0.1)
    rig.write(a=rig.agent("a", stopGrace=0.1))
    with running(rig):
        assert rig.comes_to("a", state="up")
        rig.on_loop(rig.runtime.go_down)
        supervisor = rig.monitor._supervisor
        assert supervisor is not None
        with pytest.raises(TryAgainError, match="a: it may still run: "):
            supervisor.stop_programs("a")
        assert rig.is_up("a")
        rig.on_loop(rig.runtime.come_back)
        assert eventually(lambda: not rig.is_up("a"))
        assert rig.comes_to("a", state="stopped", desired="stopped")


def test_a_container_whose_process_is_gone_is_made_anew(rig: MonitorRig) -> None:
    """As after kill -9 of its monitor process: the runtime goes on saying that it runs."""
    with running(rig, "a"):
        daemon = rig.runtime._daemon
        first = rig.on_loop(lambda: daemon.expect("a"))
        supervisor: Any = rig.monitor._supervisor
        life = supervisor._registry.programs["a"].program.run.target
        gone = replace(life._state, is_local=True, pid=2**22 + 1)
        connected = supervisor._container_host.connected
        inspect = connected.inspect

        async def find_corpse(name: str) -> ContainerState | None:
            state: ContainerState | None = await inspect(name)
            return gone if state is not None and state.id == first.id else state

        connected.inspect = find_corpse
        life._state = gone
        assert rig.comes_to("a", total_restarts=1)
        assert eventually(lambda: rig.on_loop(lambda: daemon.expect("a").id) != first.id)


def test_one_slow_start_delays_none_of_thirty(rig: MonitorRig) -> None:
    names = [f"agent-{number}" for number in range(30)]
    gate = rig.runtime.start_gate("agent-7")
    rig.write(**{name: rig.agent(name) for name in names})
    with running(rig):
        for name in names:
            if name != "agent-7":
                assert rig.comes_to(name, state="up")
        assert "starting" == rig.status("agent-7")["state"]
        rig.on_loop(gate.set)
        assert rig.comes_to("agent-7", state="up")


def test_without_a_runtime_one_event_says_so_and_nothing_is_started(rig: MonitorRig) -> None:
    rig.runtime.go_down()
    rig.write(a=rig.agent("a"))
    with running(rig):
        assert eventually(lambda: bool(rig.observer.of(ContainerRuntimeUnavailable)))
        assert rig.comes_to("a", state="starting", total_restarts=0)
        calls = rig.runtime.calls["create"]
    assert (0, 1) == (calls, len(rig.observer.of(ContainerRuntimeUnavailable)))


def test_the_record_of_a_target_has_what_the_page_shows(rig: MonitorRig) -> None:
    with running(rig, "a"):
        facts = rig.status("a")
    assert {
        "name": "a",
        "agent": "a",
        "repo": "r",
        "manifest_path": str(rig.folder / "repos/r/a/manifest.json"),
        "restarting": False,
        "total_restarts": 0,
        "last_error": "",
        "kind": "container",
    }.items() <= facts.items()
    assert {"restart_history", "breaker", "last_start", "last_seen_running", "probes"} <= set(facts)
    json.dumps(facts)


def test_clear_liveness_state_forgets_the_crash_loops(rig: MonitorRig) -> None:
    rig.runtime.script("a").files = {"/code/live.sh"}
    rig.runtime.on_exec("a", lambda *_: 1)
    agent = rig.agent("a")
    rig.add_manifest(
        "a",
        health={"liveness": {"script": "live.sh", "interval": 0.02, "failureThreshold": 1}},
    )
    rig.write(a=agent)
    with running(rig):
        assert rig.comes_to("a", crash_loop_restarts=1)
        rig.runtime.on_exec("a", lambda *_: 0)
        rig.monitor.clear_liveness_state("a")
        assert rig.comes_to("a", crash_loop_restarts=0, ready=True)
