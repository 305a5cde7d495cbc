"""The source trees that are compared: an earlier commit, and this checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from fleet_bench.figure import Figure, loads
from fleet_bench.site import Site
from queue_bench.environments import BUILD, ROOT

TIMEOUT = 240.0
"""Seconds that a part may take in one tree."""


@dataclass(frozen=True)
class Tree:
    """Sources of Longwatch, and what to call them."""

    name: str
    source: Path

    def measure(self, part: str, site: Site) -> list[Figure]:
        """Run a part in these sources; raises RuntimeError when it fails or takes too long."""
        path = os.pathsep.join([str(self.source), str(ROOT / "bench")])
        log = site.path / "stderr"
        with log.open("wb") as noise:
            process = subprocess.Popen(
                [sys.executable, "-m", "fleet_bench.measure", part, site.dumps()],
                env={**os.environ, "PYTHONPATH": path},
                cwd=site.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
                start_new_session=True,
            )
        try:
            printed, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not finished within {TIMEOUT:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise RuntimeError("\n".join(lines[-12:]) or f"exit status {process.returncode}")
        return loads(printed)


def compared_trees(commit: str) -> list[Tree]:
    """The commit, if this checkout has it, and the present sources."""
    now = Tree("now", ROOT / "src")
    before = None if not commit else _sources_of(commit)
    return [now] if before is None else [Tree("before", before), now]


def _sources_of(commit: str) -> Path | None:
    """The sources of a commit, unpacked once below build/."""
    folder = BUILD / f"fleet-{commit}"
    if not (folder / "src").exists():
        done = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, "src"], check=False, capture_output=True
        )
        if done.returncode:
            print(f"commit {commit} is not here; measuring this tree alone", file=sys.stderr)
            return None
        with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
    return folder / "src"
