"""`longwatch mailbox …`: show, send, pause, resume, cancel and purge; `longwatch mailbox dead …`:
list, replay and drop dead letters.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import json_views, output
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import duration, whole_number
from longwatch.cli.options import (
    json_option,
    message_id_argument,
    message_ids_argument,
    name_argument,
    open_existing,
    open_or_create,
    store_option,
    valid_text,
    yes_option,
)
from longwatch.core.sanitize import shorten
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.mailbox import Mailbox

app = CommandGroup("mailbox", help="Show mailboxes, send messages, and manage dead letters.")

dead_app = CommandGroup("dead", help="List, replay or drop dead letters.")

everything_option = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@app.command("ls")
@store_option
@json_option
def list_mailboxes(*, store: str, json: bool) -> None:
    """List the mailboxes with their counts."""
    from longwatch.app.mailboxes import existing_store, masked_url  # noqa: PLC0415 - help must not wait for it
    from longwatch.mailbox.url import mailbox_stats  # noqa: PLC0415

    with existing_store(store) as opened_store:
        found = mailbox_stats(opened_store)
        where = masked_url(opened_store)
    head = ("mailbox", "ready", "delayed", "leased", "dead", "oldest", "")
    rows = [
        (name, *stats[:4], output.age(stats.oldest_age), "paused" if stats.paused else "")
        for name, stats in found
    ]
    text = output.table(head, rows) if rows else f"no mailboxes in {where}"
    output.print_result(
        text, [json_views.mailbox_json(name, stats) for name, stats in found], as_json=json
    )


@app.command()
@name_argument
@store_option
@json_option
def stats(*, name: str, store: str, json: bool) -> None:
    """Show the counts of one mailbox."""
    with open_existing(store, name) as mailbox:
        fields = json_views.mailbox_json(name, mailbox.stats())
    shown = {
        **fields,
        "oldest_age": output.age(fields["oldest_age"]) or "-",
        "paused": "yes" if fields["paused"] else "no",
    }
    output.print_result(output.key_value_lines(shown), fields, as_json=json)


@app.command()
@name_argument
@click.option(
    "--limit", metavar="N", type=whole_number(1, 1000), default=10, help="Show at most N."
)
@store_option
@json_option
def peek(*, name: str, limit: int, store: str, json: bool) -> None:
    """Show the next messages without claiming them."""
    with open_existing(store, name) as mailbox:
        found = mailbox.backend.peek(limit=limit)
    now = time.time()
    shown = [json_views.message_json(each) for each in found]
    rows = [
        (
            each.id,
            output.age(now - each.enqueued_at),
            each.deliveries,
            output.short_body(each.body),
            _header_text(view["headers"]),
        )
        for each, view in zip(found, shown, strict=True)
    ]
    last = "headers" if any(each.headers for each in found) else ""
    text = (
        output.table(("id", "age", "deliveries", "body", last), rows)
        if rows
        else f"nothing is ready in mailbox {name!r}"
    )
    output.print_result(text, shown, as_json=json)


@app.command()
@name_argument
@click.argument(
    "body",
    metavar="[BODY|-]",
    required=False,
    help="The body as JSON; `-` or nothing: read standard input.",
)
@click.option("--text", is_flag=True, help="The body is plain text, not JSON.")
@click.option(
    "--delay",
    metavar="DURATION",
    type=duration(),
    default=0,
    help="Deliver the message no earlier than this.",
)
@click.option(
    "--expires-in",
    metavar="DURATION",
    type=duration(0.001, 100 * 365 * 86_400),
    help="Remove the message if no worker has claimed it by then.",
)
@click.option(
    "--dedupe-key",
    metavar="KEY",
    type=valid_text,
    help="Do not send again while a message with this key is queued.",
)
@click.option("--reply-to", metavar="NAME", type=valid_text, help="Mailbox for the reply.")
@click.option(
    "--header",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of the message; may be given again.",
)
@store_option
@json_option
def send(  # noqa: PLR0913 - one argument an option
    *,
    name: str,
    body: str | None,
    text: bool,
    delay: float,
    expires_in: float | None,
    dedupe_key: str | None,
    reply_to: str | None,
    header: tuple[str, ...],
    store: str,
    json: bool,
) -> None:
    """Send a message and print its ID.

    Creates a mailbox or a SQLite file that does not exist.
    """
    from longwatch.app.mailboxes import decode_text_body, parse_json_body  # noqa: PLC0415 - help must not wait for it

    content = (decode_text_body if text else parse_json_body)(_read_body(body))
    headers = _parse_headers(header)
    with open_or_create(store, name) as mailbox:
        sent = mailbox.send(
            content,
            delay_seconds=delay,
            expires_in=expires_in,
            dedupe_key=dedupe_key,
            reply_to=reply_to,
            headers=headers,
        )
    output.print_result(sent, {"id": sent}, as_json=json)


@app.command()
@name_argument
@store_option
@json_option
def pause(*, name: str, store: str, json: bool) -> None:
    """Stop the delivery of messages to all workers until `resume`."""
    with open_existing(store, name) as mailbox:
        mailbox.pause()
    output.print_result(
        f"mailbox {name!r} is paused", {"mailbox": name, "paused": True}, as_json=json
    )


@app.command()
@name_argument
@store_option
@json_option
def resume(*, name: str, store: str, json: bool) -> None:
    """Resume the delivery of messages."""
    with open_existing(store, name) as mailbox:
        mailbox.resume()
    output.print_result(
        f"mailbox {name!r} is resumed", {"mailbox": name, "paused": False}, as_json=json
    )


@app.command()
@name_argument
@message_id_argument
@store_option
@json_option
def cancel(*, name: str, message_id: str, store: str, json: bool) -> None:
    """Remove one message that no worker has claimed."""
    with open_existing(store, name) as mailbox:
        if not mailbox.cancel(message_id):
            raise UsageError(
                f"message {message_id!r} is not queued in mailbox {name!r}: it was claimed or "
                f"removed, or never sent; check the ID and the mailbox"
            )
    output.print_result(
        f"message {message_id} is cancelled",
        {"mailbox": name, "id": message_id, "cancelled": True},
        as_json=json,
    )


@app.command()
@name_argument
@yes_option
@store_option
@json_option
def purge(*, name: str, yes: bool, store: str, json: bool) -> None:
    """Remove every message that no worker has claimed.

    Dead letters stay.
    """
    with open_existing(store, name) as mailbox:
        counts = mailbox.stats()
        queued = output.pluralize(counts.ready + counts.delayed, "message")
        output.confirm(f"Remove {queued} of mailbox {name!r} for good?", yes=yes)
        removed = mailbox.purge()
    output.print_result(
        f"{output.pluralize(removed, 'message')} removed",
        {"mailbox": name, "removed": removed},
        as_json=json,
    )


def _parse_headers(given: Sequence[str]) -> dict[str, str]:
    """Parse and validate headers, before a store is made for the message."""
    from longwatch.mailbox.headers import encode_headers  # noqa: PLC0415 - help must not wait for it

    headers: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(
                f"--header takes NAME=VALUE, for example tenant=acme, not {ascii(pair)[:100]}"
            )
        headers[name] = value
    encode_headers(headers)
    return headers


def _header_text(headers: Mapping[str, str]) -> str:
    """The headers on one line, shortened."""
    return shorten(_all_headers(headers), output.MAX_BODY_CHARS)


def _all_headers(headers: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in headers.items())


def _read_body(body: str | None) -> bytes:
    """The body as bytes, from the command line or from standard input. Reads no more than can be
    sent.
    """
    from longwatch.mailbox.validation import MAX_BODY_BYTES  # noqa: PLC0415 - help must not wait for it

    if body is not None and body != "-":
        return os.fsencode(body)
    if sys.stdin is None or (body is None and sys.stdin.isatty()):
        raise UsageError(
            "there is no body to send; write it after the name, or `-` to read it from "
            "standard input"
        )
    data = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise UsageError(
            f"the body is larger than {MAX_BODY_BYTES} bytes; send where it is stored instead"
        )
    return data


app.add_command(dead_app)


@dead_app.command("ls")
@name_argument
@click.option("--limit", metavar="N", type=whole_number(1), default=100, help="Show at most N.")
@store_option
@json_option
def list_dead(*, name: str, limit: int, store: str, json: bool) -> None:
    """List dead letters, oldest first."""
    with open_existing(store, name) as mailbox:
        found = list(islice(mailbox.dead_letters, limit))
        total = len(mailbox.dead_letters)
    head = ("id", "reason", "died at", "deliveries", "failures", "crashes", "lost", "error")
    rows = [
        (each.id, each.reason, json_views.utc(each.died_at), *each[6:9], each.lost, each.error)
        for each in found
    ]
    text = output.table(head, rows) if rows else [f"no dead letters in mailbox {name!r}"]
    if total > len(found):
        text.append(f"{len(found)} of {total}; more with --limit")
    output.print_result(text, [json_views.dead_letter_json(each) for each in found], as_json=json)


@dead_app.command()
@name_argument
@message_id_argument
@store_option
@json_option
def show(*, name: str, message_id: str, store: str, json: bool) -> None:
    """Show the history, body and last traceback of a dead letter."""
    with open_existing(store, name) as mailbox:
        dead_letter = mailbox.dead_letters.show(message_id)
    if dead_letter is None:
        raise UsageError(_missing_error([message_id], name))
    fields = json_views.dead_letter_json(dead_letter)
    shown = output.key_value_lines(
        {
            **fields,
            "headers": _all_headers(fields["headers"]) or None,
            "body": output.full_body(dead_letter.body),
        }
    )
    if dead_letter.traceback:
        shown += ["", *dead_letter.traceback.split("\n")]
    output.print_result(
        shown,
        fields | json_views.body_json(dead_letter.body) | {"traceback": dead_letter.traceback},
        as_json=json,
    )


@dead_app.command()
@name_argument
@message_ids_argument
@everything_option
@yes_option
@store_option
@json_option
def replay(  # noqa: PLR0913 - one argument an option
    *,
    name: str,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    store: str,
    json: bool,
) -> None:
    """Queue dead letters again, with their counters at zero."""
    _require_choice(ids, everything=everything)
    with open_existing(store, name) as mailbox:
        if everything:
            output.confirm(f"Replay {_describe_all(mailbox)}?", yes=yes)
        done, missing = _apply(ids, mailbox.dead_letters.replay, mailbox.dead_letters.replay_all)
    _print_done("replayed", name, done, missing, as_json=json)


@dead_app.command()
@name_argument
@message_ids_argument
@everything_option
@yes_option
@store_option
@json_option
def drop(  # noqa: PLR0913 - one argument an option
    *,
    name: str,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    store: str,
    json: bool,
) -> None:
    """Remove dead letters for good."""
    _require_choice(ids, everything=everything)
    with open_existing(store, name) as mailbox:
        which = (
            output.pluralize(len(set(ids)), "dead letter") + f" of mailbox {name!r}"
            if ids
            else _describe_all(mailbox)
        )
        output.confirm(f"Remove {which} for good?", yes=yes)
        done, missing = _apply(ids, mailbox.dead_letters.drop, mailbox.dead_letters.drop_all)
    _print_done("dropped", name, done, missing, as_json=json)


def _require_choice(ids: Sequence[str], *, everything: bool) -> None:
    if bool(ids) == everything:
        raise UsageError(
            "name the dead letters by their ids, or all of them with --all"
            + ("; not both" if ids else "")
        )


def _describe_all(mailbox: Mailbox[Any]) -> str:
    return (
        f"{output.pluralize(len(mailbox.dead_letters), 'dead letter')} of mailbox {mailbox.name!r}"
    )


def _apply(
    ids: Sequence[str], apply_to: Callable[..., list[bool]], apply_to_all: Callable[[], int]
) -> tuple[int, list[str]]:
    """Apply a call to the dead letters with these ids, or another call to all of them. Returns the
    number of dead letters found, and the missing ids.
    """
    if not ids:
        return apply_to_all(), []
    wanted = list(dict.fromkeys(ids))
    done = apply_to(*wanted)
    return sum(done), [identity for identity, there in zip(wanted, done, strict=True) if not there]


def _print_done(verb: str, name: str, done: int, missing: list[str], *, as_json: bool) -> None:
    output.print_result(
        f"{output.pluralize(done, 'dead letter')} {verb}",
        {"mailbox": name, verb: done, "missing": missing},
        as_json=as_json,
    )
    if missing:
        raise UsageError(_missing_error(missing, name))


def _missing_error(ids: list[str], name: str) -> str:
    return (
        f"no dead letter {', '.join(map(repr, ids))} in mailbox {name!r}; `longwatch mailbox dead "
        f"ls {name}` lists them"
    )
