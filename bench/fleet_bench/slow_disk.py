"""A library for a server whose disk takes 5 ms more for every `fdatasync`, by which PostgreSQL
commits.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

DELAY_MS = 5
_SOURCE = f"""
#include <sys/syscall.h>
#include <unistd.h>

int fdatasync(int fd) {{ usleep({DELAY_MS * 1000}); return syscall(SYS_fdatasync, fd); }}
"""


def slow_disk(folder: Path) -> dict[str, str] | None:
    """The environment of such a server; None without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    source, library = folder / "slow_disk.c", folder / "slow_disk.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    library.chmod(0o755)
    return {"LD_PRELOAD": str(library)}
