"""The Lua scripts: each is a file that says what it does, behind the parts that it shares with
others.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_KEYS = ("keys",)
_ROWS = ("keys", "rows")
_PARTS: dict[str, tuple[str, ...]] = {
    "cancel": _ROWS,
    "dead": _ROWS,
    "drop": _KEYS,
    "enter": _KEYS,
    "exchange": _ROWS,
    "extend": _KEYS,
    "look": _KEYS,
    "next_due": _KEYS,
    "pause": _KEYS,
    "peek": _ROWS,
    "purge": _ROWS,
    "put": _ROWS,
    "register": (),
    "renew": _KEYS,
    "replay": _ROWS,
    "stats": _KEYS,
    "sweep": _ROWS,
}
NAMES = tuple(_PARTS)


class Script(NamedTuple):
    """A script, and the name that the server knows it by."""

    source: bytes
    digest: bytes


@cache
def load_script(name: str) -> Script:
    folder = files("longwatch.mailbox") / "lua"
    source = b"\n".join((folder / f"{part}.lua").read_bytes() for part in (*_PARTS[name], name))
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
