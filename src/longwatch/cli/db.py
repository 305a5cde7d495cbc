"""`longwatch db …`: the schema of a store."""

from __future__ import annotations

from longwatch.cli import output
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.options import json_option, store_option

app = CommandGroup("db", help="Show or migrate the schema of a store.")


@app.command()
@store_option
@json_option
def status(*, store: str, json: bool) -> None:
    """Show the schema, the oldest version it allows, and migrations."""
    from longwatch.app.mailboxes import masked_url, opened_store, require_schema  # noqa: PLC0415 - help must not wait for it
    from longwatch.store.migrations import TOO_OLD  # noqa: PLC0415

    with opened_store(store) as opened:
        schema, url = require_schema(opened), masked_url(opened)
    fields = {
        "store": url,
        "schema": schema.version,
        "min_reader": schema.min_reader,
        "known": schema.latest,
        "pending": schema.pending,
        "min_reader_after": schema.min_reader_after,
    }
    nothing = "nothing"
    if schema.is_too_new:
        nothing = "nothing; the store was made by a newer Longwatch, upgrade this one"
    elif schema.version > schema.latest:
        nothing = "nothing; a newer Longwatch expanded the store, this one may go on using it"
    elif schema.is_too_old:
        nothing = f"nothing; the store was made by an older Longwatch, {TOO_OLD}"
    output.print_result(
        output.key_value_lines({**fields, "pending": ", ".join(schema.pending) or nothing}),
        fields,
        as_json=json,
    )


@app.command()
@store_option
@json_option
def migrate(*, store: str, json: bool) -> None:
    """Apply the pending migrations.

    Creates a SQLite file that does not exist.
    """
    from longwatch.app.mailboxes import masked_url, migrate_store, opened_store  # noqa: PLC0415 - help must not wait for it

    with opened_store(store, auto_migrate=True) as opened:
        before, schema = migrate_store(opened)
        url = masked_url(opened)
    applied = schema.steps_between(before, schema.version)
    fields = {
        "store": url,
        "from": before,
        "to": schema.version,
        "min_reader": schema.min_reader,
        "applied": applied,
    }
    text = (
        f"{url} is at schema {schema.version}, for versions from {schema.min_reader} on: "
        f"{', '.join(applied) + ' applied' if applied else 'nothing to do'}"
    )
    output.print_result(text, fields, as_json=json)
