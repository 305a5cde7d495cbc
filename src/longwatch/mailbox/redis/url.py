"""Reads the options in the URL of a Redis server, and describes the faults of an invalid URL.

The errors do not repeat the text of a parser: it quotes the part that it cannot read, which may be
part of a password.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import redis
from redis.connection import parse_url

from longwatch.core.extras import install_command
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError

MIN_CLIENT_VERSION = 6
_URL_FORM = "write redis://USER:PASSWORD@HOST:PORT/DATABASE"
_SENTINEL_FORM = (
    "write redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/DATABASE, where SERVICE is "
    "the name of the master in sentinel.conf"
)
_SENTINEL_SUFFIX = "+sentinel"
_SENTINEL_PORT = 26379
_ENCODING_HINT = "with / # ? @ % in the password as %2F %23 %3F %40 %25"


class SentinelLocation(NamedTuple):
    """The Sentinels that a URL names, and the name of the master that they watch."""

    sentinels: tuple[tuple[str, int], ...]
    service: str


def sentinel_location(url: str) -> SentinelLocation | None:
    """Return what a URL says of Sentinels; None if it names the server itself. Raises UsageError
    for an invalid URL.
    """
    parts = urlsplit(url)
    if not parts.scheme.endswith(_SENTINEL_SUFFIX):
        return None
    service = unquote(parts.path.strip("/").partition("/")[0])
    try:
        hosts = [urlsplit(f"//{host}") for host in _hosts(parts).split(",")]
        sentinels = tuple((host.hostname or "", host.port or _SENTINEL_PORT) for host in hosts)
    except ValueError:
        raise invalid_url(url) from None
    if not service or not all(name for name, _ in sentinels):
        raise invalid_url(url)
    return SentinelLocation(sentinels, service)


def is_sentinel_url(url: str) -> bool:
    return url.partition("://")[0].lower().endswith(_SENTINEL_SUFFIX)


def connection_options(url: str) -> dict[str, Any]:
    """Return the options for connections. Raises UsageError for an invalid URL."""
    require_client_version()
    if _has_unencoded_password(url):
        raise invalid_url(url)
    try:
        plain = _server_url(url) if is_sentinel_url(url) else url
        path = urlsplit(plain).path
        options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise invalid_url(url) from None
    if not url.startswith("unix:") and not re.fullmatch(r"/?|/[0-9]+/?", path):
        raise _invalid_database(url)
    if options.get("db", 0) < 0:
        raise _invalid_database(url)
    return options


def _server_url(url: str) -> str:
    """Return the URL of the master that a Sentinel URL describes, without its address."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    database = parts.path.strip("/").partition("/")[2]
    scheme = parts.scheme.removesuffix(_SENTINEL_SUFFIX)
    return f"{scheme}://{user}{at}/{database}?{parts.query}"


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def invalid_url(url: str) -> UsageError:
    shown = (
        "a URL whose password is not percent-encoded"
        if _has_unencoded_password(url)
        else mask_text(url)
    )
    return UsageError(
        f"{shown} names no Redis server, or an unknown option; {_form_of(url)}, {_ENCODING_HINT}"
    )


def require_client_version() -> None:
    """Raise UsageError if redis-py is too old."""
    found = redis.__version__
    major = found.partition(".")[0]
    if major.isdecimal() and int(major) < MIN_CLIENT_VERSION:
        cure = f"run: {install_command('redis')}"
        raise UsageError(
            f"redis-py {found} is too old, Longwatch needs {MIN_CLIENT_VERSION} or later; {cure}"
        )


def _form_of(url: str) -> str:
    return _SENTINEL_FORM if is_sentinel_url(url) else _URL_FORM


def _invalid_database(url: str) -> UsageError:
    return UsageError(
        f"{mask_text(url)} names a database that is not a number; {_form_of(url)}, where DATABASE "
        f"is 0, 1, 2 and so on"
    )


def _has_unencoded_password(url: str) -> bool:
    """Return whether a / # or ? of the password ends the part of the URL that holds the password.

    Masking cannot find the end of such a password, so no part of the URL is shown.
    """
    rest = url.partition("://")[2]
    host_ends = re.search(r"[/?#]", rest)
    return "#" in rest or (host_ends is not None and "@" in rest[host_ends.start() :])
