"""Queues on SQLite: no-op jobs through one worker process, Longwatch and its peers in one run, same file system, same marks.

Every job appends its times to one file. The rate counts from a tenth of the jobs to the last; Longwatch's jobs are acknowledged and
fenced at synchronous=FULL. Latency is from send to run across two processes at 50 messages a second.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
sys.path.insert(0, str(PEERS))
import marks  # noqa: E402 - it stands beside the apps

ENVIRONMENT = HERE.parent / "build" / "bench-peers"
PACKAGES = ("huey==3.5.4", "persist-queue==1.1.0", "litequeue==0.9", "dbos==3.3.0")
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))


@dataclass(frozen=True)
class Contender:
    """One queue under measurement: how its worker starts and how many jobs it gets."""

    name: str
    app: str
    jobs: int
    worker: tuple[str, ...] = ("APP", "work")
    ours: bool = False

    def python(self) -> str:
        return sys.executable if self.ours else str(ENVIRONMENT / "bin" / "python")

    def command(self, *words: str) -> list[str]:
        return [self.python(), *(str(PEERS / f"{self.app}.py") if word == "APP" else word for word in words)]


CONTENDERS = (
    Contender("longwatch, engine with 8 slots", "longwatch_app", 30_000, ours=True),
    Contender("longwatch, receive + acknowledge_many(100)", "longwatch_app", 30_000, ("APP", "receive"), ours=True),
    Contender("huey", "huey_app", 5_000, ("-m", "huey.bin.huey_consumer", "huey_app.huey", "-q", "-w", "1")),
    Contender("persist-queue", "persistqueue_app", 3_000),
    Contender("litequeue", "litequeue_app", 5_000),
    Contender("dbos", "dbos_app", 500),
)


@dataclass(frozen=True)
class Reading:
    """What one round of one contender showed."""

    drained: float
    sent: float
    p50: float
    p99: float
    rss: float
    idle: float


def measure(contender: Contender, folder: Path) -> Reading:
    """Fill, drain, listen to a light load, then do nothing for a while."""
    marked = folder / "marks"
    env = {**os.environ, "BENCH_STORE": str(folder / "q.db"), "BENCH_MARKS": str(marked), "PYTHONPATH": str(PEERS)}
    sent = float(_run(contender.command("APP", "batch", str(contender.jobs)), env))
    worker = subprocess.Popen(contender.command(*contender.worker), env=env, cwd=PEERS, stdout=subprocess.DEVNULL)
    try:
        _await(marked, contender.jobs)
        drained = _rate([ran for _, ran in marks.read(marked)])
        marked.write_bytes(b"")
        _run(contender.command("APP", "light", "50", "4"), env)
        _await(marked, 200)
        delays = sorted(ran - sent_at for sent_at, ran in marks.read(marked))
        rss, before = _rss(worker.pid), _cpu(worker.pid)
        time.sleep(5)
        idle = (_cpu(worker.pid) - before) / 5 * 100
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    return Reading(drained, sent, statistics.median(delays) * 1e3, delays[int(len(delays) * 0.99)] * 1e3, rss, idle)


def _rss(pid: int) -> float:
    """Resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu(pid: int) -> float:
    """CPU seconds so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, cwd=PEERS, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "0"


def _await(marked: Path, jobs: int) -> None:
    until = time.monotonic() + 120
    while marks.count(marked) < jobs and time.monotonic() < until:
        time.sleep(0.02)


def _rate(moments: list[float]) -> float:
    ordered = sorted(moments)
    first = len(ordered) // 10
    return (len(ordered) - first) / (ordered[-1] - ordered[first])


def single_sends(folder: Path) -> tuple[float, float]:
    """Messages a second by single `send`s from one thread and from eight."""
    mailbox = open_mailbox(f"sqlite:///{folder / 'single.db'}", "bench")

    def some(count: int) -> None:
        for _ in range(count):
            mailbox.send(1.0)

    def timed(threads: int, each: int) -> float:
        crew = [threading.Thread(target=some, args=(each,)) for _ in range(threads)]
        began = time.perf_counter()
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        return threads * each / (time.perf_counter() - began)

    some(50)
    return timed(1, 1000), timed(8, 500)


def claims_by_size(folder: Path) -> tuple[float, float]:
    """Seconds for claiming and settling 2,000 messages, from a mailbox of 3,000 and from one of 1,000,000."""
    times = []
    for size in (3_000, 1_000_000):
        mailbox = open_mailbox(f"sqlite:///{folder / f'{size}.db'}", "bench")
        for start in range(0, size, 50_000):
            mailbox.send_many([1.0] * min(50_000, size - start))
        began = time.perf_counter()
        for _ in range(20):
            mailbox.acknowledge_many(mailbox.receive(max_messages=100))
        times.append(time.perf_counter() - began)
    return times[0], times[1]


def renewals(folder: Path) -> float:
    """Seconds for renewing 10,000 leases of one owner."""
    mailbox = open_mailbox(f"sqlite:///{folder / 'renew.db'}", "bench")
    mailbox.send_many([1.0] * 10_000)
    owner = mailbox.backend.enter(Incarnation.mine())
    for _ in range(20):
        mailbox.backend.exchange((), owner=owner, want=500, duration=60)
    began = time.perf_counter()
    assert mailbox.backend.renew(owner=owner, duration=90) == 10_000
    return time.perf_counter() - began


def main() -> None:
    if not ENVIRONMENT.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    subprocess.run(
        [ENVIRONMENT / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True, env=_without_constraints(), stdout=sys.stderr
    )
    readings: dict[str, list[Reading]] = {contender.name: [] for contender in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="longwatch-bench-", dir=HERE.parent / "build") as place:
        for number in range(ROUNDS):
            for contender in CONTENDERS:
                folder = Path(place, f"{number}-{contender.name.replace(' ', '-')}")
                folder.mkdir()
                readings[contender.name].append(measure(contender, folder))
        _print_table(readings)
        one, eight = single_sends(Path(place))
        small, large = claims_by_size(Path(place))
        print(f"\nSingle `send`: {one:,.0f}/s from one thread, {eight:,.0f}/s from eight ({eight / one:.1f}×).")
        print(f"Claiming from 1,000,000 queued messages takes {large / small:.2f}× the time it takes from 3,000.")
        print(f"Renewing 10,000 leases: {renewals(Path(place)) * 1e3:.0f} ms, one statement.")


def _without_constraints() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"}}


def _print_table(readings: dict[str, list[Reading]]) -> None:
    def median(name: str, field: str) -> float:
        return float(statistics.median(getattr(reading, field) for reading in readings[name]))

    print("| queue | jobs/s | × huey | sends/s | p50 ms | p99 ms | RSS MiB | idle CPU % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in readings:
        ratio = median(name, "drained") / median("huey", "drained")
        cells = [f"{median(name, field):,.1f}" for field in ("p50", "p99", "rss", "idle")]
        print(f"| {name} | {median(name, 'drained'):,.0f} | {ratio:.1f} | {median(name, 'sent'):,.0f} | {' | '.join(cells)} |")
    print(f"\nMedians of {ROUNDS} interleaved rounds. {', '.join(PACKAGES)}.")


if __name__ == "__main__":
    main()
