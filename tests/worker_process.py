"""A `longwatch worker` at work: the application that its processes run, what that notes, and how
the parent is asked.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from longwatch.host.beatpage import BeatSnapshot, read_page
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.url import open_store
from polling import complete_lines, eventually
from run_process import TIMEOUT, Record, parse_record, start_process
from up_process import Facts, UpProcess, unused_port, write_config

APP = """
import ctypes, json, os, signal, subprocess, sys, threading, time
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

STORE = os.environ["STORE"]
THRESHOLD = float(os.environ.get("THRESHOLD", "60"))
SLOTS = int(os.environ.get("SLOTS", "1"))

def note(*words):
    file = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps([os.getpid(), *words]).encode() + b"\\n")
    os.close(file)

def done(context, job):
    pass

def wait(context, job):
    '''Until the test has made a file, with beats.'''
    beaten = 0.0
    while not os.path.exists(job["until"]):
        if time.monotonic() - beaten > job.get("every", 0.0):
            context.beat()
            beaten = time.monotonic()
        time.sleep(0.01)

def wait_silently(context, job):
    while not os.path.exists(job["until"]):
        time.sleep(0.01)

def silent(context, job):
    while not os.path.exists("never"):
        time.sleep(0.1)

def deadlock(context, job):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def hold_gil(context, job):
    '''In C, without letting go of the GIL.'''
    ctypes.PyDLL(None).sleep(job["seconds"])

def busy_in_c(context, job):
    '''One bytecode that is not done for years, and holds the GIL.

    The engine beats before that, so this row is the first to be silent for too long.
    '''
    time.sleep(1.5)
    sum(range(10**15))

def nap(context, job):
    time.sleep(0.004)

def fail(context, job):
    raise RuntimeError(job["id"])

class Jobs(MainLoop):
    def handle(self, job, context):
        known = context._row_context.claimed.item  \
# what the store holds against a message is for the store alone
        note("begin", job["id"], context.attempt, known.failures, known.crashes)
        if known.crashes < job.get("times", 1000):
            globals()[job["do"]](context, job)
        note("end", job["id"], context.attempt, known.failures, known.crashes)

jobs = Jobs(requests=open_mailbox(STORE, "jobs"), name="jobs", concurrency=SLOTS)
group = LoopGroup(
    [jobs], watchdog_threshold=THRESHOLD, shutdown_timeout=20.0, max_processing_seconds=0.1
)
"""
"""What every job does stands in its message; a job does it until it has crashed `times` times."""

MIN_MESSAGES = 300
"""Messages that a Sender sends at the least."""
MAX_BACKLOG = 40
"""How far it is ahead of the workers."""


class Note(NamedTuple):
    """What the application says of a job."""

    pid: int
    what: str
    job: str
    attempt: int
    failures: int
    crashes: int


class Notes:
    """The file in which the processes of the application note what they do."""

    def __init__(self, cwd: Path) -> None:
        self._path = cwd / "notes"

    def raw(self) -> list[list[Any]]:
        return [json.loads(line) for line in complete_lines(self._path)]

    def all(self, what: str, job: str | None = None) -> list[Note]:
        found = [Note(*words) for words in self.raw() if words[1] in {"begin", "end"}]
        return [note for note in found if note.what == what and job in {None, note.job}]

    def wait_for(self, what: str, job: str, *, times: int = 1) -> Note:
        """The so manyeth note of this kind about this job, as soon as there is one."""
        assert eventually(lambda: len(self.all(what, job)) >= times), (
            f"no {what} of {job}: {self.raw()}"
        )
        return self.all(what, job)[times - 1]


class HttpReply(NamedTuple):
    status: int
    body: str

    @property
    def reasons(self) -> dict[str, str]:
        """What the checks of a verbose answer say."""
        return {check["name"]: check["reason"] for check in json.loads(self.body)["checks"]}


class WorkerProcess(UpProcess):
    """The parent. Its stderr carries its own JSON log, its stdout that of its processes."""

    def __init__(self, *parts: Any, port: int, longwatch: Path, cwd: Path) -> None:
        super().__init__(*parts, longwatch=longwatch, cwd=cwd)
        self.port = port
        self.notes = Notes(cwd)

    def pid_of(self, program: str, *, start: int = 1) -> int:
        """Of the process that runs it since its so manyeth start."""
        return int(self.wait_for_event("program_started", program=program, times=start)["pid"])

    def joined_pids(self, *programs: str) -> list[int]:
        """The pids of these once they run their loops."""
        return [
            int(self.wait_for_event("worker_joined", program=program)["pid"])
            for program in programs
        ]

    def child_events(self, program: str, event: str) -> list[Record]:
        """The records of an event in what a process has logged so far."""
        path = self.logs / f"{program}.log"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [
            record
            for line in lines
            if (record := parse_record(line)) is not None and record["event"] == event
        ]

    def get(self, path: str) -> HttpReply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
            return HttpReply(answer.status, body if path == "/metrics" else body.removesuffix("\n"))
        finally:
            connection.close()

    def wait_for_reply(self, path: str, condition: Callable[[HttpReply], bool]) -> HttpReply:
        """The first answer of which that holds."""
        found: list[HttpReply] = []

        def asked() -> bool:
            with suppress(OSError):
                found.append(self.get(path))
            return bool(found) and condition(found[-1])

        assert eventually(asked), f"{path} has not come to that: {found[-1:]}"
        return found[-1]

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series now; None if there is none."""
        return parse_metrics(self.get("/metrics").body).get((name, tuple(sorted(labels.items()))))


def parse_metrics(exposition: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series of an exposition, by its name and labels."""
    families = text_string_to_metric_families(exposition)
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


@contextmanager
def short_directory() -> Iterator[Path]:
    """One for XDG_RUNTIME_DIR, whose name leaves room for those of sockets."""
    with TemporaryDirectory(prefix="lw-", dir="/tmp") as directory:
        yield Path(directory)


def read_beat_pages(runtime: Path) -> list[BeatSnapshot]:
    """What the beat pages of worker processes say."""
    readings = (read_page(str(path)) for path in runtime.glob("*/page-*"))
    return [reading for reading in readings if reading is not None]


def store_url(cwd: Path, name: str = "jobs") -> str:
    return f"sqlite:///{cwd / name}.db"


@contextmanager
def opened_mailbox(url: str, name: str = "jobs") -> Iterator[Mailbox[Any]]:
    """The mailbox that the application takes from."""
    mailbox = open_mailbox(url, name)
    try:
        yield mailbox
    finally:
        mailbox.close()


def send(cwd: Path, *jobs: Mapping[str, Any]) -> list[str]:
    with opened_mailbox(store_url(cwd)) as mailbox:
        return mailbox.send_many(jobs)


def migrate(url: str) -> str:
    """A PostgreSQL database that is ready for messages."""
    mailbox = open_mailbox(open_store(url, auto_migrate=True), "jobs")
    mailbox.stats()
    mailbox.close()
    return url


def is_drained(mailbox: Mailbox[Any]) -> bool:
    """Whether nothing waits in it, and nobody works on anything of it."""
    stats = mailbox.stats()
    return not (stats.ready or stats.delayed or stats.leased)


def write_workers(
    cwd: Path, workers: Mapping[str, Facts], programs: Mapping[str, Facts] | None = None
) -> None:
    """`longwatch.toml` with these workers, beside these programs."""
    write_config(cwd, programs or {}, worker=workers)


def write_app(cwd: Path, more: str = "") -> None:
    (cwd / "app.py").write_text(APP + more)


class Sender:
    """Sends messages for as long as it is told to, always some more than are done."""

    def __init__(self, mailbox: Mailbox[Any], notes: Notes) -> None:
        self.sent: list[str] = []
        self._mailbox = mailbox
        self._notes = notes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    @contextmanager
    def sending(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _send(self) -> None:
        numbers = count()
        while not self._stop.is_set() or len(self.sent) < MIN_MESSAGES:
            batch = [f"job-{next(numbers)}" for _ in range(5)]
            self._mailbox.send_many([{"id": name, "do": "nap"} for name in batch])
            self.sent += batch
            eventually(lambda: len(self._notes.all("end")) > len(self.sent) - MAX_BACKLOG)


def most_down(records: Iterable[Record]) -> int:
    """How many were down at a time, of those that had been up."""
    down: set[str] = set()
    most = 0
    for record in records:
        if record["event"] in {"program_stopping", "unexpected_exit"}:
            down.add(record["program"])
        elif record["event"] == "program_ready":
            down.discard(record["program"])
        elif record["event"] == "signal_received" and record["action"] == "stop":
            return most
        most = max(most, len(down))
    return most


@contextmanager
def start_worker(  # noqa: PLR0913 - each has its meaning and most have a default
    longwatch: Path,
    cwd: Path,
    *options: str | Path,
    target: str = "app:group",
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[WorkerProcess]:
    """`longwatch worker` in this directory, with a health port, killed at the end of the block
    if it still runs.
    """
    if not (cwd / "app.py").exists():
        write_app(cwd)
    port = unused_port() if port is None else port
    words = [
        *within,
        longwatch,
        "worker",
        target,
        "--health-port",
        str(port),
        "--health-host",
        "127.0.0.1",
        *options,
    ]
    with start_process(words, cwd, env={"STORE": store_url(cwd), **(env or {})}) as (
        process,
        out,
        err,
    ):
        yield WorkerProcess(process, out, err, port=port, longwatch=longwatch, cwd=cwd)
