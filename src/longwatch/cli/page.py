"""`longwatch page`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli.option_values import whole_number
from longwatch.cli.options import valid_text

if TYPE_CHECKING:
    from longwatch.page.command import PageOptions


@click.command()
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file. [longwatch.toml]",
)
@click.option("--state-dir", metavar="DIR", help="The state directory; `off`: none. [.longwatch]")
@click.option(
    "--store",
    metavar="URL",
    type=valid_text,
    multiple=True,
    help="A store to show; may be repeated.",
)
@click.option("--host", metavar="HOST", type=valid_text, help="The address. [127.0.0.1]")
@click.option(
    "--port",
    metavar="PORT",
    type=whole_number(0, 65_535),
    help="The port; 0: any free one. [the last one, or a free one from 8087 on]",
)
@click.option("--link", is_flag=True, help="Print the link of the page that runs, with its token.")
def page(  # noqa: PLR0913 - one argument an option
    *,
    config: Path | None,
    state_dir: str | None,
    store: tuple[str, ...],
    host: str | None,
    port: int | None,
    link: bool,
) -> int:
    """Serve the status page to browsers on this machine.

    `longwatch up` does so by itself if the extra "page" is installed. The link
    with the token gives full control. SIGTERM and Ctrl-C end the page and nothing
    else. Exits with 75 if the port is in use.
    """
    from longwatch.app.control import state_directory  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.page_plan import page_link, require_page_extra  # noqa: PLC0415

    if link:
        click.echo(page_link(state_directory(state_dir, config, os.environ)))
        return 0
    require_page_extra()
    from longwatch.page.command import run_page  # noqa: PLC0415

    options = _options(config, state_dir, list(store), host=host, port=port)
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
