"""What a kind of target has to offer so that `check_target` can certify it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum, auto
from typing import ClassVar, Final

from longwatch.core.clock import Clock
from longwatch.host.capture import LineSink
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.target import Target


class TargetBehaviour(StrEnum):
    """What a target of the suite does. `SHELL_SCRIPTS` has the first four as text for `sh -c`."""

    RUNS = auto()
    """Prints `ready`, then runs until SIGTERM ends it at once, with code 143 or by the signal."""
    REPORTS_SIGNALS = auto()
    """Prints `ready`, then `signal N` for each SIGHUP, SIGUSR1 and SIGTERM.
    Only SIGKILL ends it.
    """
    PRINTS = auto()
    """Prints `line 0` to `line 199`, then behaves as RUNS."""
    EXITS = auto()
    """Prints `last words` and exits with 3 at once."""
    CANNOT_START = auto()
    """Its start raises SpawnError until `repair`, from then on it behaves as RUNS."""
    REFUSED = auto()
    """Its start raises TargetRefusedError."""


PRINTED_LINES: Final = tuple(f"line {number}" for number in range(200))
# The trap comes after the fork: a child that inherits its handler would lose a SIGTERM that comes
# before it executes `sleep`.
_RUN: Final = "sleep 300 & child=$!; trap 'kill $child; exit 143' TERM; echo ready; wait $child"
SHELL_SCRIPTS: Final = {
    TargetBehaviour.RUNS: _RUN,
    TargetBehaviour.REPORTS_SIGNALS: (
        "trap '' 1 10 15; sleep 300 & child=$!; "
        'for n in 1 10 15; do trap "echo signal $n" $n; done; echo ready; '
        "while kill -0 $child 2>/dev/null; do wait $child; done"
    ),
    TargetBehaviour.PRINTS: (
        f"i=0; while [ $i -lt {len(PRINTED_LINES)} ]; do echo line $i; i=$((i+1)); done; {_RUN}"
    ),
    TargetBehaviour.EXITS: "echo last words; exit 3",
}
"""They also work as the first process of a container, which ignores signals it has no trap for."""

EXIT_COMMAND: Final = ("sh", "-c", "exit 3")
PRINT_COMMAND: Final = ("sh", "-c", "echo one; echo two; echo error >&2")
KILLED_COMMAND: Final = ("sh", "-c", "kill -9 $$")
HANGING_COMMAND: Final = ("sh", "-c", "echo hanging; sleep 300 & wait")
"""A tree of two processes, or of three under `timeout`."""
MISSING_COMMAND: Final = ("longwatch-no-such-command",)
SCRIPT_NAME: Final = "longwatch-check.sh"
SCRIPT_TEXT: Final = "echo from the script; exit 7\n"
SCRIPT_COMMAND: Final = ("sh", f"./{SCRIPT_NAME}")


class TargetHarness(ABC):
    """Makes targets of one kind and does to them what no target can do to itself.

    Its coroutines are run on `loop`. The suite waits in real time, so the clock of the kind has to
    run by itself.
    """

    loop: EventLoopThread
    """Runs the checks; the targets live on it."""
    clock: Clock
    """The clock of the targets: `started_at` is a moment of its `monotonic()`."""
    lives_on: ClassVar[bool] = False
    """Whether a target goes on without its supervisor: `adopt` finds it and `detach` leaves it."""
    can_refuse: ClassVar[bool] = True
    """Whether a target of this kind can be refused for good (`TargetBehaviour.REFUSED`)."""
    exec_outlives: float = 0.0
    """Seconds after the `timeout` of a cancelled command when it has ended. 0: it ends as it is
    cancelled. More is for a kind that runs where nothing of ours can kill a command.
    """
    has_runtime: ClassVar[bool] = False
    """Whether the kind needs a runtime that can stop answering: `cut_off` and `reconnect`."""

    @abstractmethod
    async def make(self, behaviour: TargetBehaviour, output: LineSink) -> Target:
        """A new target that behaves so and of which nothing runs yet; its output goes to the sink.

        Its directory of probe scripts has a script SCRIPT_NAME with the text SCRIPT_TEXT.
        """

    @abstractmethod
    async def remake(self, target: Target, output: LineSink) -> Target:
        """Another object for the same thing, as the next supervisor makes it. The former is gone by
        then: the suite does not use the first object, or lives it started, for more than waiting.
        """

    @abstractmethod
    async def kill(self, target: Target) -> None:
        """End it from outside with SIGKILL, without its supervisor or runtime being asked to."""

    @abstractmethod
    async def count_processes(self, target: Target) -> int:
        """How many processes there are of it now, those that `exec` started included."""

    @abstractmethod
    async def repair(self, target: Target) -> None:
        """Let a target that cannot start do so from now on."""

    @abstractmethod
    async def clean_up(self) -> None:
        """End everything that was made, by force; called after each check."""

    async def cut_off(self) -> None:
        """Let the runtime not answer from now on; what it runs goes on."""
        raise NotImplementedError

    async def reconnect(self) -> None:
        """Let the runtime answer again."""
        raise NotImplementedError
