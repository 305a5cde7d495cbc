"""How long a container that died is away: by events, by polling alone, and with Podman's own
restarts.

A container runs from the first act of its program, which marks it in a file. A death is kill -9 of
its first process. The runtime's own start is measured to the same first act, and taken off.
"""

from __future__ import annotations

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from containers_bench.monitor_process import MonitorSettings
from containers_bench.private_podman import (
    IMAGE,
    MARKS_DIRECTORY,
    PodmanService,
    PrivatePodman,
    kill_process,
    marking_command,
    wait_until,
)
from containers_bench.running_monitor import RunningMonitor, running_monitor
from longwatch.supervisor.containers.engine_api import EngineApi
from longwatch.supervisor.containers.runtime import ContainerState

BACKOFF = 1.0
"""Seconds; what a container waits after its first death at the defaults."""
_POLL_SECONDS = 5.0
_POLLED_AT_ONCE = 2
"""So many containers die without events side by side, each under a monitor of its own."""
_SETTLE = (0.5, 1.0)
"""Seconds before a kill, at random; Podman has cleaned up after the last death by then."""


@dataclass(frozen=True)
class RuntimeStart:
    """Medians of the runtime's own start, in seconds."""

    to_program: float
    """From the request to the first act of the program."""
    to_inspect: float
    """From the request to an inspection that says that it runs."""


@dataclass(frozen=True)
class Restart:
    """One death, in seconds from the kill."""

    running: float
    backoff: float = 0.0
    event: float | None = None
    """When the runtime's event came; None without events."""
    request: float | None = None
    """When we asked the runtime to start it."""


@dataclass(frozen=True)
class Contender:
    """A way to bring a container back, and its deaths."""

    title: str
    restarts: list[Restart]
    target: float | None = None
    """Seconds beside the backoff and the runtime's start, at the most."""

    def away(self, start: RuntimeStart) -> list[float]:
        """Without the backoff and the runtime's own start."""
        return [each.running - each.backoff - start.to_program for each in self.restarts]


def run(podman: PrivatePodman, deaths: int) -> None:
    with podman.serving() as service:
        start = asyncio.run(_measure_start(podman, service, deaths))
        podman.remove_containers()
        contenders = [
            Contender("by events", _by_monitor(podman, service, deaths, "events"), 0.3),
            Contender(
                "by events, no backoff",
                _by_monitor(podman, service, deaths, "at-once", backoff=0.0),
                0.3,
            ),
            Contender(
                "by polling alone", _by_polling(podman, service, deaths), _POLL_SECONDS + 0.3
            ),
            Contender("Podman `--restart=always`", _by_podman(podman, deaths)),
        ]
        podman.remove_containers()
    _print_table(contenders, start)


async def _measure_start(
    podman: PrivatePodman, service: PodmanService, starts: int
) -> RuntimeStart:
    name = "start"
    _create(podman, name)
    api = await EngineApi.connect(service.socket)
    to_program, to_inspect = [], []
    try:
        for number in range(starts):
            began = time.monotonic()
            starting = asyncio.ensure_future(api.start(name))
            while podman.started(name) == number:  # noqa: ASYNC110 - a container sets no event
                await asyncio.sleep(0.001)
            to_program.append(time.monotonic() - began)
            await starting
            state = await _wait_until_up(api, name)
            to_inspect.append(time.monotonic() - began)
            kill_process(state.pid)
            await asyncio.sleep(_SETTLE[1])
    finally:
        await api.close()
    return RuntimeStart(median(to_program), median(to_inspect))


async def _wait_until_up(api: EngineApi, name: str) -> ContainerState:
    while True:
        state = await api.inspect(name)
        if state is not None and state.is_up:
            return state


def _by_monitor(  # noqa: PLR0913 - where, how often, and the way
    podman: PrivatePodman,
    service: PodmanService,
    deaths: int,
    name: str,
    *,
    backoff: float = BACKOFF,
    is_deaf: bool = False,
) -> list[Restart]:
    settings = MonitorSettings(
        socket=str(service.socket),
        state_dir=str(podman.folder / f"state-{name}"),
        image=IMAGE,
        commands={name: marking_command(name)},
        bind=(str(podman.marks), MARKS_DIRECTORY),
        backoff=backoff,
        is_deaf=is_deaf,
    )
    moments = random.Random(name)  # noqa: S311 - no secret
    pauses = (0.1, _POLL_SECONDS) if is_deaf else _SETTLE
    found = []
    with running_monitor(settings) as monitor:
        pid = int(monitor.wait_for("up").value)
        for _ in range(deaths):
            time.sleep(moments.uniform(*pauses))
            restart, pid = _die(podman, monitor, name, pid)
            found.append(restart)
    return found


def _by_polling(podman: PrivatePodman, service: PodmanService, deaths: int) -> list[Restart]:
    """Each death takes up to 5 seconds: several containers share them."""
    with ThreadPoolExecutor(_POLLED_AT_ONCE) as threads:
        shares = [
            threads.submit(
                _by_monitor,
                podman,
                service,
                len(range(number, deaths, _POLLED_AT_ONCE)),
                f"polling-{number}",
                is_deaf=True,
            )
            for number in range(_POLLED_AT_ONCE)
        ]
        return [restart for share in shares for restart in share.result()]


def _die(
    podman: PrivatePodman, monitor: RunningMonitor, name: str, pid: int
) -> tuple[Restart, int]:
    """One death under a monitor, and the next process."""
    before = podman.started(name)
    killed = kill_process(pid)
    running = wait_until(lambda: podman.started(name) > before, f"{name} was not restarted")
    next_pid = int(monitor.wait_for("up", since=killed).value)
    events = monitor.of_kind("event", since=killed)
    restart = Restart(
        running=running - killed,
        backoff=monitor.of_kind("backoff", since=killed)[0].value,
        event=events[0].at - killed if events else None,
        request=monitor.of_kind("start", since=killed)[0].at - killed,
    )
    return restart, next_pid


def _by_podman(podman: PrivatePodman, deaths: int) -> list[Restart]:
    name = "podman"
    _create(podman, name, "--restart=always")
    podman.run("start", name)
    moments = random.Random(name)  # noqa: S311 - no secret
    found = []
    for _ in range(deaths):
        time.sleep(moments.uniform(*_SETTLE))
        pid = int(podman.run("inspect", "--format", "{{.State.Pid}}", name))
        before = podman.started(name)
        killed = kill_process(pid)
        running = wait_until(lambda: podman.started(name) > before, "Podman did not restart it")  # noqa: B023 - called at once
        found.append(Restart(running - killed))
    return found


def _create(podman: PrivatePodman, name: str, *words: str) -> None:
    bind = f"{podman.marks}:{MARKS_DIRECTORY}"
    fixed = ("create", "--name", name, "--network", "none", "--volume", bind)
    podman.run(*fixed, *words, IMAGE, *marking_command(name))


def _print_table(contenders: list[Contender], start: RuntimeStart) -> None:
    podmans = contenders[-1]
    rows = {
        "deaths": [str(len(each.restarts)) for each in contenders],
        "kill → running, p50": [_ms(median(_running(each))) for each in contenders],
        "kill → running, max": [_ms(max(_running(each))) for each in contenders],
        "the backoff in it": [_ms(each.restarts[0].backoff) for each in contenders],
        "**without backoff and start, p50**": [
            _ms(median(each.away(start))) for each in contenders
        ],
        "**without backoff and start, max**": [_ms(max(each.away(start))) for each in contenders],
        "target": ["–" if each.target is None else _ms(each.target) for each in contenders],
        "kill → the runtime's event, p50": [_event_p50(each) for each in contenders],
        "event → our request, without backoff, p50": [_own_p50(each) for each in contenders],
        "with the start, p50 : Podman's": [
            _ratio(_without_backoff(each), _without_backoff(podmans)) for each in contenders
        ],
        "without it, p50 : Podman's": [
            _ratio(each.away(start), podmans.away(start)) for each in contenders
        ],
    }
    print("### A container that died\n")
    print(f"| ms | {' | '.join(each.title for each in contenders)} |")
    print(f"|---|{'---:|' * len(contenders)}")
    for title, cells in rows.items():
        print(f"| {title} | {' | '.join(cells)} |")
    print(
        f"\nThe runtime's own start, p50: {_ms(start.to_program)} ms from the request to the first "
        f"act of the program, {_ms(start.to_inspect)} ms to an inspection that says it runs. The "
        f"table subtracts the first.",
        flush=True,
    )


def _running(contender: Contender) -> list[float]:
    return [each.running for each in contender.restarts]


def _without_backoff(contender: Contender) -> list[float]:
    return [each.running - each.backoff for each in contender.restarts]


def _ratio(ours: list[float], peer: list[float]) -> str:
    return f"{median(ours) / median(peer):.1f}"


def _event_p50(contender: Contender) -> str:
    found = [each.event for each in contender.restarts if each.event is not None]
    return _ms(median(found)) if found else "–"


def _own_p50(contender: Contender) -> str:
    found = [
        each.request - each.event - each.backoff
        for each in contender.restarts
        if each.event is not None and each.request is not None
    ]
    return _ms(median(found)) if found else "–"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"
