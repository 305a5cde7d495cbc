"""`/mailboxes`, one mailbox, one dead letter; replay and drop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from longwatch.page.across_stores import ask_all, problems_of
from longwatch.page.data import PageData
from longwatch.page.program_facts import BAD, INFO, OFF, OK, WARN, Badge
from longwatch.page.readers.mailboxes import (
    MAX_MAILBOXES,
    MailboxCounts,
    drop_all_letters,
    drop_letters,
    read_letter,
    read_mailbox,
    read_mailboxes,
    replay_all_letters,
    replay_letters,
)
from longwatch.page.stores import StoreEntry
from longwatch.page.view import ActionDone, Confirmation, View, ViewRequest, path_to

ROWS = 100
ACTION_TIMEOUT = 15.0
"""Seconds that an action waits for its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxRow:
    """A mailbox in the list of all stores."""

    entry: StoreEntry
    counts: MailboxCounts
    badge: Badge
    href: str


def mailboxes(page: PageData, request: ViewRequest) -> View:
    """The mailboxes of all stores, those in trouble first."""
    answers = ask_all(page, read_mailboxes)
    text = request.query.get("text", "")[:200]
    rows = [
        _row(answer.entry, counts)
        for answer in answers
        for counts in answer.result or ()
        if text.lower() in counts.name.lower()
    ]
    rows.sort(key=lambda row: row.counts.trouble, reverse=True)
    pages = max(-(-len(rows) // ROWS), 1)
    number = min(request.number("page"), pages)
    facts = {
        "rows": rows[(number - 1) * ROWS : number * ROWS],
        "matching": len(rows),
        "total": sum(len(answer.result or ()) for answer in answers),
        "dead": sum(row.counts.dead for row in rows),
        "ready": sum(row.counts.ready for row in rows),
        "stores_known": len(answers),
        "problems": problems_of(answers),
        "most": MAX_MAILBOXES,
        "is_cut": any(len(answer.result or ()) >= MAX_MAILBOXES for answer in answers),
        "text": text,
        "page": number,
        "pages": pages,
        "path": request.path,
        "query": request.query,
    }
    return View("Mailboxes", "mailboxes.html", facts)


def mailbox(page: PageData, request: ViewRequest) -> View:
    """One mailbox with its dead letters."""
    key, name = request.parameters["store"], request.parameters["name"]
    after = request.number("after", 0, most=2**60)
    found = page.stores.ask(key, partial(read_mailbox, name=name, after=after))
    facts = {
        "entry": page.stores.entry(key),
        "name": name,
        "found": found,
        "badge": badge_of(found.counts),
        "after": after,
        "here_path": path_to("mailboxes", key, name),
    }
    return View(f"Mailbox {name}", "mailbox.html", facts)


def dead_letter(page: PageData, request: ViewRequest) -> View:
    """One dead letter: body, error, traceback."""
    key, name = request.parameters["store"], request.parameters["name"]
    shown = page.stores.ask(
        key, partial(read_letter, name=name, message_id=request.parameters["id"])
    )
    facts = {
        "entry": page.stores.entry(key),
        "name": name,
        "shown": shown,
        "letter": shown.letter,
        "mailbox_path": path_to("mailboxes", key, name),
    }
    return View(f"Dead letter {shown.letter.id}", "dead_letter.html", facts)


def badge_of(counts: MailboxCounts) -> Badge:
    """The state of a mailbox."""
    if counts.dead:
        return Badge(kind=BAD, text="dead letters")
    if counts.paused:
        return Badge(kind=WARN, text="paused")
    if counts.ready:
        return Badge(kind=INFO, text="waiting")
    if counts.leased:
        return Badge(kind=OK, text="busy")
    return Badge(kind=OFF, text="empty" if not counts.delayed else "delayed")


def _row(entry: StoreEntry, counts: MailboxCounts) -> MailboxRow:
    href = path_to("mailboxes", entry.key, counts.name)
    return MailboxRow(entry=entry, counts=counts, badge=badge_of(counts), href=href)


# --- actions ---


def confirm_replay(page: PageData, request: ViewRequest) -> Confirmation:
    what = _what(request)
    return _confirmation(
        page,
        request,
        title=f"Replay {what}?",
        text=f"Puts {what} back in the queue, with the counters at zero. Workers handle it again.",
        button="Replay",
        danger=False,
    )


def replay(page: PageData, request: ViewRequest) -> ActionDone:
    return _apply(page, request, replay_letters, replay_all_letters, "replayed")


def confirm_drop(page: PageData, request: ViewRequest) -> Confirmation:
    what = _what(request)
    return _confirmation(
        page,
        request,
        title=f"Drop {what}?",
        text=f"Deletes {what} for good, with body and history.",
        button="Drop for good",
        danger=True,
    )


def drop(page: PageData, request: ViewRequest) -> ActionDone:
    return _apply(page, request, drop_letters, drop_all_letters, "dropped")


def _what(request: ViewRequest) -> str:
    chosen, name = request.form.get("id", ""), request.parameters["name"]
    letters = f"dead letter {chosen}" if chosen else "all dead letters"
    return f"{letters} of mailbox {name}"


def _confirmation(  # noqa: PLR0913 - the texts of a page
    page: PageData, request: ViewRequest, *, title: str, text: str, button: str, danger: bool
) -> Confirmation:
    key, name = request.parameters["store"], request.parameters["name"]
    entry = page.stores.entry(key)
    return Confirmation(
        title=title,
        text=f"{text} Store: {entry.shown}.",
        button=button,
        back=path_to("mailboxes", key, name),
        subject=f"{entry.shown} {name} {request.form.get('id', '') or 'all'}",
        danger=danger,
    )


def _apply(
    page: PageData,
    request: ViewRequest,
    some: Callable[..., int],
    every: Callable[..., int],
    verb: str,
) -> ActionDone:
    """Do it to the dead letter that the form names, or to all of them."""
    key, name = request.parameters["store"], request.parameters["name"]
    chosen, back = request.form.get("id", ""), path_to("mailboxes", key, name)
    query = partial(some, name=name, ids=[chosen]) if chosen else partial(every, name=name)
    count = page.stores.ask(key, query, timeout=ACTION_TIMEOUT)
    if chosen and not count:
        return ActionDone(back, f"Dead letter {chosen} is not there any more.", ok=False)
    letters = "1 dead letter" if count == 1 else f"{count} dead letters"
    return ActionDone(back, f"{letters} of mailbox {name} {verb}.")
