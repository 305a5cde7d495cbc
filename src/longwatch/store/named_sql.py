"""Reads named, described queries from `.sql` files.

A query begins with `-- name: NAME` and a comment that describes it. Parameters are written `:name`
for every database. The reader replaces `{table}` and other placeholders with trusted constants,
never with data. A file `claims.sqlite.sql` beside `claims.sql` holds the queries that differ on one
database.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load_queries(package: str, name: str, dialect: str, **constants: str) -> dict[str, str]:
    """Return the queries of `name.sql` and `name.DIALECT.sql` in a package. Queries of the dialect
    override the others.
    """
    folder = files(package)
    queries: dict[str, str] = {}
    for file in (f"{name}.sql", f"{name}.{dialect}.sql"):
        resource = folder / file
        if resource.is_file():
            queries |= parse_queries(resource.read_text(encoding="utf-8"))
    if not queries:
        raise LookupError(f"no SQL named {name!r} for {dialect} in {package}")
    return {key: fill_query(text, **constants) for key, text in queries.items()}


def parse_queries(text: str) -> dict[str, str]:
    """Return the queries of one file by name, without their comments."""
    _, *parts = _NAME.split(text)
    return {
        name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _without_comments(body: str) -> str:
    lines = (
        line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")
    )
    return "\n".join(lines).rstrip().rstrip(";")


def fill_query(text: str, **constants: str) -> str:
    """Replace placeholders with trusted constants."""
    for name, value in constants.items():
        text = text.replace("{" + name + "}", value)
    return text
