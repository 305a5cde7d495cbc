"""Supervisor: programs kept up by `longwatch up`, supervisord and circus in one run.

Memory and processor are of the supervisor's own processes, our guardian included, without the
programs. A start counts from the call of the command to the moment when every program runs, a stop
from SIGTERM until everything is gone.

In the environment: BENCH_PARTS=race,endurance which tables (endurance is our own 10,000 restarts,
and only run when asked for), BENCH_ROUNDS=3, BENCH_ONLY=longwatch,supervisord which contenders.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from queue_bench import environments
from supervisor_bench import endurance, race, tables
from supervisor_bench.contenders import CONTENDERS, PACKAGES, PEERS


def env_list(name: str, default: str) -> list[str]:
    return [word.strip() for word in (os.environ.get(name) or default).split(",") if word.strip()]


def run_race(place: Path) -> None:
    rounds = int(os.environ.get("BENCH_ROUNDS") or 3)
    only = env_list("BENCH_ONLY", ",".join(each.name for each in CONTENDERS))
    results = race.run_race([each for each in CONTENDERS if each.name in only], rounds, place)
    print(tables.race_table(results))
    print(*(f"\nNot measured: {failure}." for failure in tables.failures(results)))
    kills = ", ".join(f"{len(readings.restarts)} ({name})" for name, readings in results.items())
    print(
        f"Medians of {rounds} interleaved rounds on {os.cpu_count()} cores, of restarts: "
        f"{kills}. Each child is a shell script that"
        f" becomes `sleep`; ours also writes its output to a file. {', '.join(PACKAGES)}, with "
        f"their default settings (circus checks every 5 s)."
    )


def run_endurance(place: Path) -> None:
    print("\n### Many restarts\n")
    print(tables.endurance_table(endurance.run(place)))
    print(
        "\nTen programs that fail at once, restarted without a pause; looked at while nothing "
        "happens."
    )


PARTS = {"race": run_race, "endurance": run_endurance}


def main() -> None:
    environments.BUILD.mkdir(exist_ok=True)
    environments.install(PEERS, *PACKAGES)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=environments.BUILD) as place:
        for part in env_list("BENCH_PARTS", "race"):
            PARTS[part](Path(place))


if __name__ == "__main__":
    main()
