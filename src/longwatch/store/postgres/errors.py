"""What PostgreSQL's errors mean to somebody who has to do something about them."""

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
    """The connection broke in the middle; a new one may work."""


class CallTimeoutError(StoreBusyError):
    """The server did not answer in the time of the call."""


StoreErrorSpec = tuple[type[StoreError], str]

_UNREACHABLE, _BUSY = StoreUnreachableError, StoreBusyError
_GRANT = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO it, or GRANT CREATE "
    "ON SCHEMA public TO it"
)
_SPECS: dict[str, StoreErrorSpec] = {
    "08": (_UNREACHABLE, "cannot be reached; check host and port, and that the server runs"),
    "28": (StoreAuthenticationError, "refuses this user; check user, password and pg_hba.conf"),
    "3D000": (StoreLocationError, "is a database that does not exist; make it with createdb"),
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
            "had this in conflict with other transactions, again and again; nothing was written, "
            "try again"
        ),
    ),
    "55P03": (
        _BUSY,
        "is locked by another transaction; nothing was written, end that one, or try again",
    ),
    "57014": (
        _BUSY,
        (
            "did not finish a statement in its time; nothing was written, look for locks and long "
            "transactions"
        ),
    ),
    "53300": (_BUSY, "has no connection left; end some, or raise max_connections"),
    "53": (
        _BUSY,
        "has run out of memory or of another limit; nothing was written, see the server's log",
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
    "42501": (StoreReadOnlyError, f"may not be used by this user; as the owner run: {_GRANT}"),
}
_NOT_NULL = "23502"
_TRANSIENT = frozenset({"40001", "40P01", "53300", "57P01", "57P02", "57P03", "57P05"})


def store_error_spec(error: BaseException) -> StoreErrorSpec | None:
    """What an error says about the store as a whole; None for one that is about the SQL itself,
    or not the server's.
    """
    code = getattr(error, "sqlstate", None)
    if code is None:
        return None
    return _SPECS.get(code) or _SPECS.get(code[:2])


def is_transient(error: BaseException) -> bool:
    """Whether the same work may well succeed in a moment, on this connection or a new one."""
    if isinstance(error, ConnectionLostError):
        return True
    code = getattr(error, "sqlstate", None) or ""
    return (
        code in _TRANSIENT
        or code.startswith("08")
        or (code == "0A000" and "cached plan" in str(error))
    )


def is_missing_mailbox(error: BaseException) -> bool:
    """Whether a message was for a mailbox that is not there: the statement finds no queue for it
    then, which the table refuses.
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
        f"{store} has lost this mailbox, it was restored or emptied meanwhile; nothing was "
        f"written, send again"
    )


def first_line(error: BaseException) -> str:
    """What the server said, on one line, without what follows for developers."""
    return mask_text(str(error).strip().partition("\n")[0])


def translate_error(url: str, error: BaseException) -> BaseException:
    """An error of the server as one of ours that says the cure; one about the SQL itself stays
    what it is.
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
    return error_type(f"{mask_text(url)} {text} (it said: {first_line(error)})")
