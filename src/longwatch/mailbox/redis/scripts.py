"""Loads the Lua scripts. Each is one file, prefixed with the parts that it shares with others."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_WITH_KEYS = ("keys",)
_WITH_MESSAGES = ("keys", "messages")
_WITH_BLAME = ("keys", "messages", "blame")
_PRELUDE_BY_SCRIPT: dict[str, tuple[str, ...]] = {
    "cancel": _WITH_MESSAGES,
    "count_suspects": _WITH_KEYS,
    "dead_letters": _WITH_MESSAGES,
    "delete_old_dead_letters": ("keys", "retention"),
    "drop": _WITH_KEYS,
    "register_owner": _WITH_KEYS,
    "exchange": (*_WITH_BLAME, "claim"),
    "renew_one": _WITH_KEYS,
    "find_stale": _WITH_KEYS,
    "find_turn": _WITH_KEYS,
    "next_due": _WITH_KEYS,
    "pause": _WITH_KEYS,
    "peek": _WITH_MESSAGES,
    "purge": _WITH_MESSAGES,
    "put": _WITH_MESSAGES,
    "register_mailbox": (),
    "release_turn": _WITH_KEYS,
    "renew": _WITH_KEYS,
    "replay": _WITH_MESSAGES,
    "report_draining": _WITH_KEYS,
    "row_ids": _WITH_KEYS,
    "set_limits": _WITH_MESSAGES,
    "stats": _WITH_KEYS,
    "sweep": (*_WITH_BLAME, "retention"),
    "take_turn": _WITH_KEYS,
}
SCRIPT_NAMES = tuple(_PRELUDE_BY_SCRIPT)


class LuaScript(NamedTuple):
    """A script, and the digest by which the server calls it."""

    source: bytes
    digest: bytes


@cache
def load_script(name: str) -> LuaScript:
    folder = files("longwatch.mailbox.redis") / "lua"
    source = b"\n".join(
        (folder / f"{part}.lua").read_bytes() for part in (*_PRELUDE_BY_SCRIPT[name], name)
    )
    return LuaScript(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
