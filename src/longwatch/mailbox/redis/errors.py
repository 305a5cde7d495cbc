"""Turns the errors of Redis and redis-py into store errors that say what to do."""

from __future__ import annotations

import re

from redis import exceptions as redis
from redis.sentinel import MasterNotFoundError

from longwatch.core.masking import mask_text
from longwatch.errors import (
    SchemaTooNewError,
    SchemaTooOldError,
    StoreAuthenticationError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from longwatch.mailbox.redis.url import is_sentinel_url


class SlotMovingError(StoreBusyError):
    """The mailbox's slot is moving to another node of the Cluster. Nothing was written."""


ErrorMeaning = tuple[type[StoreError], str]

_CONNECT_ERROR = re.compile(r"Error -?\d+ connecting to \S+\. (.+)\.")
"""The message of redis-py, which repeats the address, and the reason in it."""


OTHER_SCHEMA = (
    "holds mailboxes of another version of Longwatch; empty them with that version and delete the "
    "keys longwatch:*, or use another database"
)
NEWER_SCHEMA = (
    "holds mailboxes of a newer Longwatch, which this one cannot share; upgrade Longwatch here"
)
_PASSWORD: ErrorMeaning = (
    StoreAuthenticationError,
    (
        "refuses the user or the password; correct them in the URL, redis://USER:PASSWORD@HOST, "
        "both percent-encoded"
    ),
)
_DATABASE: ErrorMeaning = (
    StoreLocationError,
    (
        "has no database with this number; write redis://HOST:PORT/0, or raise `databases` in its "
        "redis.conf (a Cluster has only 0)"
    ),
)
_FULL: ErrorMeaning = (
    StoreFullError,
    "is out of memory; nothing was written, let its workers catch up, or raise maxmemory",
)
_PERMISSION: ErrorMeaning = (
    StoreReadOnlyError,
    (
        "does not permit this user to do that; grant it ~longwatch:* &longwatch:* +@read +@write "
        "+@pubsub +@connection -@dangerous +eval +evalsha +time"
    ),
)
_DEMOTED: ErrorMeaning = (
    StoreBusyError,
    "has a new master, and this one became a replica; nothing was written, try again",
)
_MEANING_BY_CODE: dict[str, ErrorMeaning] = {
    "BUSY": (StoreBusyError, "is busy with a script; nothing was written, try again"),
    "SELECT": _DATABASE,
    "CLUSTERDOWN": (StoreBusyError, "is in a Cluster that is down; nothing was written, try again"),
    "LOADING": (StoreBusyError, "is still loading its data; nothing was written, try again"),
    "MASTERDOWN": (StoreBusyError, "has lost its master; nothing was written, try again"),
    "MISCONF": (
        StoreReadOnlyError,
        "cannot save to its disk and takes no writes; check its log and its disk",
    ),
    "NEWERSCHEMA": (SchemaTooNewError, NEWER_SCHEMA),
    "OTHERSCHEMA": (SchemaTooOldError, OTHER_SCHEMA),
    "NOAUTH": _PASSWORD,
    "NOPERM": _PERMISSION,
    "NOREPLICAS": (StoreBusyError, "has too few replicas to write; nothing was written, try again"),
    "OOM": _FULL,
    "READONLY": (StoreReadOnlyError, "is a read-only replica; give the URL of its master"),
    "TRYAGAIN": (
        SlotMovingError,
        "is moving this mailbox to another node; nothing was written, try again",
    ),
    "WRONGPASS": _PASSWORD,
}
_CODE_BY_CLASS: dict[type[Exception], str] = {
    redis.AuthenticationError: "WRONGPASS",
    redis.AuthenticationWrongNumberOfArgsError: "WRONGPASS",
    redis.AskError: "TRYAGAIN",
    redis.AuthorizationError: "NOPERM",
    redis.BusyLoadingError: "LOADING",
    redis.ClusterDownError: "CLUSTERDOWN",
    redis.MasterDownError: "MASTERDOWN",
    redis.NoPermissionError: "NOPERM",
    redis.OutOfMemoryError: "OOM",
    redis.ReadOnlyError: "READONLY",
    redis.TryAgainError: "TRYAGAIN",
}


class ResponseLostError(StoreError):
    """A command was sent and no response came, so its outcome is unknown."""


def refused_error(url: str, error: Exception) -> StoreError:
    """Return the error for a command that the server refused. Nothing was written."""
    code = _code(error)
    found = _MEANING_BY_CODE.get(code)
    if code == "READONLY" and is_sentinel_url(url):
        found = _DEMOTED
    if found is None:
        return StoreError(f"{mask_text(url)} refused a command: {error}")
    kind, text = found
    return kind(f"{mask_text(url)} {text} ({error})")


def unreachable_error(url: str, error: Exception) -> StoreError:
    """Return the error for a command that could not be sent. Nothing was written."""
    if isinstance(error, redis.AuthenticationError | redis.BusyLoadingError | redis.ResponseError):
        return refused_error(url, error)
    if isinstance(error, MasterNotFoundError):
        return StoreUnreachableError(
            f"no Sentinel of {mask_text(url)} names a master; nothing was written; check the hosts "
            f"and the name of the service"
        )
    found = _CONNECT_ERROR.fullmatch(str(error))
    reason = found[1].lower() if found else error
    return StoreUnreachableError(
        f"{mask_text(url)} cannot be reached ({reason}); nothing was "
        f"written; check host and port, and that the server runs"
    )


def response_lost_error(url: str, error: Exception) -> ResponseLostError:
    return ResponseLostError(
        f"no answer from {mask_text(url)} ({error}); whether it was written is unknown"
    )


def is_demoted(error: Exception) -> bool:
    """Return whether the server has become a replica, or lost its replicas, as when one of them
    became the master. A new connection may reach the new master.
    """
    return _code(error) in {"READONLY", "NOREPLICAS"}


def read_error(error: ResponseLostError) -> StoreError:
    """Return the error for a lost response to a read or an idempotent call: try again."""
    kind = (
        StoreBusyError if isinstance(error.__cause__, redis.TimeoutError) else StoreUnreachableError
    )
    return kind(f"{str(error).rpartition(';')[0]}; try again")


def _code(error: Exception) -> str:
    """Return the error code, which is the first word of the server's reply. redis-py removes the
    code for errors that have their own class.

    An error inside a script has other text before its code.
    """
    if type(error) in _CODE_BY_CLASS:
        return _CODE_BY_CLASS[type(error)]
    text = str(error)
    if "DB index" in text or "SELECT is not allowed in cluster mode" in text:
        return "SELECT"
    if "user executing the script" in text:
        return "NOPERM"
    return next((word for word in text.replace("-", " ").split() if word in _MEANING_BY_CODE), "")
