"""`longwatch mailbox dead …`: messages that were given up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import json_views, output
from longwatch.cli.options import (
    DEFAULT_STORE,
    Json,
    MessageId,
    MessageIds,
    Name,
    Store,
    Yes,
    open_existing,
)
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.mailbox import Mailbox

app = typer.Typer(help="Dead letters: messages that were given up.", no_args_is_help=True)

Everything = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("ls")
def list_dead(
    name: Name,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="So many at the most.")] = 100,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List the dead letters, oldest first."""
    with open_existing(store, name) as mailbox:
        found = list(islice(mailbox.dead_letters, limit))
        total = len(mailbox.dead_letters)
    head = ("id", "reason", "died at", "deliveries", "failures", "crashes", "error")
    rows = [
        (each.id, each.reason, json_views.utc(each.died_at), *each[6:9], each.error)
        for each in found
    ]
    text = output.table(head, rows) if rows else [f"no dead letters in mailbox {name!r}"]
    if total > len(found):
        text.append(f"{len(found)} of {total}; more with --limit")
    output.print_result(text, [json_views.dead_letter_json(each) for each in found], as_json=json)


@app.command()
def show(
    name: Name, message_id: MessageId, *, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Show one dead letter with its history and its body."""
    with open_existing(store, name) as mailbox:
        dead_letter = mailbox.dead_letters.show(message_id)
    if dead_letter is None:
        raise UsageError(_missing_error([message_id], name))
    fields = json_views.dead_letter_json(dead_letter)
    output.print_result(
        output.key_value_lines({**fields, "body": output.full_body(dead_letter.body)}),
        fields | json_views.body_json(dead_letter.body),
        as_json=json,
    )


@app.command()
def replay(  # noqa: PLR0913 - one argument an option
    name: Name,
    ids: MessageIds = None,
    *,
    everything: Everything = False,
    yes: Yes = False,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Put dead letters back in line, with clean counters."""
    _require_choice(ids, everything=everything)
    with open_existing(store, name) as mailbox:
        if everything:
            output.confirm(f"Replay {_describe_all(mailbox)}?", yes=yes)
        done, missing = _apply(ids, mailbox.dead_letters.replay, mailbox.dead_letters.replay_all)
    _print_done("replayed", name, done, missing, as_json=json)


@app.command()
def drop(  # noqa: PLR0913 - one argument an option
    name: Name,
    ids: MessageIds = None,
    *,
    everything: Everything = False,
    yes: Yes = False,
    store: Store = DEFAULT_STORE,
    json: Json = False,
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


def _require_choice(ids: list[str] | None, *, everything: bool) -> None:
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
    ids: list[str] | None, apply_to: Callable[..., list[bool]], apply_to_all: Callable[[], int]
) -> tuple[int, list[str]]:
    """Do it to these or to all; how many there were, and the ids that were not."""
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
