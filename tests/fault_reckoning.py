"""What faults have cost: a line for each in one table; and the mailbox as seen by who only
looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from fault_actors import MAILBOX
from longwatch.errors import MailboxConnectionError
from longwatch.mailbox import Mailbox, open_mailbox

_HEAD = (
    "| fault | recovered after (s) | sent | lost | doubled | failed calls | cores used "
    "|\n|---|---:|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True)
class Reckoning:
    """One line of the table."""

    fault: str
    recovered_after: float
    sent: int
    lost: int
    doubled: int
    failed: int
    failures: int
    """The most times that one call of one engine failed in a row."""
    cpu: float
    """How much of a core all actors used while it lasted."""


class Watcher:
    """The mailbox as the stage sees it, on a way to the server of its own."""

    def __init__(self, url: str) -> None:
        self.mailbox: Mailbox[Any] = open_mailbox(url, MAILBOX)

    def is_empty(self) -> bool:
        with suppress(MailboxConnectionError):
            return self.mailbox.approximate_count() == 0
        return False

    def dead(self) -> list[str]:
        return [f"{letter.reason}: {letter.body!r} {letter.error}" for letter in self.mailbox.dead]

    def close(self) -> None:
        backend: Any = self.mailbox.backend
        (backend.database if hasattr(backend, "database") else backend.store).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def table(lines: Iterable[Reckoning]) -> str:
    return "\n".join([_HEAD, *(_row(line) for line in lines)])


def _row(line: Reckoning) -> str:
    numbers = (line.sent, line.lost, line.doubled, line.failed)
    return (
        f"| {line.fault} | {line.recovered_after:.1f} | {' | '.join(map(str, numbers))} | "
        f"{line.cpu:.2f} |"
    )
