"""Build wheel and sdist into dist/ and install the wheel into build/wheel-env, an environment that
holds nothing else.

Both happen only when something that goes into the wheel has changed: the environment keeps a
fingerprint of what it was built from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
ENVIRONMENT = ROOT / "build" / "wheel-env"
PYTHON = ENVIRONMENT / "bin" / "python"
LONGWATCH = ENVIRONMENT / "bin" / "longwatch"
_STAMP = ENVIRONMENT / ".fingerprint"


def inputs() -> list[Path]:
    """Every file that decides what the installed wheel is, in a fixed order."""
    package = [
        path
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(
        [
            *package,
            *(
                ROOT / name
                for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")
            ),
        ]
    )


def fingerprint() -> str:
    """A hash over names and contents, so that a removed file or an older checkout counts as a
    change too.
    """
    digest = hashlib.sha256()
    for path in inputs():
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stale_reason() -> str | None:
    """Why the installed wheel must not be used for tests, or None."""
    if not LONGWATCH.exists() or not _STAMP.exists():
        return "the wheel is not installed: run `make wheel`"
    if _STAMP.read_text(encoding="utf-8") != fingerprint():
        return "the installed wheel is older than src: run `make wheel`"
    return None


def built_wheel() -> Path:
    """The one wheel in dist/."""
    [wheel] = DIST.glob("longwatch-*.whl")
    return wheel


def built_sdist() -> Path:
    """The one sdist in dist/."""
    [sdist] = DIST.glob("longwatch-*.tar.gz")
    return sdist


def main() -> None:
    if stale_reason() is None:
        print("the wheel is installed and current")
        return
    before = fingerprint()
    build()
    install(ENVIRONMENT)
    _STAMP.write_text(before, encoding="utf-8")
    print(f"{built_wheel().name} is installed in {ENVIRONMENT.relative_to(ROOT)}")


def build() -> None:
    """Build wheel and sdist into dist/, which then has nothing else."""
    shutil.rmtree(DIST, ignore_errors=True)
    # Both from the tree, not the wheel from the sdist: a test compares the two ways.
    _quietly(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        DIST,
        ROOT,
    )


def install(environment: Path, *, extras: str = "") -> Path:
    """Install the wheel, with extras such as `[all]`, into a new environment. Returns its Python.
    It is new every time, so that nothing of an older version stays behind.
    """
    _quietly(sys.executable, "-m", "venv", "--clear", environment)
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")
    _quietly(*pip, "install", *constraints, f"{built_wheel()}{extras}")
    _quietly(*pip, "check")
    return python


def _quietly(*command: str | Path) -> None:
    done = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()
