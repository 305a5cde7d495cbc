"""A package that is replaced under a running parent: its workers may then speak another
protocol.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longwatch.app.control import workers as worker_report
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.health import HealthReason
from longwatch.host.parent_channel import PROTOCOL, ParentChannel
from longwatch.mailbox import open_mailbox
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_listener import ProgramStart
from longwatch.workers.monitor import WorkerMonitor
from package_copy import copy_package
from parent_rig import Parent
from polling import eventually
from run_process import start_process
from up_process import UpProcess, unused_port

APP = """
import os
from longwatch.host import parent_channel
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Jobs(MainLoop):
    def handle(self, job, context):
        return [job, os.getpid(), parent_channel.PROTOCOL]

loop = Jobs(requests=open_mailbox(os.environ["URL"], "jobs"), name="jobs")
group = LoopGroup([loop], health_port=int(os.environ["PORT"]))
"""


def given(protocol: str | None, address: str = "/somewhere") -> dict[str, str]:
    """The environment that a parent of this protocol gives."""
    base = {"LONGWATCH_PARENT": address, "LONGWATCH_PARENT_INCARNATION": "its.incarnation"}
    return base if protocol is None else {**base, "LONGWATCH_PARENT_PROTOCOL": protocol}


@pytest.fixture(name="parent")
def parent_fixture(tmp_path: Path) -> Iterator[Parent]:
    made = Parent(tmp_path / "line")
    yield made
    made.close()


@pytest.mark.parametrize("protocol", [None, str(PROTOCOL)])
def test_a_parent_of_the_same_protocol_is_used(protocol: str | None) -> None:
    """A parent from before protocols had numbers speaks the first."""
    environ = given(protocol)
    assert ParentChannel.from_environment(environ) is not None
    assert {} == environ


@pytest.mark.parametrize("protocol", ["0", "2", "new"])
def test_a_parent_of_another_protocol_gets_one_report_and_is_not_used(
    protocol: str, parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    environ = given(protocol, parent.address)
    assert ParentChannel.from_environment(environ) is None
    assert {} == environ
    expected = {"about": "apart", "pid": os.getpid(), "protocol": PROTOCOL}
    assert expected == parent.receive()
    assert parent.is_silent()
    assert f"expected a parent of protocol {PROTOCOL}, found {protocol}" in caplog.text
    assert "restart the parent" in caplog.text


def test_a_parent_knows_which_programs_stand_apart_and_names_the_cure() -> None:
    monitor = WorkerMonitor(
        kill_worker=lambda pid, reason: None, clock=SystemClock(), events=Events()
    )
    for pid, kind in ((1, ProgramKind.WORKER), (2, ProgramKind.PAGE)):
        monitor.program_started(ProgramStart(program=kind.value, kind=kind, pid=pid))
        monitor._reports.accept({"about": "apart", "pid": pid, "protocol": 7})
    reason = f"parent: expected protocol 7, found {PROTOCOL}; restart the parent"
    expected = {ProgramKind.WORKER.value: reason, ProgramKind.PAGE.value: reason}
    assert expected == monitor.unready_reasons()
    [worker] = monitor.workers()
    assert (HealthReason.PENDING, False) == (worker.reason, worker.has_joined)


@contextmanager
def running_parent(package: Path, cwd: Path) -> Iterator[UpProcess]:
    """`longwatch worker` of this package, with one process."""
    env = {
        **os.environ,
        "PYTHONPATH": str(package),
        "URL": f"sqlite:///{cwd}/jobs.db",
        "PORT": str(unused_port()),
    }
    command = [sys.executable, "-m", "longwatch", "worker", "app:group", "--name", "jobs"]
    options = ["--processes", "1", "--log-format", "json"]
    with start_process([*command, *options], cwd, env=env) as (process, out, err):
        yield UpProcess(process, out, err, longwatch=Path("longwatch"), cwd=cwd)


def replace_package(package: Path) -> None:
    """Upgrade it in place to a release with another protocol."""
    path = package / "longwatch" / "host" / "parent_channel.py"
    text = path.read_text()
    assert "PROTOCOL = FIRST_PROTOCOL\n" in text
    path.write_text(text.replace("PROTOCOL = FIRST_PROTOCOL\n", "PROTOCOL = 99\n"))


def test_a_worker_that_was_upgraded_under_its_parent_works_on_and_the_parent_names_the_cure(
    tmp_path: Path,
) -> None:
    """The health port of its group stays with the parent, and a new parent has it join again."""
    package = copy_package(tmp_path / "package")
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path}/jobs.db"
    jobs, done = open_mailbox(url, "jobs"), open_mailbox(url, "done")

    def ask(job: int) -> tuple[int, int]:
        """Have a message handled; the process that did it, and its protocol."""
        jobs.send(job, reply_to="done")
        assert eventually(lambda: done.stats().ready == 1)
        [message] = done.receive()
        message.acknowledge()
        number, pid, protocol = message.body["output"]
        assert job == number
        return pid, protocol

    with running_parent(package, tmp_path) as parent:
        before, protocol = ask(1)
        assert PROTOCOL == protocol
        replace_package(package)
        os.kill(before, signal.SIGKILL)
        apart, protocol = ask(2)
        assert 99 == protocol
        assert apart != before
        facts = of_worker(parent)
        assert (apart, False, "pending") == (facts["pid"], facts["ready"], facts["reason"])
        cure = f"parent: expected protocol 99, found {PROTOCOL}; restart the parent"
        assert [cure] == facts["failing"]
        parent.signal(signal.SIGTERM)
        assert 0 == parent.wait()
    with running_parent(package, tmp_path) as parent:
        assert 99 == ask(3)[1]
        assert eventually(lambda: of_worker(parent)["joined"])
    jobs.close()
    done.close()


def of_worker(parent: UpProcess) -> dict[str, Any]:
    [facts] = worker_report(parent.state_dir)["workers"]
    found: dict[str, Any] = facts
    return found
