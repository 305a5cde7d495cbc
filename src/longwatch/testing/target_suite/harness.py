"""The interface that a kind of target implements so that `check_target` can check it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum, auto
from typing import ClassVar, Final

from longwatch.core.clock import Clock
from longwatch.host.capture import LineSink
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.target import Target


class TargetBehaviour(StrEnum):
    """How a target of the suite behaves. `SHELL_SCRIPTS` has the first four as text for `sh -c`."""

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
    """Its start raises SpawnError until `repair`. After that it behaves as RUNS."""
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
"""The scripts trap every signal that they need, because the first process of a container ignores
signals without a trap.
"""

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
    """Makes targets of one kind, and kills, repairs and cuts them off from outside.

    Its coroutines run on `loop`. The suite waits in real time, so the clock of the kind must be a
    real one.
    """

    loop: EventLoopThread
    """The loop that runs the checks and the targets."""
    clock: Clock
    """The clock of the targets: `started_at` is a moment of its `monotonic()`."""
    lives_on: ClassVar[bool] = False
    """Whether a target survives its supervisor: `adopt` finds it and `detach` leaves it running."""
    can_refuse: ClassVar[bool] = True
    """Whether a target of this kind can be refused for good (`TargetBehaviour.REFUSED`)."""
    exec_outlives: float = 0.0
    """Seconds after its `timeout` within which a cancelled command ends. 0: it ends when it is
    cancelled. More is for a kind that cannot kill a command from outside.
    """
    has_runtime: ClassVar[bool] = False
    """Whether the kind needs a runtime that can stop answering: `cut_off` and `reconnect`."""

    @abstractmethod
    async def make(self, behaviour: TargetBehaviour, output: LineSink) -> Target:
        """Make a target with this behaviour, without starting it. Its output goes to the sink.

        Its directory of probe scripts has a script SCRIPT_NAME with the text SCRIPT_TEXT.
        """

    @abstractmethod
    async def remake(self, target: Target, output: LineSink) -> Target:
        """Make another object for the same target, as the next supervisor does. After that the
        suite only waits on the first object and on the lives that it started.
        """

    @abstractmethod
    async def kill(self, target: Target) -> None:
        """Kill the target with SIGKILL from outside, not through its supervisor or runtime."""

    @abstractmethod
    async def count_processes(self, target: Target) -> int:
        """Count the processes of the target now, including those that `exec` started."""

    @abstractmethod
    async def repair(self, target: Target) -> None:
        """Repair a target whose start fails, so that it starts from now on."""

    @abstractmethod
    async def clean_up(self) -> None:
        """Kill everything that was made. The suite calls it after each check."""

    async def cut_off(self) -> None:
        """Stop the runtime from answering. Its containers run on."""
        raise NotImplementedError

    async def reconnect(self) -> None:
        """Let the runtime answer again."""
        raise NotImplementedError
