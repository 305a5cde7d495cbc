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

import crash_actors
from chaos_plan import ChaosPlan
from crash_actors import MAILBOX, POISON
from longwatch.errors import StoreBusyError
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.store.claims import Claim
from longwatch.work.source import Outcome, Settlement

CAST = ("produce", "produce", "receive", "receive", "work", "work", "dawdle")
POISONS = 4
DRAINED_WITHIN = 120.0
HELD = (
    "SELECT crashes, incarnation FROM longwatch_messages JOIN longwatch_owners USING (owner) "
    "WHERE held = 2"
)
_NEVER = select.poll()


class Player:
    """One actor in a process of its own."""

    def __init__(self, role: str, url: str, journal: Path, number: int) -> None:
        self.role = role
        self.journal = journal
        command = [sys.executable, crash_actors.__file__, role, url, str(journal), str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.pid = self.process.pid

    def ended(self) -> bool:
        return self.process.poll() is not None

    def halt(self) -> bool:
        """Stop every thread of it; False if it has ended meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)
        while not self.ended():
            if self._states() <= {"T"}:
                return True
            pause(0.001)
        return False

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def receipts(self) -> list[Claim]:
        return [Claim(*map(int, words[2:])) for words in self.words() if words[0] == "took"]

    def words(self) -> list[list[str]]:
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


class Stage:
    """The actors, who is killed, and what they left behind."""

    def __init__(self, folder: Path, cast: tuple[str, ...], dice: random.Random) -> None:
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
        self._everybody: list[Player] = []
        self.deaths = 0
        self.players = [self._enter(role) for role in cast]

    def let_them_die(self, seconds: float) -> None:
        """Kill one after another at random, and put another in its place.

        On a slow machine this takes longer: until a victim has left receipts to try.
        """
        end, poisons = time.monotonic() + seconds, iter(range(POISONS))
        latest = end + DRAINED_WITHIN
        due = [time.monotonic() + seconds * part / (POISONS + 1) for part in range(POISONS)]
        while time.monotonic() < (end if self.stale_tried else latest):
            pause(self._dice.uniform(0.02, 0.4))
            if due and time.monotonic() > due[0]:
                due.pop(0)
                self.mailbox.send(f"{POISON}-{next(poisons)}")
            self.replace_the_ended()
            self._strike(self._dice.choice(self.players))
        for number in poisons:  # on a slow machine the loop ends before all are sent
            self.mailbox.send(f"{POISON}-{number}")

    def drain(self) -> None:
        """Nobody is killed and nothing is sent any more: the consumers finish, only poison still
        ends some of them.
        """
        for player in [player for player in self.players if player.role == "produce"]:
            player.kill()
            self.players.remove(player)
        end = time.monotonic() + DRAINED_WITHIN
        while self.mailbox.approximate_count():
            assert time.monotonic() < end, f"not drained: {self.mailbox.stats()}"
            pause(0.05)
            self.replace_the_ended()

    def close(self) -> None:
        for player in self._everybody:
            player.kill()
        self.store.close()

    def replace_the_ended(self) -> None:
        for player in [player for player in self.players if player.ended()]:
            self.deaths += 1
            self._replace(player)

    def said(self, word: str) -> list[str]:
        return [
            words[1] for player in self._everybody for words in player.words() if words[0] == word
        ]

    def dead_bodies(self) -> list[Any]:
        return [self.mailbox.codec.decode(letter.body) for letter in self.mailbox.dead]

    def ledger(self) -> list[str]:
        return [str(n) for (n,) in self.store.read(lambda tx: tx.rows("SELECT n FROM ledger"))]

    def _strike(self, victim: Player) -> None:
        """Kill it, unless chance would hit a message for the third time: what dies with three
        processes counts as poison.
        """
        if not victim.halt():
            return
        if self._holds_one_hit_twice(victim.pid):
            self.spared += 1
            victim.go_on()
            return
        self.kills += 1
        victim.kill()
        self._try_its_receipts(victim)
        self._replace(victim)

    def _try_its_receipts(self, victim: Player) -> None:
        """Once its rows are back, nothing can be done with what it was given."""
        self.mailbox.backend.sweep()
        stale = [Settlement(claim, Outcome.DONE) for claim in victim.receipts()[-50:]]
        self.stale_tried += len(stale)
        self.stale_accepted += sum(self.mailbox.backend.settle(stale))

    def _holds_one_hit_twice(self, pid: int) -> bool:
        """Return True, too, for a process that is stopped in a commit and keeps readers waiting."""
        try:
            rows = self.store.read(lambda tx: tx.rows(HELD))
        except StoreBusyError:
            return True
        return any(
            crashes >= 2 and Incarnation.parse(incarnation).pid == pid
            for crashes, incarnation in rows
        )

    def _replace(self, player: Player) -> None:
        self.players[self.players.index(player)] = self._enter(player.role)

    def _enter(self, role: str) -> Player:
        number = len(self._everybody) + 1
        player = Player(role, self.url, self._folder / f"journal-{number}", number)
        self._everybody.append(player)
        return player


def pause(seconds: float) -> None:
    """Let the actors play."""
    _NEVER.poll(seconds * 1000)


@contextmanager
def staged(folder: Path, cast: tuple[str, ...], dice: random.Random) -> Iterator[Stage]:
    stage = Stage(folder, cast, dice)
    try:
        yield stage
    finally:
        stage.close()


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
    with staged(tmp_path, CAST, chaos.random()) as stage:
        stage.let_them_die(chaos.seconds)
        stage.drain()
        ledger, acknowledged, ran = stage.ledger(), stage.said("acked"), stage.said("ran")
        sent, intended, letters = stage.said("sent"), stage.said("intend"), list(stage.mailbox.dead)

        settled = Counter(ledger + acknowledged)
        stale = stage.stale_tried + len(stage.said("refused"))
        sys.stdout.write(
            f"seed {chaos.seed}: {stage.kills} killed, {stage.spared} spared, {len(sent)} "
            f"sent, {len(ledger)} settled with the"
            f" ledger, {len(acknowledged)} by engines, {stale} stale receipts tried\n"
        )
        assert [] == [n for n, times in settled.items() if times > 1], "acknowledged twice"
        assert set() == set(sent) - settled.keys() - set(ran), "lost"
        assert set() == settled.keys() - set(intended), "never sent"
        assert (0, []) == (stage.stale_accepted, stage.said("accepted-stale")), (
            "stale receipts accepted"
        )
        assert [f"{POISON}-{number}" for number in range(POISONS)] == sorted(stage.dead_bodies())
        assert {("poison", 3)} == {(letter.reason, letter.crashes) for letter in letters}
        assert stage.kills > 0
        assert stage.stale_tried > 0


def test_poison_ends_three_engines_and_none_of_its_neighbours_is_blamed_for_good(
    tmp_path: Path,
) -> None:
    """Nobody else kills here: the beat page has to name the culprit, and running alone has to
    clear its neighbours.
    """
    with staged(tmp_path, ("work", "work"), random.Random(1)) as stage:
        for number in range(2):
            stage.mailbox.send_many([*range(number * 100, number * 100 + 99), f"{POISON}-{number}"])
        stage.drain()
        innocent = {str(n) for number in range(2) for n in range(number * 100, number * 100 + 99)}
        assert [f"{POISON}-0", f"{POISON}-1"] == sorted(stage.dead_bodies())
        assert [3, 3] == [letter.crashes for letter in stage.mailbox.dead]
        assert innocent == set(stage.ledger()) | set(stage.said("ran"))
        stage.replace_the_ended()
        assert 6 == stage.deaths
