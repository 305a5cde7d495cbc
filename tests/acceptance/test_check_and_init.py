"""`longwatch init` and `longwatch check`: a first file, and what is said about a file before
anything is started.
"""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
from pathlib import Path

import pytest

from run_process import run_longwatch


class Command:
    """Calls `longwatch` in a directory."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd

    def __call__(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_longwatch(self.longwatch, self.cwd, *arguments, env=env)

    def ok(self, *arguments: str, **env: str) -> str:
        done = self(*arguments, **env)
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    def refused(self, *arguments: str, **env: str) -> list[str]:
        """The lines that it refuses with, without their `longwatch: `."""
        done = self(*arguments, **env)
        assert (2, "") == (done.returncode, done.stdout), done.stderr
        lines = done.stderr.splitlines()
        assert [] == [line for line in lines if not line.startswith("longwatch: ")]
        return [line.removeprefix("longwatch: ") for line in lines]

    def checked(self, text: str, **env: str) -> list[str]:
        """The lines of `longwatch check` for a file of this text."""
        (self.cwd / "longwatch.toml").write_text(text)
        return self.ok("check", **env).splitlines()

    def faults(self, text: str, **env: str) -> list[str]:
        (self.cwd / "longwatch.toml").write_text(text)
        return [line.removeprefix("longwatch.toml: ") for line in self.refused("check", **env)]


@pytest.fixture
def call(longwatch_bin: Path, tmp_path: Path) -> Command:
    return Command(longwatch_bin, tmp_path)


# --- init ---


def test_init_writes_a_file_that_passes_check_and_says_what_to_do_next(call: Command) -> None:
    said = call.ok("init").splitlines()
    assert (
        "longwatch.toml is written: one example program, and every setting with its "
        "default. Next:" == said[0]
    )
    assert [
        "  longwatch check",
        "  longwatch up",
        "  longwatch status    (in another terminal)",
    ] == said[1:]
    assert 0o644 == (call.cwd / "longwatch.toml").stat().st_mode & 0o7777
    assert (
        "longwatch.toml is in order: 1 program"
        == call.ok("check", HEALTH_CHECK_ENABLED="no").splitlines()[0]
    )


def test_init_elsewhere_is_followed_by_commands_that_go_there(call: Command) -> None:
    (call.cwd / "my app").mkdir()
    said = call.ok("init", "--config", "my app/a.toml").splitlines()
    assert "  longwatch check --config 'my app/a.toml'" == said[1]
    assert (
        "my app/a.toml is in order: 1 program"
        == call.ok("check", "--config", "my app/a.toml").splitlines()[0]
    )


def test_init_does_not_write_over_a_file_unless_it_is_told_to(call: Command) -> None:
    path = call.cwd / "longwatch.toml"
    path.write_text("mine")
    assert [
        "'longwatch.toml' exists already; keep it, or overwrite it with --force"
    ] == call.refused("init")
    assert "mine" == path.read_text()
    call.ok("init", "--force")
    assert "[program.web]" in path.read_text()
    assert [path] == list(call.cwd.iterdir())


def test_init_with_force_writes_through_a_link(call: Command) -> None:
    (call.cwd / "real.toml").write_text("mine")
    (call.cwd / "longwatch.toml").symlink_to("real.toml")
    assert [
        "'longwatch.toml' exists already; keep it, or overwrite it with --force"
    ] == call.refused("init")
    call.ok("init", "--force")
    assert (call.cwd / "longwatch.toml").is_symlink()
    assert "[program.web]" in (call.cwd / "real.toml").read_text()


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_init_where_nothing_can_be_written_is_told_so(
    call: Command, options: tuple[str, ...]
) -> None:
    lines = call.refused("init", "--config", "no/where.toml", *options)
    assert [
        (
            "cannot write 'no/where.toml' (no such file or directory); choose another place with "
            "--config"
        )
    ] == lines


# --- check ---

THREE = """
[program.web]
command = "sleep --token=s3cret"
depends_on = {db = "ready", setup = "completed"}
critical = true
[program.setup]
command = "true 'a b'"
autostart = false
[program.db]
command = "sleep 5"
health.kind = "heartbeat"
"""


def test_check_tells_every_program_in_the_order_of_its_start(call: Command) -> None:
    first, head, *rows = call.checked(THREE)
    assert "longwatch.toml is in order: 3 programs" == first
    assert ["wave", "program", "command", "ready when", "waits for", "notes"] == [
        word.strip() for word in head.split("  ") if word
    ]
    assert [["1", "setup"], ["1", "db"], ["2", "web"]] == [row.split()[:2] for row in rows]
    assert "true 'a b'" in rows[0]
    assert "up" in rows[0]
    assert "by hand" in rows[0]
    assert "healthy (heartbeat)" in rows[1]
    assert "db ready, setup completed" in rows[2]
    assert "critical" in rows[2]


def test_check_in_json_has_the_same_in_keys_and_no_secret(call: Command) -> None:
    call.checked(THREE)
    said = call.ok("check", "--json")
    told = json.loads(said)
    assert "s3cret" not in said
    assert {
        "config": str(call.cwd / "longwatch.toml"),
        "state_dir": str(call.cwd / ".longwatch"),
        "warnings": [],
    } == {key: value for key, value in told.items() if key != "programs"}
    assert {
        "name": "db", "kind": "command", "wave": 1, "command": ["sleep", "5"],
        "cwd": str(call.cwd), "user": None, "ready": "healthy",
        "health": {"kind": "heartbeat", "port": None},
        "probes": {"liveness": {"kind": "heartbeat"}},
        "depends_on": {}, "critical": False, "autostart": True, "fault": "",
    } == told["programs"][1]  # fmt: skip


def test_check_starts_nothing_and_leaves_nothing_behind(call: Command) -> None:
    call.checked("[program.web]\ncommand = 'touch started'")
    assert ["longwatch.toml"] == [path.name for path in call.cwd.iterdir()]


def test_check_without_a_file_says_how_to_get_one(call: Command) -> None:
    assert [
        "no longwatch.toml here; write one with `longwatch init`, or name it with --config"
    ] == call.refused("check")


def test_check_finds_the_file_that_the_environment_names(call: Command) -> None:
    (call.cwd / "a.toml").write_text("[program.web]\ncommand = 'true'")
    assert (
        "a.toml is in order: 1 program"
        == call.ok("check", LONGWATCH_CONFIG="a.toml").splitlines()[0]
    )


EVERY_KIND_OF_FAULT = """
[supervisor.log]
level = "loud"
[program.web]
command = "no-such-command x"
stop_grace = -1
depends_on = ["nope"]
[program.here]
command = "true"
cwd = "missing"
[program.api]
command = "sleep 1"
health.port = {port}
[program.other]
command = "sleep 1"
health.port = {port}
[program.number]
command = 5
[worker.jobs]
target = "no_such_module:group"
processes = 300
"""


def test_check_lists_faults_of_the_file_and_of_the_machine_in_one_round(call: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lines = call.faults(EVERY_KIND_OF_FAULT.format(port=port))
    starts = [
        "supervisor.log.level: must be",
        "program.web.stop_grace: must be a duration",
        "program.number.command: must be a list",
        "worker.jobs.processes: must be a whole number",
        f"program.other.health.port: is {port}, on which api is asked",
        "program.web.depends_on: waits for 'nope'",
        "program.web.command: command 'no-such-command' was not found",
        "program.here.cwd: the working directory",
        "worker.jobs.target: the module 'no_such_module'",
        f"program.api.health.port: {port} is not free",
    ]
    assert starts == [line[: len(start)] for line, start in zip(lines, starts, strict=True)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[program.web]\ncommand = 5", "program.web.command: must be a list"),
        ("[program.web]\ncommand = 'no-such'\ncwd = 5", "program.web.cwd: must be text"),
        ("[program.web]\ncommand = 'x'\nenv.PATH = 5", "program.web.env.PATH: must be text"),
        ("[worker.w]\ntarget = 5", "worker.w.target: must be text"),
        (
            "[program.web]\ncomand = 'true'",
            "program.web.comand: unknown key; did you mean command?",
        ),
        (
            "[program.web]\ncommand = 'no-such'\ncwdd = 'x'",
            "program.web.cwdd: unknown key; did you mean cwd?",
        ),
        ("[program.web", ":1:13: is not valid TOML"),
        (
            "[supervisor]\nhealth_port = 0\n[program.web]\ncommand = 'true'\nhealth.kind = 'tcp'",
            "supervisor.health_port: must be a whole number",
        ),
        (
            "[program.a]\ncommand = 'true'\nhealth.port = 0\n[program.b]\ncommand = 'true'",
            "program.a.health.port: must be a whole number",
        ),
        (
            "[program.a]\ncommand = 'true'\nbackoff = {initial = -1, cap = 0.5}",
            "program.a.backoff.initial: must be a duration",
        ),
    ],
)
def test_a_fault_is_not_followed_by_those_that_follow_from_it(
    call: Command, text: str, fault: str
) -> None:
    [line] = call.faults(text)
    assert fault in line


def test_check_tells_every_fault_of_the_file_at_once(call: Command) -> None:
    text = (
        "[program.a]\ncommand = 'true'\ndepends_on = ['b']\n[program.b]\ncommand = "
        "'true'\ndepends_on = ['a', 'webb']\n"
    )
    assert [
        "program.web.stop_grase: unknown key; did you mean stop_grace?",
        "program.b.depends_on: waits for 'webb', which is not a program; did you mean web?",
        "program.a.depends_on: waits for itself: a → b → a; remove one of them",
    ] == call.faults(f"{text}[program.web]\ncommand = 'true'\nstop_grase = 1")


def test_check_tells_everything_that_the_machine_does_not_have(call: Command) -> None:
    text = (
        "[program]\na = {command = 'true', user = 'nobdy'}\nb = {command = 'true', cwd = "
        "'no'}\nc.command = 'zzqy-not-a-command'"
    )
    assert [
        "program.a.user: there is no user 'nobdy'; did you mean nobody?",
        (
            f"program.b.cwd: the working directory '{call.cwd}/no' does not exist; make it, or "
            f"correct cwd"
        ),
        (
            "program.c.command: command 'zzqy-not-a-command' was not found on the PATH; check the "
            "spelling or give its full path"
        ),
    ] == call.faults(text)


def test_check_tells_two_programs_of_one_name(call: Command) -> None:
    (call.cwd / "longwatch.toml").write_text(
        "[program.web]\ncommand = 'true'\n[program.web]\ncommand = 'true'"
    )
    problem = "there are two programs of the name web; rename one, or put their keys into one table"
    assert [f"longwatch.toml:3:13: {problem}"] == call.refused("check")


def test_check_tells_a_port_that_is_in_use(call: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [fault] = call.faults(f"[program.web]\ncommand = 'true'\nhealth.port = {port}")
    problem = (
        f"{port} is not free (address already in use), so health checks would ask another server"
    )
    assert f"program.web.health.port: {problem}; stop that one, or choose another port" == fault


def test_check_leaves_ports_alone_that_a_running_supervisor_may_have_given_to_its_programs(
    call: Command,
) -> None:
    state = call.cwd / ".longwatch"
    state.mkdir()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        (state / "supervisor.lock").open("w+") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write('{"pid": 1, "socket": "/run/x"}\n')
        lock.flush()
        first = call.checked(
            f"[program.web]\ncommand = 'true'\nhealth.port = {server.getsockname()[1]}"
        )[0]
    assert "longwatch.toml is in order: 1 program" == first
