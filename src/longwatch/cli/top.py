"""`longwatch top`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli.option_values import duration
from longwatch.cli.programs import config_option, state_dir_option
from longwatch.errors import TryAgainError, UsageError

if TYPE_CHECKING:
    from longwatch.cli.top_screen import Screen

DEFAULT_INTERVAL = 2.0
interval_option = click.option(
    "--interval",
    metavar="DURATION",
    type=duration(0.1, 3600.0),
    default=DEFAULT_INTERVAL,
    help="How often the table is renewed.",
)
once_option = click.option("--once", is_flag=True, help="Print one table and exit.")

_SIGNALLED = 128


@click.command()
@interval_option
@once_option
@config_option
@state_dir_option
def top(*, interval: float, once: bool, config: Path | None, state_dir: str | None) -> None:
    """Watch programs, loops and warnings live.

    Keys: q quits, arrows and j k scroll, s changes the order, / filters by name.
    Needs a terminal; --once prints one table anywhere.
    """
    from longwatch.app.control import state_directory  # noqa: PLC0415 - help must not wait for what only the command needs

    state = state_directory(state_dir, config, os.environ)
    if once:
        _print_once(state, interval)
        return
    _require_terminal()
    with _ended_by_signal():
        _watch(state, interval)


def _require_terminal() -> None:
    """Raise UsageError unless keys can be read and a screen can be drawn."""
    streams = (sys.stdin, sys.stdout)
    if not all(stream is not None and stream.isatty() for stream in streams):
        what = "is not one"
    elif os.environ.get("TERM", "dumb") == "dumb":
        what = "cannot move its cursor (TERM is dumb)"
    else:
        return
    raise UsageError(
        f"expected a terminal on standard input and output, this {what}; use `longwatch status`, "
        f"or `longwatch top --once`"
    )


def _print_once(state: Path, interval: float) -> None:
    from shutil import get_terminal_size  # noqa: PLC0415

    from longwatch.app.live_status import LatestWarnings, Snapshot, next_snapshot  # noqa: PLC0415
    from longwatch.cli.top_frame import FrameStyle, ViewState, make_frame  # noqa: PLC0415
    from longwatch.observe.log_format import wants_colour  # noqa: PLC0415

    snapshot = next_snapshot(state, LatestWarnings(state), Snapshot(), wall=time.time)
    if snapshot.response is None:
        raise TryAgainError(snapshot.problem)
    style = FrameStyle(
        width=get_terminal_size().columns, colour=wants_colour(1, os.environ), height=None
    )
    frame = make_frame(snapshot, ViewState(), style, now=time.time(), interval=interval)
    for line in frame.lines:
        click.echo(line, color=True)


def _watch(state: Path, interval: float) -> None:
    """Show the table until the user quits."""
    from longwatch.app.live_status import LiveStatus  # noqa: PLC0415
    from longwatch.cli.top_screen import Screen, TerminalClosedError  # noqa: PLC0415

    with Screen.opened() as screen:
        live = LiveStatus(state, interval=interval, on_change=screen.wake)
        live.start()
        try:
            _show_until_quit(screen, live, interval)
        except TerminalClosedError:
            raise click.exceptions.Exit(1) from None
        finally:
            live.stop()


def _show_until_quit(screen: Screen, live: Any, interval: float) -> None:
    from longwatch.cli.top_frame import FrameStyle, ViewState, apply_key, make_frame  # noqa: PLC0415
    from longwatch.observe.log_format import wants_colour  # noqa: PLC0415

    view, colour = ViewState(), wants_colour(1, os.environ)
    while True:
        size = screen.size
        style = FrameStyle(width=max(size.columns, 1), height=max(size.lines, 1), colour=colour)
        frame = make_frame(live.snapshot, view, style, now=time.time(), interval=interval)
        view = frame.view
        screen.draw(frame.lines)
        for key in screen.wait(1.0):
            if key == "q" and not view.typing:
                return
            view = apply_key(view, key, page=max(size.lines // 2, 1))


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Turn a signal that ends the command into its exit code, as a shell reports it."""
    from longwatch.cli.top_screen import SignalledError  # noqa: PLC0415

    try:
        yield
    except SignalledError as signalled:
        raise click.exceptions.Exit(_SIGNALLED + signalled.signum) from None
