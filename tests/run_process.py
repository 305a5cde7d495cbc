"""Starting the installed `longwatch`, and waiting for what it says: by blocking reads under a
deadline, never by sleeping.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 30.0
PYTHON = (sys.executable, "-S", "-E", "-u", "-c")
"""A child in Python, quick to start: the program's text follows."""
NO_BACKOFF_OPTIONS = ("--backoff-initial", "0.01", "--backoff-cap", "0.01")
"""Options for restarts without a wait to speak of."""

Record = dict[str, Any]


class PipeLines:
    """The lines of a pipe, read as they come; `lines` keeps every one of them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lines: list[bytes] = []
        self._partial = b""

    def next_line(self, deadline: float) -> bytes | None:
        """The next line with its end; None at the end of the pipe. Fails the test when none
        comes in time.
        """
        while b"\n" not in self._partial:
            chunk = self._read(deadline)
            if not chunk:
                return self._last_line()
            self._partial += chunk
        line, _, self._partial = self._partial.partition(b"\n")
        self.lines.append(line + b"\n")
        return line + b"\n"

    def read_to_end(self, deadline: float) -> None:
        """Read on to the end of the pipe."""
        while self.next_line(deadline) is not None:
            pass

    @property
    def text(self) -> bytes:
        """Everything read so far."""
        return b"".join(self.lines)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _read(self, deadline: float) -> bytes:
        if not wait_readable(self.descriptor, deadline):
            pytest.fail(
                f"nothing more came in time; so far: {self.text[-2000:].decode(errors='replace')}"
            )
        return os.read(self.descriptor, 65536)

    def _last_line(self) -> bytes | None:
        line, self._partial = self._partial, b""
        if line:
            self.lines.append(line)
        return line or None


class RunProcess:
    """A `longwatch run` at work. Its stderr carries the JSON log, its stdout what the program
    says.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], out: PipeLines, err: PipeLines, logs: Path
    ) -> None:
        self.process = process
        self.out = out
        self.err = err
        self.logs = logs

    @property
    def pid(self) -> int:
        return self.process.pid

    def next_event(self, name: str, timeout: float = TIMEOUT) -> Record:
        """Read the log on to the next record of this event."""
        deadline = time.monotonic() + timeout
        while (line := self.err.next_line(deadline)) is not None:
            record = parse_record(line)
            if record is not None and record["event"] == name:
                return record
        pytest.fail(f"it ended without {name}: {self.err.text.decode(errors='replace')}")

    def next_line(self, timeout: float = TIMEOUT) -> str:
        """The program's next line on stdout."""
        line = self.out.next_line(time.monotonic() + timeout)
        if line is None:
            pytest.fail(f"it ended without a word: {self.err.text.decode(errors='replace')}")
        return line.decode().removesuffix("\n")

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Read everything to its end; the exit code."""
        deadline = time.monotonic() + timeout
        for lines in (self.err, self.out):
            if lines.descriptor >= 0:
                lines.read_to_end(deadline)
        return self.process.wait(max(deadline - time.monotonic(), 1.0))

    def events(self, name: str | None = None) -> list[Record]:
        """The records on stderr so far, all or those of one event."""
        records = [record for line in self.err.lines if (record := parse_record(line)) is not None]
        return [record for record in records if name in {None, record["event"]}]

    def wait_for_event(self, name: str, *, times: int = 1, **facts: object) -> Record:
        """The so manyeth record of this event with these facts since the beginning, as soon as
        there is one.
        """
        deadline = time.monotonic() + TIMEOUT
        while len(found := self.matching_events(name, **facts)) < times:
            if self.err.next_line(deadline) is None:
                pytest.fail(
                    f"it ended without {name} {facts}: "
                    f"{self.err.text[-4000:].decode(errors='replace')}"
                )
        return found[times - 1]

    def matching_events(self, name: str, **facts: object) -> list[Record]:
        """Those of an event that have been read so far."""
        return [
            record
            for record in self.events(name)
            if all(record.get(key) == value for key, value in facts.items())
        ]

    def logged_events(self, name: str | None = None) -> list[Record]:
        """The records in logs/watchdog.log, all or those of one event; every line must be one."""
        records = [
            json.loads(line)
            for line in (self.logs / "watchdog.log").read_text(encoding="utf-8").splitlines()
        ]
        return [record for record in records if name in {None, record["event"]}]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every test starts from: nothing that Longwatch reads, but that there is no page."""
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "LONGWATCH_PAGE_PORT": "off"}
    return {**base, **(extra or {})}


@contextmanager
def start_run(  # noqa: PLR0913 - each has its meaning and most have a default
    longwatch: Path,
    cwd: Path,
    command: Sequence[str | Path],
    *,
    options: Sequence[str | Path] = (),
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    stdout: int | None = None,
    stderr: int | None = None,
) -> Iterator[RunProcess]:
    """`longwatch run OPTION_NAMES -- COMMAND` in this directory, killed at the end of the block if
    it still runs.

    `within` is the command it is started by (`unshare …`); `stdout` and `stderr` are descriptors to
    use instead of pipes.
    """
    words = [*within, longwatch, "run", *options, "--", *command]
    with start_process(words, cwd, env=env, stdout=stdout, stderr=stderr) as (process, out, err):
        yield RunProcess(process, out, err, cwd / ".longwatch" / "logs")


@contextmanager
def start_process(
    words: Sequence[str | Path],
    cwd: Path,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], PipeLines, PipeLines]]:
    """A process with the lines of its stdout and its stderr, killed at the end of the block if
    it still runs.
    """
    out, theirs_out = os.pipe() if stdout is None else (-1, stdout)
    err, theirs_err = os.pipe() if stderr is None else (-1, stderr)
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=theirs_out,
        stderr=theirs_err,
    )
    for descriptor, given in ((theirs_out, stdout), (theirs_err, stderr)):
        if given is None:
            os.close(descriptor)
    ours = PipeLines(out), PipeLines(err)
    try:
        yield process, *ours
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(TIMEOUT)
        for lines in ours:
            lines.close()


def run_longwatch(
    longwatch: Path,
    cwd: Path,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `longwatch` to its end."""
    return subprocess.run(
        [*within, longwatch, *arguments],
        check=False,
        cwd=cwd,
        env=clean_environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=TIMEOUT,
    )


def parse_record(line: bytes) -> Record | None:
    """The log record on this line of stderr; None if it is something else, as the program's own
    words.
    """
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and "event" in record:
            return record
    return None


def wait_readable(descriptor: int, deadline: float) -> bool:
    """Wait until there is something to read, or the end; False when the deadline comes first."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(deadline - time.monotonic(), 0.0) * 1000))


def pids_with_token(token: str) -> list[int]:
    """The living processes that have this word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and token.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def wait_until_gone(token: str, timeout: float = TIMEOUT) -> None:
    """Wait until no process has this word in its command line, by waiting for the end of each
    that has.
    """
    deadline = time.monotonic() + timeout
    while survivors := pids_with_token(token):
        if time.monotonic() > deadline:
            kill_all(survivors)
            pytest.fail(f"survivors: {survivors}")
        for pid in survivors:
            wait_for_exit(pid, deadline)


def wait_for_exit(pid: int, deadline: float) -> bool:
    """Wait until this process has ended, be it a child of ours or not; False when the deadline
    comes first.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return wait_readable(descriptor, deadline)
    finally:
        os.close(descriptor)


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
