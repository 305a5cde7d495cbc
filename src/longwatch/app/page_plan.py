"""The status page as a program of `longwatch up`: its plan, its address and its token.

STATE/page.token     the token of links, made by whichever process needs it first
STATE/page.address   the address of the page that runs, which holds a lock on the file
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec

from longwatch.config.discovery import LoadedConfig
from longwatch.config.settings import PAGE_PROGRAM
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import os_reason
from longwatch.core.events.page import PageNotPlanned
from longwatch.core.extras import install_command
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.file_lock import open_locked, try_lock
from longwatch.host.process import ProcessSpec, StopPolicy
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.plan import ProgramKind, ProgramPlan, child_environment
from longwatch.supervisor.probes import NO_PROBES, HeartbeatProbe, ProbePolicy, ProbeSet
from longwatch.supervisor.program_listener import ProgramListener, ProgramStart
from longwatch.supervisor.restart_policy import Restart, RestartPolicy

EXTRA = "page"
DEFAULT_PORT = 8087
LAST_PORT = 8097
"""The last port that is tried if no port is set."""
TOKEN_FILE = "page.token"  # noqa: S105 - the name of a file
TOKEN_PARAMETER = "token"  # noqa: S105 - the name of a parameter
ADDRESS_FILE = "page.address"
DIGEST_VARIABLE = "LONGWATCH_PAGE_SETTINGS_DIGEST"
"""The variable with a digest of the settings, so that a reload with others restarts the page."""
LINK_TIMEOUT = 60.0
"""Seconds in which a started page should listen."""
_LINK_POLL_SECONDS = 0.2
_LIBRARIES = ("aiohttp", "jinja2")
_STOP_GRACE = 5.0
_PREFIX = "LONGWATCH_"
_MEMORY_VARIABLES = {"MALLOC_ARENA_MAX": "2"}
"""For the C library: threads share memory, so that a small pool does not hold a lot of it."""
_MIN_TOKEN_CHARS = 16
_MAX_FILE_BYTES = 512


def require_page_extra() -> None:
    """Raise UsageError with the command that installs what the page needs."""
    missing = missing_libraries()
    if missing:
        raise UsageError(
            f"the status page needs {' and '.join(missing)}, which {_are(missing)} not installed; "
            f"run: {install_command(EXTRA)}"
        )


def missing_libraries() -> list[str]:
    return [name for name in _LIBRARIES if find_spec(name) is None]


def plan_page(
    loaded: LoadedConfig, environ: Mapping[str, str], *, taken: Collection[str]
) -> tuple[ProgramPlan | None, PageNotPlanned | None]:
    """The plan of `longwatch page` for this file. None if it is off or its extra is not installed;
    with an event if something of the file has its name.
    """
    page = loaded.settings.page
    if page.port == "off" or loaded.state_dir is None or missing_libraries():
        return None, None
    if PAGE_PROGRAM in taken:
        reason = f'the file declares {PAGE_PROGRAM!r} itself; set port = "off" in [page]'
        return None, PageNotPlanned(reason=reason)
    own = {name: value for name, value in environ.items() if name.startswith(_PREFIX)}
    own[DIGEST_VARIABLE] = hashlib.sha256(msgspec.json.encode(page)).hexdigest()[:16]
    plan = ProgramPlan(
        name=PAGE_PROGRAM,
        kind=ProgramKind.PAGE,
        spec=ProcessSpec(
            argv=(
                *(sys.executable, "-m", "longwatch", "page"),
                *("--config", str(loaded.absolute_path), "--state-dir", str(loaded.state_dir)),
            ),
            env={**_MEMORY_VARIABLES, **child_environment(environ, own)},
            cwd=str(loaded.base_dir),
        ),
        restart=RestartPolicy(restart=Restart.ALWAYS),
        stop=StopPolicy(grace=_STOP_GRACE),
        probes=ProbeSet(liveness=ProbePolicy(probe=HeartbeatProbe()))
        if loaded.settings.supervisor.health_checks
        else NO_PROBES,
        readiness=Readiness.NOTIFY,
    )
    return plan, None


class PageLinkPrinter(ProgramListener):
    """Writes the link of the page each time that its process has started and listens. A page that
    does not listen within `LINK_TIMEOUT` has no link.
    """

    def __init__(self, state: Path, write: Callable[[bytes], object], *, clock: Clock) -> None:
        self._state = state
        self._write = write
        self._clock = clock

    def program_started(self, start: ProgramStart) -> None:
        if start.kind is ProgramKind.PAGE:
            BackgroundThread(self._print, name="longwatch-page-link").start()

    def _print(self) -> None:
        deadline, never = Deadline.after(LINK_TIMEOUT, self._clock), Wakeup()
        while not deadline.expired:
            with suppress(TryAgainError, UsageError):
                self._write(f"status page: {page_link(self._state)}\n".encode())
                return
            self._clock.wait(never, _LINK_POLL_SECONDS)


# --- the address and the token ---


def page_link(state: Path) -> str:
    """The address of the page that runs, with the token. Raises TryAgainError if none runs."""
    address = published_address(state)
    if not address:
        raise TryAgainError(
            f"no status page runs on {state}; start it with `longwatch up` or `longwatch page`"
        )
    return link_to(address, page_token(state))


def link_to(address: str, token: str) -> str:
    """The link to a page with its token."""
    return f"{address}?{TOKEN_PARAMETER}={quote(token)}"


def publish_address(state: Path, address: str) -> int | None:
    """Write the address of this page, and lock the file until the returned descriptor is closed.
    None if another page holds it, or if the file cannot be written.
    """
    path = state / ADDRESS_FILE
    descriptor = open_locked(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    if descriptor is None:
        return None
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{address}\n".encode())
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def published_address(state: Path) -> str:
    """The address of the page that runs on this directory; empty if none runs."""
    address, is_held = _read_address(state)
    return address if is_held else ""


def ports_to_try(port: int | None, state: Path | None) -> Sequence[int]:
    """The ports for a page, in order. Without a set port the port of the last page of the directory
    comes first, so that browsers find a page that has started again.
    """
    if port is not None:
        return [port]
    ports = range(DEFAULT_PORT, LAST_PORT + 1)
    address = "" if state is None else _read_address(state)[0]
    last = [each for each in ports if address.rstrip("/").endswith(f":{each}")]
    return [*last, *(each for each in ports if each not in last)]


def _read_address(state: Path) -> tuple[str, bool]:
    """The address of the last page of this directory, or empty; and whether that page runs."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(state / ADDRESS_FILE, flags)
    except OSError:
        return "", False
    try:
        is_held = not try_lock(descriptor, shared=True)
        return os.read(descriptor, _MAX_FILE_BYTES).decode(errors="replace").strip(), is_held
    except OSError:
        return "", False
    finally:
        os.close(descriptor)


def page_token(state: Path | None) -> str:
    """The token of the state directory; the first caller creates it. Without a directory a new one.

    Raises UsageError if the file cannot be used, or if other users can read it.
    """
    if state is None:
        return secrets.token_urlsafe(24)
    path = state / TOKEN_FILE
    try:
        if not os.path.lexists(path):
            with suppress(FileExistsError):
                _create_token(path)
        return _read_token(path)
    except OSError as error:
        raise UsageError(
            f"cannot use {path} ({os_reason(error)}); run as the user that owns the directory, or "
            "give --state-dir"
        ) from None


def _create_token(path: Path) -> None:
    """Write a new token. The file appears with its content, so that no reader sees it empty."""
    half = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{secrets.token_urlsafe(24)}\n".encode())
        os.link(half, path)
    finally:
        os.close(descriptor)
        half.unlink()


def _read_token(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode & 0o077
        token = os.read(descriptor, _MAX_FILE_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if mode:
        raise UsageError(
            f"{path} can be used by other users (mode {mode:o} for them); remove it, so that the "
            "page makes a new token"
        )
    if len(token) < _MIN_TOKEN_CHARS or not token.isprintable() or " " in token:
        raise UsageError(f"{path} holds no token; remove it, so that the page makes a new one")
    return token


def _are(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"
