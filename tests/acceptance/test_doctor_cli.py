"""`longwatch doctor` of the installed wheel, and the page that shows it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from markdown_files import ROOT, Page
from run_process import run_longwatch
from up_process import SLEEPER, start_up

PAGE = Page.read(ROOT / "docs" / "how-to" / "diagnose-a-machine.md")


def blocks(kind: str) -> list[str]:
    return [block.text for block in PAGE.blocks if block.info[:1] == (kind,)]


def test_the_report_of_the_page_is_what_the_command_prints(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The lines about what is fine are left out on the page; they depend on the machine."""
    (tmp_path / "longwatch.toml").write_text(blocks("toml")[0])
    *before, last = blocks("console")[0].splitlines()
    for line in before:
        words = line.removeprefix("$ ").replace("longwatch", str(longwatch_bin), 1)
        subprocess.run(words, shell=True, check=True, cwd=tmp_path, capture_output=True)
    done = run_longwatch(longwatch_bin, tmp_path, *last.removeprefix("$ longwatch ").split())
    assert (1, "") == (done.returncode, done.stderr)
    shown = done.stdout.replace(str(tmp_path), "DIR").splitlines()
    expected = blocks("text")[0].splitlines()
    about = re.compile(r"(warning|problem) +(stops|groups|sqlite:)")
    found = [
        part
        for line, cure in zip(shown, [*shown[1:], ""], strict=True)
        if about.match(line)
        for part in (line, cure)
    ]
    assert expected[:-1] == found
    assert re.fullmatch(r"\d+ problems?, \d+ warnings?, \d+ ok", shown[-1])


def test_a_healthy_machine_has_no_problem_while_a_supervisor_runs(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"web": SLEEPER}) as up:
        up.wait_for_status("web", up=True)
        done = up.run_command("doctor", "--json")
        assert (0, "") == (done.returncode, done.stderr), done.stdout
        report = json.loads(done.stdout)
        assert (True, 0) == (report["ok"], report["problems"])
        [line] = [each for each in report["findings"] if each["check"] == "supervisors"]
        expected = {"status": "ok", "text": "1 program runs as wanted", "cure": None}
        assert {"check": "supervisors", **expected} == line
        up.stop_cleanly()


def test_a_url_of_no_known_kind_is_wrong_use(longwatch_bin: Path, tmp_path: Path) -> None:
    done = run_longwatch(longwatch_bin, tmp_path, "doctor", "--store", "mysql://u:secret@h/d")
    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("longwatch: no store is known for 'mysql://")
    assert "secret" not in done.stderr


def test_completion_and_one_frame_of_top_come_with_the_wheel(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    assert 75 == run_longwatch(longwatch_bin, tmp_path, "top", "--once").returncode
    done = run_longwatch(longwatch_bin, tmp_path, "completion", "bash")
    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.endswith("complete -F _longwatch longwatch\n")
