"""The directory of one agent run.

`<root>/<run id>/`, mode 0700:

    event.json   the stream event, and the facts of the run under the key `longwatch`
    prompt.md    the prompt and the event, if the agent has a prompt
    stdout.log   the end of the agent's output
    stderr.log
    output/      where the agent leaves its files

The agent owns this directory while it runs, so its contents are not trusted: no link is followed
out of it, and every listing is limited. All calls block on the file system.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from longwatch.core.error_text import os_reason
from longwatch.core.sanitize import sanitize
from longwatch.runner.policy import OutputCheck

MAX_ARTIFACTS = 100
MAX_DEPTH = 8
MAX_ENTRIES = 10_000
"""The most directory entries that a listing of artifacts reads."""
_MAX_NAME_LENGTH = 1000
_PRIVATE = 0o700


class Artifact(NamedTuple):
    """A file that a run has left, by its path in the workspace."""

    path: str
    bytes: int


class Workspace:
    """The directory of one run below `root`. The constructor makes no directory."""

    def __init__(self, root: Path, run_id: str) -> None:
        if not run_id.isalnum():
            raise ValueError(f"expected a run id of letters and digits, got {run_id!r}")
        self.path = root.absolute() / run_id
        self.event_file = self.path / "event.json"
        self.prompt_file = self.path / "prompt.md"
        self.stdout_log = self.path / "stdout.log"
        self.stderr_log = self.path / "stderr.log"
        self.output = self.path / "output"

    @classmethod
    def create(cls, root: Path, run_id: str, *, event: bytes, prompt: bytes | None) -> Self:
        """Make the directory and write its input files. Raises OSError if that fails."""
        workspace = cls(root, run_id)
        workspace.path.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        workspace.path.mkdir(mode=_PRIVATE)
        workspace.output.mkdir(mode=_PRIVATE)
        _write_private(workspace.event_file, event)
        if prompt is not None:
            _write_private(workspace.prompt_file, prompt)
        return workspace

    @property
    def input_file(self) -> Path:
        """The file that is the standard input of the agent."""
        return self.prompt_file if self.prompt_file.is_file() else self.event_file

    def missing_output(self, check: OutputCheck) -> str:
        """Return why the promised output is missing; empty if it exists. A file outside the
        workspace does not count, even through a link.
        """
        promised = f"expected {check.file} of at least {check.min_bytes} bytes"
        try:
            found = (self.path / check.file).resolve(strict=True)
            if not found.is_relative_to(self.path.resolve()):
                return f"{promised}, found a path that leads out of the workspace"
            status = found.stat()
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
            reason = os_reason(error) if isinstance(error, OSError) else str(error)
            return f"{promised}, found none ({sanitize(reason, max_length=_MAX_NAME_LENGTH)})"
        if not stat.S_ISREG(status.st_mode):
            return f"{promised}, found a path that is not a regular file"
        if status.st_size < check.min_bytes:
            return f"{promised}, found {status.st_size} bytes"
        return ""

    def artifacts(self) -> list[Artifact]:
        """Return the first `MAX_ARTIFACTS` files below `output/`, sorted by path. Links and special
        files are left out.
        """
        found: list[Artifact] = []
        for seen, entry in enumerate(_walk(self.output, MAX_DEPTH)):
            if seen >= MAX_ENTRIES or len(found) >= MAX_ARTIFACTS:
                break
            with suppress(OSError):  # it was removed meanwhile
                if entry.is_file(follow_symlinks=False):
                    size = entry.stat(follow_symlinks=False).st_size
                    name = os.path.relpath(entry.path, self.path)
                    found.append(Artifact(sanitize(name, max_length=_MAX_NAME_LENGTH), size))
        return sorted(found)

    def remove(self) -> None:
        """Remove the directory and its contents. Idempotent. Follows no link."""
        if self.path.is_symlink():
            self.path.unlink()
        else:
            shutil.rmtree(self.path, onerror=_retry_removal)


def _write_private(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(data)


def _walk(folder: Path | str, depth: int) -> Iterator[os.DirEntry[str]]:
    """Yield the entries below a folder, its own first. Does not enter directories through links."""
    inner: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            yield entry
    if depth > 1:
        for each in inner:
            yield from _walk(each, depth - 1)


def _retry_removal(remove: Callable[..., object], path: str, info: object) -> None:
    """Restore the permissions of directories, which an agent may have removed, and retry a removal
    once. `rmtree` calls this for each path that it cannot remove.
    """
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, FileNotFoundError):
        return
    if not isinstance(error, PermissionError):
        raise error if isinstance(error, BaseException) else OSError(f"cannot remove {path}")
    for folder in (os.path.dirname(path), path):  # noqa: PTH120 - as rmtree gives it
        if os.path.isdir(folder) and not os.path.islink(folder):  # noqa: PTH112, PTH114 - as rmtree gives it
            os.chmod(folder, _PRIVATE)  # noqa: PTH101 - as rmtree gives it
    if remove in {os.unlink, os.rmdir}:
        remove(path)
    else:  # it could not be listed
        shutil.rmtree(path)
