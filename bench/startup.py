"""Start-up: what importing Longwatch and asking its command for help cost, against a bare
interpreter.

Prints a Markdown table. The commands take turns, so that a busy moment of the machine hits all of
them alike.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
COMMANDS: dict[str, list[str | Path]] = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import longwatch'": [sys.executable, "-c", "import longwatch"],
    "longwatch --version": [BIN / "longwatch", "--version"],
    "longwatch --help": [BIN / "longwatch", "--help"],
}


def seconds(command: list[str | Path]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(runs: int) -> dict[str, list[float]]:
    """One unmeasured round to warm the caches, then `runs` rounds of all commands in turn."""
    for command in COMMANDS.values():
        seconds(command)
    rounds = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(runs)]
    return {name: [each[name] for each in rounds] for name in COMMANDS}


def table(samples: dict[str, list[float]]) -> str:
    bare = statistics.median(next(iter(samples.values())))
    rows = ["| command | median | over `python -c pass` | ratio |", "|---|---:|---:|---:|"]
    for name, times in samples.items():
        middle = statistics.median(times)
        rows.append(
            f"| `{name}` | {middle * 1000:.1f} ms | {(middle - bare) * 1000:+.1f} ms | "
            f"{middle / bare:.2f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="rounds to measure")
    runs = parser.parse_args().runs
    print(table(measure(runs)))
    print(f"\nMedians of {runs} interleaved runs.")


if __name__ == "__main__":
    main()
