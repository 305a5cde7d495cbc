"""`longwatch status`, `start`, `stop`, … of the installed wheel, against a supervisor whose
answers the test makes up.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_supervisor import NOT_MEASURED, down, end, fake_supervisor, program
from longwatch.errors import ConfigError, Fault, LongwatchError, TryAgainError, UsageError
from longwatch.observe.logfile import LogFile
from longwatch.supervisor.supervisor_lock import LOCK_FILE, SupervisorLock
from run_process import TIMEOUT, PipeLines, clean_environment

Facts = dict[str, Any]
STATE = ".longwatch"
NOBODY = "no supervisor runs on .longwatch; start one with `longwatch up`, or give --state-dir"


class Shell:
    """A directory in which `longwatch` is called."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd
        self.state = cwd / STATE

    def __call__(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.longwatch, *words],
            check=False,
            cwd=self.cwd,
            env=clean_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=TIMEOUT,
        )

    def output(self, *words: str, code: int = 0, **env: str) -> str:
        """What it says when nothing is wrong with the question, without the last line end."""
        done = self(*words, **env)
        assert (code, "") == (done.returncode, done.stderr), done.stderr
        return done.stdout.removesuffix("\n")

    def refusal(self, *words: str, code: int = 2, **env: str) -> str:
        """The one line of a refusal, without its `longwatch: `."""
        done = self(*words, **env)
        assert (code, "") == (done.returncode, done.stdout), done.stderr
        [said] = done.stderr.removesuffix("\n").split("\n")
        return said.removeprefix("longwatch: ")

    def write(self, name: str, *lines: str) -> LogFile:
        """A log of the state directory that goes on from here."""
        log = LogFile(self.state / "logs" / f"{name}.log")
        for line in lines:
            log.write(line.encode() + b"\n")
        return log

    @contextmanager
    def following(self, *words: str) -> Iterator[Following]:
        """A command that goes on; killed at the end if it still runs."""
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [self.longwatch, *words],
            cwd=self.cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        following = Following(process, PipeLines(reader))
        try:
            yield following
        finally:
            process.kill()
            process.communicate()
            following.out.close()


class Following:
    def __init__(self, process: subprocess.Popen[bytes], out: PipeLines) -> None:
        self.process = process
        self.out = out

    def line(self) -> str:
        line = self.out.next_line(time.monotonic() + TIMEOUT)
        return "" if line is None else line.decode().removesuffix("\n")

    def end(self) -> tuple[int, bytes]:
        """Its exit code, and what it complained about."""
        _, complaint = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, complaint


@pytest.fixture
def shell(longwatch_bin: Path, tmp_path: Path) -> Shell:
    return Shell(longwatch_bin, tmp_path)


# --- status ---


def test_status_shows_programs_that_are_as_they_are_wanted_and_exits_with_0(shell: Shell) -> None:
    programs = [
        program(
            "web",
            total_restarts=3,
            last_end=end("exit 1", "unexpected_exit"),
            status_text="serving 12 clients",
        ),
        program("api", ready=False, pid=12, uptime=7200.0),
        program("worker", health_failures=2),
        down("migrate", "ended", last_end=end("exit 0", "clean_exit")),
        down("old", "stopped", desired="stopped"),
    ]
    with fake_supervisor(shell.state, *programs):
        told = shell.output("status").split("\n")
    assert [
        "program  state     pid  up for  cpu  memory  restarts  ready",
        "web      up       4711  90 s                        3  yes",
        "  serving 12 clients; last end: exit 1, 5 min ago",
        "api      up         12  2 h                         0  no",
        "worker   up       4711  90 s                        0  yes",
        "  2 checks failed",
        "migrate  ended                                      0",
        "  clean_exit; last end: exit 0, 5 min ago",
        "old      stopped                                    0",
    ] == told


def test_status_shows_why_programs_are_not_up_and_what_comes_next_and_exits_with_1(
    shell: Shell,
) -> None:
    open_breaker = {"phase": "open", "reason": "6 failures", "cooldown_left": 240.0}
    programs = [
        down(
            "crash",
            "broken",
            breaker=open_breaker,
            last_end=end("exit 1", "unexpected_exit", ago=7200),
        ),
        down(
            "hanger", "broken", breaker={**open_breaker, "reason": "5 hangs", "cooldown_left": None}
        ),
        down("flapper", "waiting", next_start=time.time() + 3600 * 5),
        down("front", "pending", waiting_for=["db: ready", "migrate: completed"]),
        down("bad", "ended", last_end=end("exit 2", "configuration_error")),
    ]
    with fake_supervisor(shell.state, *programs):
        told = shell.output("status", code=1).split("\n")
    assert [
        "program  state    pid  up for  cpu  memory  restarts  ready",
        "crash    broken                                    0",
        "  6 failures; one trial in 4 min, `longwatch reset crash` starts it now",
        "  last end: exit 1, 2 h ago",
        "hanger   broken                                    0",
        "  5 hangs; `longwatch reset hanger` starts it now",
        "flapper  waiting                                   0",
        "  starts again in 5 h",
        "front    pending                                   0",
        "  waits for db: ready, migrate: completed",
        "bad      ended                                     0",
        "  configuration_error; last end: exit 2, 5 min ago",
    ] == told


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (program(), 0),
        (program(ready=False), 0),
        (down("x", "stopped", desired="stopped"), 0),
        (down("x", "ended", last_end=end("exit 0", "clean_exit")), 0),
        (down("x", "ended", last_end=end("signal 15", "intentional_signal")), 0),
        (down("x", "ended", last_end=end("exit 101", "fatal_error_no_restart")), 1),
        (down("x", "ended", last_end=end("exit 1", "unexpected_exit")), 1),
        (down("x", "broken"), 1),
        (down("x", "waiting"), 1),
        (down("x", "pending"), 1),
        (down("x", "starting"), 1),
    ],
    ids=lambda value: str(value["state"]) if isinstance(value, dict) else None,
)
def test_the_exit_code_of_status_says_whether_all_is_as_it_is_wanted(
    shell: Shell, facts: Facts, code: int
) -> None:
    with fake_supervisor(shell.state, facts):
        [told] = json.loads(shell.output("status", "--json", code=code))["programs"]
    assert told == {**facts, **NOT_MEASURED}


def test_status_asks_for_the_programs_that_are_named_and_json_is_the_answer_in_one_line(
    shell: Shell,
) -> None:
    with fake_supervisor(shell.state, program()) as supervisor:
        told = json.loads(shell.output("status", "web", "api", "--json"))
        assert isinstance(supervisor.answer, dict)
        [facts] = supervisor.answer["programs"]
        assert {
            "ok": True,
            **supervisor.answer,
            "programs": [{**facts, **NOT_MEASURED}],
            "supervisors": [
                {
                    "command": None,
                    "version": "1",
                    "pid": os.getpid(),
                    "guardian_pid": None,
                    "started_at": None,
                }
            ],
        } == told
        assert [["web", "api"]] * 2 == [request["programs"] for request in supervisor.requests]
        assert ["usage", "status"] == [request["do"] for request in supervisor.requests]


def test_status_without_programs_says_so(shell: Shell) -> None:
    with fake_supervisor(shell.state):
        assert "there are no programs" == shell.output("status")


def test_what_programs_say_of_themselves_cannot_move_the_cursor(shell: Shell) -> None:
    with fake_supervisor(shell.state, program(status_text="\x1b[2J\nall gone")):
        assert "\\x1b[2J\\nall gone" in shell.output("status")


# --- no supervisor ---


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("start", "web"),
        ("stop", "--all"),
        ("restart", "x"),
        ("reset", "x"),
        ("reload",),
    ],
)
def test_without_a_supervisor_a_command_says_so_and_makes_nothing(
    shell: Shell, words: Sequence[str]
) -> None:
    assert NOBODY == shell.refusal(*words, code=75)
    assert [] == list(shell.cwd.iterdir())


def test_down_without_a_process_does_not_advise_to_start_one(shell: Shell) -> None:
    assert "no longwatch process runs in .longwatch" == shell.refusal("down", code=75)
    assert [] == list(shell.cwd.iterdir())


def test_a_supervisor_that_was_killed_is_told(shell: Shell) -> None:
    shell.state.mkdir()
    (shell.state / LOCK_FILE).write_text('{"pid": 17, "socket": "/tmp/x", "started_at": 1}\n')
    expected = (
        "the supervisor of .longwatch (pid 17) was killed; start it again with `longwatch up`"
    )
    assert expected == shell.refusal("status", code=75)


def test_a_supervisor_that_answers_nobody_any_more_is_told(shell: Shell) -> None:
    shell.state.mkdir()
    presence = SupervisorLock.acquire(shell.state)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(shell.state / "control"))
        presence.publish_socket(shell.state / "control")
        assert shell.refusal("status", code=75).startswith(
            f"no supervisor answers at {shell.state}/control: "
        )
    presence.release()


# --- where the state directory is ---


@pytest.mark.parametrize(
    ("words", "env", "toml"),
    [
        (["--state-dir", "here"], {"LONGWATCH_STATE_DIR": "wrong"}, 'state_dir = "wrong"'),
        ([], {"LONGWATCH_STATE_DIR": "here"}, 'state_dir = "wrong"'),
        ([], {}, 'state_dir = "here"\n[program.web]\nno_such_key = 1\ncommand = 7\n'),
        (["--config", "longwatch.toml"], {}, 'state_dir = "here"'),
        ([], {"LONGWATCH_CONFIG": "longwatch.toml"}, 'state_dir = "here"'),
    ],
    ids=["flag", "environment", "file with faults", "named file", "file named by the environment"],
)
def test_the_state_directory_is_found_as_up_finds_it(
    shell: Shell, words: list[str], env: dict[str, str], toml: str
) -> None:
    (shell.cwd / "longwatch.toml").write_text(toml)
    with fake_supervisor(shell.cwd / "here", program()):
        assert 0 == shell("status", *words, **env).returncode


@pytest.mark.parametrize(
    ("toml", "place"), [('state_dir = "here"', "there/here"), ("", "there/.longwatch")]
)
def test_a_state_directory_of_the_settings_is_beside_them(
    shell: Shell, toml: str, place: str
) -> None:
    (shell.cwd / "there").mkdir()
    (shell.cwd / "there" / "some.toml").write_text(toml)
    with fake_supervisor(shell.cwd / place, program()):
        assert shell.output("status", "--config", "there/some.toml")


def test_settings_that_do_not_say_where_are_told(shell: Shell) -> None:
    toml = shell.cwd / "longwatch.toml"
    assert shell.refusal("status", "--config", "none.toml").startswith(
        "none.toml: cannot be read: no such file"
    )
    toml.write_text("state_dir = [")
    assert shell.refusal("status").startswith("longwatch.toml:1:14: is not valid TOML")
    toml.write_text("state_dir = 7")
    assert "longwatch.toml: state_dir: must be text that is not empty" == shell.refusal("status")
    toml.write_text('state_dir = "off"')
    assert shell.refusal("logs").startswith("the state directory is off")


# --- commands ---


def test_commands_ask_for_what_was_said_and_tell_how_programs_stand(shell: Shell) -> None:
    with fake_supervisor(shell.state, program("web"), down("job", "stopped")) as supervisor:
        assert "web is up, pid 4711, ready\njob is stopped" == shell.output(
            "start", "web", "job", "--ready", "--timeout", "7.5"
        )
        assert {
            "do": "start",
            "programs": ["web", "job"],
            "ready": True,
            "timeout": 7.5,
        } == supervisor.requests[-1]
        shell.output("start", "web")
        assert {"do": "start", "programs": ["web"], "timeout": 30.0} == supervisor.requests[-1]
        shell.output("restart", "--all", "--ready")
        assert {
            "do": "restart",
            "all": True,
            "ready": True,
            "timeout": 30.0,
        } == supervisor.requests[-1]
        shell.output("stop", "web")
        assert {"do": "stop", "programs": ["web"]} == supervisor.requests[-1]
        told = json.loads(shell.output("reset", "--all", "--json"))
        assert {"do": "reset", "all": True} == supervisor.requests[-1]
        assert (True, ["web", "job"]) == (told["ok"], [each["name"] for each in told["programs"]])


@pytest.mark.parametrize("command", ["start", "stop", "restart", "reset"])
def test_that_everything_is_meant_has_to_be_said(shell: Shell, command: str) -> None:
    """The refusal lists the names, if a supervisor runs."""
    assert "name programs, or add --all" == shell.refusal(command)
    with fake_supervisor(shell.state, program("web"), program("crash")) as supervisor:
        assert "name programs, or add --all; there are: web, crash" == shell.refusal(command)
        assert "name programs or add --all, not both" == shell.refusal(command, "web", "--all")
        assert [{"do": "status"}] == supervisor.requests


@pytest.mark.parametrize(
    "error", [UsageError("no program 'wbe'; did you mean web?"), TryAgainError("web is waiting")]
)
def test_a_refusal_is_told_with_its_exit_code_and_a_machine_gets_it_as_json_too(
    shell: Shell, error: LongwatchError
) -> None:
    with fake_supervisor(shell.state) as supervisor:
        supervisor.answer = error
        assert str(error) == shell.refusal("stop", "wbe", code=error.exit_code)
        done = shell("status", "wbe", "--json")
    assert (error.exit_code, f"longwatch: {error}\n") == (done.returncode, done.stderr)
    assert {"ok": False, "error": str(error), "exit_code": error.exit_code} == json.loads(
        done.stdout
    )


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        ("run", "use `longwatch restart NAME`"),
        ("worker", "use `longwatch restart NAME`"),
        ("runner", "stop it and start it again"),
    ],
)
def test_reload_of_a_command_without_a_file_names_the_cure(
    shell: Shell, command: str, cure: str
) -> None:
    refused = f"`longwatch {command}` has no configuration file to read again; {cure}"
    with fake_supervisor(shell.state, command=command) as supervisor:
        done = shell("reload", "--json")
        assert (2, f"longwatch: {refused}\n") == (done.returncode, done.stderr)
        assert {"ok": False, "error": refused, "exit_code": 2} == json.loads(done.stdout)
        assert [] == supervisor.requests


def test_reload_tells_what_changed_or_every_fault(shell: Shell) -> None:
    with fake_supervisor(shell.state) as supervisor:
        supervisor.answer = {"added": ["a", "b"], "changed": ["c"], "updated": [], "removed": ["d"]}
        assert "added: a, b\nchanged: c\nremoved: d" == shell.output("reload")
        told = json.loads(shell.output("reload", "--json"))
        assert {"ok": True, "programs": [], **supervisor.answer} == told
        supervisor.answer = {"added": [], "changed": [], "updated": [], "removed": []}
        assert "nothing has changed" == shell.output("reload")
        supervisor.answer = ConfigError(
            Fault("longwatch.toml: a", "is wrong"), Fault("longwatch.toml: b", "is wrong, too")
        )
        done = shell("reload")
    expected = (
        "longwatch: longwatch.toml: a: is wrong\nlongwatch: longwatch.toml: b: is wrong, too\n"
    )
    assert (2, expected) == (done.returncode, done.stderr)


def test_a_command_for_a_hundred_programs_is_heard(shell: Shell) -> None:
    names = [f"program-{number}" for number in range(100)]
    with fake_supervisor(shell.state, *map(program, names)):
        assert 101 == len(shell.output("status").split("\n"))
        assert 100 == len(shell.output("restart", *names).split("\n"))


def test_a_timeout_that_is_none_is_refused(shell: Shell) -> None:
    assert "--timeout" in shell.refusal("start", "web", "--timeout", "soon")
    assert "--timeout" in shell.refusal("start", "web", "--timeout", "0")


# --- logs ---


def test_logs_shows_the_last_lines_of_a_program_as_it_wrote_them_without_a_supervisor(
    shell: Shell,
) -> None:
    shell.write("web", *(f"line {number} \x1b[31mred\x1b[0m" for number in range(30))).close()
    shell.write("api", "hello").close()
    assert [f"line {number} \x1b[31mred\x1b[0m" for number in range(20, 30)] == shell.output(
        "logs", "web"
    ).split("\n")
    assert "line 29 \x1b[31mred\x1b[0m" == shell.output("logs", "web", "-n", "1")
    assert "" == shell.output("logs", "web", "--lines", "0")


def test_logs_tags_the_lines_of_several_programs_and_leaves_out_our_own(shell: Shell) -> None:
    shell.write("worker", "w1", "w2", "w3").close()
    shell.write("api", "a1").close()
    shell.write("watchdog", "{}").close()
    assert "api    | a1\nworker | w2\nworker | w3" == shell.output("logs", "-n", "2")
    assert "worker | w3\napi    | a1" == shell.output("logs", "worker", "api", "-n", "1")


def test_logs_goes_back_into_the_files_that_were_rotated(shell: Shell) -> None:
    log = LogFile(shell.state / "logs" / "web.log", max_bytes=1024, keep=3)
    for number in range(100):
        log.write(f"line {number:030}\n".encode())
    log.close()
    assert [f"line {number:030}" for number in range(40, 100)] == shell.output(
        "logs", "web", "-n", "60"
    ).split("\n")


def test_logs_copes_with_bytes_long_lines_and_an_unfinished_one(shell: Shell) -> None:
    path = shell.state / "logs" / "web.log"
    shell.write("web", "first", "x" * 200_000).close()
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe\r\nunfinished")
    with shell.following("logs", "web") as following:
        following.out.read_to_end(time.monotonic() + TIMEOUT)
        assert b"first\n" + b"x" * 200_000 + b"\n\n\xff\xfe\r\n" == following.out.text


def test_a_program_without_a_log_is_told_with_the_nearest_name(shell: Shell) -> None:
    missing = (
        "there is no log of program 'web' in .longwatch/logs; start something with `longwatch "
        "up`, or give --state-dir"
    )
    assert missing == shell.refusal("logs", "web")
    shell.write("worker").close()
    assert (
        "there is no log of program 'wroker' in .longwatch/logs; did you mean worker?"
        == shell.refusal("logs", "wroker")
    )
    assert (
        "there is no log of program '../x' in .longwatch/logs; there are worker"
        == shell.refusal("logs", "../x")
    )
    assert "" == shell.output("logs")


def test_logs_follows_through_rotation_truncation_and_removal(shell: Shell) -> None:
    log = shell.write("web", "old", "last")
    with shell.following("logs", "web", "-f", "-n", "1") as following:
        assert "last" == following.line()
        log.write(b"one\n")
        assert "one" == following.line()
        log.max_bytes = 1
        for number in range(5):  # each into a file of its own, faster than anybody looks
            log.write(f"rotated {number}\n".encode())
        assert [f"rotated {number}" for number in range(5)] == [following.line() for _ in range(5)]
        log.max_bytes = 1 << 20
        os.truncate(log.path, 0)
        log.write(b"new\n")
        assert "new" == following.line()
        log.path.unlink()
        log.write(b"elsewhere\n")
        assert "elsewhere" == following.line()
    log.close()


def test_logs_follows_programs_that_come_later(shell: Shell) -> None:
    first = shell.write("web", "w")
    with shell.following("logs", "--follow") as following:
        assert "w" == following.line()
        late = shell.write("worker", "from the beginning")
        assert "from the beginning" == following.line()
    first.close()
    late.close()


def test_half_a_line_is_shown_when_it_is_whole(shell: Shell) -> None:
    log = shell.write("web", "begin")
    with shell.following("logs", "-f", "web") as following, log.path.open("ab", buffering=0) as raw:
        assert "begin" == following.line()
        raw.write(b"one ")
        raw.write(b"line\n")
        assert "one line" == following.line()
    log.close()


@pytest.mark.parametrize("command", [("logs", "web"), ("events",)], ids=lambda words: words[0])
def test_following_ends_by_ctrl_c_without_a_word(shell: Shell, command: Sequence[str]) -> None:
    shell.write("web", "line").close()
    shell.write("watchdog", '{"event": "x"}').close()
    with shell.following(*command, "-f") as following:
        assert following.line()
        following.process.send_signal(signal.SIGINT)
        assert (130, b"") == following.end()


def test_following_ends_when_nobody_reads_any_more_though_nothing_comes(shell: Shell) -> None:
    shell.write("web", "line").close()
    with shell.following("logs", "web", "-f") as following:
        assert "line" == following.line()
        following.out.close()
        assert (0, b"") == following.end()


def test_a_reader_who_leaves_in_the_middle_is_no_error(shell: Shell) -> None:
    shell.write("web", "\n".join(["x" * 100] * 10_000)).close()
    with shell.following("logs", "web", "-n", "10000") as following:
        assert following.line()
        following.out.close()
        assert (0, b"") == following.end()


# --- events ---


def record(event: str, minute: int, **facts: Any) -> str:
    head = {
        "ts": f"2026-02-03T12:{minute:02}:00.000Z",
        "level": "info",
        "event": event,
        "pid": 1,
        "managerPid": 1,
    }
    return json.dumps({**head, **facts}, separators=(",", ":"))


def test_events_shows_what_happened_last_with_its_day(shell: Shell) -> None:
    lines = [
        record("program_started", number, program="web", start_number=number)
        for number in range(15)
    ]
    shell.write("watchdog", *lines, "not JSON", "[]").close()
    told = shell.output("events", TZ="UTC").split("\n")
    assert 10 == len(told)
    assert (
        "2026-02-03 12:14:00.000 info     program_started program=web start_number=14" == told[-1]
    )
    assert lines[-2:] == shell.output("events", "--json", "-n", "2").split("\n")


def test_events_of_a_program_are_those_that_name_it(shell: Shell) -> None:
    lines = [
        record("program_started", 1, program="web"),
        record("program_started", 2, program="api"),
        record("control_command_received", 3, command="stop", programs=["api", "web"]),
        record("supervisor_stopped", 4),
    ]
    for name in ("web", "api"):
        shell.write(name).close()
    shell.write("watchdog", *lines).close()
    assert [lines[0], lines[2]] == shell.output("events", "web", "--json").split("\n")
    assert "did you mean api?" in shell.refusal("events", "apii")


def test_events_leaves_out_what_is_for_machines_unless_it_speaks_to_one(shell: Shell) -> None:
    quiet = record("settings_loaded", 1, level="debug")
    shell.write("watchdog", record("a", 0), quiet).close()
    assert "settings_loaded" not in shell.output("events")
    assert quiet in shell.output("events", "--json")


def test_events_follows(shell: Shell) -> None:
    log = shell.write("watchdog", record("a", 1))
    with shell.following("events", "-f", "--json") as following:
        assert "a" == json.loads(following.line())["event"]
        log.write(record("b", 2).encode() + b"\n")
        assert "b" == json.loads(following.line())["event"]
    log.close()


def test_events_has_colours_only_on_a_terminal(shell: Shell) -> None:
    shell.write("watchdog", record("a", 1)).close()
    assert "\x1b" not in shell.output("events")
    ours, theirs = pty.openpty()
    command: list[str | Path] = [shell.longwatch, "events"]
    subprocess.run(
        command, check=True, cwd=shell.cwd, env=clean_environment(), stdout=theirs, timeout=TIMEOUT
    )
    shown = os.read(ours, 1000)
    os.close(theirs)
    os.close(ours)
    assert b"\x1b[32m" in shown


def test_without_a_state_directory_events_says_what_logs_says(shell: Shell) -> None:
    expected = (
        "no logs are kept in .longwatch; start something with `longwatch up`, or give --state-dir"
    )
    assert expected == shell.refusal("events") == shell.refusal("logs")


def test_many_ask_at_once(shell: Shell) -> None:
    with fake_supervisor(shell.state, program()):
        codes: list[int] = []
        threads = [
            threading.Thread(target=lambda: codes.append(shell("status").returncode))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
    assert [0] * 6 == codes
