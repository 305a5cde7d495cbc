"""`longwatch mailbox dead …`: messages that were given up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import answer, facts
from longwatch.cli.stores import (
    DEFAULT_STORE,
    Json,
    MessageId,
    MessageIds,
    Name,
    Store,
    Yes,
    existing,
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
    with existing(store, name) as mailbox:
        found = list(islice(mailbox.dead, limit))
        total = len(mailbox.dead)
    head = ("id", "reason", "died at", "deliveries", "failures", "crashes", "error")
    rows = [
        (each.id, each.reason, facts.utc(each.died_at), *each[6:9], each.error) for each in found
    ]
    text = answer.table(head, rows) if rows else [f"no dead letters in mailbox {name!r}"]
    if total > len(found):
        text.append(f"{len(found)} of {total}; more with --limit")
    answer.tell(text, [facts.of_dead(each) for each in found], as_json=json)


@app.command()
def show(
    name: Name, message_id: MessageId, *, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Show one dead letter with its history and its body."""
    with existing(store, name) as mailbox:
        letter = mailbox.dead.show(message_id)
    if letter is None:
        raise UsageError(_missing([message_id], name))
    told = facts.of_dead(letter)
    answer.tell(
        answer.listed({**told, "body": answer.full(letter.body)}),
        told | facts.of_body(letter.body),
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
    with existing(store, name) as mailbox:
        if everything:
            answer.confirm(f"Replay {_all_of(mailbox)}?", yes=yes)
        done, missing = _act(ids, mailbox.dead.replay, mailbox.dead.replay_all)
    _tell("replayed", name, done, missing, as_json=json)


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
    with existing(store, name) as mailbox:
        which = (
            answer.counted(len(set(ids)), "dead letter") + f" of mailbox {name!r}"
            if ids
            else _all_of(mailbox)
        )
        answer.confirm(f"Remove {which} for good?", yes=yes)
        done, missing = _act(ids, mailbox.dead.drop, mailbox.dead.drop_all)
    _tell("dropped", name, done, missing, as_json=json)


def _require_choice(ids: list[str] | None, *, everything: bool) -> None:
    if bool(ids) == everything:
        raise UsageError(
            "name the dead letters by their ids, or all of them with --all"
            + ("; not both" if ids else "")
        )


def _all_of(mailbox: Mailbox[Any]) -> str:
    return f"{answer.counted(len(mailbox.dead), 'dead letter')} of mailbox {mailbox.name!r}"


def _act(
    ids: list[str] | None, each: Callable[..., list[bool]], every: Callable[[], int]
) -> tuple[int, list[str]]:
    """Do it to these or to all; how many there were, and the ids that were not."""
    if not ids:
        return every(), []
    wanted = list(dict.fromkeys(ids))
    done = each(*wanted)
    return sum(done), [identity for identity, there in zip(wanted, done, strict=True) if not there]


def _tell(verb: str, name: str, done: int, missing: list[str], *, as_json: bool) -> None:
    answer.tell(
        f"{answer.counted(done, 'dead letter')} {verb}",
        {"mailbox": name, verb: done, "missing": missing},
        as_json=as_json,
    )
    if missing:
        raise UsageError(_missing(missing, name))


def _missing(ids: list[str], name: str) -> str:
    return (
        f"no dead letter {', '.join(map(repr, ids))} in mailbox {name!r}; `longwatch mailbox dead "
        f"ls {name}` lists them"
    )
