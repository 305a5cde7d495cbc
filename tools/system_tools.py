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
class SystemTool:
    """One package, the command that proves it works here, and what stays untested without it."""

    name: str
    package: str
    check_command: tuple[str, ...]
    needed_by: str

    def is_usable(self) -> bool:
        if shutil.which(self.check_command[0]) is None:
            return False
        return (
            subprocess.run(
                self.check_command, check=False, stdin=subprocess.DEVNULL, capture_output=True
            ).returncode
            == 0
        )


TOOLS = (
    SystemTool(
        "unshare",
        "util-linux",
        ("unshare", "--pid", "--fork", "true"),
        "`longwatch run` as PID 1 of a namespace",
    ),
    SystemTool(
        "promtool",
        "prometheus",
        ("promtool", "--version"),
        "metrics as Prometheus reads them, and the alert rules of the documentation",
    ),
    SystemTool(
        "prometheus",
        "prometheus",
        ("prometheus", "--version"),
        "the queries of the dashboards and the alert rules, answered from real scrapes",
    ),
    SystemTool(
        "podman",
        "podman",
        ("podman", "--runtime", "runc", "info"),
        "containers that stay up, on a real runtime",
    ),
    SystemTool(
        "runc",
        "runc",
        ("runc", "--version"),
        "the containers of Podman, also where the machine has cgroups of version 1",
    ),
    SystemTool(
        "busybox-static",
        "busybox-static",
        # a busybox that needs libraries prints them here instead of running the command
        ("sh", "-c", "LD_TRACE_LOADED_OBJECTS=1 busybox sh -c 'exit 3'; test $? = 3"),
        "the image of the containers in tests, which no registry has to serve",
    ),
    SystemTool(
        "pgbouncer",
        "pgbouncer",
        ("pgbouncer", "--version"),
        "PostgreSQL behind a pooler that lends connections for one transaction",
    ),
    SystemTool(
        "zsh",
        "zsh",
        ("zsh", "--version"),
        "the completion of the command line in zsh",
    ),
    SystemTool(
        "fish",
        "fish",
        ("fish", "--version"),
        "the completion of the command line in fish",
    ),
    SystemTool(
        "systemd-analyze",
        "systemd",
        ("systemd-analyze", "--version"),
        "the units of deploy/systemd as systemd reads them",
    ),
    SystemTool(
        "redis-server",
        "redis-server",
        ("redis-server", "--version"),
        "mailboxes over TLS, which the Redis of the wheel cannot do",
    ),
    SystemTool(
        "openssl",
        "openssl",
        ("openssl", "version"),
        "the certificates of the tests of TLS",
    ),
    SystemTool(
        "chromium",
        "chromium",
        ("chromium", "--version"),
        "the status page and the documentation site in a real browser",
    ),
)


def tool_named(name: str) -> SystemTool:
    """The part of this name; a test may only require what is listed here."""
    return next(each for each in TOOLS if each.name == name)


def missing() -> list[SystemTool]:
    return [each for each in TOOLS if not each.is_usable()]


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(tools: list[SystemTool]) -> None:
    """One update, one install; whether it helped is for the proofs to say."""
    packages = [each.package for each in tools]
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


def install_missing() -> list[str]:
    """Install what is missing where that is allowed; returns one line for each part that is
    still not there.
    """
    lacking = missing()
    if lacking and can_install():
        install(lacking)
        lacking = missing()
    return [f"{each.name} (Debian package {each.package}): {each.needed_by}" for each in lacking]


def main() -> None:
    lines = install_missing()
    for line in lines:
        print(f"missing: {line}")
    if lines and os.environ.get("CI"):
        sys.exit("with CI set, every part must be there")


if __name__ == "__main__":
    main()
