"""What a program says by sd_notify: one datagram of `NAME=value` lines."""

from __future__ import annotations

from dataclasses import dataclass

from longwatch.core.masking import mask_text
from longwatch.supervisor.one_line import one_line

LONGEST_EXTENSION = 86_400.0
"""Seconds that can be asked for at a time; whoever needs more asks again."""
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing a program has said. `pid` is the sender's, told by the kernel; 0 if it cannot be
    seen from here.
    """

    pid: int
    ready: bool = False
    """`READY=1`: its start is over."""
    stopping: bool = False
    """`STOPPING=1`: it is about to end."""
    beat: bool = False
    """`WATCHDOG=1`: it lives."""
    trigger: bool = False
    """`WATCHDOG=trigger`: it wants to be treated as if it did not."""
    status: str | None = None
    """`STATUS=…`: what it is doing, as it may be shown; empty: nothing to say any more."""
    extend: float | None = None
    """`EXTEND_TIMEOUT_USEC=…`: seconds that it needs from now for its start or stop."""

    @classmethod
    def parse(cls, datagram: bytes, *, pid: int) -> Notice | None:
        """What the datagram says; None if that is nothing we know. Of a name that is given twice
        the last counts.
        """
        said = dict(_assignments(datagram))
        notice = cls(
            pid=pid,
            ready=said.get("READY") == "1",
            stopping=said.get("STOPPING") == "1",
            beat=said.get("WATCHDOG") == "1",
            trigger=said.get("WATCHDOG") == "trigger",
            status=_status(said.get("STATUS")),
            extend=_seconds(said.get("EXTEND_TIMEOUT_USEC", "")),
        )
        return None if notice == cls(pid=pid) else notice


def _assignments(datagram: bytes) -> list[tuple[str, str]]:
    lines = (line.partition("=") for line in datagram.decode(errors="replace").split("\n"))
    return [(name, value) for name, sign, value in lines if sign]


def _status(text: str | None) -> str | None:
    return None if text is None else one_line(mask_text(text.strip()))


def _seconds(microseconds: str) -> float | None:
    """None for what is no whole number above 0."""
    if not (
        microseconds.isascii() and microseconds.isdigit() and len(microseconds) <= _MOST_DIGITS
    ):
        return None
    return min(int(microseconds) / 1_000_000, LONGEST_EXTENSION) or None
