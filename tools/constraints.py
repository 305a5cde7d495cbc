"""Pin every version that runtime, extras and development need: `make constraints`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# One tested set of versions for the runtime, the extras and development; \
`make setup` installs exactly these.
# Refresh with `make constraints`, then `make test`.
"""


def pins(frozen: str) -> list[str]:
    """The plain `name==version` lines of a freeze, sorted; the project itself and anything with
    an address is left out.
    """
    return sorted((line for line in frozen.splitlines() if "==" in line), key=str.lower)


def newest(environment: Path) -> str:
    """What pip chooses today, freely, in an environment of its own."""
    free = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"}
    }
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    pip: list[str | Path] = [
        environment / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "install", "--quiet", "--editable", f"{ROOT}[dev,all]"], check=True, env=free
    )
    return subprocess.run(
        [*pip, "freeze", "--exclude-editable"],
        check=True,
        env=free,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def main() -> None:
    found = pins(newest(ROOT / "build" / "constraints-env"))
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(found) + "\n", encoding="utf-8")
    print(f"constraints.txt: {len(found)} versions")


if __name__ == "__main__":
    main()
