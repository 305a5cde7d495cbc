"""Two hosts on one database: each a PID namespace with a runtime directory of its own, whose
processes nobody outside can judge.

A host is a machine, then it runs on a boot of its own, or a container, then its files are lost with
it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

import fault_client
import requires
from fault_harness import MailboxWatcher
from fault_run import SERVERS
from longwatch.mailbox import Mailbox
from polling import eventually
from process_facts import command_line

HELD_MESSAGES = 4
"""How many messages the role `hold` takes."""
SWEEPS = 20
_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


class Host:
    """One client of each role, in a PID namespace of their own; `boot` is empty in a container on
    this machine.
    """

    def __init__(
        self, folder: Path, url: str, roles: Sequence[str], *, boot: str, lease: float
    ) -> None:
        folder.mkdir()
        self.is_container = not boot
        self._journals = {role: folder / role for role in roles}
        self._files = tempfile.mkdtemp(prefix="lw-")
        clients = [
            f'"$0" {fault_client.__file__} {role} {url} {journal} 1 &'
            for role, journal in self._journals.items()
        ]
        environment = {
            "XDG_RUNTIME_DIR": self._files,
            "FAULT_LEASE": str(lease),
            "FAULT_BOOT": boot,
        }
        command = [*_NAMESPACE, "sh", "-c", " ".join([*clients, "wait"]), sys.executable]
        self._outside = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )

    def deliveries(self, role: str) -> dict[int, int]:
        """The messages that this client was given, and how many processes were said to have died
        of each.
        """
        journal = self._journals[role]
        lines = (
            [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []
        )
        return {int(words[1]): int(words[2]) for words in lines if words[0] == "took"}

    def kill(self, role: str) -> None:
        """Kill one of its processes."""
        for process in psutil.Process(self._outside.pid).children(recursive=True):
            if process.exe() == os.path.realpath(sys.executable) and str(
                self._journals[role]
            ) in command_line(process):
                process.kill()

    def power_off(self) -> None:
        """Everything on it ends in the same moment; idempotent."""
        self._outside.kill()
        self._outside.wait()
        if self.is_container:
            shutil.rmtree(self._files, ignore_errors=True)

    def close(self) -> None:
        self.power_off()
        shutil.rmtree(self._files, ignore_errors=True)


class SharedStore:
    """A store that hosts share."""

    def __init__(
        self, folder: Path, url: str, mailbox: Mailbox[Any], *, boots: Sequence[str]
    ) -> None:
        self.mailbox = mailbox
        self.hosts: list[Host] = []
        self._folder = folder
        self._url = url
        self._boots = boots
        self._numbers = count()

    def host(self, *roles: str, lease: float) -> Host:
        number = len(self.hosts)
        self.hosts.append(
            Host(
                self._folder / f"host-{number}",
                self._url,
                roles,
                boot=self._boots[number],
                lease=lease,
            )
        )
        return self.hosts[-1]

    def fill(self, host: Host) -> dict[int, int]:
        """Send until one of its clients holds all that it can; what it holds."""
        while len(host.deliveries("hold")) < HELD_MESSAGES:
            self.mailbox.send(next(self._numbers))
            assert eventually(
                lambda: len(host.deliveries("hold")) == self.mailbox.approximate_count()
            )
        return host.deliveries("hold")

    def is_empty(self) -> bool:
        return self.mailbox.approximate_count() == 0


@pytest.fixture(params=sorted(SERVERS))
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    requires.require_tool("unshare")
    with SERVERS[request.param]() as made:
        yield made


@pytest.fixture(params=["machines", "containers"])
def shared_store(
    request: pytest.FixtureRequest, tmp_path: Path, server: Any
) -> Iterator[SharedStore]:
    boots = [f"boot-{number}" if request.param == "machines" else "" for number in range(5)]
    with MailboxWatcher(server.url) as watcher:
        made = SharedStore(tmp_path, server.url, watcher.mailbox, boots=boots)
        yield made
        for host in made.hosts:
            host.close()


def test_a_live_host_that_others_cannot_see_is_not_robbed(shared_store: SharedStore) -> None:
    shared_store.fill(shared_store.host("hold", lease=600))
    assert [0] * SWEEPS == [shared_store.mailbox.backend.sweep() for _ in range(SWEEPS)]
    assert HELD_MESSAGES == shared_store.mailbox.stats().leased


def test_the_work_of_a_process_that_dies_moves_at_once_and_it_is_to_blame(
    shared_store: SharedStore,
) -> None:
    """Its neighbour on the same host sees that it is gone, long before the leases end; who gets
    the work then does not matter.
    """
    first, second = (
        shared_store.host("hold", "work", lease=600),
        shared_store.host("work", lease=600),
    )
    held = shared_store.fill(first)
    first.kill("hold")
    assert eventually(shared_store.is_empty)
    moved = {**first.deliveries("work"), **second.deliveries("work")}
    assert dict.fromkeys(held, 1) == {n: crashes for n, crashes in moved.items() if n in held}


def test_the_work_of_a_host_that_is_lost_is_found_when_its_leases_end_and_blames_nobody(
    shared_store: SharedStore,
) -> None:
    first = shared_store.host("hold", "work", lease=2)
    held = shared_store.fill(first)
    first.power_off()
    second = shared_store.host("work", lease=2)
    assert eventually(shared_store.is_empty)
    assert dict.fromkeys(held, 0) == {
        n: crashes for n, crashes in second.deliveries("work").items() if n in held
    }
    assert 0 == len(shared_store.mailbox.dead_letters)


def test_a_message_whose_hosts_are_lost_five_times_is_given_up_as_lost(
    shared_store: SharedStore,
) -> None:
    """No page is left that shows what ran, so nothing but the losses can be counted."""
    shared_store.mailbox.send(7)
    for _ in range(5):
        shared_store.host("hold", lease=0.5)
        assert eventually(lambda: shared_store.hosts[-1].deliveries("hold") == {7: 0})
        shared_store.hosts[-1].power_off()
    assert eventually(lambda: shared_store.mailbox.backend.sweep() == 1)
    assert shared_store.is_empty()
    [dead] = shared_store.mailbox.dead_letters
    assert ("lost", 5, 0, 0) == (dead.reason, dead.lost, dead.crashes, dead.failures)
