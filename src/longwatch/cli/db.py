"""`longwatch db …`: the schema of a store."""

from __future__ import annotations

import typer

from longwatch.cli import answer
from longwatch.cli.stores import DEFAULT_STORE, Json, Store

app = typer.Typer(
    help="The schema of a store: its version, and bringing it up to date.", no_args_is_help=True
)


@app.command()
def status(*, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Tell at which version the schema is, and what is pending."""
    from longwatch.app.mailboxes import opened_store, required_schema, shown_url  # noqa: PLC0415 - help must not wait for it

    with opened_store(store) as opened:
        schema, url = required_schema(opened), shown_url(opened)
    told = {
        "store": url,
        "schema": schema.version,
        "known": schema.known,
        "pending": schema.pending,
    }
    newer = (
        "nothing; the store was made by a newer Longwatch, upgrade this one"
        if schema.version > schema.known
        else "nothing"
    )
    answer.tell(
        answer.listed({**told, "pending": ", ".join(schema.pending) or newer}), told, as_json=json
    )


@app.command()
def migrate(*, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Bring the schema up to date; makes the store if it is not there."""
    from longwatch.app.mailboxes import migrate_store, opened_store, shown_url  # noqa: PLC0415 - help must not wait for it

    with opened_store(store, auto_migrate=True) as opened:
        before, schema = migrate_store(opened)
        url = shown_url(opened)
    applied = schema.leading(before, schema.version)
    told = {"store": url, "from": before, "to": schema.version, "applied": applied}
    text = (
        f"{url} is at schema {schema.version}: "
        f"{', '.join(applied) + ' applied' if applied else 'nothing to do'}"
    )
    answer.tell(text, told, as_json=json)
