"""A `longwatch eval` at work: the application whose loops it measures, what that notes, and what
is left in the store.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from longwatch.app.evaluation import Evaluation, find_evaluation
from longwatch.mailbox import open_store
from polling import complete_lines
from run_process import TIMEOUT, PipeLines, clean_environment, kill_all, start_process
from up_process import pids_by_mark

APP = """
import json, os, signal, time
from longwatch.errors import PermanentError
from longwatch.evals import Score, all_of, any_of, contains, exact_match
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop

def note(*words):
    file = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps([os.getpid(), *words]).encode() + b"\\n")
    os.close(file)

def wait(context):
    '''Until the test has made a file, with beats.'''
    while not os.path.exists("go"):
        context.beat()
        time.sleep(0.01)

def slow(context):
    '''For longer than a sample may be silent, with beats.'''
    for _ in range(300):
        context.beat()
        time.sleep(0.01)

def hang(context):
    while not os.path.exists("never"):
        time.sleep(0.1)

def fail(context):
    raise RuntimeError("boo")

def refuse(context):
    raise PermanentError("no such page")

def kill(context):
    os.kill(os.getpid(), signal.SIGKILL)

def leave(context):
    os._exit(0)

def misconfigured(context):
    os._exit(2)

class Subject(MainLoop):
    def handle(self, request, context):
        note("begin", context.request_id)
        if do := request.get("do"):
            globals()[do](context)
        note("end", context.request_id)
        return request["n"]

class Worse(MainLoop):
    def handle(self, request, context):
        return request["n"] if request["n"] % 2 else None

def made():
    return Subject(requests=open_mailbox("memory://", "unused"))

loop, worse = made(), Worse(requests=open_mailbox("memory://", "unused"))

def small(output, expected):
    return Score(
        1.0 if output < 3 else 0.5, output < 3, "" if output < 3 else f"{output} is not small"
    )

judge = all_of(exact_match, small)
number, text = 5, "text"

def returns_a_number(output, expected):
    return 1.0

def goes_too_far(output, expected):
    return Score(2, True)

def takes_one(output):
    return Score(1, True)

async def is_async(output, expected):
    return Score(1, True)
"""
BROKEN = "this is\nno Python\n"
DIVIDES = "1 / 0\n"
NOTHING = "combined = __import__('longwatch.evals').evals.all_of()\n"
ONCE = """
from app import loop
with open("imports", "a") as file:
    file.write(".")
if len(open("imports").read()) > 1:
    raise RuntimeError("only once")
"""

SampleFields = Mapping[str, Any]


class EvalDirectory:
    """A directory with the application, in which `longwatch eval` is called."""

    def __init__(self, longwatch: Path, cwd: Path) -> None:
        self.longwatch = longwatch
        self.cwd = cwd
        self.token = secrets.token_hex(8)
        modules = {
            "app": APP,
            "broken": BROKEN,
            "divides": DIVIDES,
            "nothing": NOTHING,
            "once": ONCE,
        }
        for name, source in modules.items():
            (cwd / f"{name}.py").write_text(source)

    # --- what is there ---

    def dataset(self, *samples: SampleFields, name: str = "samples") -> str:
        file = f"{name}.jsonl"
        (self.cwd / file).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        return file

    def notes(self, what: str) -> Counter[str]:
        """How often each sample was noted so."""
        notes = [json.loads(line) for line in complete_lines(self.cwd / "notes")]
        return Counter(sample for _, word, sample in notes if word == what)

    @property
    def processes(self) -> set[int]:
        """Those that have noted something."""
        return {json.loads(line)[0] for line in complete_lines(self.cwd / "notes")}

    def report(self, run: str) -> dict[str, Any]:
        return dict(json.loads((self.cwd / ".longwatch" / "evals" / f"{run}.json").read_text()))

    @contextmanager
    def evaluation(self, run: str) -> Iterator[Evaluation]:
        """As it stands in the store."""
        url = f"sqlite:///{self.cwd}/.longwatch/evals.db"
        with open_store(url) as store:
            yield find_evaluation(store, run, url=url)

    def remaining(self, run: str) -> int:
        with self.evaluation(run) as found:
            return found.remaining()

    def finished_samples(self, run: str) -> set[str]:
        """The samples whose results are rows."""
        with self.evaluation(run) as found:
            return {result.sample_id for result in found.report().results}

    # --- what is called ---

    def eval(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.longwatch, "eval", *words],
            check=False,
            cwd=self.cwd,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
        )

    def json_output(self, *words: str | Path, code: int = 0) -> dict[str, Any]:
        """What it tells a machine."""
        done = self.eval(*words, "--json")
        assert code == done.returncode, done.stderr
        return dict(json.loads(done.stdout))

    def refusal(self, *words: str | Path) -> str:
        """What it says, in what is wrong use, before it has written anything."""
        before = self._files()
        done = self.eval(*words)
        assert (2, "") == (done.returncode, done.stdout), done.stderr
        assert before == self._files()
        return done.stderr

    def _files(self) -> set[Path]:
        return {path for path in self.cwd.rglob("*") if "__pycache__" not in path.parts}

    @contextmanager
    def started(self, *words: str) -> Iterator[EvalProcess]:
        """One at work, of which no process is left at the end of the block."""
        env = {"MARK": f"{self.token}-eval"}
        with start_process([self.longwatch, "eval", *words], self.cwd, env=env) as (
            process,
            out,
            err,
        ):
            begun = EvalProcess(self, process, out, err)
            try:
                yield begun
            finally:
                begun.kill_everything()


class EvalProcess:
    """A `longwatch eval` at work."""

    def __init__(
        self,
        directory: EvalDirectory,
        process: subprocess.Popen[bytes],
        out: PipeLines,
        err: PipeLines,
    ) -> None:
        self.process = process
        self._directory = directory
        self._out = out
        self._err = err

    def wait_for_line(self, pattern: str) -> str:
        """What the group of this pattern has caught in the first line of stderr that has it."""
        deadline = time.monotonic() + TIMEOUT
        while (line := self._err.next_line(deadline)) is not None:
            if found := re.search(pattern, line.decode()):
                return found[found.lastindex or 0]
        pytest.fail(f"it ended without {pattern}: {self._err.text.decode()}")

    @property
    def run_id(self) -> str:
        """The name of the evaluation, which it says at once."""
        return self.wait_for_line(r"^evaluation (\S+): ")

    def wait(self) -> int:
        deadline = time.monotonic() + TIMEOUT
        self._err.read_to_end(deadline)
        self._out.read_to_end(deadline)
        return self.process.wait(TIMEOUT)

    @property
    def stderr_text(self) -> str:
        return self._err.text.decode()

    def kill_everything(self) -> None:
        """As a power cut does: parent, guardian and workers."""
        while pids := [
            pid
            for found in pids_by_mark(self._directory.token).values()
            for pid in found
            if is_alive(pid)
        ]:
            kill_all(pids)
            self.process.poll()


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def passing_samples(count: int, **more: Any) -> list[SampleFields]:
    """Samples that expect their own number."""
    return [{"id": f"s{n}", "input": {"n": n, **more}, "expected": n} for n in range(count)]


def samples_that(*what: str) -> list[SampleFields]:
    return [{"id": do, "input": {"n": n, "do": do}, "expected": n} for n, do in enumerate(what)]
