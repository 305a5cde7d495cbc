from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import intake_client
from chaos_plan import ChaosPlan
from flow_stores import KINDS, opened_database, store_url
from intake_client import QUEUE_SIZE, SOURCES
from intake_rig import IntakeRig
from longwatch.store.database import Database
from polling import eventually

TOTAL = 600
KILLS = 8


class KilledIntake:
    """Starts the client again whenever it is killed."""

    def __init__(self, url: str, database: Database, dice: random.Random) -> None:
        self._command = [sys.executable, intake_client.__file__, url, str(TOTAL)]
        self._dice = dice
        self.rig = IntakeRig(database, *SOURCES)
        self.kills = 0

    def run(self) -> None:
        while self.kills < KILLS and not self._run_once():
            self.kills += 1
        subprocess.run(self._command, check=True, timeout=300)

    def _run_once(self) -> bool:
        """Kill a client in the middle of its work; True if it was done before that."""
        until = self._stored() + self._dice.randint(1, 3 * TOTAL // KILLS)
        with subprocess.Popen(self._command) as client:
            try:
                assert eventually(
                    lambda: self._stored() >= until or client.poll() is not None, timeout=120
                )
            finally:
                client.kill()
        assert client.returncode in {0, -9}
        return client.returncode == 0

    def _stored(self) -> int:
        return self.rig.rows("longwatch_runner_events")


@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_intake_loses_and_doubles_nothing(
    kind: str, tmp_path: Path, chaos: ChaosPlan
) -> None:
    """However often the process is killed, each stream event is stored once with one outcome, and
    exactly the open ones have a message.
    """
    with store_url(kind, tmp_path) as url, opened_database(url) as database:
        killed = KilledIntake(url, database, random.Random(chaos.seed))
        killed.run()
        rig = killed.rig
        assert killed.kills
        for source in SOURCES:
            events = rig.store.events(source=source, limit=10 * TOTAL)
            assert [str(n) for n in range(TOTAL)] == [event.stream_id for event in events]
            assert rig.intake.cursor_now(source) == str(TOTAL - 1)
            outcomes = Counter(f"{event.outcome} {event.reason}" for event in events)
            filtered = TOTAL // 10
            assert {
                "filtered severity": filtered,
                "filtered duplicate": filtered,
                "dead-lettered malformed": filtered,
                "None ": QUEUE_SIZE,
                "dropped overflow": TOTAL - 3 * filtered - QUEUE_SIZE,
            } == outcomes
            waiting = [message.id for message in rig.mailbox(source).peek(limit=10 * TOTAL)]
            assert [event.id for event in events if event.outcome is None] == waiting
            assert rig.mailbox(source).stats().dead == filtered + outcomes["dropped overflow"]
