from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pytest

from longwatch.core.clock import SystemClock
from longwatch.errors import RuntimeRefusedError, RuntimeUnreachableError
from longwatch.supervisor.containers.container_spec import (
    ContainerSpec,
    PublishedPort,
    PullPolicy,
)
from longwatch.supervisor.containers.runtime import (
    OWNER_LABEL,
    ContainerRuntime,
    ContainerState,
    ContainerStatus,
    RuntimeAction,
    RuntimeEvent,
)
from longwatch.testing import FakeClock, FakeRuntime
from longwatch.testing.fake_container import ExecResult
from longwatch.testing.target_suite.kit import RecordedLines, turn_loop

P = ParamSpec("P")
T = TypeVar("T")

LABELS = {OWNER_LABEL: "ours"}
WEB = ContainerSpec(name="web", image="image")


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 10.0))

    return run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def runtime(clock: FakeClock) -> FakeRuntime:
    made = FakeRuntime(clock)
    made.add_image("image")
    return made


async def started(runtime: FakeRuntime, spec: ContainerSpec = WEB) -> str:
    container = await runtime.create(spec, LABELS)
    await runtime.start(container)
    return container


def state(runtime: FakeRuntime, name: str = "web") -> ContainerState:
    found = runtime.state(name)
    assert found is not None
    return found


async def taken(stream: AsyncIterator[T], count: int) -> list[T]:
    return [await anext(stream) for _ in range(count)]


async def actions(stream: AsyncIterator[RuntimeEvent], count: int) -> list[str]:
    return [event.action.value for event in await taken(stream, count)]


async def run_command(runtime: FakeRuntime, *argv: str, output: RecordedLines | None = None) -> int:
    sink = output or RecordedLines()
    return (await runtime.exec("web", argv, cwd=None, env={}, output=sink)).exit_code


def begin_command(runtime: FakeRuntime, *argv: str) -> asyncio.Task[int]:
    return asyncio.ensure_future(run_command(runtime, *argv))


async def never() -> int:
    await asyncio.Event().wait()
    return 0


# --- containers ---


def test_the_fake_is_a_container_runtime(runtime: FakeRuntime) -> None:
    seam: ContainerRuntime = runtime
    assert "fake 1.0" == seam.name
    assert not seam.is_local


@on_loop
async def test_a_made_container_does_not_run_until_it_is_started(
    runtime: FakeRuntime, clock: FakeClock
) -> None:
    container = await runtime.create(WEB, LABELS)
    made = await runtime.inspect(container)
    assert made == await runtime.inspect("web")
    assert made is not None
    assert (ContainerStatus.STOPPED, 0, 0.0, "image", "no") == (
        made.status,
        made.pid,
        made.started_at,
        made.image,
        made.restart_policy,
    )
    await runtime.start(container)
    running = state(runtime)
    assert running.is_up
    assert clock.wall() == running.started_at
    await runtime.start(container)
    assert running == state(runtime), "a start of one that runs changes nothing"


@on_loop
async def test_a_made_up_pid_is_that_of_no_process_and_a_real_one_can_be_given(
    runtime: FakeRuntime,
) -> None:
    await started(runtime)
    with pytest.raises(ProcessLookupError):
        os.kill(state(runtime).pid, 0)
    runtime.script("real").pid = os.getpid()
    await started(runtime, ContainerSpec(name="real", image="image"))
    assert os.getpid() == state(runtime, "real").pid


@on_loop
async def test_a_name_is_taken_until_its_container_is_removed(runtime: FakeRuntime) -> None:
    container = await runtime.create(WEB, LABELS)
    with pytest.raises(RuntimeRefusedError, match="web is in use") as refused:
        await runtime.create(WEB, LABELS)
    assert 409 == refused.value.status
    await runtime.remove(container)
    await runtime.remove(container)
    assert container != await runtime.create(WEB, LABELS)


@pytest.mark.parametrize(
    ("policy", "has_image", "pullable", "pulls"),
    [
        (PullPolicy.NEVER, True, True, 0),
        (PullPolicy.MISSING, True, True, 0),
        (PullPolicy.MISSING, False, True, 1),
        (PullPolicy.ALWAYS, True, True, 1),
    ],
)
def test_an_image_is_pulled_as_the_spec_says(
    policy: PullPolicy, pulls: int, *, has_image: bool, pullable: bool
) -> None:
    runtime = FakeRuntime(FakeClock(), pullable=pullable)
    if has_image:
        runtime.add_image("image")
    asyncio.run(runtime.create(ContainerSpec(name="web", image="image", pull=policy), LABELS))
    assert ["image"] * pulls == list(runtime.pulls)


@pytest.mark.parametrize(
    ("policy", "has_image", "pullable"),
    [
        (PullPolicy.NEVER, False, True),
        (PullPolicy.MISSING, False, False),
        (PullPolicy.ALWAYS, True, False),
    ],
)
def test_an_image_that_is_not_to_be_had_is_refused(
    policy: PullPolicy, *, has_image: bool, pullable: bool
) -> None:
    runtime = FakeRuntime(FakeClock(), pullable=pullable)
    if has_image:
        runtime.add_image("image")
    spec = ContainerSpec(name="web", image="image", pull=policy)
    with pytest.raises(RuntimeRefusedError, match="no such image") as refused:
        asyncio.run(runtime.create(spec, LABELS))
    assert 404 == refused.value.status
    assert [] == runtime.names()


@on_loop
async def test_a_list_has_the_containers_of_one_owner_and_four_fields_of_each(
    runtime: FakeRuntime,
) -> None:
    runtime.add_foreign("other")
    runtime.add_foreign("theirs", labels={OWNER_LABEL: "theirs"}, running=False)
    container = await started(runtime)
    [listed] = await runtime.list("ours")
    assert (
        ContainerState(id=container, name="web", status=ContainerStatus.RUNNING, labels=LABELS)
        == listed
    )
    assert ["other", "theirs", "web"] == list(runtime.names())
    assert state(runtime, "other").is_up
    assert not state(runtime, "theirs").is_up


@on_loop
async def test_an_inspection_shows_ports_and_an_address_while_it_runs(runtime: FakeRuntime) -> None:
    ports = (PublishedPort(host_port=8080, container_port=80),)
    container = await runtime.create(ContainerSpec(name="web", image="image", ports=ports), LABELS)
    assert "" == state(runtime).address
    await runtime.start(container)
    assert {80: ("127.0.0.1", 8080)} == state(runtime).published_ports
    assert "127.0.0.1" == state(runtime).address


@pytest.mark.parametrize("call", ["start", "exec", "has_file", "logs"])
def test_what_is_gone_is_refused(runtime: FakeRuntime, call: str) -> None:
    async def ask() -> None:
        match call:
            case "start":
                await runtime.start("web")
            case "exec":
                await run_command(runtime, "true")
            case "has_file":
                await runtime.has_file("web", "/x")
            case _:
                await anext(runtime.logs("web", since=0.0))

    with pytest.raises(RuntimeRefusedError, match="no container web; there are: none") as refused:
        asyncio.run(ask())
    assert 404 == refused.value.status


@on_loop
async def test_inspecting_signalling_and_removing_what_is_gone_does_nothing(
    runtime: FakeRuntime,
) -> None:
    assert await runtime.inspect("web") is None
    await runtime.signal("web", signal.SIGTERM)
    await runtime.remove("web")
    assert [] == list(runtime.signals("web"))


# --- lives ---


@pytest.mark.parametrize(
    ("signum", "exit_code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGQUIT, 131), (signal.SIGKILL, 137)],
)
def test_a_signal_ends_a_container(
    runtime: FakeRuntime, clock: FakeClock, signum: int, exit_code: int
) -> None:
    async def run() -> None:
        container = await started(runtime)
        await runtime.signal(container, signum)
        await runtime.signal(container, signum)

    asyncio.run(run())
    ended = state(runtime)
    assert (False, exit_code, 0, clock.wall()) == (
        ended.is_up,
        ended.exit_code,
        ended.pid,
        ended.finished_at,
    )
    assert [signum] == list(runtime.signals("web")), "one that has ended gets no signal"


@on_loop
async def test_a_container_that_ignores_term_is_ended_by_kill(runtime: FakeRuntime) -> None:
    script = runtime.script("web")
    seen: list[int] = []
    script.ignores_term, script.on_signal = True, seen.append
    container = await started(runtime)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        await runtime.signal(container, signum)
        assert state(runtime).is_up
    await runtime.signal(container, signal.SIGKILL)
    assert 137 == state(runtime).exit_code
    assert [signal.SIGTERM, signal.SIGINT, signal.SIGHUP] == seen
    assert [*seen, signal.SIGKILL] == list(runtime.signals("web"))


@on_loop
async def test_a_container_can_exit_with_a_code_of_its_own_on_term(runtime: FakeRuntime) -> None:
    runtime.script("web").term_exit_code = 0
    container = await started(runtime)
    await runtime.signal(container, signal.SIGTERM)
    assert (False, 0) == (state(runtime).is_up, state(runtime).exit_code)


@on_loop
async def test_a_container_that_exits_at_start_has_ended_when_start_returns(
    runtime: FakeRuntime,
) -> None:
    script = runtime.script("web")
    script.exits_at_start, script.prints = 3, ["no configuration"]
    events = runtime.events()
    container = await started(runtime)
    assert (False, 3) == (state(runtime).is_up, state(runtime).exit_code)
    assert ["start", "die"] == await actions(events, 2)
    assert [b"no configuration\n"] == [chunk async for chunk in runtime.logs(container, since=0.0)]


@on_loop
async def test_a_container_ends_by_itself_or_for_want_of_memory(runtime: FakeRuntime) -> None:
    await started(runtime)
    events = runtime.events()
    runtime.end("web", 5)
    assert 5 == state(runtime).exit_code
    runtime.operator_start("web")
    runtime.end("web", 137, out_of_memory=True)
    assert state(runtime).out_of_memory
    assert ["die", "start", "oom", "die"] == await actions(events, 4)
    runtime.operator_start("web")
    assert (0, False) == (state(runtime).exit_code, state(runtime).out_of_memory)


@pytest.mark.parametrize(
    ("policy", "exit_code", "runs_again"),
    [
        ("no", 1, False),
        ("always", 0, True),
        ("unless-stopped", 0, True),
        ("on-failure", 1, True),
        ("on-failure", 0, False),
    ],
)
def test_a_restart_policy_starts_what_ended_by_itself(
    runtime: FakeRuntime, policy: str, exit_code: int, *, runs_again: bool
) -> None:
    asyncio.run(started(runtime))
    runtime.set_restart_policy("web", policy)
    assert policy == state(runtime).restart_policy
    runtime.end("web", exit_code)
    assert runs_again == state(runtime).is_up
    runtime.operator_start("web")
    runtime.operator_stop("web")
    assert not state(runtime).is_up, "an operator's stop holds"


@on_loop
async def test_a_slow_start_goes_on_when_its_caller_is_cancelled(runtime: FakeRuntime) -> None:
    gate = runtime.start_gate("web")
    container = await runtime.create(WEB, LABELS)
    starts = [asyncio.ensure_future(runtime.start(container)) for _ in range(2)]
    await turn_loop(5)
    assert not state(runtime).is_up
    starts[0].cancel()
    gate.set()
    await starts[1]
    assert state(runtime).is_up


@on_loop
async def test_a_slow_start_of_one_delays_no_other(runtime: FakeRuntime) -> None:
    runtime.start_gate("web")
    slow = asyncio.ensure_future(started(runtime))
    await started(runtime, ContainerSpec(name="other", image="image"))
    assert state(runtime, "other").is_up
    await turn_loop(5)
    assert not slow.done()


@on_loop
async def test_a_container_removed_during_its_slow_start_never_runs(runtime: FakeRuntime) -> None:
    gate = runtime.start_gate("web")
    starting = asyncio.ensure_future(started(runtime))
    await turn_loop(5)
    runtime.operator_remove("web")
    gate.set()
    await starting
    assert [] == runtime.names()


@on_loop
async def test_a_slow_pull_holds_its_create(runtime: FakeRuntime) -> None:
    gate = runtime.script("web").create_gate = asyncio.Event()
    creating = asyncio.ensure_future(runtime.create(WEB, LABELS))
    await turn_loop(5)
    assert [] == runtime.names()
    gate.set()
    made = await creating
    assert made == state(runtime).id


# --- operators ---


@on_loop
async def test_a_stop_by_a_person_is_stop_then_die_in_podman(runtime: FakeRuntime) -> None:
    await started(runtime)
    events = runtime.events()
    runtime.operator_stop("web")
    runtime.operator_stop("web")
    first, second = await taken(events, 2)
    assert (RuntimeAction.STOP, None) == (first.action, first.exit_code)
    assert (RuntimeAction.DIE, 143) == (second.action, second.exit_code)
    assert ("web", state(runtime).id) == (second.name, second.id)


@on_loop
async def test_a_stop_by_a_person_is_kill_die_stop_in_docker(clock: FakeClock) -> None:
    runtime = FakeRuntime(clock, docker=True, pullable=True)
    runtime.script("web").ignores_term = True
    await started(runtime)
    events = runtime.events()
    runtime.operator_stop("web")
    assert ["kill", "die", "stop"] == await actions(events, 3)
    assert 137 == state(runtime).exit_code
    assert [signal.SIGTERM, signal.SIGKILL] == list(runtime.signals("web"))


@pytest.mark.parametrize(("docker", "first"), [(False, "stop"), (True, "kill")])
def test_a_removal_stops_first_what_runs(first: str, *, docker: bool) -> None:
    async def run() -> list[str]:
        runtime = FakeRuntime(FakeClock(), docker=docker, pullable=True)
        await started(runtime)
        runtime.add_foreign("stopped", running=False)
        events = runtime.events()
        runtime.operator_remove("web")
        await runtime.remove("stopped")
        assert [] == runtime.names()
        return await actions(events, 4)

    assert [first, "die", "remove", "remove"] == asyncio.run(run())


@on_loop
async def test_a_kill_and_a_restart_by_a_person_have_their_events(runtime: FakeRuntime) -> None:
    await started(runtime)
    events = runtime.events()
    runtime.operator_restart("web")
    runtime.operator_kill("web", signal.SIGHUP)
    runtime.operator_kill("web")
    assert ["stop", "die", "start", "kill", "kill", "die"] == await actions(events, 6)
    assert 137 == state(runtime).exit_code


@on_loop
async def test_a_paused_container_is_up_and_refuses_commands_and_starts(
    runtime: FakeRuntime,
) -> None:
    container = await started(runtime)
    events = runtime.events()
    runtime.operator_pause("web")
    assert (ContainerStatus.PAUSED, True) == (state(runtime).status, state(runtime).is_up)
    for call in (runtime.start(container), run_command(runtime, "true")):
        with pytest.raises(RuntimeRefusedError, match="web is paused") as refused:
            await call
        assert 409 == refused.value.status
    runtime.operator_unpause("web")
    assert ContainerStatus.RUNNING is state(runtime).status
    runtime.operator_pause("web")
    await runtime.signal(container, signal.SIGTERM)
    assert ["pause", "unpause", "pause", "unpause", "kill", "die"] == await actions(events, 6)


# --- output ---


@on_loop
async def test_logs_have_what_was_printed_since_and_go_on_until_it_stops(
    runtime: FakeRuntime, clock: FakeClock
) -> None:
    runtime.script("web").prints = ["one", "two"]
    container = await started(runtime)
    clock.advance(10.0)
    late = runtime.logs(container, since=clock.wall())
    whole = runtime.logs(container, since=0.0)
    assert [b"one\n", b"two\n"] == await taken(whole, 2)
    runtime.write_output("web", b"thr")
    runtime.write_output("web", b"ee\n")
    runtime.end("web", 0)
    assert [b"thr", b"ee\n"] == [chunk async for chunk in whole]
    assert [b"thr", b"ee\n"] == [chunk async for chunk in late]


@on_loop
async def test_the_logs_of_a_second_life_can_be_read_without_those_of_the_first(
    runtime: FakeRuntime,
) -> None:
    runtime.script("web").prints = ["hello"]
    container = await started(runtime)
    runtime.operator_restart("web")
    runtime.end("web", 0)
    both = [chunk async for chunk in runtime.logs(container, since=0.0)]
    second = [chunk async for chunk in runtime.logs(container, since=state(runtime).started_at)]
    assert ([b"hello\n"] * 2, [b"hello\n"]) == (both, second), "though time stood still"


@on_loop
async def test_two_lives_differ_by_their_starts_though_time_stands_still(
    runtime: FakeRuntime,
) -> None:
    await started(runtime)
    first = state(runtime).started_at
    runtime.operator_restart("web")
    assert first < state(runtime).started_at < first + 0.001


# --- commands ---


@on_loop
async def test_a_command_is_played_by_its_handler(runtime: FakeRuntime) -> None:
    await started(runtime)
    runtime.on_exec("web", lambda argv, cwd, env: len(argv) if cwd == "/code" and env else 1)
    end = await runtime.exec(
        "web", ("a", "b", "c"), cwd="/code", env={"A": "1"}, output=RecordedLines()
    )
    assert 3 == end.exit_code
    runtime.on_exec("web", lambda *_: ExecResult(exit_code=4, output=b"so so\n"))
    output = RecordedLines()
    assert 4 == await run_command(runtime, "a", output=output)
    assert ["so so"] == output.lines

    async def slow() -> int:
        await asyncio.sleep(0)
        return 5

    runtime.on_exec("web", lambda *_: slow())
    assert 5 == await run_command(runtime, "a")
    assert [] == runtime.live_execs()


@on_loop
async def test_a_command_without_a_handler_is_not_found(runtime: FakeRuntime) -> None:
    await started(runtime)
    output = RecordedLines()
    assert 127 == await run_command(runtime, "python", output=output)
    assert ["python: not found"] == output.lines


@on_loop
async def test_a_command_goes_on_when_its_caller_hangs_up(runtime: FakeRuntime) -> None:
    await started(runtime)
    release = asyncio.Event()

    async def handler() -> ExecResult:
        await release.wait()
        return ExecResult(output=b"too late\n")

    runtime.on_exec("web", lambda *_: handler())
    output = RecordedLines()
    calling = asyncio.ensure_future(run_command(runtime, "check", output=output))
    await turn_loop(5)
    calling.cancel()
    await turn_loop(5)
    assert calling.cancelled()
    [left] = runtime.live_execs("web")
    assert ("check",) == left.argv
    assert [] == runtime.live_execs("other")
    release.set()
    await turn_loop(5)
    assert [] == runtime.live_execs()
    assert [] == output.lines


@on_loop
async def test_a_hanging_command_prints_first_and_can_be_killed(runtime: FakeRuntime) -> None:
    await started(runtime)
    runtime.on_exec("web", lambda *_: ExecResult(exit_code=never(), output=b"hanging\n"))
    output = RecordedLines()
    calling = asyncio.ensure_future(run_command(runtime, "check", output=output))
    await turn_loop(5)
    assert ["hanging"] == output.lines
    [left] = runtime.live_execs()
    left.kill()
    assert 137 == await calling
    assert [] == runtime.live_execs()


@on_loop
async def test_the_end_of_a_container_kills_its_commands(runtime: FakeRuntime) -> None:
    await started(runtime)
    runtime.on_exec("web", lambda *_: never())
    calling = begin_command(runtime, "check")
    await turn_loop(5)
    runtime.end("web", 0)
    assert 137 == await calling
    with pytest.raises(RuntimeRefusedError, match="web is stopped"):
        await run_command(runtime, "check")


@on_loop
async def test_a_command_under_timeout_is_killed_when_its_time_is_over(
    runtime: FakeRuntime, clock: FakeClock
) -> None:
    await started(runtime)
    runtime.on_exec("web", lambda argv, *_: never() if argv[0] == "hang" else 6)
    assert 6 == await run_command(runtime, "timeout", "-s", "KILL", "5", "quick")
    calling = begin_command(runtime, "timeout", "-s", "KILL", "5", "hang")
    await asyncio.to_thread(clock.await_parked, 1)
    await asyncio.to_thread(clock.advance, 5.0, parked=0)
    assert 137 == await calling
    assert [] == runtime.live_execs()


@on_loop
async def test_an_image_without_a_shell_has_no_timeout(runtime: FakeRuntime) -> None:
    await started(runtime)
    asked = ("timeout", "-s", "KILL", "5", "sh", "-c", "exit 0")
    assert 0 == await run_command(runtime, *asked)
    assert 9 == await run_command(runtime, "sh", "-c", "exit 9")
    runtime.script("web").has_shell = False
    assert 127 == await run_command(runtime, *asked)


@on_loop
async def test_a_container_has_the_files_of_its_script(runtime: FakeRuntime) -> None:
    container = await started(runtime)
    runtime.script("web").files.add("/code/check.sh")
    assert await runtime.has_file(container, "/code/check.sh")
    assert not await runtime.has_file(container, "/code/other.sh")


# --- faults ---


@on_loop
async def test_a_runtime_that_is_down_answers_no_call_and_its_containers_go_on(
    runtime: FakeRuntime,
) -> None:
    container = await started(runtime)
    events, logs = runtime.events(), runtime.logs(container, since=0.0)
    runtime.on_exec("web", lambda *_: never())
    calling = begin_command(runtime, "check")
    await turn_loop(5)
    runtime.go_down()
    assert [] == [event async for event in events]
    assert [] == [chunk async for chunk in logs]
    for call in (runtime.list("ours"), runtime.inspect("web"), runtime.start(container), calling):
        with pytest.raises(RuntimeUnreachableError, match=r"fake 1\.0: it does not answer"):
            await call
    with pytest.raises(RuntimeUnreachableError):
        await anext(runtime.events())
    with pytest.raises(RuntimeUnreachableError):
        await anext(runtime.logs(container, since=0.0))
    assert "fake 1.0 does not answer" == await runtime.connect()
    assert state(runtime).is_up
    assert 1 == len(runtime.live_execs())
    runtime.come_back()
    assert [container] == [listed.id for listed in await runtime.list("ours")]


@on_loop
async def test_a_call_under_way_is_lost_when_the_runtime_goes_down(runtime: FakeRuntime) -> None:
    runtime.start_gate("web")
    container = await runtime.create(WEB, LABELS)
    starting = asyncio.ensure_future(runtime.start(container))
    listing = asyncio.ensure_future(runtime.list("ours"))
    await asyncio.sleep(0)
    runtime.go_down()
    for call in (starting, listing):
        with pytest.raises(RuntimeUnreachableError):
            await call


@on_loop
async def test_a_start_under_way_is_done_though_the_runtime_went_down(
    runtime: FakeRuntime,
) -> None:
    gate = runtime.start_gate("web")
    starting = asyncio.ensure_future(started(runtime))
    await turn_loop(5)
    runtime.go_down()
    with pytest.raises(RuntimeUnreachableError):
        await starting
    gate.set()
    await turn_loop(5)
    assert state(runtime).is_up


@pytest.mark.parametrize(("lose", "expected"), [(True, ["start"]), (False, ["die", "start"])])
def test_events_of_an_outage_are_lost_or_come_first(
    runtime: FakeRuntime, expected: list[str], *, lose: bool
) -> None:
    async def run() -> list[str]:
        await started(runtime)
        runtime.go_down()
        runtime.end("web", 1)
        runtime.come_back(lose_events=lose)
        events = runtime.events()
        runtime.operator_start("web")
        return await actions(events, len(expected))

    assert expected == asyncio.run(run())


@on_loop
async def test_dropped_events_reach_no_reader(runtime: FakeRuntime) -> None:
    events = runtime.events()
    runtime.drop_events = True
    await started(runtime)
    runtime.drop_events = False
    runtime.end("web", 0)
    assert ["die"] == await actions(events, 1)


@on_loop
async def test_scripted_faults_are_raised_in_order_and_once(runtime: FakeRuntime) -> None:
    runtime.fail_next("create", RuntimeRefusedError("disk full", status=500))
    runtime.fail_next("create", RuntimeUnreachableError("timeout"))
    with pytest.raises(RuntimeRefusedError, match="disk full"):
        await runtime.create(WEB, LABELS)
    with pytest.raises(RuntimeUnreachableError, match="timeout"):
        await runtime.create(WEB, LABELS)
    assert [] == runtime.names()
    await runtime.create(WEB, LABELS)
    runtime.fail_next("events", RuntimeRefusedError("no"))
    with pytest.raises(RuntimeRefusedError, match="no"):
        await anext(runtime.events())


@on_loop
async def test_an_answer_can_get_lost_after_the_work_was_done(runtime: FakeRuntime) -> None:
    runtime.fail_next("create", RuntimeUnreachableError("connection reset"), after=True)
    with pytest.raises(RuntimeUnreachableError, match="connection reset"):
        await runtime.create(WEB, LABELS)
    assert ["web"] == runtime.names()


@on_loop
async def test_every_call_is_counted_by_its_method(runtime: FakeRuntime) -> None:
    await started(runtime)
    await runtime.list("ours")
    await runtime.list("ours")
    runtime.events()
    assert {"create": 1, "start": 1, "list": 2, "events": 1} == runtime.calls


@on_loop
async def test_connections_share_the_containers_and_close_one_by_one(
    runtime: FakeRuntime,
) -> None:
    second = await runtime.connect()
    assert isinstance(second, FakeRuntime)
    first_events, second_events = runtime.events(), second.events()
    await started(second)
    assert ["start"] == await actions(first_events, 1)
    await second.close()
    await second.close()
    assert ["start"] == [event.action async for event in second_events]
    with pytest.raises(RuntimeUnreachableError, match="the connection is closed"):
        await second.list("ours")
    assert 1 == len(await runtime.list("ours"))
    second.end("web", 0)
    assert ["die"] == await actions(first_events, 1), "its controls still work"


def test_a_runtime_takes_its_times_from_the_system_clock_too() -> None:
    clock = SystemClock()
    runtime = FakeRuntime(clock, pullable=True)
    before = clock.wall()
    asyncio.run(started(runtime))
    assert before <= state(runtime).started_at <= clock.wall()
