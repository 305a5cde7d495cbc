"""The Debian packages that some tests need: what is missing is installed where that is allowed,
and named where it is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One package, the command that proves it works here, and what stays untested without it."""

    name: str
    package: str
    proof: tuple[str, ...]
    needed_by: str

    def works(self) -> bool:
        if shutil.which(self.proof[0]) is None:
            return False
        return (
            subprocess.run(
                self.proof, check=False, stdin=subprocess.DEVNULL, capture_output=True
            ).returncode
            == 0
        )


PARTS = (
    Part(
        "unshare",
        "util-linux",
        ("unshare", "--pid", "--fork", "true"),
        "`longwatch run` as PID 1 of a namespace",
    ),
)


def part(name: str) -> Part:
    """The part of this name; a test may only require what is listed here."""
    return next(each for each in PARTS if each.name == name)


def missing() -> list[Part]:
    return [each for each in PARTS if not each.works()]


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(parts: list[Part]) -> None:
    """One update, one install; whether it helped is for the proofs to say."""
    packages = [each.package for each in parts]
    print(f"installing {', '.join(packages)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "--yes", "--no-install-recommends", *packages],
    ):
        done = subprocess.run(
            command,
            check=False,
            env=quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="\n")


def provide() -> list[str]:
    """Install what is missing where that is allowed; returns one line for each part that is
    still not there.
    """
    lacking = missing()
    if lacking and may_install():
        install(lacking)
        lacking = missing()
    return [f"{each.name} (Debian package {each.package}): {each.needed_by}" for each in lacking]


def main() -> None:
    lines = provide()
    for line in lines:
        print(f"missing: {line}")
    if lines and os.environ.get("CI"):
        sys.exit("with CI set, every part must be there")


if __name__ == "__main__":
    main()
