"""How a process ended, as one value with one spelling in logs, records, metrics and pages."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Self


class EndKind(StrEnum):
    """The closed list of ways in which a process can end."""

    EXIT = auto()
    SIGNAL = auto()
    MEMORY = auto()
    SPAWN_ERROR = auto()


NUMBERED_KINDS = frozenset({EndKind.EXIT, EndKind.SIGNAL})


@dataclass(frozen=True, slots=True)
class EndCause:
    """The kind of an end, with the number for `exit` and `signal`.

    Written `exit 1`, `signal 9`, `memory`, `spawn_error`.
    """

    kind: EndKind
    number: int | None = None

    def __post_init__(self) -> None:
        if (self.kind in NUMBERED_KINDS) != (self.number is not None):
            raise ValueError(
                f"an end cause of kind {self.kind} "
                f"{'needs a' if self.kind in NUMBERED_KINDS else 'has no'} number"
            )

    def __str__(self) -> str:
        return self.kind.value if self.number is None else f"{self.kind} {self.number}"

    @classmethod
    def exit(cls, code: int) -> Self:
        return cls(EndKind.EXIT, code)

    @classmethod
    def signal(cls, number: int) -> Self:
        return cls(EndKind.SIGNAL, number)

    @classmethod
    def from_wait_status(cls, status: int) -> Self:
        """Make it from the status that waitpid reports."""
        code = os.waitstatus_to_exitcode(status)
        return cls.exit(code) if code >= 0 else cls.signal(-code)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `str`; raises ValueError for anything else."""
        kind, _, number = text.partition(" ")
        return cls(EndKind(kind), int(number) if number else None)

    @property
    def exit_code(self) -> int:
        """The exit code a shell would report: the code, 128 + n after a signal, 1 for every other
        end.
        """
        match self.kind:
            case EndKind.EXIT:
                return self.number or 0
            case EndKind.SIGNAL:
                return 128 + (self.number or 0)
            case _:
                return 1

    @property
    def display_name(self) -> str:
        """The cause for people: a signal by its name."""
        if self.kind is not EndKind.SIGNAL:
            return str(self)
        try:
            return signal.Signals(self.number or 0).name
        except ValueError:
            return str(self)
