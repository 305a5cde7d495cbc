"""The other Pythons of this machine, each with an environment that holds only what the unit
tests need.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12), (3, 13))
UNIT_EXTRAS = "runner,mcp,page,postgres,redis"
UNIT_NEEDS = ("hypothesis", "import-linter", "psutil", "pytest", "pytest-randomly", "pytest-xdist")


def other_versions() -> list[str]:
    """The supported versions besides the one that runs this, as `3.12`."""
    return [
        f"{major}.{minor}" for major, minor in SUPPORTED if (major, minor) != sys.version_info[:2]
    ]


def find_interpreter(version: str) -> str | None:
    """An interpreter of exactly this version, from the path or from pyenv; a pyenv shim that
    leads nowhere is passed over.
    """
    return next(
        (candidate for candidate in _candidates(version) if _has_version(candidate, version)), None
    )


def environment(version: str, interpreter: str) -> Path:
    """The Python of `.venv-VERSION`, made or renewed when the pins or the project's metadata
    have changed.
    """
    home = ROOT / f".venv-{version}"
    python = home / "bin" / "python"
    wanted = _fingerprint()
    stamp = home / ".unit"
    if python.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", home], check=True)
    _install(python)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _install(python: Path) -> None:
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    package = ("--editable", f"{ROOT}[{UNIT_EXTRAS}]")
    what = ("--constraint", ROOT / "constraints.txt", *package, *UNIT_NEEDS)
    done = subprocess.run([*pip, "install", *what], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n")
    done.check_returncode()


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, [shutil.which(f"python{version}")])
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True))


def _has_version(interpreter: str, version: str) -> bool:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([interpreter, "-c", code], check=False, capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join((UNIT_EXTRAS, *UNIT_NEEDS)).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()
