"""How often a process asks the disk to have its data: counted by a library loaded before libc, or
by strace.

Both count the same calls, but under strace the engine is slower and commits several times as often:
it is the second choice.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_SOURCE = """
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_long *count;

__attribute__((constructor)) static void open_count(void)
{
    int fd = open(getenv("FSYNC_COUNT"), O_RDWR);
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
}

int fsync(int fd) { atomic_fetch_add(count, 1); return syscall(SYS_fsync, fd); }
int fdatasync(int fd) { atomic_fetch_add(count, 1); return syscall(SYS_fdatasync, fd); }
"""


@dataclass(frozen=True)
class FsyncCounter:
    """How to start a process so that its syncs are counted, in `result`."""

    result: Path
    command_prefix: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def end(self, process: subprocess.Popen[str]) -> None:
        """End what was started so, gently: strace writes its count when the last of its children
        is gone.
        """
        for child in psutil.Process(process.pid).children() if self.command_prefix else [process]:
            child.send_signal(signal.SIGTERM)
        process.wait(10)

    def reset(self) -> None:
        self.result.write_bytes(bytes(8))

    def total(self) -> int:
        if self.command_prefix:
            return sum(
                int(calls)
                for calls in re.findall(
                    r"^\s*\S+\s+\S+\s+\S+\s+(\d+).*\sf\w*sync$",
                    self.result.read_text(),
                    re.MULTILINE,
                )
            )
        return int.from_bytes(self.result.read_bytes(), "little")


def find_counter(folder: Path) -> FsyncCounter | None:
    """One that works here; None if there is none."""
    for made in (_by_library(folder), _by_strace(folder)):
        if made is not None and _works(made):
            return made
    return None


def _by_strace(folder: Path) -> FsyncCounter | None:
    if (strace := shutil.which("strace")) is None:
        return None
    result = folder / "strace"
    return FsyncCounter(
        result,
        (strace, "-f", "-c", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o", str(result)),
    )


def _by_library(folder: Path) -> FsyncCounter | None:
    if (compiler := shutil.which("gcc") or shutil.which("cc")) is None:
        return None
    source, library, result = folder / "fsyncs.c", folder / "fsyncs.so", folder / "fsyncs"
    source.write_text(_SOURCE)
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source],
        check=False,
        capture_output=True,
    )
    return (
        None
        if done.returncode
        else FsyncCounter(result, environ={"LD_PRELOAD": str(library), "FSYNC_COUNT": str(result)})
    )


def _works(made: FsyncCounter) -> bool:
    """Whether it counts to one."""
    made.reset()
    command: Sequence[str] = (
        *made.command_prefix,
        "dd",
        "if=/dev/null",
        f"of={made.result}.probe",
        "conv=fsync",
    )
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **made.environ}, check=False, capture_output=True
    )
    return done.returncode == 0 and made.total() == 1
