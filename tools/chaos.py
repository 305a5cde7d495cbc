"""The long, random form of the chaos and property tests: `make chaos`. The seed is printed
first; CHAOS_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    seed = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(2**32))
    seconds = os.environ.get("CHAOS_SECONDS") or "60"
    print(
        f"chaos seed {seed}, {seconds} s a test; repeat with: make chaos CHAOS_SEED={seed} "
        f"CHAOS_SECONDS={seconds}",
        flush=True,
    )
    chosen = ["-m", "chaos or hypothesis", f"--chaos-seed={seed}", f"--chaos-seconds={seconds}"]
    seeds = [f"--randomly-seed={seed}", f"--hypothesis-seed={seed}", "--hypothesis-profile=chaos"]
    patience = f"faulthandler_timeout={600 + 2 * float(seconds)}"
    command = [sys.executable, "-m", "pytest", *chosen, *seeds, "--override-ini", patience]
    return subprocess.run(command, check=False, cwd=ROOT, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
