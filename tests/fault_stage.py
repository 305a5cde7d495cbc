"""A stage for `fault_actors.py`: actors at work, faults of their server one after another, and the
reckoning in the end.

A message that was sent is lost if nobody ever settled it, and doubled if it was settled twice. It
counts for the fault that was the last to begin before it was meant to be sent. When an older state
of the server is restored, what was done since that state does not count: the server has forgotten
it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

import fault_actors
from fault_player import Player
from fault_reckoning import Reckoning

PATIENCE = 90.0
_BETWEEN = 0.3
"""Seconds of work between two faults."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to a server: entering `strike` makes it happen, leaving lifts it.

    `hold`: for how many seconds it lasts. `is_felt`: whether calls have to fail while it does.
    `keeps_state`, `restores_state`: the server is down while it lasts, and a copy of its state is
    taken, or put back. `then`: what comes next in any case.
    """

    name: str
    strike: Callable[[], AbstractContextManager[None]]
    hold: float = 1.0
    is_felt: bool = False
    keeps_state: bool = False
    restores_state: bool = False
    then: Fault | None = None


@dataclass
class Outcome:
    """What became of the actors under one fault."""

    fault: Fault
    begins: dict[Player, int]
    lasted: float = 0.0
    recovered_after: float = inf
    cpu: float = 0.0
    ends: dict[Player, int] = field(default_factory=dict)


class Stage:
    """The actors, what happens to their server, and what they left behind.

    `cast` names the role of each; the environments are added to theirs, and `FAULT_URL` in them is
    where they find the server. `command` runs an actor, of another queue perhaps. `is_lenient`:
    those that end are not waited for.
    """

    def __init__(
        self,
        folder: Path,
        cast: Iterable[str],
        environments: Iterable[dict[str, str]],
        command: Sequence[str] | None = None,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.patience = PATIENCE
        self.is_lenient = False
        self.drained_after = 0.0
        self._kept: dict[Player, int] = {}
        chosen = command or [sys.executable, fault_actors.__file__]
        self.players = [
            Player(role, chosen, folder / f"journal-{number}", number, environment)
            for number, (role, environment) in enumerate(zip(cast, environments, strict=True), 1)
        ]

    def begin(self) -> None:
        """Wait until everybody is at work."""
        self._await(self._all_get_through(dict.fromkeys(self.players, 0)), "everybody is at work")

    def suffer(self, fault: Fault) -> None:
        """Have a fault happen and pass, and wait until everybody gets through again."""
        outcome = Outcome(fault, self._places())
        busy, began = self._busy(), time.monotonic()
        with fault.strike():
            pause(fault.hold)
            self._keep_in_mind(fault)
        outcome.lasted, outcome.cpu = (
            time.monotonic() - began,
            (self._busy() - busy) / (time.monotonic() - began),
        )
        self.outcomes.append(outcome)
        self._recover(outcome)
        pause(_BETWEEN)
        if fault.then is not None:
            self.suffer(fault.then)

    def _recover(self, outcome: Outcome) -> None:
        lifted = time.monotonic()
        try:
            self._await(
                self._all_get_through(self._places()),
                f"everybody gets through after: {outcome.fault.name}",
            )
            outcome.recovered_after = time.monotonic() - lifted
        finally:
            outcome.ends = self._places()

    def _keep_in_mind(self, fault: Fault) -> None:
        if fault.keeps_state:
            self._kept = self._places()
        if fault.restores_state:
            for player, place in self._places().items():
                player.forgotten.append((self._kept[player], place))

    def end_sending(self) -> None:
        for player in self.players:
            if player.role == "produce":
                player.kill()

    def drain(self, is_empty: Callable[[], bool]) -> None:
        """Nothing is sent any more: the workers finish."""
        self.end_sending()
        began = time.monotonic()
        self._await(is_empty, "everything is settled")
        self.drained_after = time.monotonic() - began

    def close(self) -> None:
        for player in self.players:
            player.kill()

    def ended(self) -> list[str]:
        """Actors that ended by themselves, and what they complained of."""
        return [f"{player}: {player.complained()}" for player in self.players if player.has_ended]

    def complaints(self) -> list[str]:
        """What anybody wrote to its standard error; ours are silent."""
        return [f"{player}: {said}" for player in self.players if (said := player.complained())]

    # --- reckoning ---

    def reckoned(self, *, settled: str = "acked") -> list[Reckoning]:
        """A line for each fault; call it when everything is settled."""
        done = Counter(n for player in self.players for n in player.said(settled))
        ran = {n for player in self.players for n in player.said("ran")}
        following = [outcome.begins for outcome in self.outcomes[1:]] + [self._places()]
        return [
            self._reckon(outcome, end, done, ran)
            for outcome, end in zip(self.outcomes, following, strict=True)
        ]

    def _reckon(
        self, outcome: Outcome, end: dict[Player, int], done: Counter[int], ran: set[int]
    ) -> Reckoning:
        begins = outcome.begins
        meant = {
            n for player in self.players for n in player.said("intend", begins[player], end[player])
        }
        sent = {
            n for player in self.players for n in player.said("sent", begins[player]) if n in meant
        }
        return Reckoning(
            fault=outcome.fault.name,
            recovered_after=outcome.recovered_after,
            sent=len(sent),
            lost=len(sent - done.keys() - ran),
            doubled=sum(done[n] > 1 for n in meant),
            failed=self._count("failed", outcome) + self._count("lost", outcome),
            failures=self._failures(outcome),
            cpu=outcome.cpu,
        )

    def _count(self, word: str, outcome: Outcome) -> int:
        begins, ends = outcome.begins, outcome.ends
        return sum(
            words[0] == word
            for player in self.players
            for words in player.words(begins[player], ends[player])
        )

    def _failures(self, outcome: Outcome) -> int:
        begins = outcome.begins
        told = (
            words
            for player in self.players
            for words in player.words(begins[player], outcome.ends[player])
        )
        return max((int(words[2]) for words in told if words[0] in {"lost", "found"}), default=0)

    # --- small words ---

    def _places(self) -> dict[Player, int]:
        return {player: player.place for player in self.players}

    def _busy(self) -> float:
        """Seconds of a core that all actors have used so far."""
        times = [
            psutil.Process(player.process.pid).cpu_times()
            for player in self.players
            if player.process.poll() is None
        ]
        return sum(each.user + each.system for each in times)

    def _all_get_through(self, places: dict[Player, int]) -> Callable[[], bool]:
        missing = set(self.players)

        def look() -> bool:
            gone = {player for player in missing if self.is_lenient and player.has_ended}
            missing.difference_update(
                gone, [player for player in missing if player.gets_through(places[player])]
            )
            return not missing

        return look

    def _await(self, holds: Callable[[], bool], claim: str) -> None:
        until = time.monotonic() + self.patience
        while not holds():
            assert self.is_lenient or [] == self.ended(), claim
            assert time.monotonic() < until, f"not so in time: {claim}\n{self._told()}"
            pause(0.02)

    def _told(self) -> str:
        """The last that everybody said."""
        return "\n".join(f"{player}: {list(player.words())[-8:]}" for player in self.players)


def pause(seconds: float) -> None:
    """Let the actors play."""
    threading.Event().wait(seconds)


@contextmanager
def staged(
    folder: Path,
    url: str,
    cast: Sequence[tuple[str, dict[str, str]]],
    command: Sequence[str] | None = None,
) -> Iterator[Stage]:
    """A stage whose actors, each with an environment of its own, are at work."""
    with TemporaryDirectory(prefix="lw-") as runtime:
        common = {"FAULT_URL": url, "XDG_RUNTIME_DIR": runtime}
        stage = Stage(
            folder, [role for role, _ in cast], [{**common, **extra} for _, extra in cast], command
        )
        try:
            stage.begin()
            yield stage
        finally:
            stage.close()
