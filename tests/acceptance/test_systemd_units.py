"""The units of deploy/systemd: valid, the same as in the documentation, and true of the product.

systemd itself does not run here. Its part is played by a socket, the variables that it sets and the
signals that the unit names.
"""

from __future__ import annotations

import configparser
import inspect
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import requires
from longwatch.app.plans import EXTRA_GRACE
from longwatch.runtime import LoopGroup
from markdown_files import ROOT, Page
from run_process import TIMEOUT, RunProcess, start_process
from up_process import SLEEPER, write_config

DIRECTORY = ROOT / "deploy" / "systemd"
UNITS = sorted(DIRECTORY.glob("*.service"))
GROUP = """
from longwatch import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Films(MainLoop[str, None]):
    def handle(self, request, context):
        pass

group = LoopGroup([Films(requests=open_mailbox("sqlite:///jobs.db", "jobs"), name="films")])
"""
BROKEN_BY_HARDENING = {
    "MemoryDenyWriteExecute",  # ctypes and compilers at run time
    "PrivatePIDs",  # `longwatch status` looks at processes by their pid
    "PrivateUsers",  # files of other users
    "ProcSubset",  # the id of the boot and the memory of the machine are in /proc
    "ProtectControlGroups",  # a cgroup for each program
    "ProtectProc",  # the processes of programs of other users
    "RestrictNamespaces",  # container runtimes below a program
    "SystemCallFilter",  # whatever a program may need
}
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)


class Unit:
    """The settings of a unit, by section; a setting may be there several times."""

    def __init__(self, path: Path) -> None:
        parser = configparser.RawConfigParser(strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign] # names are as they are
        parser.read(path)
        self.service = dict(parser["Service"])
        lines = path.read_text(encoding="utf-8").splitlines()
        environment = (line for line in lines if line.startswith("Environment="))
        self.environment = dict(line.split("=", 2)[1:] for line in environment)

    @property
    def command(self) -> list[str]:
        return shlex.split(self.service["ExecStart"])


@each_unit
def test_systemd_accepts_the_unit(unit: Path, longwatch_bin: Path, tmp_path: Path) -> None:
    """It also checks that the command exists, so that is the installed one here."""
    requires.require_tool("systemd-analyze")
    program = Unit(unit).command[0]
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text(encoding="utf-8").replace(program, str(longwatch_bin)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], check=False, capture_output=True, text=True
    )
    ours = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (0, []) == (done.returncode, ours)


@each_unit
def test_the_guide_shows_the_unit_as_it_is(unit: Path) -> None:
    page = Page.read(ROOT / "docs" / "how-to" / "systemd-unit.md")
    assert unit.read_text(encoding="utf-8") in {
        block.text for block in page.blocks if block.info[:1] == ("ini",)
    }


@each_unit
def test_no_hardening_takes_what_longwatch_or_its_programs_need(unit: Path) -> None:
    service = Unit(unit).service
    assert set() == BROKEN_BY_HARDENING & service.keys()
    assert ("yes", "continue") == (service["Delegate"], service["OOMPolicy"])
    assert ("yes", "full") == (service["NoNewPrivileges"], service["ProtectSystem"])


@each_unit
def test_a_stop_has_the_time_that_the_programs_have(unit: Path) -> None:
    service = Unit(unit).service
    shutdown = inspect.signature(LoopGroup).parameters["shutdown_timeout"].default
    assert float(service["TimeoutStopSec"]) > shutdown + EXTRA_GRACE
    assert "mixed" == service["KillMode"], "else systemd signals the programs itself"


@each_unit
def test_directories_are_for_the_user_of_the_unit_alone(unit: Path) -> None:
    parsed = Unit(unit)
    for kind, parent, name in (
        ("StateDirectory", "/var/lib", "LONGWATCH_STATE_DIR"),
        ("RuntimeDirectory", "/run", "XDG_RUNTIME_DIR"),
    ):
        directory = f"{parent}/{parsed.service[kind]}"
        assert "0700" == parsed.service[f"{kind}Mode"]
        assert f"{parsed.environment[name]}/".startswith(f"{directory}/")


@each_unit
def test_exit_codes_that_need_a_person_are_not_restarted(unit: Path) -> None:
    service = Unit(unit).service
    assert ("on-failure", "2 100") == (service["Restart"], service["RestartPreventExitStatus"])


class Notices:
    """What a service reports to systemd."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours

    def wait_for(self, wanted: str) -> None:
        """Read up to the first such notice from now on."""
        while wanted not in self._ours.recv(4096).decode().splitlines():
            pass


@contextmanager
def started_by(
    unit: Path, longwatch: Path, cwd: Path, command: list[str]
) -> Iterator[tuple[RunProcess, Notices]]:
    """This command with the environment that systemd would give it for the unit."""
    parsed = Unit(unit)
    address = str(cwd / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.bind(address)
        ours.settimeout(TIMEOUT)
        env = {
            "NOTIFY_SOCKET": address,
            "WATCHDOG_USEC": str(int(parsed.service["WatchdogSec"]) * 1_000_000),
            "LONGWATCH_STATE_DIR": str(cwd / "state"),
        }
        with start_process([longwatch, *command], cwd, env=env) as (process, out, err):
            yield RunProcess(process, out, err, cwd / "state" / "logs"), Notices(ours)


def test_longwatch_up_reports_as_its_unit_promises(longwatch_bin: Path, tmp_path: Path) -> None:
    unit = DIRECTORY / "longwatch.service"
    write_config(tmp_path, {"a": SLEEPER})
    command = Unit(unit).command[1:]
    assert "notify" == Unit(unit).service["Type"]
    command[command.index("--config") + 1] = "longwatch.toml"
    with started_by(unit, longwatch_bin, tmp_path, command) as (run, notices):
        notices.wait_for("READY=1")
        assert ["a"] == [each["program"] for each in run.logged_events("program_started")]
        notices.wait_for("WATCHDOG=1")
        assert "/bin/kill -HUP $MAINPID" == Unit(unit).service["ExecReload"]
        run.signal(signal.SIGHUP)
        run.wait_for_event("config_reloaded")
        run.signal(signal.SIGTERM)
        assert 0 == run.wait()
        notices.wait_for("STOPPING=1")


def test_a_program_of_longwatch_up_does_not_report_for_it(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    program = {"command": ["sh", "-c", "echo $NOTIFY_SOCKET"]}
    write_config(tmp_path, {"a": program})
    unit = DIRECTORY / "longwatch.service"
    with started_by(unit, longwatch_bin, tmp_path, ["up"]) as (run, _):
        assert str(tmp_path / "notify") not in run.next_line()
        run.wait_for_event("clean_exit")
        run.signal(signal.SIGTERM)
        assert 0 == run.wait()


def test_longwatch_worker_reports_as_its_unit_promises(longwatch_bin: Path, tmp_path: Path) -> None:
    unit = DIRECTORY / "longwatch-worker.service"
    (tmp_path / "app.py").write_text(GROUP)
    with started_by(unit, longwatch_bin, tmp_path, Unit(unit).command[1:]) as (run, notices):
        notices.wait_for("READY=1")
        assert run.wait_for_event("worker_joined", times=4)
        notices.wait_for("WATCHDOG=1")
        run.signal(signal.SIGTERM)
        assert 0 == run.wait()
        notices.wait_for("STOPPING=1")
