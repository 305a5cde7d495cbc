"""`longwatch page`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli.option_values import whole_number
from longwatch.cli.options import valid_text

if TYPE_CHECKING:
    from longwatch.page.command import PageOptions


def page(  # noqa: PLR0913 - one argument an option, and typer passes them by name
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="The configuration file. [longwatch.toml]"
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The state directory; `off`: none. [.longwatch]"),
    ] = None,
    store: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", callback=valid_text, help="A store to show; may be repeated."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(metavar="HOST", callback=valid_text, help="The address. [127.0.0.1]"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            parser=whole_number(0, 65_535),
            help="The port; 0: any free one. [8087, or the next free one]",
        ),
    ] = None,
    link: Annotated[
        bool, typer.Option("--link", help="Print the link of the page that runs, with its token.")
    ] = False,
) -> int:
    """Serve the status page to browsers on this machine.

    `longwatch up` does so by itself if the extra "page" is installed. The link
    with the token gives full control. SIGTERM and Ctrl-C end the page and nothing
    else. Exits with 75 if the port is in use.
    """
    from longwatch.app.control import state_directory  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.page_plan import page_link, require_page_extra  # noqa: PLC0415

    if link:
        typer.echo(page_link(state_directory(state_dir, config, os.environ)))
        return 0
    require_page_extra()
    from longwatch.page.command import run_page  # noqa: PLC0415

    options = _options(config, state_dir, store or [], host=host, port=port)
    return run_page(options, dict(os.environ))


def _options(
    config: Path | None, state_dir: str | None, stores: list[str], **given: Any
) -> PageOptions:
    """The options, each from its flag, else from the settings."""
    from longwatch.app.page_settings import page_settings  # noqa: PLC0415
    from longwatch.page.command import PageOptions  # noqa: PLC0415

    found = page_settings(config, state_dir, os.environ, stores=stores)
    asked = found.settings
    configured = None if asked.port == "off" else asked.port
    return PageOptions(
        state=found.state,
        stores=found.stores,
        host=given["host"] or asked.host,
        port=configured if given["port"] is None else given["port"],
        allowed_hosts=asked.allowed_hosts,
        log=found.log,
    )
