"""Disks, permissions and logs of the directories that Longwatch writes to."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longwatch.app.doctor.findings import (
    Finding,
    ok,
    or_ok,
    problem,
    problem_from,
    size_text,
    warning,
)
from longwatch.app.doctor.subject import Subject, sqlite_path
from longwatch.core.error_text import os_reason
from longwatch.errors import UsageError
from longwatch.host.runtime_dir import runtime_directory
from longwatch.store.sqlite.file import MOUNTINFO, network_file_system
from longwatch.supervisor.state_directory import LEDGER_FILE, require_trusted
from longwatch.supervisor.supervisor_lock import LOCK_FILE

MIN_FREE_BYTES, LOW_FREE_BYTES = 100 << 20, 1 << 30
MIN_FREE_FILES, LOW_FREE_FILES = 1_000, 10_000
SLOW_FSYNC_SECONDS = 0.5
MAX_LOG_BYTES = 5 << 30
_PRIVATE_FILES = (LEDGER_FILE, LOCK_FILE, "page.token")


# --- disks ---


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """What a file system says of itself; `free_files` of None: it has no limit."""

    path: Path
    free_bytes: int
    free_files: int | None
    read_only: bool
    network: str | None
    in_memory: bool


def check_disks(subject: Subject) -> Iterable[Finding]:
    """Space and kind of each file system with state or SQLite files."""
    seen: set[int] = set()
    for path, has_store in _directories(subject):
        facts, device = _read_disk(path)
        found = list(disk_findings(facts, has_store=has_store))
        if device not in seen or found:
            yield from or_ok(found, f"{path}: {size_text(facts.free_bytes)} free")
        seen.add(device)


def disk_findings(facts: DiskFacts, *, has_store: bool) -> Iterator[Finding]:
    path = facts.path
    if facts.read_only:
        yield problem(f"{path} is on a read-only file system", "remount it, or use another place")
        return
    if facts.network is not None and has_store:
        yield problem(
            f"{path} is on a network file system ({facts.network}), where SQLite's locks do not "
            f"hold",
            "use a local disk, or PostgreSQL",
        )
    elif facts.network is not None:
        yield warning(
            f"{path} is on a network file system ({facts.network}), so the supervisor waits for "
            f"the network",
            "put the state directory on a local disk",
        )
    if facts.in_memory:
        yield warning(f"{path} is in memory (tmpfs), so a reboot empties it", "put it on a disk")
    yield from _space_findings(facts)


def _space_findings(facts: DiskFacts) -> Iterator[Finding]:
    cure = "free some space, or lower the sizes of logs"
    text = f"{facts.path} has {size_text(facts.free_bytes)} free"
    if facts.free_bytes < MIN_FREE_BYTES:
        yield problem(text, cure)
    elif facts.free_bytes < LOW_FREE_BYTES:
        yield warning(text, cure)
    if facts.free_files is not None and facts.free_files < LOW_FREE_FILES:
        make = problem if facts.free_files < MIN_FREE_FILES else warning
        text = f"{facts.path} has room for {facts.free_files} more files (inodes)"
        yield make(text, "remove small files")


def check_fsync(subject: Subject) -> Iterable[Finding]:
    """Whether a file can be written and forced to disk where state and stores are."""
    for path, _ in _directories(subject):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            continue  # check_disks reports that
        if not os.access(path, os.W_OK | os.X_OK):
            yield problem(
                f"{path} cannot be written by this user",
                f"give user {os.geteuid()} write permission, or run as its owner",
            )
            continue
        try:
            yield fsync_finding(path, _time_fsync(path))
        except OSError as error:
            yield problem(
                f"a file in {path} cannot be forced to disk: {os_reason(error)}",
                "check the disk and the kernel's log (dmesg)",
            )


def fsync_finding(path: Path, seconds: float) -> Finding:
    text = f"{path}: a write reaches the disk in {seconds * 1000:.0f} ms"
    if seconds > SLOW_FSYNC_SECONDS:
        return warning(text, "look for other load on the disk; every commit waits that long")
    return ok(text)


def _time_fsync(directory: Path) -> float:
    with tempfile.TemporaryFile(dir=directory, prefix=".longwatch-doctor-") as file:
        file.write(b"x" * 4096)
        file.flush()
        began = time.monotonic()
        os.fsync(file.fileno())
        return time.monotonic() - began


def _directories(subject: Subject) -> Iterator[tuple[Path, bool]]:
    """The existing directories for state and SQLite files, and whether they are for SQLite. For a
    directory that is still to be made, the one above it.
    """
    wanted: dict[Path, bool] = {}
    if subject.state is not None:
        wanted[_existing(subject.state)] = True  # for its ledger
    for url in subject.stores_of("sqlite"):
        wanted[_existing(sqlite_path(url).parent)] = True
    yield from wanted.items()


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _read_disk(path: Path) -> tuple[DiskFacts, int]:
    found = os.statvfs(path)
    facts = DiskFacts(
        path=path,
        free_bytes=found.f_bavail * found.f_frsize,
        free_files=found.f_favail if found.f_files else None,
        read_only=bool(found.f_flag & os.ST_RDONLY),
        network=network_file_system(path),
        in_memory=_file_system(path) in {"tmpfs", "ramfs"},
    )
    return facts, path.stat().st_dev


def _file_system(path: Path, mountinfo: Path = MOUNTINFO) -> str:
    """The kind of the file system of a directory, by its device; empty if unknown."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in mountinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            if before.split(" ")[2] == wanted:
                return after.split(" ", 1)[0]
    return ""


# --- permissions ---


def check_permissions(subject: Subject) -> Iterable[Finding]:
    found = [*_runtime_findings()]
    if subject.state is not None:
        found += _state_findings(subject.state)
    return or_ok(found, "state and runtime directories belong to this user alone")


def _runtime_findings() -> Iterator[Finding]:
    try:
        runtime_directory()
    except UsageError as error:
        yield problem_from(error)


def _state_findings(state: Path) -> Iterator[Finding]:
    try:
        require_trusted(state)
        owner = state.stat().st_uid
    except UsageError as error:
        yield problem_from(error)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        yield problem(f"{state} cannot be read: {os_reason(error)}", "run as its owner")
        return
    if owner != os.geteuid():
        yield warning(
            f"{state} belongs to user {owner}, and this is user {os.geteuid()}",
            f"run as user {owner}, or give another --state-dir",
        )
    yield from _open_files(state)


def _open_files(state: Path) -> Iterator[Finding]:
    """Files with secrets or control that other users can read or write."""
    logs: list[Path] = []
    with suppress(OSError):  # the directory of another user
        logs += (state / "logs").glob("*.log")
    for path in (*(state / name for name in _PRIVATE_FILES), *logs):
        with suppress(OSError):
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o077:
                yield warning(f"{path} is open to other users (mode {mode:o})", f"chmod 600 {path}")


# --- logs ---


def check_logs(subject: Subject) -> Iterable[Finding]:
    if subject.state is None:
        return
    found = [*_log_findings(subject.state)]
    size, number = _folder_size(subject.state / "logs")
    yield from or_ok(found, f"{number} log files with {size_text(size)}")


def _log_findings(state: Path) -> Iterator[Finding]:
    for name, what in (("logs", "logs"), ("crashes", "saved stacks")):
        size, number = _folder_size(state / name)
        if size > MAX_LOG_BYTES:
            yield warning(
                f"{state / name} has {size_text(size)} of {what} in {number} files",
                "lower max_size and keep in the log tables, or remove old files",
            )
    damaged = sorted(path.name for path in state.glob(f"{LEDGER_FILE}.damaged-*"))
    if damaged:
        yield warning(
            f"the ledger was damaged before: {', '.join(damaged)}",
            "check the disk, then remove it",
        )


def _folder_size(folder: Path) -> tuple[int, int]:
    sizes = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    sizes.append(entry.stat(follow_symlinks=False).st_size)
    return sum(sizes), len(sizes)
