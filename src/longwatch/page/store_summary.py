"""What the overview says of the contents of the stores: numbers, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from longwatch.page.across_stores import ask_all
from longwatch.page.data import PageData
from longwatch.page.program_facts import BAD, WARN, Problem
from longwatch.page.readers.mailboxes import MailboxCounts, read_mailboxes
from longwatch.page.readers.runs import SourceRow, read_sources
from longwatch.page.stores import StoreEntry
from longwatch.page.view import path_to
from longwatch.store.database import Database

FRESH_SECONDS = 1.0
"""Seconds for which one read of all stores serves every view of the overview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """The contents of all stores that answer."""

    mailboxes: int
    ready: int
    dead: int
    sources: int
    running: int
    problems: tuple[Problem, ...]
    """Mailboxes with dead letters, and sources without a connection."""


def store_summary(page: PageData) -> StoreSummary:
    """Read all stores, or return what was read a moment ago. Blocks."""
    return page.cached("store summary", lambda: _summary(page), seconds=FRESH_SECONDS)


def _summary(page: PageData) -> StoreSummary:
    answers = [(each.entry, *(each.result or ([], []))) for each in ask_all(page, _contents)]
    mailboxes = [counts for _, found, _ in answers for counts in found]
    sources = [source for _, _, found in answers for source in found]
    return StoreSummary(
        mailboxes=len(mailboxes),
        ready=sum(each.ready for each in mailboxes),
        dead=sum(each.dead for each in mailboxes),
        sources=len(sources),
        running=sum(each.running for each in sources),
        problems=tuple(problem for answer in answers for problem in _problems(*answer)),
    )


def _contents(store: Any) -> tuple[list[MailboxCounts], list[SourceRow]]:
    sources = read_sources(store) if isinstance(store, Database) else []
    return read_mailboxes(store), sources


def _problems(
    entry: StoreEntry, mailboxes: Iterable[MailboxCounts], sources: Iterable[SourceRow]
) -> Iterable[Problem]:
    yield from (_mailbox_problem(entry, each) for each in mailboxes if each.dead)
    yield from (_source_problem(entry, each) for each in sources if each.is_down)


def _mailbox_problem(entry: StoreEntry, counts: MailboxCounts) -> Problem:
    return Problem(
        kind=WARN,
        subject=counts.name,
        what=f"{counts.dead:,} dead letter{'' if counts.dead == 1 else 's'}",
        why=f"in {entry.shown}",
        href=path_to("mailboxes", entry.key, counts.name),
    )


def _source_problem(entry: StoreEntry, source: SourceRow) -> Problem:
    return Problem(
        kind=BAD,
        subject=source.name,
        what="source not connected",
        why=source.error,
        href=f"/runner?store={entry.key}",
        since=source.since,
    )
