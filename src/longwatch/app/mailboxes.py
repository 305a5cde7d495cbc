"""Opens stores and mailboxes for one command, and closes them after it.

A command that only reads creates neither files, tables nor mailboxes. Errors of the store keep
their own exit codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from longwatch.core.error_text import json_reason
from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import MailboxConnectionError, SerializationError, StoreError, UsageError
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.url import mailbox_names, open_mailbox, open_store
from longwatch.mailbox.validation import validate_name
from longwatch.store.database import Database
from longwatch.store.json_codec import Codec
from longwatch.store.migrations import SchemaStatus, schema_status
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.file import require_usable_path


@contextmanager
def opened_store(url: str, *, auto_migrate: bool = False) -> Iterator[Any]:
    """Open the store of a URL. It is created by the first write."""
    if url.startswith("memory:"):
        raise UsageError(
            "a memory:// store is seen by one process only; give --store the URL of a file, "
            "as in sqlite:///longwatch.db"
        )
    store = open_store(url, auto_migrate=auto_migrate)
    try:
        with _unwrap_store_errors():
            yield store
    finally:
        store.close()


@contextmanager
def existing_store(url: str) -> Iterator[Any]:
    """Open the store of a URL. Raises UsageError if it does not exist or has no mailboxes."""
    with opened_store(url) as store:
        if isinstance(store, Database) and require_schema(store).version == 0:
            cure = (
                "`longwatch db migrate` makes its tables"
                if store.is_shared
                else "`longwatch mailbox send` makes one"
            )
            raise UsageError(f"{masked_url(store)} holds no mailboxes; {cure}, or give --store")
        yield store


@contextmanager
def opened_mailbox(url: str, name: str) -> Iterator[Mailbox[Any]]:
    """Open a mailbox. It and its store are created by the first write."""
    with opened_store(url) as store:
        yield open_mailbox(store, name)


@contextmanager
def existing_mailbox(url: str, name: str) -> Iterator[Mailbox[Any]]:
    """Open an existing mailbox. Raises UsageError with the nearest name if there is none."""
    validate_name(name)
    with existing_store(url) as store:
        names = mailbox_names(store)
        if name not in names:
            hint = did_you_mean(name, names, default="`longwatch mailbox ls` lists them")
            raise UsageError(f"there is no mailbox {name!r} in {masked_url(store)}; {hint}")
        yield open_mailbox(store, name)


def has_mailboxes(store: Any) -> bool:
    """Whether the store exists and can have mailboxes. Creates nothing."""
    if not isinstance(store, Database):
        return True
    status = _schema_status(store)
    return status is not None and status.version > 0


def require_schema(store: Any) -> SchemaStatus:
    """The status of the schema. Raises UsageError if there is no store, or one without a schema."""
    if not isinstance(store, Database):
        raise UsageError(
            f"{masked_url(store)} has no schema and needs no migration; `longwatch mailbox ls` "
            f"shows what is there"
        )
    status = _schema_status(store)
    if status is None:
        raise UsageError(
            f"no store at {masked_url(store)}; `longwatch db migrate` makes one, or give --store"
        )
    return status


def migrate_store(store: Any) -> tuple[int, SchemaStatus]:
    """Migrate the schema, and create the store if needed. Returns the version before, and the new
    status.
    """
    before = _schema_status(store) if isinstance(store, Database) else require_schema(store)
    store.write(lambda _: None)
    return before.version if before else 0, require_schema(store)


def _schema_status(store: Database) -> SchemaStatus | None:
    if isinstance(store, SqliteDatabase):
        require_usable_path(store.path)
    return schema_status(store)


def parse_json_body(data: bytes) -> Any:
    """Check a body that is JSON already. It is sent unchanged, apart from white space between its
    parts.
    """
    if not decode_text_body(data).strip():
        raise SerializationError("the body is empty; write it as JSON, or use --text")
    try:
        Codec().decode(data)
        return msgspec.Raw(msgspec.json.format(data, indent=-1))
    except (SerializationError, msgspec.MsgspecError) as error:
        detail = json_reason(str(error).removeprefix("a body cannot be read: "))
        raise SerializationError(
            f"the body is not JSON: {detail}; quote it for the shell, or use --text"
        ) from None


def decode_text_body(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SerializationError(
            f"the body is not UTF-8: byte {error.start} cannot be read; send it as base64"
        ) from None


def decode_body(data: bytes) -> Any:
    """Decode a stored body. Raises SerializationError if it is not JSON."""
    return Codec().decode(data)


def masked_url(store: Any) -> str:
    return mask_text(store.url)


@contextmanager
def _unwrap_store_errors() -> Iterator[None]:
    """Raise the errors of the store itself, with their exit codes, instead of the mailbox errors
    around them.
    """
    try:
        yield
    except MailboxConnectionError as error:
        if isinstance(error.__cause__, StoreError):
            raise error.__cause__ from None
        raise
