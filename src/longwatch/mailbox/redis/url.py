"""Reads the options in the URL of a Redis server, and describes the faults of an invalid URL.

The errors do not repeat the text of a parser: it quotes the part that it cannot read, which may be
part of a password.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.connection import parse_url

from longwatch.core.extras import install_command
from longwatch.core.masking import mask_text
from longwatch.errors import UsageError

MIN_CLIENT_VERSION = 6
_URL_FORM = "write redis://USER:PASSWORD@HOST:PORT/DATABASE"
_ENCODING_HINT = "with / # ? @ % in the password as %2F %23 %3F %40 %25"


def connection_options(url: str) -> dict[str, Any]:
    """Return the options for connections. Raises UsageError for an invalid URL."""
    require_client_version()
    try:
        path = urlsplit(url).path
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):
        raise invalid_url(url) from None
    if _has_unencoded_password(url):
        raise invalid_url(url)
    if not url.startswith("unix:") and not re.fullmatch(r"/?|/[0-9]+/?", path):
        raise _invalid_database(url)
    if options.get("db", 0) < 0:
        raise _invalid_database(url)
    return options


def invalid_url(url: str) -> UsageError:
    shown = (
        "a URL whose password is not percent-encoded"
        if _has_unencoded_password(url)
        else mask_text(url)
    )
    return UsageError(
        f"{shown} names no Redis server, or an unknown option; {_URL_FORM}, {_ENCODING_HINT}"
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


def _invalid_database(url: str) -> UsageError:
    return UsageError(
        f"{mask_text(url)} names a database that is not a number; {_URL_FORM}, where DATABASE is "
        f"0, 1, 2 and so on"
    )


def _has_unencoded_password(url: str) -> bool:
    """Return whether a / # or ? of the password ends the part of the URL that holds the password.

    Masking cannot find the end of such a password, so no part of the URL is shown.
    """
    rest = url.partition("://")[2]
    host_ends = re.search(r"[/?#]", rest)
    return "#" in rest or (host_ends is not None and "@" in rest[host_ends.start() :])
