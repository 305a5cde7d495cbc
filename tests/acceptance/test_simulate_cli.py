"""`longwatch simulate` as people use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longwatch.runner.simulated_events import read_journal
from longwatch.runner.simulation_check import hash_data
from longwatch.store.sqlite.database import SqliteDatabase
from polling import eventually

TIMEOUT = 60
INSERT = (
    "INSERT INTO longwatch_runner_events "
    "(id, source, stream_id, data_hash, received_at, severity, data) "
    "VALUES (:id, 'sim-1', :id, :hash, 0, 'info', '')"
)
LONGWATCH = [sys.executable, "-m", "longwatch"]


@contextmanager
def simulated(cwd: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A running simulator and the lines it has printed."""
    command = [*LONGWATCH, "simulate", "events", "--port", "0", *options]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("# control"):
                    break
            yield process, lines
        finally:
            process.kill()


def check(cwd: Path, *options: str) -> tuple[int, str, str]:
    command = [*LONGWATCH, "simulate", "check", *options]
    done = subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT
    )
    return done.returncode, done.stdout, done.stderr


def test_it_prints_its_sources_as_settings_and_stops_at_a_signal(tmp_path: Path) -> None:
    with simulated(tmp_path, "--sources", "2") as (process, lines):
        sources = tomllib.loads("".join(lines))["runner"]["source"]
        assert ["sim-1", "sim-2"] == list(sources)
        with urllib.request.urlopen(sources["sim-2"]["url"], timeout=TIMEOUT) as stream:
            assert b": simulated\n" == stream.readline()
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(TIMEOUT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rate", "nan"], "--rate takes a number from 0 to 100000, got 'nan'"),
        (["--drop-every", "1"], "at least 2"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (
            ["--host", "no host"],
            "cannot listen on no host port 0: name or service not known; give ",
        ),
        (["--journal", "missing/file"], "missing/file"),
    ],
)
def test_wrong_use_is_refused_in_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    done = subprocess.run(
        [*LONGWATCH, "simulate", "events", "--port", "0", *options],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert 2 == done.returncode
    assert words in done.stderr
    assert 1 == done.stderr.count("\n")


def test_check_compares_the_journal_with_the_store(tmp_path: Path) -> None:
    """Nothing stored is not right, a row without an outcome is not yet, one outcome each is."""
    journal, options = tmp_path / "sent", ("--journal", "sent", "--json")
    with simulated(tmp_path, "--rate", "500", "--count", "3", "--journal", "sent"):
        assert eventually(lambda: journal.exists() and 3 == len(journal.read_text().splitlines()))
    sent = list(read_journal(journal))
    code, _, err = check(tmp_path, *options)
    assert (2, True) == (code, "no store at" in err)
    code, _, err = check(tmp_path, "--journal", "other")
    assert (2, True) == (code, "longwatch simulate events --journal" in err)
    with SqliteDatabase(tmp_path / "longwatch.db") as store:
        store.write(lambda _: None)
        code, out, _ = check(tmp_path, *options)
        assert (1, 3) == (code, json.loads(out)["sources"][0]["missing"])
        assert check(tmp_path, "--journal", "sent")[1].endswith(
            "events are missing, and no runner is connected; start it with `longwatch runner`\n"
        )
        rows = [{"id": str(each.number), "hash": hash_data(each.data)} for each in sent]
        store.write(lambda tx: tx.execute_many(INSERT, rows))
        code, out, _ = check(tmp_path, *options, "--wait", "0.01")
        assert (1, 3) == (code, json.loads(out)["sources"][0]["open"])
        assert "some events are queued or running" in check(tmp_path, "--journal", "sent")[1]
        store.write(lambda tx: tx.execute("UPDATE longwatch_runner_events SET outcome = 'run'", {}))
    code, out, _ = check(tmp_path, *options)
    assert (0, True) == (code, json.loads(out)["right"])
    code, out, _ = check(tmp_path, "--journal", "sent")
    assert (0, True) == (code, out.endswith("each event has one outcome\n"))
