"""A storm over many programs: killed, started, stopped, restarted, reset, reloaded at random, by
several hands at once.

Afterwards what the supervisor says is what there is, nothing is left over, and neither it nor its
guardian has grown.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
import pytest

from chaos_plan import ChaosPlan
from longwatch.errors import TryAgainError
from longwatch.supervisor import ProgramPlan, Streams, Supervisor
from polling import eventually
from run_process import kill_all
from up_process import (
    FROM_SOURCE,
    IGNORES_SIGTERM,
    SLEEPER,
    Facts,
    UpProcess,
    pids_by_mark,
    sh,
    start_up,
    write_config,
)

THREADS = 4
TIMEOUT = 30.0
GROWTH = 4 << 20
"""Bytes by which a process may have grown since the first tenth: what allocators keep, and no
more.
"""
PROGRAM_KINDS: tuple[Facts, ...] = (
    SLEEPER,
    sh("sleep 1000 & setsid sleep 1000 & wait"),
    sh(IGNORES_SIGTERM, stop_grace=0.1),
    sh("sleep 0.3; exit 1", breaker={"restarts": 3, "cooldown": 0.3, "window": 1}),
    sh("trap 'exit 0' TERM; while :; do sleep 0.2; done"),
    {**SLEEPER, "health": {"command": ["true"], "start_grace": 0, "interval": 1}},
)
CRASHES = 3
"""The place of the family that never stays up."""
REFUSALS = {2: "no program", 75: ""}
"""Exit codes of answers that may come: a program that a reload has taken away, and one that was
not up in time.
"""


class ChaosRun:
    """Acts on one supervisor until so many things were done."""

    def __init__(self, run: UpProcess, token: str, programs: int, dice: random.Random) -> None:
        self.run = run
        self.token = token
        self.names = [f"p{number}" for number in range(programs)]
        self.dice = dice
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self._writing = threading.Lock()

    def settings(
        self, *, without: frozenset[str] = frozenset(), variant: int = 0
    ) -> dict[str, Facts]:
        """Every program, or all but some; a fifth of them depend on the variant, each in its
        environment.
        """
        made = {}
        for place, name in enumerate(self.names):
            family = PROGRAM_KINDS[place % len(PROGRAM_KINDS)]
            env = {"MARK": f"{self.token}-{name}", "VARIANT": str(variant if place % 5 == 0 else 0)}
            quick = {
                "backoff": {"initial": 0.01, "cap": 0.05},
                "breaker": {"restarts": 1000, "cooldown": 0.3},
            }
            made[name] = {**quick, **family, "env": env, "log": {"console": False}}
        return {name: settings for name, settings in made.items() if name not in without}

    def run_actions(self, actions: int) -> None:
        numbers = count()
        hands = [
            threading.Thread(target=self._act, args=(actions, numbers, self._dice()))
            for _ in range(THREADS)
        ]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()

    def _dice(self) -> random.Random:
        return random.Random(self.dice.random())

    def _act(self, actions: int, numbers: Iterator[int], dice: random.Random) -> None:
        while next(numbers) < actions:
            act = dice.choice(
                (
                    self._kill,
                    self._kill,
                    self._kill,
                    self._command,
                    self._command,
                    self._command,
                    self._reload,
                )
            )
            try:
                act(dice)
            except TryAgainError as error:
                self.errors.append(f"{act.__name__}: {error}")

    def _kill(self, dice: random.Random) -> None:
        """Any process of any program; by pidfd, so that it is nobody else who got its number
        meanwhile.
        """
        pids = [pid for pids in pids_by_mark(self.token).values() for pid in pids]
        if not pids:
            return
        with suppress(OSError):
            pid = dice.choice(pids)
            descriptor = os.pidfd_open(pid)
            try:
                if self.token.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    self.done["kill"] += 1
            finally:
                os.close(descriptor)

    def _command(self, dice: random.Random) -> None:
        do = dice.choice(("start", "stop", "restart", "reset", "status"))
        names = (
            dice.sample(self.names, dice.randrange(1, 4))
            if do != "status" or dice.random() < 0.5
            else []
        )
        self._request(do, *names)

    def _reload(self, dice: random.Random) -> None:
        with self._writing:
            without = frozenset(dice.sample(self.names, dice.randrange(3)))
            write_config(self.run.cwd, self.settings(without=without, variant=dice.randrange(3)))
        if dice.random() < 0.2:
            self.run.signal(signal.SIGHUP)
        self._request("reload")

    def _request(self, do: str, *names: str) -> None:
        options = {"timeout": 5.0} if do in {"start", "restart"} else {}
        answer = self.run.request(do, *names, **options)
        self.done[do] += 1
        expected = REFUSALS.get(answer.get("exit_code", 0))
        if not answer["ok"] and (expected is None or expected not in answer["error"]):
            self.errors.append(f"{do} {names}: {answer}")

    # --- and then ---

    def recover(self) -> None:
        """Everything as it was in the beginning, and time for all to come to rest."""
        with self._writing:
            write_config(self.run.cwd, self.settings())
            assert self.run.request("reload")["ok"]
        lasting = [
            name for place, name in enumerate(self.names) if place % len(PROGRAM_KINDS) != CRASHES
        ]
        self.run.request("stop", *(set(self.names) - set(lasting)))
        self.run.request("start", *lasting, timeout=TIMEOUT)
        assert eventually(
            lambda: (
                self._states() == {"up": len(lasting), "stopped": len(self.names) - len(lasting)}
            ),
            TIMEOUT,
        )

    def _states(self) -> Counter[str]:
        return Counter(facts["state"] for facts in self.run.request("status")["programs"])

    def check(self) -> None:
        """What is said is what there is: own children, alive, and nobody besides."""
        told = {facts["name"]: facts for facts in self.run.request("status")["programs"]}
        there = pids_by_mark(self.token)
        assert set(self.names) == set(told)
        assert {name for name, facts in told.items() if facts["up"]} == set(there)
        assert [] == [name for name, pids in there.items() if told[name]["pid"] not in pids]
        assert {self.run.guardian_pid} == {
            psutil.Process(told[name]["pid"]).ppid() for name in there
        }
        seen = self.unaccounted()
        assert eventually(lambda: not seen & self.unaccounted()), "a process is left over"

    def unaccounted(self) -> set[psutil.Process]:
        """Zombies, and processes that are no program's or not below us."""
        below = psutil.Process(self.run.pid).children(recursive=True)
        known = {
            self.run.guardian_pid,
            *(pid for pids in pids_by_mark(self.token).values() for pid in pids),
        }
        outside = {process for process in psutil.process_iter() if process.pid in known} - set(
            below
        )
        return outside | {
            process for process in below if process.pid not in known or is_zombie(process)
        }


def is_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return False


def sizes(run: UpProcess) -> list[tuple[int, int]]:
    """Of the supervisor and of its guardian: descriptors, and bytes in memory."""
    processes = [psutil.Process(pid) for pid in (run.pid, run.guardian_pid)]
    return [(process.num_fds(), process.memory_info().rss) for process in processes]


@pytest.fixture
def token() -> Iterator[str]:
    word = f"token-{secrets.token_hex(8)}"
    yield word
    kill_all([pid for pids in pids_by_mark(word).values() for pid in pids])


@pytest.mark.chaos
def test_after_a_storm_state_is_reality_nothing_is_left_over_and_nobody_has_grown(
    chaos: ChaosPlan, tmp_path: Path, token: str
) -> None:
    programs, actions = min(int(3 * chaos.seconds), 100), int(20 * chaos.seconds)
    null = os.open(os.devnull, os.O_WRONLY)
    with start_up(
        cwd=tmp_path, programs={"p0": SLEEPER}, stdout=null, stderr=null, **FROM_SOURCE
    ) as run:
        os.close(null)
        run.wait_for_status("p0", up=True)
        storm = ChaosRun(run, token, programs, chaos.random())
        storm.recover()
        storm.run_actions(actions // 10)
        storm.recover()
        before = sizes(run)
        storm.run_actions(actions - actions // 10)
        storm.recover()
        assert eventually(
            lambda: all(now[0] <= then[0] for then, now in zip(before, sizes(run), strict=True))
        )
        storm.check()
        assert all(
            now[1] <= then[1] + GROWTH for then, now in zip(before, sizes(run), strict=True)
        ), (before, sizes(run))
        run.signal(signal.SIGTERM)
        assert run.process.wait(TIMEOUT) in {0, 1}
    assert {} == pids_by_mark(token)
    assert [] == storm.errors
    assert [] == [
        record
        for record in run.logged_events()
        if record["event"]
        in {"control_command_failed", "periodic_task_failed", "shutdown_callback_failed"}
    ]


def test_a_start_of_what_is_just_starting_returns_when_it_is_up() -> None:
    """With so much time to wait that whoever waits for something else hangs."""
    plans = [
        ProgramPlan.of(f"p{number}", ["sleep", "1000"], autostart=False) for number in range(30)
    ]
    with Supervisor(plans, streams=lambda _: Streams(None, None, None)) as supervisor:
        hands = [
            threading.Thread(target=supervisor.start_programs, kwargs={"timeout": 1e6}, daemon=True)
            for _ in range(8)
        ]
        for hand in hands:
            hand.start()
        assert eventually(lambda: not any(hand.is_alive() for hand in hands))
        assert {"up"} == {facts["state"] for facts in supervisor.status()}
