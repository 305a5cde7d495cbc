"""A host of its own for commands of the documentation: PIDs, a name, a boot and runtime files that
no process of another host sees. Only the loopback network is shared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from polling import complete_lines
from run_process import TIMEOUT, clean_environment

_NAMESPACES = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--uts")
_BECOME_HOST = """
hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id || exit 99
shift 2
exec "$@"
"""


class Host:
    """One host in a directory of its own, with the program that runs on it."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str]) -> None:
        folder.mkdir()
        self.name = name
        self.folder = folder
        self._boot = folder / "boot_id"
        self._boot.write_text(f"{uuid.uuid4()}\n")
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self._env = {**clean_environment(env), "XDG_RUNTIME_DIR": str(runtime)}
        self._program: subprocess.Popen[bytes] | None = None

    def run(self, line: str) -> str:
        """What a command line of a shell prints; it has to succeed."""
        done = subprocess.run(
            self._command(line),
            check=False,
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, line: str) -> None:
        """Start the program of this host; its log goes to the file `log`."""
        with (self.folder / "log").open("ab") as log:
            self._program = subprocess.Popen(
                self._command(line),
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> int:
        """Stop the program as a service manager does; its exit code."""
        assert self._program is not None
        [init] = psutil.Process(self._program.pid).children()
        os.kill(init.pid, signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until the program has ended by itself; its exit code."""
        assert self._program is not None
        return self._program.wait(TIMEOUT)

    def power_off(self) -> None:
        """Kill everything on it in the same moment; idempotent."""
        if self._program is not None:
            self._program.kill()
            self._program.wait(TIMEOUT)

    @property
    def log(self) -> str:
        """What the program has logged so far."""
        return "\n".join(complete_lines(self.folder / "log"))

    def _command(self, line: str) -> list[Any]:
        shell = ("sh", "-c", f"exec {line}" if line.startswith("longwatch") else line)
        return [*_NAMESPACES, "sh", "-c", _BECOME_HOST, "sh", self.name, self._boot, *shell]
