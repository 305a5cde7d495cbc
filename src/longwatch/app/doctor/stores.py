"""Settings, clock and schema of each store. Every connection has timeouts of its own, and the
check around it another.
"""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from longwatch.app.doctor.findings import Finding, ok, problem, size_text, warning
from longwatch.app.doctor.subject import sqlite_path
from longwatch.core.masking import mask_text
from longwatch.errors import StoreError
from longwatch.store.database import NO_SCHEMA, StoredSchema
from longwatch.store.migrations import TOO_OLD, SchemaStatus, load_migrations, read_schema
from longwatch.store.sqlite.handle import stored_schema
from longwatch.store.url import require_extra

CONNECT_SECONDS = 3
ANSWER_SECONDS = 3
MAX_SKEW, BAD_SKEW = 2.0, 60.0
LARGE_WAL_BYTES = 256 << 20
CONNECTIONS_PER_PROCESS = 9
"""Connections to PostgreSQL that a process opens at most: eight, and one that listens."""
OLD_TRANSACTION_SECONDS = 300.0
MIN_POSTGRES, MIN_REDIS = 13, (6, 2)
SHORT_IDLE_SECONDS = 30.0
FULL_MEMORY = 0.9


def skew_findings(skew: float, round_trip: float) -> Iterator[Finding]:
    """Compare the clock of a server with ours. `skew` is theirs minus ours, known to half of
    `round_trip`.
    """
    sure = max(abs(skew) - round_trip / 2, 0.0)
    if sure <= MAX_SKEW:
        return
    text = (
        f"its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's; "
        f"the server's clock decides leases and delays"
    )
    make = problem if sure > BAD_SKEW else warning
    yield make(text, "run a time service such as chrony on both machines")


def schema_text(schema: StoredSchema) -> str:
    """The two numbers of a schema."""
    return f"schema {schema.version} for versions from {schema.min_reader} on"


def schema_findings(status: SchemaStatus, *, url: str, migrates_itself: bool) -> Iterator[Finding]:
    """Compare the schema of a store with what this version knows."""
    if status.is_too_new:
        yield problem(
            f"schema {status.version} was made by a newer Longwatch, for versions from "
            f"{status.min_reader} on; this one knows {status.latest}",
            "upgrade Longwatch here",
        )
    elif status.is_too_old:
        yield problem(f"schema {status.version} was made by an older Longwatch", TOO_OLD[7:])
    elif status.pending and not migrates_itself:
        what = "has no tables yet" if status.version == 0 else f"has schema {status.version}"
        yield problem(
            f"{what}; this version needs {status.latest}",
            f"longwatch db migrate --store {mask_text(url)}",
        )
    elif status.version and status.min_reader_after > status.version:
        yield warning(
            f"schema {status.version} is migrated to {status.latest} when it is next opened; "
            f"versions below {status.min_reader_after} cannot use it then",
            "stop processes of older versions first",
        )


# --- SQLite ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFacts:
    """What a SQLite file says of itself."""

    journal_mode: str
    schema: StoredSchema
    wal_bytes: int = 0
    mode: int = 0o600


def sqlite_findings(url: str) -> Iterator[Finding]:
    """The findings about one file. Opens it for reading, and creates nothing."""
    path = sqlite_path(url)
    if not path.exists():
        yield ok("does not exist yet; the first write makes it")
        return
    facts = read_sqlite(path)
    found = list(judge_sqlite(facts, url=url))
    mode = f"journal {facts.journal_mode}, {schema_text(facts.schema)}"
    yield from found or [ok(f"{mode}, {size_text(path.stat().st_size)}")]


def judge_sqlite(facts: SqliteFacts, *, url: str) -> Iterator[Finding]:
    steps = tuple(load_migrations("sqlite"))
    yield from schema_findings(SchemaStatus(facts.schema, steps), url=url, migrates_itself=True)
    if facts.schema.version and facts.journal_mode != "wal":
        yield warning(
            f"journal_mode is {facts.journal_mode}, so readers and the writer wait for each other",
            "let Longwatch open it, which sets WAL, and let no other program change it back",
        )
    if facts.wal_bytes > LARGE_WAL_BYTES:
        yield warning(
            f"its -wal file has {size_text(facts.wal_bytes)}, because a reader holds a snapshot",
            "find the process that keeps a transaction open, and end it",
        )
    if facts.mode & 0o077:
        yield warning(
            f"other users may open it (mode {facts.mode:o})", "chmod 600 it and its -wal and -shm"
        )


def read_sqlite(path: Path) -> SqliteFacts:
    """Raises StoreError for a file that is no database or cannot be read."""
    wal = path.with_name(f"{path.name}-wal")
    size = 0
    with suppress(OSError):
        size = wal.stat().st_size
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=ANSWER_SECONDS)
        ) as connection:
            connection.execute("PRAGMA query_only = ON")
            [(journal,)] = connection.execute("PRAGMA journal_mode").fetchall()
            schema = stored_schema(connection)
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot be read ({error}); check its permissions, or restore it from a backup"
        ) from None
    mode = stat.S_IMODE(path.stat().st_mode)
    return SqliteFacts(journal_mode=journal, schema=schema, wal_bytes=size, mode=mode)


# --- PostgreSQL ---

_POSTGRES_FACTS = """
SELECT current_setting('server_version_num')::int / 10000 AS major,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('autovacuum') AS autovacuum,
       current_setting('server_encoding') AS encoding,
       current_setting('max_connections')::int
         - current_setting('superuser_reserved_connections')::int AS connections,
       (SELECT count(*) FROM pg_stat_activity
         WHERE datid IS NOT NULL AND pid <> pg_backend_pid()) AS used,
       (SELECT count(*) FROM pg_stat_activity
         WHERE datid IS NOT NULL AND application_name = 'longwatch') AS ours,
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)
          FROM pg_stat_activity WHERE state LIKE 'idle in transaction%') AS idle,
       (SELECT setting::bigint FROM pg_settings
         WHERE name = 'idle_in_transaction_session_timeout') AS idle_limit_ms,
       pg_is_in_recovery() AS standby,
       to_regclass('longwatch_schema') IS NOT NULL AS has_schema,
       extract(epoch FROM clock_timestamp()) AS wall
"""
_DANGERS = {
    "fsync": "a crash of its machine may damage the database",
    "full_page_writes": "a power cut may damage the database",
    "synchronous_commit": "a crash of the server may lose the last sends and settles",
}


def postgres_findings(url: str, processes: int) -> Iterator[Finding]:
    """The findings about one server. `processes` of this machine use it."""
    facts, skew, round_trip = read_postgres(url)
    found = [*judge_postgres(facts, processes=processes, url=url), *skew_findings(skew, round_trip)]
    text = (
        f"PostgreSQL {facts['major']}, {schema_text(facts['schema'])}, {facts['used']} of "
        f"{facts['connections']} connections, clock within {abs(skew) + round_trip / 2:.1f} s"
    )
    yield from found or [ok(text)]


def judge_postgres(facts: Mapping[str, Any], *, processes: int, url: str) -> Iterator[Finding]:
    """Decide on the facts of `_POSTGRES_FACTS`, and `schema`."""
    if facts["major"] < MIN_POSTGRES:
        yield problem(f"runs PostgreSQL {facts['major']}", f"upgrade it to {MIN_POSTGRES} or newer")
    for name, danger in _DANGERS.items():
        if facts[name] == "off":
            yield problem(f"{name} is off, so {danger}", f"set {name} = on")
    if facts["standby"]:
        yield problem(
            "is a standby, which takes no writes",
            "name the primary, or add target_session_attrs=read-write to the URL",
        )
    if facts["encoding"] not in {"UTF8", "SQL_ASCII"}:
        yield problem(
            f"uses the encoding {facts['encoding']}, which cannot store every text",
            "createdb --encoding=UTF8 --template=template0 NAME",
        )
    steps = tuple(load_migrations("postgresql"))
    status = SchemaStatus(facts["schema"], steps)
    yield from schema_findings(status, url=url, migrates_itself=False)
    yield from _connection_findings(facts, processes)
    yield from _upkeep_findings(facts)


def _connection_findings(facts: Mapping[str, Any], processes: int) -> Iterator[Finding]:
    needed = processes * CONNECTIONS_PER_PROCESS
    others = facts["used"] - facts["ours"]
    free = facts["connections"] - others
    if needed > free:
        yield warning(
            f"{processes} processes may open {needed} connections, and {max(free, 0)} of "
            f"{facts['connections']} are not used by others",
            f"set max_connections to {others + 2 * needed} or more, or run fewer processes",
        )


def _upkeep_findings(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["autovacuum"] == "off":
        yield warning(
            "autovacuum is off, so queues get slower with every message", "set autovacuum = on"
        )
    if facts["idle"] > OLD_TRANSACTION_SECONDS:
        yield warning(
            f"a session has been idle in a transaction for {facts['idle']:.0f} s; it keeps locks, "
            f"and rows from being vacuumed",
            "find it in pg_stat_activity and end it, or set idle_in_transaction_session_timeout",
        )
    limit = facts["idle_limit_ms"] / 1000
    if 0 < limit < SHORT_IDLE_SECONDS:
        yield warning(
            f"idle_in_transaction_session_timeout is {limit:g} s, which may end your transactions "
            f"around tx=",
            f"set it to {2 * SHORT_IDLE_SECONDS:g}s or more",
        )


def read_postgres(url: str) -> tuple[dict[str, Any], float, float]:
    """The facts of a server, its clock minus ours, and the seconds that the question took. Raises
    StoreError if it cannot be reached.
    """
    with require_extra("postgres", url):
        import psycopg  # noqa: PLC0415 - optional
        from psycopg.rows import dict_row, tuple_row  # noqa: PLC0415

        from longwatch.store.postgres.connector import split_own_parameters  # noqa: PLC0415

    libpq_url, _ = split_own_parameters(url)
    try:
        with psycopg.connect(
            libpq_url,
            prepare_threshold=None,
            row_factory=dict_row,
            connect_timeout=CONNECT_SECONDS,
            application_name="longwatch-doctor",
        ) as connection:
            connection.execute(f"SET LOCAL statement_timeout = '{ANSWER_SECONDS}s'")
            began = time.time()
            row = connection.execute(_POSTGRES_FACTS).fetchone()
            ended = time.time()
            assert row is not None
            facts: dict[str, Any] = {**row, "schema": NO_SCHEMA}
            if facts["has_schema"]:
                cursor = connection.cursor(row_factory=tuple_row)
                facts["schema"] = read_schema(lambda sql: cursor.execute(sql).fetchall())
    except psycopg.Error as error:
        reason = mask_text(" ".join(str(error).split()))
        raise StoreError(
            f"cannot be asked ({reason}); check URL, network, user and password, and that the "
            f"server runs"
        ) from None
    return facts, float(facts["wall"]) - (began + ended) / 2, ended - began


# --- Redis ---


def redis_findings(url: str) -> Iterator[Finding]:
    info, schema, skew, round_trip = read_redis(url)
    found = [*judge_redis(info, schema), *skew_findings(skew, round_trip)]
    text = (
        f"Redis {info.get('redis_version')}, appendonly yes, "
        f"clock within {abs(skew) + round_trip / 2:.1f} s"
    )
    yield from found or [ok(text)]


def judge_redis(info: Mapping[str, str], schema: str | None) -> Iterator[Finding]:
    """Decide on the reply to INFO and on the schema of the mailboxes; None if there are none."""
    from longwatch.mailbox.redis.store import (  # noqa: PLC0415 - redis is optional
        MIN_READER,
        SCHEMA_VERSION,
        parse_layout,
    )
    from longwatch.mailbox.redis.transport import unsafe_settings  # noqa: PLC0415

    for fault in unsafe_settings(dict(info)):
        text, _, cure = fault.partition("; ")
        yield problem(text, cure)
    version = tuple(int(part) for part in info.get("redis_version", "0.0").split(".")[:2])
    if version < MIN_REDIS:
        yield problem(f"runs Redis {info.get('redis_version')}", "upgrade it to 6.2 or newer")
    if info.get("role") == "slave":
        yield problem("is a replica, which takes no writes", "name the master in the URL")
    for name, what in (
        ("aof_last_write_status", "the append-only file"),
        ("rdb_last_bgsave_status", "a snapshot"),
    ):
        if info.get(name, "ok") != "ok":
            yield problem(
                f"could not write {what} the last time",
                "look at the disk and the log of the server",
            )
    most, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    if most and used > FULL_MEMORY * most:
        yield warning(
            f"uses {size_text(used)} of {size_text(most)}; a full server refuses sends",
            "raise maxmemory, or purge mailboxes",
        )
    layout = NO_SCHEMA if schema is None else parse_layout(schema)
    if layout.min_reader > SCHEMA_VERSION:
        yield problem(
            f"its keys have layout {layout.version}, for versions from {layout.min_reader} on; "
            f"this one knows {SCHEMA_VERSION}",
            "upgrade Longwatch here",
        )
    elif schema is not None and layout.version < MIN_READER:
        yield problem(
            f"its keys have layout {schema}, this version needs {SCHEMA_VERSION}",
            "empty its mailboxes with the version that made them, or use another database",
        )


def read_redis(url: str) -> tuple[dict[str, str], str | None, float, float]:
    """INFO, the layout of the keys (None without mailboxes), the clock of the server minus ours,
    and the seconds that the question took.
    """
    with require_extra("redis", url):
        import redis  # noqa: PLC0415 - optional

        from longwatch.mailbox.redis.store import MAILBOXES_KEY, SCHEMA_FIELD  # noqa: PLC0415
        from longwatch.mailbox.redis.transport import RedisNode  # noqa: PLC0415

    node = RedisNode(url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    connection = None
    try:
        connection = node.validate().connect()
        info = _info(_call(connection, "INFO"))
        began = time.time()
        seconds, micros = _call(connection, "TIME")
        ended = time.time()
        number, schema = (
            _call(connection, "HLEN", MAILBOXES_KEY),
            _call(connection, "HGET", MAILBOXES_KEY, SCHEMA_FIELD),
        )
    except redis.RedisError as error:
        raise StoreError(
            f"cannot be asked ({mask_text(str(error))}); check URL, network, user and password, "
            f"that the server runs, and that the user may run INFO, TIME, HLEN and HGET"
        ) from None
    finally:
        if connection is not None:
            connection.disconnect()
        node.close()
    layout = (schema or b"none").decode() if number else None
    theirs = int(seconds) + int(micros) / 1e6
    return info, layout, theirs - (began + ended) / 2, ended - began


def _call(connection: Any, *words: str) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def store_findings(url: str, kind: str, processes: int) -> Iterable[Finding]:
    """The findings about the store of a URL."""
    match kind:
        case "sqlite":
            return sqlite_findings(url)
        case "postgresql":
            return postgres_findings(url, processes)
        case _:
            return redis_findings(url)
