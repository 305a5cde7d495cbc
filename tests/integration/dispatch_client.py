"""A dispatcher in a process of its own, for tests that kill it: URL FOLDER.

It prints `guardian PID` once it runs, and ends when its standard input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from flow_stores import opened_database
from runner_rig import dispatching


def main(url: str, folder: str) -> None:
    with opened_database(url) as database, dispatching(database, Path(folder)) as rig:
        sys.stdout.write(f"guardian {rig.guardian.pid} {rig.token}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
