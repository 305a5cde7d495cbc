"""A benchmark in parts: which of them run is said in the environment, and where they find their
packages is found out here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from queue_bench import environments


def env_list(name: str, default: str) -> list[str]:
    return [word.strip() for word in (os.environ.get(name) or default).split(",") if word.strip()]


def run_parts(script: str, parts: Mapping[str, Callable[[Path], None]], *, with_peers: str) -> None:
    """Run the wanted parts of a script in a folder of their own, in an environment that has what
    they need.
    """
    environments.BUILD.mkdir(exist_ok=True)
    if not environments.is_complete():
        sys.exit(subprocess.run([environments.make_own(), script], check=False).returncode)
    wanted = env_list("BENCH_PARTS", ",".join(parts))
    if with_peers in wanted:
        environments.make_peers()
    with tempfile.TemporaryDirectory(prefix="longwatch-bench-", dir=environments.BUILD) as place:
        Path(place).chmod(0o755)
        for part in wanted:
            parts[part](Path(place))
