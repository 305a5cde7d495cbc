"""Lists, replays and drops the dead letters of one mailbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from longwatch.mailbox.backend import Backend, mailbox_errors
from longwatch.mailbox.records import DeadLetter
from longwatch.mailbox.validation import validate_message_id

_PAGE_SIZE = 100


class DeadLetters:
    """The dead letters of a mailbox, each with its history. Iterating yields all of them, oldest
    first, and reads them page by page.
    """

    def __init__(self, mailbox: str, backend: Backend) -> None:
        self.name = f"{mailbox}.dead"
        self._backend = backend

    def __iter__(self) -> Iterator[DeadLetter]:
        page = self._page(0)
        while page:
            yield from page
            page = self._page(page[-1].position)

    def __len__(self) -> int:
        with mailbox_errors():
            return self._backend.stats().dead

    def show(self, message_id: str) -> DeadLetter | None:
        with mailbox_errors():
            return self._backend.find_dead_letter(validate_message_id(message_id))

    def replay(self, *ids: str) -> list[bool]:
        """Put dead letters back in the queue with their counters at zero. Return for each whether
        it existed.
        """
        with mailbox_errors():
            return self._backend.replay([validate_message_id(each) for each in ids])

    def drop(self, *ids: str) -> list[bool]:
        """Delete dead letters. Return for each whether it existed."""
        with mailbox_errors():
            return self._backend.drop([validate_message_id(each) for each in ids])

    def replay_all(self) -> int:
        """Replay the dead letters that exist now. Return how many. A message that is dead-lettered
        again meanwhile is not replayed twice.
        """
        return self._for_all(self.replay)

    def drop_all(self) -> int:
        """Delete the dead letters that exist now. Return how many."""
        return self._for_all(self.drop)

    def _for_all(self, action: Callable[..., list[bool]]) -> int:
        ids = [letter.id for letter in self]
        return sum(
            sum(action(*ids[start : start + _PAGE_SIZE]))
            for start in range(0, len(ids), _PAGE_SIZE)
        )

    def _page(self, after: int) -> list[DeadLetter]:
        with mailbox_errors():
            return self._backend.dead_letters(after=after, limit=_PAGE_SIZE)
