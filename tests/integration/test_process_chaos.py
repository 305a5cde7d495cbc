"""Trees of every kind that are started, signalled, stopped and killed side by side, in whatever
order the dice say.
"""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest

from chaos_plan import ChaosPlan
from guardian_fixture import (
    TIMEOUT,
    GuardianFixture,
    SyncChild,
    cgroup_folders,
    require_cgroups,
    running_guardian,
)
from longwatch.core.end_cause import EndKind
from longwatch.host.process import KILL_NOW, ProcessEnd, StopPolicy

MOST_TREES = 6
FAMILIES = {
    "quiet": "say('ready'); rest()",
    "obedient": "signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('ready'); rest()",
    "deaf": "deaf(); say('ready'); rest()",
    "short": "say('ready'); sys.exit(4)",
    "leaving": "os.fork() and (say('ready'), sys.exit(5)); rest()",
    "orphaning": "orphan(lambda: (deaf(), rest())); orphan(rest); say('ready'); rest()",
    "regrouping": "os.fork() or (os.setpgid(0, 0), deaf(), rest()); say('ready'); rest()",
    "talking": "os.fork() or [say('blah ' * 100) for _ in range(20_000)]; say('ready'); rest()",
    "hopping": "hoppers(3, setsid=False); say('ready'); rest()",
    "roaming": "hoppers(3, setsid=True); say('ready'); rest()",
    "executing": """
        script = '[ $0 -lt 20000 ] && exec /bin/sh -c "$1" $(($0 + 1)) "$1" "$2"'
        orphan(lambda: os.execv("/bin/sh", ["sh", "-c", script, "0", script, sys.argv[1]]))
        say("ready")
        rest()
    """,
}
ENDING_BY_THEMSELVES = {"short", "leaving"}
NAMELESS = {"nameless": "orphan(nameless); deaf(); say('ready'); rest()"}
"""Only a cgroup tells such an orphan from those of other trees."""


class TreeChaos:
    """Plays with one guardian, and checks after each end that the tree is gone and that nobody
    else is.
    """

    def __init__(
        self, guardian: GuardianFixture, dice: random.Random, families: dict[str, str]
    ) -> None:
        self.guardian = guardian
        self.dice = dice
        self.families = families
        self.children: dict[SyncChild, str] = {}
        self.ended = 0

    def step(self) -> None:
        act = self.dice.choice((self.add, self.add, self.end, self.end, self.poke, self.fail))
        act()

    def add(self) -> None:
        if len(self.children) < MOST_TREES:
            family = self.dice.choice(sorted(self.families))
            child = self.guardian.spawn(self.families[family])
            child.out.wait_for_text("ready")
            self.children[child] = family

    def end(self) -> None:
        if not self.children:
            return
        child = self.dice.choice(list(self.children))
        family = self.children.pop(child)
        self.check(child, family, self.ending(child, family))

    def ending(self, child: SyncChild, family: str) -> ProcessEnd:
        if family in ENDING_BY_THEMSELVES:
            return child.wait()
        match self.dice.randrange(3):
            case 0:
                return child.kill()
            case 1:
                return child.stop(KILL_NOW)
            case _:
                return child.stop(StopPolicy(grace=self.dice.random() / 20))

    def check(self, child: SyncChild, family: str, ending: ProcessEnd) -> None:
        self.ended += 1
        assert ending.cause.kind in {EndKind.EXIT, EndKind.SIGNAL}
        assert 0 == ending.survivors, family
        assert [] == [pid for _ in range(5) for pid in child.survivors()], family
        for other, name in self.children.items():
            if name not in ENDING_BY_THEMSELVES:
                assert psutil.pid_exists(other.pid), name

    def poke(self) -> None:
        """Signals that change nothing for good."""
        for child in list(self.children):
            child.signal(self.dice.choice((signal.SIGCONT, signal.SIGWINCH, signal.SIGURG)))

    def fail(self) -> None:
        with pytest.raises(Exception, match="cannot execute"):
            self.guardian.start(["/no/such/program"])


@pytest.mark.chaos
@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups", "marks"])
def test_whatever_is_done_to_trees_of_every_kind_each_goes_whole_and_alone(
    chaos: ChaosPlan, *, cgroups: bool
) -> None:
    if cgroups:
        require_cgroups()
    until = time.monotonic() + chaos.seconds / 2
    with running_guardian(cgroups=cgroups) as guardian:
        chaos_run = TreeChaos(
            guardian, chaos.random(), FAMILIES | NAMELESS if cgroups else FAMILIES
        )
        while time.monotonic() < until:
            chaos_run.step()
        while chaos_run.children:
            chaos_run.end()
        assert chaos_run.ended
        assert [] == psutil.Process(guardian.pid).children(recursive=True)
    assert set() == cgroup_folders(os.getpid())


@pytest.mark.chaos
@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups", "marks"])
def test_whenever_the_guardian_is_stopped_nobody_is_left(
    chaos: ChaosPlan, *, cgroups: bool
) -> None:
    if cgroups:
        require_cgroups()
    dice = chaos.random()
    until = time.monotonic() + chaos.seconds / 4
    while time.monotonic() < until:
        with running_guardian(cgroups=cgroups) as guardian:
            children = [
                guardian.spawn(dice.choice(list((FAMILIES | NAMELESS).values())))
                for _ in range(dice.randrange(1, 5))
            ]
            if dice.random() < 0.5:
                children[0].out.wait_for_text("ready")
            assert guardian.guardian.stop(timeout=TIMEOUT)
            assert [] == [pid for _ in range(5) for child in children for pid in child.survivors()]
