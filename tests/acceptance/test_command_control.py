"""`longwatch status`, `stop`, `logs`, `events` and `down` against each of the four commands that
run for long: `up`, `run`, `worker` and `runner`.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import requires
from polling import eventually
from run_process import (
    PYTHON,
    TIMEOUT,
    PipeLines,
    RunProcess,
    clean_environment,
    run_longwatch,
    start_run,
)
from runner_process import agent, start_runner, write_runner
from up_process import FROM_SOURCE, py, start_up, unused_port
from worker_process import start_worker

Facts = dict[str, Any]
WITHIN: Sequence[str] = FROM_SOURCE["within"]
LONGWATCH: Path = FROM_SOURCE["longwatch"]

GREETS = "import time; print('hello', flush=True); time.sleep(1000)"
FORKS = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            pass
    os._exit(0)
os.wait()
if os.fork() == 0:
    time.sleep(1000)
time.sleep(1000)
"""
"""A process with a child that waits, and one that is busy and not below it any more."""

NAMESPACES = {
    "own /proc": ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    "foreign /proc": ("unshare", "--pid", "--fork", "--kill-child"),
}


@dataclass(frozen=True)
class Command:
    """One of the four: how it is started, and what is seen of it."""

    start: Callable[[Path], AbstractContextManager[RunProcess]]
    program: str
    logged: str
    """Something in the log of the program."""
    started: str
    """The event at its start."""
    exit_code: int = 0
    """After SIGTERM."""


@contextmanager
def _run(cwd: Path, name: str = "web") -> Iterator[RunProcess]:
    options = ("--name", name)
    with start_run(LONGWATCH, cwd, [*PYTHON, GREETS], options=options, within=WITHIN) as run:
        run.wait_for_event("program_started")
        yield run


@contextmanager
def _worker(cwd: Path, name: str = "worker") -> Iterator[RunProcess]:
    with start_worker(LONGWATCH, cwd, "--name", name, within=WITHIN) as run:
        run.wait_for_event("worker_joined")
        yield run


@contextmanager
def _runner(cwd: Path) -> Iterator[RunProcess]:
    write_runner(cwd, {"a": f"http://127.0.0.1:{unused_port()}/"}, agent("true"))
    with start_runner(cwd) as run:
        run.wait_for_event("runner_started")
        yield run


@contextmanager
def _up(cwd: Path) -> Iterator[RunProcess]:
    with start_up(LONGWATCH, cwd, {"web": py(GREETS)}, within=WITHIN) as run:
        run.wait_for_event("program_started")
        yield run


COMMANDS = {
    "up": Command(_up, "web", "hello", "supervisor_started"),
    "run": Command(_run, "web", "hello", "supervisor_started", exit_code=143),
    "worker": Command(_worker, "worker", '"event"', "supervisor_started"),
    "runner": Command(_runner, "runner", "runner_started", "runner_started"),
}
each_command = pytest.mark.parametrize("name", COMMANDS)


def ask(cwd: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_longwatch(LONGWATCH, cwd, *words, env=env, within=WITHIN)


def output(cwd: Path, *words: str, **env: str) -> str:
    """What a command says that succeeds."""
    done = ask(cwd, *words, **env)
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    return done.stdout


def refusal(cwd: Path, *words: str) -> str:
    """What a command says that finds nothing to ask."""
    done = ask(cwd, *words)
    assert (75, "") == (done.returncode, done.stdout), done.stderr
    return done.stderr


def status(cwd: Path, *names: str) -> Facts:
    return dict(json.loads(ask(cwd, "status", "--json", *names).stdout))


def is_ready(cwd: Path) -> bool:
    return all(program["up"] for program in status(cwd)["programs"])


@each_command
def test_status_logs_and_events_show_it_and_down_ends_it(name: str, tmp_path: Path) -> None:
    command = COMMANDS[name]
    with command.start(tmp_path) as run:
        told = status(tmp_path)
        assert (name, run.pid) == (told["command"], told["pid"])
        [program] = told["programs"]
        assert (command.program, True, run.pid) == (
            program["name"],
            program["up"],
            program["supervisor"],
        )
        assert program["memory_bytes"] > 0
        assert command.program in output(tmp_path, "status")
        assert eventually(
            lambda: command.logged in output(tmp_path, "logs", "-n", "100", command.program)
        )
        events = output(tmp_path, "events", "--json", "-n", "100").splitlines()
        assert command.started in {json.loads(line)["event"] for line in events}

        assert f"longwatch {name}, pid {run.pid}, has ended\n" == output(tmp_path, "down")
        assert run.process.poll() is not None, "down returned before it had ended"
        assert command.exit_code == run.wait()
    assert "no supervisor runs on .longwatch" in refusal(tmp_path, "status")
    assert "no longwatch process runs in .longwatch" in refusal(tmp_path, "down")
    assert [] == [*tmp_path.glob(".longwatch/running/*")]


@each_command
def test_stop_stops_its_program(name: str, tmp_path: Path) -> None:
    """`run` and `runner` are their program, and end with it."""
    command = COMMANDS[name]
    with command.start(tmp_path) as run:
        assert f"{command.program} is stopped\n" == output(tmp_path, "stop", command.program)
        if name in {"run", "runner"}:
            assert command.exit_code == run.wait()
        else:
            assert ["stopped"] == [each["state"] for each in status(tmp_path)["programs"]]
            assert "is up" in output(tmp_path, "start", command.program)
            output(tmp_path, "down")


def test_a_restart_of_the_program_does_not_end_the_run(tmp_path: Path) -> None:
    with _run(tmp_path) as run:
        assert "web is up" in output(tmp_path, "restart", "web")
        assert 2 == run.wait_for_event("program_started", times=2)["start_number"]
        output(tmp_path, "down")
        assert 143 == run.wait()


def test_a_runner_says_that_it_cannot_be_restarted_and_leaves_the_others_their_commands(
    tmp_path: Path,
) -> None:
    with _runner(tmp_path) as runner, _run(tmp_path) as run:
        done = ask(tmp_path, "restart", "runner")
        assert (2, "") == (done.returncode, done.stdout)
        assert "cannot do 'restart'" in done.stderr
        assert "web is up" in output(tmp_path, "restart", "--all")
        output(tmp_path, "down")
        assert [0, 143] == [each.wait() for each in (runner, run)]


@each_command
def test_one_that_was_killed_is_told_and_the_next_one_is_found(name: str, tmp_path: Path) -> None:
    command = COMMANDS[name]
    with command.start(tmp_path) as run:
        run.signal(signal.SIGKILL)
        run.process.wait(TIMEOUT)
        told = refusal(tmp_path, "status")
        assert f"(pid {run.pid}) was killed" in told
        assert f"`longwatch {name}`" in told
        assert "was killed" in refusal(tmp_path, "down")
    with command.start(tmp_path) as run:
        told_again = status(tmp_path)
        assert [run.pid] == [each["pid"] for each in told_again["supervisors"]]
        output(tmp_path, "down")
    assert "no supervisor runs on" in refusal(tmp_path, "status")


def test_commands_share_a_state_directory_and_each_is_found_by_its_programs(
    tmp_path: Path,
) -> None:
    """Two workers and a run side by side: a name goes to the command that has it, `down` ends
    all.
    """
    with ExitStack() as stack:
        runs = [
            stack.enter_context(each)
            for each in (_run(tmp_path), _worker(tmp_path, "mail"), _worker(tmp_path, "jobs"))
        ]
        told = status(tmp_path)
        assert [run.pid for run in runs] == [each["pid"] for each in told["supervisors"]]
        assert ["web", "mail", "jobs"] == [each["name"] for each in told["programs"]]
        table = output(tmp_path, "status")
        for run, name in zip(runs, ("run", "worker", "worker"), strict=True):
            assert f"longwatch {name}, pid {run.pid}\n" in table

        assert "mail is stopped\n" == output(tmp_path, "stop", "mail")
        states = {each["name"]: each["state"] for each in status(tmp_path)["programs"]}
        assert {"web": "up", "mail": "stopped", "jobs": "up"} == states
        assert ["jobs"] == [each["name"] for each in status(tmp_path, "jobs")["programs"]]
        wrong = ask(tmp_path, "stop", "mael")
        assert (2, "longwatch: no program 'mael'; did you mean mail?\n") == (
            wrong.returncode,
            wrong.stderr,
        )

        ended = json.loads(output(tmp_path, "down", "--json"))
        assert [run.pid for run in runs] == [each["pid"] for each in ended["ended"]]
        assert [143, 0, 0] == [run.wait() for run in runs]


def test_down_waits_for_what_takes_its_time_to_stop(tmp_path: Path) -> None:
    waits = "until [ -e go ]; do sleep 0.02; done; exit 0"
    slow = f"trap '{waits}' TERM; echo ready; while :; do sleep 0.02; done"
    with start_run(LONGWATCH, tmp_path, ["sh", "-c", slow], within=WITHIN) as run:
        assert "ready" == run.next_line()
        with subprocess.Popen(
            [*WITHIN, LONGWATCH, "down"],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
        ) as down:
            run.wait_for_event("program_stopping")
            assert down.poll() is None
            (tmp_path / "go").touch()
            assert 0 == down.wait(TIMEOUT)
        assert 0 == run.wait()


@pytest.mark.parametrize("command", [("run", "--", *PYTHON, GREETS), ("worker", "app:group")])
def test_without_a_state_directory_it_runs_and_warns_once(
    tmp_path: Path, command: Sequence[str]
) -> None:
    """As in a container whose file system is read-only; here a file is in the way."""
    (tmp_path / ".longwatch").touch()
    with _start_without_state(tmp_path, command) as run:
        run.wait_for_event("program_started")
        run.signal(signal.SIGTERM)
        run.wait()
    [warning] = run.events("state_directory_unavailable")
    assert ("warning", ".longwatch") == (warning["level"], warning["path"])
    assert "--state-dir off" in warning["reason"]
    assert [] == run.events("control_unavailable")


@contextmanager
def _start_without_state(cwd: Path, command: Sequence[str]) -> Iterator[RunProcess]:
    if command[0] == "worker":
        with start_worker(LONGWATCH, cwd, within=WITHIN) as worker:
            yield worker
    else:
        with start_run(LONGWATCH, cwd, command[2:], within=WITHIN) as run:
            yield run


READ_ONLY = """
mount --make-rprivate / && mount -o remount,bind,ro / || exit 9
for each in /tmp /var/tmp; do
    if mountpoint -q "$each"; then mount -o remount,bind,ro "$each" || exit 9; fi
done
exec "$@"
"""


def test_pid_1_runs_where_the_whole_file_system_is_read_only(tmp_path: Path) -> None:
    """As with `docker run --read-only`, where only /dev/shm can be written."""
    requires.require_tool("unshare")
    within = (*NAMESPACES["own /proc"], "--mount", "sh", "-c", READ_ONLY, "sh")
    if subprocess.run([*within, "true"], check=False, cwd=tmp_path).returncode == 9:
        pytest.skip("file systems cannot be mounted read-only here")
    with start_run(LONGWATCH, tmp_path, ["echo", "hi"], within=(*within, *WITHIN)) as run:
        assert "hi" == run.next_line()
        assert 0 == run.wait()
    assert 1 == len(run.events("state_directory_unavailable"))
    assert [] == [*tmp_path.iterdir()]


def test_a_run_that_cannot_open_its_control_goes_on_and_warns_once(tmp_path: Path) -> None:
    (tmp_path / ".longwatch").mkdir()
    (tmp_path / ".longwatch" / "running").touch()
    with _run(tmp_path) as run:
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
    assert 1 == len(run.events("control_unavailable"))


# --- health ---


@pytest.mark.parametrize(
    ("options", "env", "count"),
    [
        ((), {}, 1),
        (("--no-health",), {}, 0),
        (("--health",), {}, 0),
        (("--health-port", "{port}"), {}, 0),
        ((), {"PORT": "{port}"}, 0),
    ],
)
def test_a_run_without_health_checks_says_so_once_and_names_the_flag(
    tmp_path: Path, options: Sequence[str], env: dict[str, str], count: int
) -> None:
    port = str(unused_port())
    given = [option.format(port=port) for option in options]
    variables = {name: value.format(port=port) for name, value in env.items()}
    if "--health" in given:
        given += ["--health-port", port]
    with start_run(
        LONGWATCH, tmp_path, ["true"], options=given, env=variables, within=WITHIN
    ) as run:
        run.wait()
    told = run.events("health_checks_off")
    assert count == len(told)
    assert all("--health-port PORT" in record["hint"] for record in told)


# --- what programs use ---


def test_cpu_and_memory_are_those_of_the_whole_tree(tmp_path: Path) -> None:
    """A busy process that has left its parent and its session counts, too."""
    programs = {"web": py(FORKS), "idle": py(GREETS)}
    with start_up(LONGWATCH, tmp_path, programs, within=WITHIN) as run:
        for name in programs:
            run.wait_for_event("program_started", program=name)
        found: dict[str, Facts] = {}

        def is_measured() -> bool:
            found.update({each["name"]: each for each in status(tmp_path)["programs"]})
            return found["web"]["processes"] == 3 and (found["web"]["cpu_percent"] or 0.0) > 0

        assert eventually(is_measured), found
        assert found["idle"]["processes"] == 1
        assert found["web"]["cpu_seconds"] > found["idle"]["cpu_seconds"]
        assert found["web"]["memory_bytes"] > found["idle"]["memory_bytes"]
        output(tmp_path, "down")


@pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=list(NAMESPACES))
def test_pid_1_of_a_container_is_reached_from_outside(
    tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    requires.require_tool("unshare")
    within = (*namespace, *WITHIN)
    with start_run(LONGWATCH, tmp_path, [*PYTHON, GREETS], within=within) as run:
        run.wait_for_event("program_started")
        told = status(tmp_path)
        assert 1 == told["pid"]
        assert told["programs"][0]["memory_bytes"] > 0
        assert "longwatch run, pid 1, has ended\n" == output(tmp_path, "down")
        assert 143 == run.wait()


# --- the table ---

LONG_NAME = "a-name-that-was-made-up-from-a-path-and-a-branch-and-a-host"


def on_terminal(cwd: Path, *words: str, **env: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [*WITHIN, LONGWATCH, *words],
        cwd=cwd,
        env=clean_environment({"TERM": "xterm", **env}),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
    )
    os.close(theirs)
    lines = PipeLines(ours)
    assert 0 == process.wait(TIMEOUT)
    try:
        text = os.read(ours, 65536)
    finally:
        lines.close()
    return text.decode()


def test_the_table_fits_80_columns_and_has_colour_on_a_terminal_alone(tmp_path: Path) -> None:
    with _run(tmp_path, LONG_NAME):
        coloured = on_terminal(tmp_path, "status")
        assert "\x1b[32mup\x1b[0m" in coloured
        plain = coloured.replace("\x1b[32m", "").replace("\x1b[0m", "").splitlines()
        for lines in (plain, output(tmp_path, "status").splitlines()):
            assert max(map(len, lines)) <= 80
            assert LONG_NAME[-6:] in lines[1]
        assert "\x1b" not in output(tmp_path, "status")
        assert "\x1b" not in on_terminal(tmp_path, "status", NO_COLOR="1")
        output(tmp_path, "down")


@pytest.mark.parametrize("command", ["stop", "restart", "start"])
def test_an_empty_name_is_no_program(command: str, tmp_path: Path) -> None:
    """Not all of them: a variable of a script may be unset."""
    with _up(tmp_path):
        assert eventually(lambda: is_ready(tmp_path))
        refused = ask(tmp_path, command, "")
        assert (2, True) == (refused.returncode, "no program ''" in refused.stderr)
        assert all(program["up"] for program in status(tmp_path)["programs"])
