"""Events of the status page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStarted(Event):
    """The status page listens."""

    address: str
    """Without the token."""
    link_command: str
    """The command that prints the address with the token; empty without a state directory, where
    stderr has it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStopped(Event):
    """The status page has ended."""

    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PageActionTaken(Event):
    """A person used a button of the status page and confirmed it."""

    action: str
    """`start`, `stop`, `restart`, `reset`, `replay` and others."""
    subject: str
    """What it acted on, such as the name of a program."""
    ok: bool
    program: str = ""
    error: str = ""

    @property
    def level(self) -> Level:
        """Warning for an action that failed."""
        return Level.INFO if self.ok else Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViewFailed(Event):
    """A page could not be made because of an unexpected error. Other pages work."""

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNotPlanned(Event):
    """`longwatch up` starts no status page: something of the file has its name."""

    default_level: ClassVar[Level] = Level.WARNING

    reason: str
