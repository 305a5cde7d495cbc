"""Options that several commands share, and functions that open a mailbox. These functions import
their modules only when called.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from longwatch.cli.option_values import refused

if TYPE_CHECKING:
    from longwatch.mailbox import Mailbox

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///longwatch.db"


def valid_text(given: str) -> str:
    """Refuse text that is not UTF-8: no store accepts it."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise refused("text in UTF-8", given) from None
    return given


store_option = click.option(
    "--store",
    metavar="URL",
    type=valid_text,
    default=DEFAULT_STORE,
    envvar="LONGWATCH_STORE",
    show_envvar=True,
    help="The store URL.",
)
json_option = click.option("--json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
name_argument = click.argument("name", metavar="NAME", type=valid_text, help="Name of the mailbox.")
message_id_argument = click.argument(
    "message_id", metavar="ID", type=valid_text, help="ID of the message."
)
message_ids_argument = click.argument(
    "ids", metavar="[ID...]", type=valid_text, nargs=-1, help="IDs of dead letters."
)


def open_existing(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox that exists."""
    from longwatch.app.mailboxes import existing_mailbox  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_mailbox(store, name)


def open_or_create(store: str, name: str) -> AbstractContextManager[Mailbox[Any]]:
    """Open a mailbox; creates it if it does not exist."""
    from longwatch.app.mailboxes import opened_mailbox  # noqa: PLC0415

    return opened_mailbox(store, name)
