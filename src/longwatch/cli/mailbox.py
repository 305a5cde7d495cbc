"""`longwatch mailbox …`: look at mailboxes, send to them, stop and start them."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from longwatch.cli import answer, dead, facts
from longwatch.cli.stores import (
    DEFAULT_STORE,
    Json,
    MessageId,
    Name,
    Store,
    Yes,
    existing,
    opened,
    readable,
)
from longwatch.errors import UsageError

app = typer.Typer(
    help="Mailboxes: look, send, pause, resume, and what was given up.", no_args_is_help=True
)
app.add_typer(dead.app, name="dead")


@app.command("ls")
def list_mailboxes(*, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """List the mailboxes and how they stand."""
    from longwatch.app.mailboxes import existing_store, shown_url, standings  # noqa: PLC0415 - help must not wait for it

    with existing_store(store) as opened_store:
        found = standings(opened_store)
        where = shown_url(opened_store)
    head = ("mailbox", "ready", "delayed", "leased", "dead", "oldest", "")
    rows = [
        (name, *stats[:4], answer.age(stats.oldest_age), "paused" if stats.paused else "")
        for name, stats in found
    ]
    text = answer.table(head, rows) if rows else f"no mailboxes in {where}"
    answer.tell(text, [facts.of_mailbox(name, stats) for name, stats in found], as_json=json)


@app.command()
def stats(name: Name, *, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Tell how one mailbox stands."""
    with existing(store, name) as mailbox:
        told = facts.of_mailbox(name, mailbox.stats())
    shown = {
        **told,
        "oldest_age": answer.age(told["oldest_age"]) or "-",
        "paused": "yes" if told["paused"] else "no",
    }
    answer.tell(answer.listed(shown), told, as_json=json)


@app.command()
def peek(
    name: Name,
    *,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="So many at the most.")
    ] = 10,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show the next messages without taking them."""
    with existing(store, name) as mailbox:
        found = mailbox.backend.peek(limit=limit)
    now = time.time()
    rows = [
        (each.id, answer.age(now - each.enqueued_at), each.deliveries, answer.short(each.body))
        for each in found
    ]
    text = (
        answer.table(("id", "age", "deliveries", "body"), rows)
        if rows
        else f"nothing is ready in mailbox {name!r}"
    )
    answer.tell(text, [facts.of_message(each) for each in found], as_json=json)


@app.command()
def send(  # noqa: PLR0913 - one argument an option
    name: Name,
    body: Annotated[
        str | None,
        typer.Argument(metavar="BODY|-", help="JSON; `-` or nothing: read standard input."),
    ] = None,
    *,
    text: Annotated[bool, typer.Option("--text", help="The body is plain text, not JSON.")] = False,
    delay: Annotated[
        float, typer.Option(metavar="SECONDS", help="Not to be handed out before.")
    ] = 0,
    expires_in: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Removed if nobody took it by then.")
    ] = None,
    dedupe_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", callback=readable, help="Not sent twice while queued."),
    ] = None,
    reply_to: Annotated[
        str | None,
        typer.Option(metavar="NAME", callback=readable, help="The mailbox for the reply."),
    ] = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Send a message; the mailbox and its store are made if they are not there. Prints the
    message's id.
    """
    from longwatch.app.mailboxes import json_body, text_body  # noqa: PLC0415 - help must not wait for it

    content = (text_body if text else json_body)(_given(body))
    with opened(store, name) as mailbox:
        sent = mailbox.send(
            content,
            delay_seconds=delay,
            expires_in=expires_in,
            dedupe_key=dedupe_key,
            reply_to=reply_to,
        )
    answer.tell(sent, {"id": sent}, as_json=json)


@app.command()
def pause(name: Name, *, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Hand nothing out any more, to any worker, until `resume`."""
    with existing(store, name) as mailbox:
        mailbox.pause()
    answer.tell(f"mailbox {name!r} is paused", {"mailbox": name, "paused": True}, as_json=json)


@app.command()
def resume(name: Name, *, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Hand messages out again."""
    with existing(store, name) as mailbox:
        mailbox.resume()
    answer.tell(
        f"mailbox {name!r} hands out messages", {"mailbox": name, "paused": False}, as_json=json
    )


@app.command()
def cancel(
    name: Name, message_id: MessageId, *, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Remove one message that nobody has taken."""
    with existing(store, name) as mailbox:
        if not mailbox.cancel(message_id):
            raise UsageError(
                f"message {message_id!r} is not queued in mailbox {name!r}: it was taken, or "
                f"was never there"
            )
    answer.tell(
        f"message {message_id} is cancelled",
        {"mailbox": name, "id": message_id, "cancelled": True},
        as_json=json,
    )


@app.command()
def purge(
    name: Name, *, yes: Yes = False, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Remove every message that nobody has taken; dead letters stay."""
    with existing(store, name) as mailbox:
        standing = mailbox.stats()
        queued = answer.counted(standing.ready + standing.delayed, "message")
        answer.confirm(f"Remove {queued} of mailbox {name!r} for good?", yes=yes)
        removed = mailbox.purge()
    answer.tell(
        f"{answer.counted(removed, 'message')} removed",
        {"mailbox": name, "removed": removed},
        as_json=json,
    )


def _given(body: str | None) -> bytes:
    """The body as bytes, from the command line or from standard input; of the latter no more
    than could be sent.
    """
    from longwatch.mailbox.bounds import LARGEST_BODY  # noqa: PLC0415 - help must not wait for it

    if body is not None and body != "-":
        return os.fsencode(body)
    if sys.stdin is None or (body is None and sys.stdin.isatty()):
        raise UsageError(
            "there is no body to send; write it after the name, or `-` to read it from "
            "standard input"
        )
    data = sys.stdin.buffer.read(LARGEST_BODY + 1)
    if len(data) > LARGEST_BODY:
        raise UsageError(
            f"the body is larger than {LARGEST_BODY} bytes; send where it is stored instead"
        )
    return data
