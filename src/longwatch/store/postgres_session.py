"""How every connection begins: limits of its own, and a look at what the server promises."""

from __future__ import annotations

import warnings

from longwatch.errors import StoreMisplacedError, UnsafeSettingsWarning
from longwatch.store.database import CALL_TIMEOUT
from longwatch.store.postgres_wire import Wire

_UNSAFE = {
    "fsync": "a crash of its machine may damage the database",
    "full_page_writes": "a power cut may damage the database",
    "synchronous_commit": "a crash of the server may lose what was just sent or settled",
}
_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
"""Those of a database that keep every text: others have no place for some, so that a name or an
error could not be written.
"""
_LIMITS = {
    "statement_timeout": f"{CALL_TIMEOUT:.0f}s",
    "idle_in_transaction_session_timeout": f"{2 * CALL_TIMEOUT:.0f}s",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
"""A statement outlives its call by little, and a client that froze in a transaction holds its locks
for little. Statements are planned once, to go by an index from row to row: a plan made while a
queue was empty must do when it holds a million messages. `USUAL_PLANS` is for the statements of
others.
"""
_IN_UTF8 = "make another one with `createdb --encoding=UTF8 --template=template0 NAME`"
_USUAL = {"plan_cache_mode": "auto", "enable_seqscan": "on", "enable_bitmapscan": "on"}
USUAL_PLANS = (
    "SELECT "
    + ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _USUAL.items())
).encode()
_BEGIN = (
    "SELECT current_setting('server_encoding'), "
    + ", ".join(f"current_setting('{name}')" for name in _UNSAFE)
    + ", "
    + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _LIMITS.items())
).encode()


def begin_session(wire: Wire, shown_url: str, deadline: float) -> list[str]:
    """Set the limits; what is unsafe about the server's settings. A database that cannot keep
    every text is refused.
    """
    [(encoding, *settings)] = wire.ask(_BEGIN, (), deadline)
    if encoding not in _ENCODINGS:
        raise StoreMisplacedError(
            f"{shown_url} is encoded in {encoding}, which has no place for some texts; {_IN_UTF8}"
        )
    return [
        f"{name} is off, so {danger}; set it to on"
        for (name, danger), value in zip(_UNSAFE.items(), settings, strict=False)
        if value == "off"
    ]


def warn_of(shown_url: str, faults: list[str]) -> None:
    for fault in faults:
        warnings.warn(f"{shown_url}: {fault}", UnsafeSettingsWarning, stacklevel=2)
