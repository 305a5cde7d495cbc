"""Options of the commands about stores and mailboxes, and openers that import what they need only
when called.
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
    """Refuse words that are not UTF-8: no store takes them."""
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
        help="Where the mailboxes are.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
Name = Annotated[str, typer.Argument(metavar="NAME", callback=valid_text, help="The mailbox.")]
MessageId = Annotated[str, typer.Argument(metavar="ID", callback=valid_text, help="The message.")]
MessageIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID", callback=valid_text, help="The messages.")
]


def open_existing(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox that exists."""
    from longwatch.app.mailboxes import existing_mailbox  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_mailbox(store, name)


def open_or_create(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox; makes it if it does not exist."""
    from longwatch.app.mailboxes import opened_mailbox  # noqa: PLC0415

    return opened_mailbox(store, name)
