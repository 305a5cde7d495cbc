"""What Redis' errors mean to somebody who has to do something about them."""

from __future__ import annotations

from redis import exceptions as redis

from longwatch.core.masking import mask_text
from longwatch.errors import (
    SchemaTooOldError,
    StoreAuthenticationError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
)

ErrorMeaning = tuple[type[StoreError], str]


OTHER_SCHEMA = (
    "holds mailboxes of another version of Longwatch; empty them with that version and delete the "
    "keys longwatch:*, or use another database"
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
        "has no database of this number; write redis://HOST:PORT/0, or raise `databases` in its "
        "redis.conf (a Cluster has only 0)"
    ),
)
_FULL: ErrorMeaning = (
    StoreFullError,
    "is out of memory; nothing was written, let its workers catch up, or raise maxmemory",
)
_PERMISSION: ErrorMeaning = (
    StoreReadOnlyError,
    "does not permit this user to do that; grant it ~longwatch:* &longwatch:* +@all -@dangerous",
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
    "OTHERSCHEMA": (SchemaTooOldError, OTHER_SCHEMA),
    "NOAUTH": _PASSWORD,
    "NOPERM": _PERMISSION,
    "NOREPLICAS": (StoreBusyError, "has too few replicas to write; nothing was written, try again"),
    "OOM": _FULL,
    "READONLY": (StoreReadOnlyError, "is a read-only replica; give the URL of its master"),
    "TRYAGAIN": (
        StoreBusyError,
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
    """It was sent, and no answer came: whether it was done is unknown."""


def refused_error(url: str, error: Exception) -> StoreError:
    """What the server said instead of doing it: nothing was written."""
    found = _MEANING_BY_CODE.get(_code(error))
    if found is None:
        return StoreError(f"{mask_text(url)} did not do it: {error}")
    kind, text = found
    return kind(f"{mask_text(url)} {text} ({error})")


def unreachable_error(url: str, error: Exception) -> StoreError:
    """It could not be sent: nothing was written."""
    if isinstance(error, redis.AuthenticationError | redis.BusyLoadingError | redis.ResponseError):
        return refused_error(url, error)
    return StoreUnreachableError(
        f"{mask_text(url)} cannot be reached ({error}); nothing was written, check that it runs"
    )


def response_lost_error(url: str, error: Exception) -> ResponseLostError:
    return ResponseLostError(
        f"no answer from {mask_text(url)} ({error}); whether it was written is unknown"
    )


def is_demoted(error: Exception) -> bool:
    """Whether the server has become a replica: its address may lead to another one now, but only
    for a new connection.
    """
    return _code(error) == "READONLY"


def read_error(error: ResponseLostError) -> StoreError:
    """The same about something that writes nothing, or nothing that matters when it is done
    twice.
    """
    kind = (
        StoreBusyError if isinstance(error.__cause__, redis.TimeoutError) else StoreUnreachableError
    )
    return kind(f"{str(error).rpartition(';')[0]}; try again")


def _code(error: Exception) -> str:
    """The first word of what the server said; redis-py takes it off for those that have a class of
    their own.

    An error inside a script may come wrapped in the script's own words.
    """
    if type(error) in _CODE_BY_CLASS:
        return _CODE_BY_CLASS[type(error)]
    text = str(error)
    if "DB index" in text or "SELECT is not allowed in cluster mode" in text:
        return "SELECT"
    if "user executing the script" in text:
        return "NOPERM"
    return next((word for word in text.replace("-", " ").split() if word in _MEANING_BY_CODE), "")
