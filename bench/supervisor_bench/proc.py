"""What /proc says of some processes together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Memory:
    """In MiB."""

    rss: float
    pss: float


@dataclass(frozen=True)
class CpuUsage:
    """What they have done since they were started."""

    cpu: float
    """Seconds."""
    wakeups: int
    """How often a thread gave the processor away to wait for something."""

    def __sub__(self, before: CpuUsage) -> CpuUsage:
        return CpuUsage(self.cpu - before.cpu, self.wakeups - before.wakeups)


def process_tree(root: int, *, without: Collection[int]) -> list[int]:
    """A process and everything below it, less some; what ends meanwhile is left out."""
    found = [root]
    for pid in found:
        found += (child for child in _children(pid) if child not in without)
    return found


def memory(pids: Iterable[int]) -> Memory:
    figures = [_fields(PROC / str(pid) / "smaps_rollup") for pid in pids]
    return Memory(*(sum(each[name] for each in figures) / 1024 for name in ("Rss", "Pss")))


def cpu_usage(pids: Iterable[int]) -> CpuUsage:
    threads = [thread for pid in pids for thread in (PROC / str(pid) / "task").iterdir()]
    cpu = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    return CpuUsage(
        cpu, sum(_fields(thread / "status")["voluntary_ctxt_switches"] for thread in threads)
    )


def descriptors(pids: Iterable[int]) -> int:
    return sum(len(list((PROC / str(pid) / "fd").iterdir())) for pid in pids)


def is_alive(pid: int) -> bool:
    """Whether it runs; one that only has to be reaped does not."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text().split())
    return found


def _fields(path: Path) -> dict[str, int]:
    """The lines `Name: number unit`, by name."""
    pairs = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
    return {
        name: int(value.split()[0])
        for name, value in pairs
        if value.split() and value.split()[0].isdecimal()
    }
