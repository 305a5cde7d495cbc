from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import crash_client
from chaos_plan import ChaosPlan
from crash_client import MAILBOX, POISON
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import StoreBusyError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.store.claims import Claim

ROLES = ("produce", "produce", "receive", "receive", "work", "work", "dawdle")
POISONS = 4
DRAIN_TIMEOUT = 120.0
HELD = (
    "SELECT crashes, incarnation FROM longwatch_messages JOIN longwatch_owners USING (owner) "
    "WHERE lease_state = 2"
)
_NEVER = select.poll()


class ClientProcess:
    """One client in a process of its own."""

    def __init__(self, role: str, url: str, journal: Path, number: int) -> None:
        self.role = role
        self.journal = journal
        command = [sys.executable, crash_client.__file__, role, url, str(journal), str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def suspend(self) -> bool:
        """Stop every thread of it; False if it has ended meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        while not self.has_exited():
            if self._states() <= {"T"}:
                return True
            pause(0.001)
        return False

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def receipts(self) -> list[Claim]:
        return [Claim(*map(int, words[2:])) for words in self.entries() if words[0] == "took"]

    def entries(self) -> list[list[str]]:
        return (
            [line.split() for line in self.journal.read_text().splitlines()]
            if self.journal.exists()
            else []
        )

    def _states(self) -> set[str]:
        return {
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{self.pid}/task").iterdir()
        }


class CrashHarness:
    """Runs the clients, kills some, and reads their journals."""

    def __init__(self, folder: Path, roles: tuple[str, ...], dice: random.Random) -> None:
        self.url = f"sqlite:///{folder}/crashes.db"
        self.mailbox: Mailbox[Any] = open_mailbox(self.url, MAILBOX)
        self.store: Any = self.mailbox.backend.database  # type: ignore[attr-defined]
        self.store.write(lambda tx: tx.execute("CREATE TABLE ledger (n INTEGER NOT NULL)"))
        self.stale_accepted = 0
        self.stale_tried = 0
        self.kills = 0
        self.spared = 0
        self._folder = folder
        self._dice = dice
        self._all_clients: list[ClientProcess] = []
        self.deaths = 0
        self.clients = [self._start_client(role) for role in roles]

    def kill_at_random(self, seconds: float) -> None:
        """Kill one after another at random, and put another in its place.

        On a slow machine this takes longer: until a victim has left receipts to try.
        """
        end, poisons = time.monotonic() + seconds, iter(range(POISONS))
        latest = end + DRAIN_TIMEOUT
        due = [time.monotonic() + seconds * part / (POISONS + 1) for part in range(POISONS)]
        while time.monotonic() < (end if self.stale_tried else latest):
            pause(self._dice.uniform(0.02, 0.4))
            if due and time.monotonic() > due[0]:
                due.pop(0)
                self.mailbox.send(f"{POISON}-{next(poisons)}")
            self.replace_exited()
            self._kill_one(self._dice.choice(self.clients))
        for number in poisons:  # on a slow machine the loop ends before all are sent
            self.mailbox.send(f"{POISON}-{number}")

    def drain(self) -> None:
        """Nobody is killed and nothing is sent any more: the consumers finish, only poison still
        ends some of them.
        """
        for client in [client for client in self.clients if client.role == "produce"]:
            client.kill()
            self.clients.remove(client)
        end = time.monotonic() + DRAIN_TIMEOUT
        while self.mailbox.approximate_count():
            assert time.monotonic() < end, f"not drained: {self.mailbox.stats()}"
            pause(0.05)
            self.replace_exited()

    def close(self) -> None:
        for client in self._all_clients:
            client.kill()
        self.store.close()

    def replace_exited(self) -> None:
        for client in [client for client in self.clients if client.has_exited()]:
            self.deaths += 1
            self._replace(client)

    def numbers(self, word: str) -> list[str]:
        return [
            words[1]
            for client in self._all_clients
            for words in client.entries()
            if words[0] == word
        ]

    def dead_bodies(self) -> list[Any]:
        return [self.mailbox.codec.decode(letter.body) for letter in self.mailbox.dead_letters]

    def ledger(self) -> list[str]:
        return [str(n) for (n,) in self.store.read(lambda tx: tx.rows("SELECT n FROM ledger"))]

    def _kill_one(self, victim: ClientProcess) -> None:
        """Kill it, unless chance would hit a message for the third time: what dies with three
        processes counts as poison.
        """
        if not victim.suspend():
            return
        if self._holds_suspect(victim.pid):
            self.spared += 1
            victim.resume()
            return
        self.kills += 1
        victim.kill()
        self._try_stale_receipts(victim)
        self._replace(victim)

    def _try_stale_receipts(self, victim: ClientProcess) -> None:
        """Once its rows are back, nothing can be done with what it was given."""
        self.mailbox.backend.sweep()
        stale = [Settlement(claim, RowOutcome.DONE) for claim in victim.receipts()[-50:]]
        self.stale_tried += len(stale)
        self.stale_accepted += sum(self.mailbox.backend.settle(stale))

    def _holds_suspect(self, pid: int) -> bool:
        """Return True, too, for a process that is stopped in a commit and keeps readers waiting."""
        try:
            rows = self.store.read(lambda tx: tx.rows(HELD))
        except StoreBusyError:
            return True
        return any(
            crashes >= 2 and Incarnation.parse(incarnation).pid == pid
            for crashes, incarnation in rows
        )

    def _replace(self, client: ClientProcess) -> None:
        self.clients[self.clients.index(client)] = self._start_client(client.role)

    def _start_client(self, role: str) -> ClientProcess:
        number = len(self._all_clients) + 1
        client = ClientProcess(role, self.url, self._folder / f"journal-{number}", number)
        self._all_clients.append(client)
        return client


def pause(seconds: float) -> None:
    """Let the clients work."""
    _NEVER.poll(seconds * 1000)


@contextmanager
def crash_harness(
    folder: Path, roles: tuple[str, ...], dice: random.Random
) -> Iterator[CrashHarness]:
    harness = CrashHarness(folder, roles, dice)
    try:
        yield harness
    finally:
        harness.close()


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the killed leave lying around: sockets and pages, in a directory of their own."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.mark.chaos
def test_kill_9_at_random_loses_nothing_doubles_nothing_and_condemns_no_innocent(
    tmp_path: Path, chaos: ChaosPlan
) -> None:
    """Producers and consumers, bare and engines, die at any moment: 0 lost, 0 acknowledged twice,
    stale receipts all refused, and only what really killed three processes is dead.
    """
    with crash_harness(tmp_path, ROLES, chaos.random()) as harness:
        harness.kill_at_random(chaos.seconds)
        harness.drain()
        ledger, acknowledged, ran = (
            harness.ledger(),
            harness.numbers("acked"),
            harness.numbers("ran"),
        )
        sent, intended, letters = (
            harness.numbers("sent"),
            harness.numbers("intend"),
            list(harness.mailbox.dead_letters),
        )

        settled = Counter(ledger + acknowledged)
        stale = harness.stale_tried + len(harness.numbers("refused"))
        sys.stdout.write(
            f"seed {chaos.seed}: {harness.kills} killed, {harness.spared} spared, {len(sent)} "
            f"sent, {len(ledger)} settled with the"
            f" ledger, {len(acknowledged)} by engines, {stale} stale receipts tried\n"
        )
        assert [] == [n for n, times in settled.items() if times > 1], "acknowledged twice"
        assert set() == set(sent) - settled.keys() - set(ran), "lost"
        assert set() == settled.keys() - set(intended), "never sent"
        assert (0, []) == (harness.stale_accepted, harness.numbers("accepted-stale")), (
            "stale receipts accepted"
        )
        assert [f"{POISON}-{number}" for number in range(POISONS)] == sorted(harness.dead_bodies())
        assert {("poison", 3)} == {(letter.reason, letter.crashes) for letter in letters}
        assert harness.kills > 0
        assert harness.stale_tried > 0


def test_poison_ends_three_engines_and_none_of_its_neighbours_is_blamed_for_good(
    tmp_path: Path,
) -> None:
    """Nobody else kills here: the beat page has to name the culprit, and running alone has to
    clear its neighbours.
    """
    with crash_harness(tmp_path, ("work", "work"), random.Random(1)) as harness:
        for number in range(2):
            harness.mailbox.send_many(
                [*range(number * 100, number * 100 + 99), f"{POISON}-{number}"]
            )
        harness.drain()
        innocent = {str(n) for number in range(2) for n in range(number * 100, number * 100 + 99)}
        assert [f"{POISON}-0", f"{POISON}-1"] == sorted(harness.dead_bodies())
        assert [3, 3] == [letter.crashes for letter in harness.mailbox.dead_letters]
        assert innocent == set(harness.ledger()) | set(harness.numbers("ran"))
        harness.replace_exited()
        assert 6 == harness.deaths
