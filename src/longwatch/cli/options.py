"""Options that several commands share, and functions that open a mailbox. These functions import
their modules only when called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli.option_values import refused

if TYPE_CHECKING:
    from longwatch.mailbox import Mailbox

DEFAULT_STORE = "sqlite:///longwatch.db"


def valid_text(value: Any) -> Any:
    """Refuse text that is not UTF-8: no store accepts it."""
    for word in value if isinstance(value, list | tuple) else [value or ""]:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise refused("text in UTF-8", word) from None
    return value


Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="LONGWATCH_STORE",
        callback=valid_text,
        help="The store URL.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", callback=valid_text, help="Name of the mailbox.")
]
MessageId = Annotated[
    str, typer.Argument(metavar="ID", callback=valid_text, help="ID of the message.")
]
MessageIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", callback=valid_text, help="IDs of dead letters."),
]


def open_existing(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox that exists."""
    from longwatch.app.mailboxes import existing_mailbox  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_mailbox(store, name)


def open_or_create(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox; creates it if it does not exist."""
    from longwatch.app.mailboxes import opened_mailbox  # noqa: PLC0415

    return opened_mailbox(store, name)
