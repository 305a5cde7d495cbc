"""Translates PostgreSQL's errors into store errors that name the cure."""

from __future__ import annotations

from longwatch.core.masking import mask_text
from longwatch.errors import (
    StoreAuthenticationError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from longwatch.store.database import StoreResetError


class ConnectionLostError(StoreUnreachableError):
    """The connection broke during a call. A new connection may work."""


class CallTimeoutError(StoreBusyError):
    """The server did not reply within the time of the call."""


StoreErrorSpec = tuple[type[StoreError], str]

_UNREACHABLE, _BUSY = StoreUnreachableError, StoreBusyError
_GRANT = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO the user, or GRANT "
    "CREATE ON SCHEMA public TO the user"
)
_SPECS: dict[str, StoreErrorSpec] = {
    "08": (_UNREACHABLE, "cannot be reached; check host and port, and that the server runs"),
    "28": (StoreAuthenticationError, "refuses this user; check user, password and pg_hba.conf"),
    "3D000": (StoreLocationError, "names a database that does not exist; create it with createdb"),
    "57P01": (_UNREACHABLE, "was shut down or ended this connection; try again when it is back"),
    "57P02": (_UNREACHABLE, "has crashed; try again when it is back"),
    "57P03": (_UNREACHABLE, "is starting up or shutting down; try again"),
    "57P05": (_UNREACHABLE, "ended an idle connection; try again"),
    "25P03": (
        _BUSY,
        (
            "ended a transaction that was idle for too long; nothing was written, do less between "
            "its statements"
        ),
    ),
    "40": (
        _BUSY,
        (
            "aborted every attempt because of conflicts with other transactions; nothing was "
            "written, try again"
        ),
    ),
    "55P03": (
        _BUSY,
        "is locked by another transaction; nothing was written, end that transaction, or try again",
    ),
    "57014": (
        _BUSY,
        (
            "did not finish a statement in time; nothing was written, look for locks and long "
            "transactions"
        ),
    ),
    "53300": (_BUSY, "has no free connection; close some, or raise max_connections"),
    "53": (
        _BUSY,
        "has run out of memory or another resource; nothing was written, see the server's log",
    ),
    "53100": (
        StoreFullError,
        "cannot grow: the server's disk is full; nothing was written, free some space",
    ),
    "58030": (_UNREACHABLE, "could not read or write its disk; see the server's log"),
    "25006": (
        StoreReadOnlyError,
        (
            "is read-only, a replica perhaps; connect to the primary, or add "
            "target_session_attrs=read-write to the URL"
        ),
    ),
    "XX001": (StoreCorruptError, "is damaged; restore it from a backup"),
    "XX002": (StoreCorruptError, "has a damaged index; run REINDEX DATABASE"),
    "42501": (StoreReadOnlyError, f"denies this user access; as the owner run: {_GRANT}"),
}
_NOT_NULL = "23502"
_TRANSIENT = frozenset({"40001", "40P01", "53300", "57P01", "57P02", "57P03", "57P05"})


def store_error_spec(error: BaseException) -> StoreErrorSpec | None:
    """Return the error type and text for an error that concerns the whole store. None for an error
    in the SQL, or an error that is not the server's.
    """
    code = getattr(error, "sqlstate", None)
    if code is None:
        return None
    return _SPECS.get(code) or _SPECS.get(code[:2])


def is_transient(error: BaseException) -> bool:
    """Return whether the same work may soon succeed, on this connection or a new one."""
    if isinstance(error, ConnectionLostError):
        return True
    code = getattr(error, "sqlstate", None) or ""
    return (
        code in _TRANSIENT
        or code.startswith("08")
        or (code == "0A000" and "cached plan" in str(error))
    )


def is_missing_mailbox(error: BaseException) -> bool:
    """Return whether a message was sent to a mailbox that does not exist. The insert then has a
    null queue, which the table refuses.
    """
    diagnostics = getattr(error, "diag", None)
    missing = getattr(error, "sqlstate", None) == _NOT_NULL
    return (
        missing
        and diagnostics is not None
        and (diagnostics.table_name, diagnostics.column_name) == ("longwatch_messages", "queue")
    )


def missing_mailbox_error(store: str) -> StoreResetError:
    return StoreResetError(
        f"{store} has lost this mailbox, because it was restored or emptied; nothing was "
        f"written, send again"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of the server's message, masked, without the details for developers."""
    return mask_text(str(error).strip().partition("\n")[0])


def translate_error(url: str, error: BaseException) -> BaseException:
    """Turn an error of the server into a store error that names the cure. An error in the SQL
    itself is returned unchanged.
    """
    if isinstance(error, ConnectionLostError):
        return ConnectionLostError(
            f"{mask_text(url)} was lost ({first_line(error)}); nothing was written, try again"
        )
    if is_missing_mailbox(error):
        return missing_mailbox_error(mask_text(url))
    spec = store_error_spec(error)
    if spec is None:
        return error
    error_type, text = spec
    return error_type(f"{mask_text(url)} {text} (the server reported: {first_line(error)})")
