"""`longwatch status` and the other commands about what `longwatch up` keeps up. `COMMANDS` has
them all.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import answer
from longwatch.cli.standings import standing, standings
from longwatch.cli.stores import Json, readable
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.supervisor.client import Answer

Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", callback=readable, help="The programs. [all]")
]
Chosen = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", callback=readable, help="The programs.")
]
All = Annotated[bool, typer.Option("--all", help="All programs.")]
Ready = Annotated[bool, typer.Option("--ready", help="Wait until they are ready, not only up.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="How long they may take to come up.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        readable=False,
        help="What `longwatch up` runs. [longwatch.toml]",
    ),
]
StateDir = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="Where it keeps its state. [.longwatch]"),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
]
Lines = Annotated[
    int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many of the last ones.")
]

START_TIMEOUT = 30.0
NOT_AS_WANTED = 1
INTERRUPTED = 130


def status(
    names: Names = None, *, config: Config = None, state_dir: StateDir = None, json: Json = False
) -> int:
    """Tell how programs stand.

    Exits with 0 if each is as it is wanted: up, or stopped on purpose, or done;
    with 1 if one is not, be it broken or only on its way; 2 for wrong use, 75 if
    no supervisor answers.
    """
    from longwatch.app.control import as_wanted  # noqa: PLC0415 - help must not wait for what only the command needs

    with _refusals(as_json=json):
        told = _asked("status", names or [], config, state_dir)
    programs = told["programs"]
    text = standings(programs, now=time.time()) if programs else "there are no programs"
    answer.tell(text, told, as_json=json)
    return 0 if all(map(as_wanted, programs)) else NOT_AS_WANTED


def start(  # noqa: PLR0913 - one argument an option
    names: Chosen = None,
    *,
    everything: All = False,
    ready: Ready = False,
    timeout: Timeout = START_TIMEOUT,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Start programs, and wait until they are up.

    Exits with 75 if one is not in time.
    """
    options = {"ready": ready, "timeout": timeout}
    _do("start", _chosen(names, everything=everything), config, state_dir, as_json=json, **options)


def stop(
    names: Chosen = None,
    *,
    everything: All = False,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Stop programs, and wait until they are down. They stay so until `start`."""
    _do("stop", _chosen(names, everything=everything), config, state_dir, as_json=json)


def restart(  # noqa: PLR0913 - one argument an option
    names: Chosen = None,
    *,
    everything: All = False,
    ready: Ready = False,
    timeout: Timeout = START_TIMEOUT,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Stop and start programs; --all leaves alone what was stopped."""
    options = {"ready": ready, "timeout": timeout}
    _do(
        "restart", _chosen(names, everything=everything), config, state_dir, as_json=json, **options
    )


def reset(
    names: Chosen = None,
    *,
    everything: All = False,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Forget what went wrong with programs.

    Those that were given up start.
    """
    _do("reset", _chosen(names, everything=everything), config, state_dir, as_json=json)


def reload(*, config: Config = None, state_dir: StateDir = None, json: Json = False) -> None:
    """Have `longwatch up` read its file again.

    Only what changed is touched.
    """
    with _refusals(as_json=json):
        told = _asked("reload", [], config, state_dir, patience=_patience())
    parts = [
        f"{word}: {', '.join(told[word])}"
        for word in ("added", "changed", "updated", "removed")
        if told.get(word)
    ]
    answer.tell(parts or "nothing has changed", told, as_json=json)


def logs(
    names: Names = None,
    *,
    follow: Follow = False,
    lines: Lines = 10,
    config: Config = None,
    state_dir: StateDir = None,
) -> None:
    """Show what programs have written last, as they wrote it.

    The files are read directly, also when no supervisor runs. With several
    programs each line begins with the name of its own.
    """
    from longwatch.app.logfiles import ProgramLogs, Tagged  # noqa: PLC0415 - help must not wait for it

    with closing(ProgramLogs(_state(config, state_dir), names or [])) as found, _quiet_end():
        width = max(map(len, found.names), default=0)
        tagged = len(found.names) > 1

        def shown(line: Tagged) -> bytes:
            return (f"{line[0]:<{width}} | ".encode() if tagged else b"") + line[1] + b"\n"

        _pour(map(shown, found.last(lines)))
        if follow:
            _follow(lambda: map(shown, found.fresh()))


def events(  # noqa: PLR0913 - one argument an option
    names: Names = None,
    *,
    follow: Follow = False,
    lines: Lines = 10,
    config: Config = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show what has happened last, to programs or at all.

    Read from logs/watchdog.log, also when no supervisor runs. `--json` shows the
    records as they are, those of level debug included.
    """
    from longwatch.app.logfiles import KeptEvents  # noqa: PLC0415 - help must not wait for it

    with (
        closing(KeptEvents(_state(config, state_dir), names or [], debug=json)) as kept,
        _quiet_end(),
    ):
        shown = _event_form(as_json=json)
        _pour(map(shown, kept.last(lines)))
        if follow:
            _follow(lambda: map(shown, kept.fresh()))


COMMANDS: tuple[Callable[..., object], ...] = (
    status,
    start,
    stop,
    restart,
    reset,
    reload,
    logs,
    events,
)


def _chosen(names: list[str] | None, *, everything: bool) -> list[str]:
    """The names; none if all are meant, which has to be said."""
    if bool(names) == everything:
        raise UsageError(
            "name programs or say --all, not both" if everything else "name programs, or say --all"
        )
    return names or []


def _do(
    do: str,
    names: Sequence[str],
    config: Path | None,
    state_dir: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Have something done, and tell how the programs stand then."""
    with _refusals(as_json=as_json):
        told = _asked(
            do,
            names,
            config,
            state_dir,
            patience=_patience() + options.get("timeout", 0.0),
            **options,
        )
    answer.tell(map(standing, told["programs"]), told, as_json=as_json)


def _asked(
    do: str, names: Sequence[str], config: Path | None, state_dir: str | None, **options: Any
) -> Answer:
    from longwatch.app.control import request  # noqa: PLC0415 - help must not wait for it

    return request(_state(config, state_dir), do, names, **options)


@contextmanager
def _refusals(*, as_json: bool) -> Iterator[None]:
    """A machine gets all of a refusal, too."""
    from longwatch.app.control import RefusedError  # noqa: PLC0415

    try:
        yield
    except RefusedError as refused:
        if as_json:
            answer.tell("", refused.answer, as_json=True)
        raise


def _state(config: Path | None, state_dir: str | None) -> Path:
    from longwatch.app.control import state_directory  # noqa: PLC0415

    return state_directory(state_dir, config, os.environ)


def _patience() -> float:
    from longwatch.app.control import PATIENT  # noqa: PLC0415

    return PATIENT


def _event_form(*, as_json: bool) -> Callable[[dict[str, Any]], bytes]:
    from longwatch.observe.render import to_json, to_pretty, wants_colour  # noqa: PLC0415

    colour = wants_colour(1, os.environ)

    def form(record: dict[str, Any]) -> bytes:
        line = (
            to_json(record)
            if as_json
            else f"{_local_day(record)}{to_pretty(record, colour=colour)}"
        )
        return line.encode() + b"\n"

    return form


def _local_day(record: dict[str, Any]) -> str:
    from datetime import datetime  # noqa: PLC0415

    try:
        return datetime.fromisoformat(str(record.get("ts"))).astimezone().strftime("%Y-%m-%d ")
    except ValueError:
        return ""


def _pour(lines: Iterable[bytes]) -> None:
    """Other people's bytes, as they are; lines that are not there yet are not waited for by
    those that are.
    """
    if sys.stdout is not None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()


def _follow(fresh: Callable[[], Iterable[bytes]]) -> None:
    from longwatch.app.logfiles import follow  # noqa: PLC0415
    from longwatch.core.clock import SystemClock  # noqa: PLC0415

    follow(lambda: _pour(fresh()), over=_unread, clock=SystemClock())


def _unread() -> bool:
    """Whether nobody reads what we write any more, as behind `| head`."""
    import select  # noqa: PLC0415

    poller = select.poll()
    poller.register(1, 0)
    return bool(poller.poll(0))


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Ctrl-C and a reader who has left are the ways to end this; the last flush must not stumble
    over the latter.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
