"""`longwatch eval …` of the installed wheel: a dataset through a loop in worker processes,
whatever its samples and its user do.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from eval_process import EvalDirectory, is_alive, passing_samples, samples_that
from markdown_files import ROOT, Page
from polling import eventually
from run_process import TIMEOUT, start_process

HIDE_CURSOR = "\x1b[?25l"


@pytest.fixture
def place(longwatch_bin: Path, tmp_path: Path) -> EvalDirectory:
    return EvalDirectory(longwatch_bin, tmp_path)


# --- what it tells ---


def test_a_dataset_is_run_scored_and_reported(place: EvalDirectory) -> None:
    file = place.dataset(
        *passing_samples(20), {"id": "wrong", "input": {"n": 20}, "expected": "a | b"}
    )
    done = place.eval("run", file, "app:loop")
    assert 0 == done.returncode, done.stderr
    begins, *progress = done.stderr.splitlines()
    run = begins.split()[-1]
    assert (
        f"evaluation {run}: 21 samples; if it is interrupted, resume it with: "
        f"longwatch eval resume {run}" == begins
    )
    assert ("0 of 21 samples done", "21 of 21 samples done") == (progress[0], progress[-1])
    lines = done.stdout.splitlines()
    assert [
        "samples      21",
        "passed       20 (95.2%)",
        "failed       1",
        "errors       0",
        "missing      0",
    ] == lines[:5]
    assert [
        "sample  ended   score  why",
        "wrong   scored  0.000  expected 'a | b', got 20",
    ] == lines[9:11]
    assert f"evaluation {run}: .longwatch/evals/{run}.md" == lines[-1]
    report = place.report(run)
    assert ([f"s{n}" for n in range(20)] + ["wrong"], 21, 20) == (
        [each["sample_id"] for each in report["results"]],
        report["samples"],
        report["summary"]["passed"],
    )
    markdown = (place.cwd / ".longwatch" / "evals" / f"{run}.md").read_text()
    assert "| wrong | scored | 0.000 | expected 'a \\| b', got 20 |" in markdown.splitlines()
    assert {1} == set(place.notes("begin").values())


def test_in_json_it_is_one_line(place: EvalDirectory) -> None:
    facts = place.json_output(
        "run", place.dataset(*passing_samples(4)), "app:made", "--evaluator", "app:judge"
    )
    assert {
        "samples": 4,
        "passed": 3,
        "failed": 1,
        "errors": 0,
        "missing": 0,
        "pass_rate": 0.75,
        "mean_score": 0.9375,
    } == {
        key: facts[key]
        for key in ("samples", "passed", "failed", "errors", "missing", "pass_rate", "mean_score")
    }
    assert facts["latency_p95"] >= facts["latency_p50"] >= 0
    result = place.report(facts["run"])["results"][3]
    assert {"value": 0.75, "passed": False, "reason": "3 is not small"} == result["score"]


JOB_CONTROL = """
import fcntl, os, subprocess, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
group = 0 if sys.argv[1] == "background" else None
sys.exit(subprocess.run(sys.argv[2:], process_group=group).returncode)
"""
"""A shell: it owns the terminal of its stderr and runs a command in the foreground or not."""


def _shown_on_terminal(place: EvalDirectory, *shell: str) -> str:
    """What `longwatch eval run` of seven samples, started by this shell, shows on a terminal."""
    file = place.dataset(*passing_samples(7))
    ours, theirs = pty.openpty()
    command: list[str | Path] = [*shell, place.longwatch, "eval", "run", file, "app:loop"]
    with start_process(command, place.cwd, env={"TERM": "xterm"}, stderr=theirs) as (
        process,
        out,
        _,
    ):
        os.close(theirs)
        shown = _read_terminal(ours)
        out.read_to_end(time.monotonic() + TIMEOUT)
        assert 0 == process.wait(TIMEOUT), shown
    return shown


@pytest.mark.parametrize(
    "shell", [(), (sys.executable, "-c", JOB_CONTROL, "foreground")], ids=["none", "foreground"]
)
def test_on_a_terminal_a_bar_shows_the_progress_and_the_cursor_stays_visible(
    place: EvalDirectory, shell: Sequence[str]
) -> None:
    shown = _shown_on_terminal(place, *shell)
    assert "━" in shown
    assert "7/7" in shown
    assert HIDE_CURSOR not in shown


def test_a_background_job_prints_lines_and_no_bar_over_the_prompt(place: EvalDirectory) -> None:
    shown = _shown_on_terminal(place, sys.executable, "-c", JOB_CONTROL, "background")
    lines = shown.splitlines()
    assert ("0 of 7 samples done", "7 of 7 samples done") == (lines[1], lines[-1])
    assert "\x1b" not in shown


def _read_terminal(descriptor: int) -> str:
    """To its end, which is an error there."""
    seen = b""
    with suppress(OSError):
        while chunk := os.read(descriptor, 65536):
            seen += chunk
    os.close(descriptor)
    return seen.decode()


def test_several_processes_share_the_samples(place: EvalDirectory) -> None:
    with place.started(
        "run",
        place.dataset(*passing_samples(8, do="wait")),
        "app:loop",
        "--processes",
        "2",
        "--concurrency",
        "4",
    ) as at_work:
        assert eventually(lambda: len(place.notes("begin")) == 8)
        (place.cwd / "go").touch()
        assert 0 == at_work.wait(), at_work.stderr_text
    assert (2, {1}) == (len(place.processes), set(place.notes("begin").values()))


def test_too_few_passed_is_exit_code_1(place: EvalDirectory) -> None:
    file = place.dataset(*passing_samples(4))
    done = place.eval("run", file, "app:worse", "--min-pass-rate", "0.51")
    assert 1 == done.returncode
    assert (
        "2 of 4 samples passed, less than the requested pass rate of 0.51"
        == done.stderr.splitlines()[-1]
    )
    run = done.stdout.split()[-2].removesuffix(":")
    assert 0 == place.eval("resume", run, "--min-pass-rate", "0.5").returncode
    assert 1 == place.eval("resume", run, "--min-pass-rate", "0.75").returncode
    assert 0.5 == place.json_output("resume", run, "--min-pass-rate", "1", code=1)["pass_rate"]


# --- comparing ---


def test_two_evaluations_of_one_dataset_are_compared_by_id_or_by_file(place: EvalDirectory) -> None:
    file = place.dataset(*passing_samples(4))
    before, after = (
        place.json_output("run", file, target)["run"] for target in ("app:worse", "app:loop")
    )
    done = place.eval("compare", before, after)
    assert (0, "") == (done.returncode, done.stderr)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["what", "before", "after", "difference"] == lines[0]
    assert ["passed", "2", "4", "+2"] in lines
    assert ["pass", "rate", "50.0%", "100.0%", "+50.0%"] in lines
    assert "improved: s0, s2" == done.stdout.splitlines()[-1]
    facts = place.json_output("compare", f".longwatch/evals/{after}.json", before)
    assert ([], ["s0", "s2"], 4, 2) == (
        facts["improved"],
        facts["regressed"],
        facts["before"]["passed"],
        facts["after"]["passed"],
    )


def test_what_cannot_be_compared_is_told(place: EvalDirectory) -> None:
    first, second = (
        place.json_output("run", place.dataset(*passing_samples(n), name=f"d{n}"), "app:loop")[
            "run"
        ]
        for n in (1, 2)
    )
    message = (
        "these are reports of different datasets (d1.jsonl, 1 samples; d2.jsonl, 2 samples); run "
        "both on the same one"
    )
    assert f"longwatch: {message}\n" == place.refusal("compare", first, second)
    missing = (
        f"no report 'none': there is no {Path('.longwatch/evals/none.json')}, nor a file of that "
        f"name"
    )
    assert missing in place.refusal("compare", first, "none")
    assert "longwatch: app.py is no report of an evaluation: " in place.refusal(
        "compare", "app.py", first
    )


# --- listing ---


def test_saved_reports_are_listed_with_their_figures_the_newest_first(place: EvalDirectory) -> None:
    done = place.eval("ls")
    assert (0, "no reports in .longwatch/evals; `longwatch eval run` makes one\n", "") == (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    assert "[]\n" == place.eval("ls", "--json").stdout
    file = place.dataset(*passing_samples(4))
    first, second = (place.json_output("run", file, target) for target in ("app:worse", "app:loop"))
    (place.cwd / ".longwatch" / "evals" / "other.json").write_text("{}")
    done = place.eval("ls")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["evaluation", "finished", "what", "samples", "passed", "score"] == lines[0]
    assert [
        [second["run"], "app:loop", "on", "samples.jsonl", "4", "4", "1.000"],
        [first["run"], "app:worse", "on", "samples.jsonl", "4", "2", "0.500"],
    ] == [[line[0], *line[3:]] for line in lines[1:]]
    unreadable = ".longwatch/evals/other.json is no report of an evaluation; delete it\n"
    assert (0, unreadable) == (done.returncode, done.stderr)
    (place.cwd / ".longwatch" / "evals" / "other.json").unlink()
    facts = json.loads(place.eval("ls", "--json").stdout)
    keys = {"finished_at": facts[0]["finished_at"], "loop": "app:loop", "dataset": "samples.jsonl"}
    assert {**second, **keys} == facts[0]


# --- the night ---


def test_after_kill_9_of_everything_it_goes_on_with_what_is_left(place: EvalDirectory) -> None:
    """Half of 500 samples are done, and the others wait, when the power goes."""
    held = [
        {**sample, "input": {**sample["input"], "do": "wait"}}
        for sample in passing_samples(500)[250:]
    ]
    with place.started("run", place.dataset(*passing_samples(250), *held), "app:loop") as at_work:
        run = at_work.run_id
        assert eventually(lambda: place.remaining(run) == 250)
        assert eventually(lambda: len(place.notes("begin")) > 250)
        at_work.kill_everything()
    finished, begun = place.finished_samples(run), place.notes("begin")
    assert {f"s{n}" for n in range(250)} == finished
    (place.cwd / "go").touch()
    facts = place.json_output("resume", run)
    assert (500, 500, 0) == (facts["samples"], facts["passed"], facts["missing"])
    assert dict.fromkeys(finished, 1) == {
        sample: place.notes("begin")[sample] for sample in finished
    }
    assert {f"s{n}" for n in range(500)} == set(place.notes("end"))
    assert {1} == set(place.notes("end").values())
    assert len(begun) - 250 == len(
        [sample for sample, times in place.notes("begin").items() if times > 1]
    )
    ids = [result["sample_id"] for result in place.report(run)["results"]]
    assert [f"s{n}" for n in range(500)] == ids


def test_killed_again_and_again_at_any_moment_no_finished_sample_is_run_again(
    place: EvalDirectory,
) -> None:
    words: Sequence[str] = (
        "run",
        place.dataset(*passing_samples(400)),
        "app:loop",
        "--attempts",
        "20",
    )
    finished_before: dict[str, int] = {}
    run = ""
    for enough in (60, 160):
        with place.started(*words) as at_work:
            run = run or at_work.run_id
            assert eventually(lambda enough=enough: len(place.notes("end")) >= enough)  # type: ignore[misc] # bound at once
            at_work.process.kill()
            assert eventually(lambda: not any(map(is_alive, place.processes)))
        begun = place.notes("begin")
        assert (
            finished_before.items() <= {sample: begun[sample] for sample in finished_before}.items()
        )
        finished_before = {sample: begun[sample] for sample in place.finished_samples(run)}
        words = ("resume", run)
    facts = place.json_output("resume", run)
    begun = place.notes("begin")
    assert (400, 400) == (facts["samples"], facts["passed"])
    assert finished_before == {sample: begun[sample] for sample in finished_before}
    assert [f"s{n}" for n in range(400)] == [
        result["sample_id"] for result in place.report(run)["results"]
    ]


def test_one_that_is_done_is_only_reported_again(place: EvalDirectory) -> None:
    facts = place.json_output("run", place.dataset(*passing_samples(5)), "app:loop")
    before = place.notes("begin")
    (place.cwd / ".longwatch" / "evals" / f"{facts['run']}.json").unlink()
    assert (
        f"{facts['run']} has no report; if it was interrupted, continue it with "
        f"`longwatch eval resume {facts['run']}`\n" == place.eval("ls").stdout
    )
    assert facts == place.json_output("resume", facts["run"])
    assert (before, 5) == (place.notes("begin"), len(place.report(facts["run"])["results"]))


def test_a_sample_that_hangs_fails_or_ends_its_process_is_reported_and_the_rest_goes_on(
    place: EvalDirectory,
) -> None:
    bad = ("hang", "kill", "leave", "misconfigured", "fail", "refuse")
    file = place.dataset(*samples_that(*bad, "slow"), *passing_samples(20))
    facts = place.json_output(
        "run", file, "app:loop", "--sample-timeout", "2", "--attempts", "2", "--processes", "2"
    )
    results = {each["sample_id"]: each for each in place.report(facts["run"])["results"]}
    assert {
        "hang": ("crashed", "its process died or hung 2 times"),
        "kill": ("crashed", "its process died or hung 2 times"),
        "leave": ("crashed", "its process died or hung 2 times"),
        "misconfigured": ("crashed", "its process died or hung 2 times"),
        "fail": ("error", "RuntimeError: boo"),
        "refuse": ("error", "PermanentError: no such page"),
    } == {sample: (results[sample]["ended"], results[sample]["error"]) for sample in bad}
    assert (27, 21, 6, 0) == tuple(facts[key] for key in ("samples", "passed", "errors", "missing"))
    assert max(place.notes("begin").values()) <= 3, (
        "two failures are one crash and a failure at the most, and so are two crashes"
    )


def test_processes_that_never_come_to_a_sample_are_given_up(place: EvalDirectory) -> None:
    done = place.eval("run", place.dataset(*passing_samples(2)), "once:loop")
    assert 100 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert (
        "longwatch: worker processes end before they run a sample, and 2 samples are left; see "
        ".longwatch/evals/" in last
    )
    assert re.search(r"\.log, then: longwatch eval resume \S+$", last)
    log = next((place.cwd / ".longwatch" / "evals").glob("*.log")).read_text()
    assert "'once:loop' cannot be used: RuntimeError: only once" in log


# --- told to stop ---


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_told_to_stop_it_lets_what_is_at_work_finish_and_says_how_to_go_on(
    place: EvalDirectory, signum: int
) -> None:
    with place.started(
        "run", place.dataset(*passing_samples(30, do="wait")), "app:loop", "--concurrency", "3"
    ) as at_work:
        run = at_work.run_id
        assert eventually(lambda: len(place.notes("begin")) == 3)
        at_work.process.send_signal(signum)
        at_work.wait_for_line(
            "^stopping: running samples may finish; signal once more to kill them$"
        )
        (place.cwd / "go").touch()
        assert 130 == at_work.wait()
    left = place.remaining(run)
    assert (
        f"longwatch: interrupted with {left} samples left; resume with: "
        f"longwatch eval resume {run}\n" == at_work.stderr_text.splitlines(True)[-1]
    )
    assert 30 - 3 >= left > 0
    assert (30, 0) == tuple(place.json_output("resume", run)[key] for key in ("passed", "errors"))
    assert {1} == set(place.notes("begin").values())


def test_a_second_ctrl_c_ends_it_at_once_and_nothing_is_left_running(place: EvalDirectory) -> None:
    with place.started(
        "run", place.dataset(*passing_samples(3, do="wait")), "app:loop", "--concurrency", "3"
    ) as at_work:
        run = at_work.run_id
        assert eventually(lambda: len(place.notes("begin")) == 3)
        at_work.process.send_signal(signal.SIGINT)
        at_work.wait_for_line("^stopping: ")
        at_work.process.send_signal(signal.SIGINT)
        assert 130 == at_work.process.wait(TIMEOUT)
        assert eventually(lambda: not any(map(is_alive, place.processes)))
    assert 3 == place.remaining(run)


def test_without_its_guardian_it_ends_and_says_how_to_go_on(place: EvalDirectory) -> None:
    with place.started("run", place.dataset(*passing_samples(3, do="wait")), "app:loop") as at_work:
        run = at_work.run_id
        assert eventually(lambda: len(place.notes("begin")) == 3)
        [guardian] = psutil.Process(at_work.process.pid).children()
        guardian.kill()
        assert 75 == at_work.wait()
    assert at_work.stderr_text.endswith(f"; resume with: longwatch eval resume {run}\n")
    (place.cwd / "go").touch()
    assert 3 == place.json_output("resume", run)["passed"]


# --- elsewhere ---


def test_another_store_is_named_by_its_url_and_may_be_named_otherwise_the_next_time(
    place: EvalDirectory,
) -> None:
    with place.started(
        "run",
        place.dataset(*passing_samples(3, do="wait")),
        "app:loop",
        "--store",
        "sqlite:///night.db",
    ) as at_work:
        run = at_work.wait_for_line(
            r"^evaluation (\S+): 3 samples; if .* resume it with: longwatch eval resume \1 --store "
            r"sqlite:///night.db$"
        )
        assert eventually(lambda: len(place.notes("begin")) == 3)
        at_work.kill_everything()
    (place.cwd / "go").touch()
    assert (
        "no evaluation was run with the store sqlite:///.longwatch/evals.db; start one"
        in place.eval("resume", run).stderr
    )
    assert (
        3
        == place.json_output("resume", run, "--store", f"sqlite:///{place.cwd}/night.db")["passed"]
    )


# --- bad input ---

ONE = '{"id": "a", "input": {"n": 1}}'
FAULTY = f"""{ONE}
{{"id":

{ONE}
{{"input": 1}}
{{"id": "b"}}
{{"id": "c", "input": 1, "label": 2}}
"""
FAULTS = """\
longwatch: bad.jsonl:2: is not JSON: it ends too early
longwatch: bad.jsonl:4: has the id 'a', which line 1 has too; give each its own
longwatch: bad.jsonl:5: has no id
longwatch: bad.jsonl:6: has no input
longwatch: bad.jsonl:7: has unknown keys: label; put them into input
"""
EMPTY = (
    "longwatch: bad.jsonl: has no samples; write at least one: "
    '{"id": "1", "input": "…", "expected": "…"}\n'
)


@pytest.mark.parametrize(
    ("text", "told"), [(FAULTY, FAULTS), ("\n", EMPTY)], ids=["faulty", "empty"]
)
def test_a_dataset_with_faults_is_told_before_anything_runs(
    place: EvalDirectory, text: str, told: str
) -> None:
    (place.cwd / "bad.jsonl").write_text(text)
    assert told == place.refusal("run", "bad.jsonl", "app:loop")


def test_a_sample_that_cannot_be_stored_is_told_before_anything_runs(place: EvalDirectory) -> None:
    done = place.eval(
        "run",
        place.dataset(*passing_samples(3), {"id": "big", "input": "x" * (1 << 20)}),
        "app:loop",
    )
    message = "longwatch: sample 'big' cannot be sent: a body of "
    assert (2, message) == (done.returncode, done.stderr[: len(message)])
    assert not (place.cwd / "notes").exists()


WRONG: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("none.jsonl", "app:loop"),
        "the dataset none.jsonl cannot be read: no such file or directory",
    ),
    (
        ("ok.jsonl", "app"),
        "'app' is no import path; write it as module:name, such as shop.agent:loop",
    ),
    (("ok.jsonl", "app:lopo"), "the module app has no 'lopo'; did you mean loop?"),
    (
        ("ok.jsonl", "nowhere:loop"),
        "the module 'nowhere' of 'nowhere:loop' was not found, neither in ",
    ),
    (
        ("ok.jsonl", "app:number"),
        "'app:number' is of type int; it has to be a MainLoop, or a function that returns one",
    ),
    (("ok.jsonl", "app:Subject"), "'app:Subject' cannot be used: TypeError: "),
    (
        ("ok.jsonl", "divides:loop"),
        "'divides:loop' cannot be used: ZeroDivisionError: division by zero (",
    ),
    (("ok.jsonl", "broken:loop"), "'broken:loop' cannot be used: SyntaxError: "),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "app:text"),
        "an evaluator is a function of (output, expected) that returns a Score",
    ),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "app:jugde"),
        "the module app has no 'jugde'; did you mean judge?",
    ),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "judge"),
        "'judge' is no import path; write it as module:name, such as shop.checks:judge",
    ),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "app:takes_one"),
        "evaluator takes_one cannot be called with (output, expected): ",
    ),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "app:is_async"),
        "evaluator is_async is async, and no caller awaits it; write it with",
    ),
    (
        ("ok.jsonl", "app:loop", "--evaluator", "nothing:combined"),
        "all_of() needs at least one evaluator",
    ),
    (
        ("ok.jsonl", "app:loop", "--store", "memory://"),
        "a memory:// store is seen by one process only; give --store the URL of",
    ),
    (
        ("ok.jsonl", "app:loop", "--store", "jobs.db"),
        "no store is known for 'jobs.db'; did you mean sqlite:///jobs.db?",
    ),
    (
        ("ok.jsonl", "app:loop", "--concurrency", "0"),
        "--concurrency takes a whole number from 1 to 1000, got '0'",
    ),
    (
        ("ok.jsonl", "app:loop", "--min-pass-rate", "90"),
        "--min-pass-rate takes a number from 0 to 1, got '90'",
    ),
    (
        ("ok.jsonl", "app:loop", "--min-pass-rate", "nan"),
        "--min-pass-rate takes a number from 0 to 1, got 'nan'",
    ),
    (
        ("ok.jsonl", "app:loop", "--sample-timeout", "inf"),
        (
            "--sample-timeout takes a duration, for example 300, 90s or 5m "
            "(units: d, h, m, s, ms); got 'inf'"
        ),
    ),
)


@pytest.mark.parametrize(
    ("words", "message"), WRONG, ids=[" ".join(words[1:]) for words, _ in WRONG]
)
def test_what_cannot_be_run_is_told_before_anything_is_written(
    place: EvalDirectory, words: tuple[str, ...], message: str
) -> None:
    (place.cwd / "ok.jsonl").write_text(ONE)
    told = place.refusal("run", *words)
    assert f"longwatch: {message}" == told[: len(f"longwatch: {message}")]
    assert 1 == len(told.splitlines())


def test_an_evaluation_that_is_not_there_is_told_without_a_store_being_made(
    place: EvalDirectory,
) -> None:
    assert (
        "longwatch: no evaluation was run with the store sqlite:///.longwatch/evals.db; start one "
        "with `longwatch eval run`, or give --store\n" == place.refusal("resume", "night-1")
    )
    assert not (place.cwd / ".longwatch").exists()
    run = place.json_output("run", place.dataset(*passing_samples(1)), "app:loop")["run"]
    assert (
        f"longwatch: no evaluation '{run}0' in sqlite:///.longwatch/evals.db; did you mean {run}?\n"
    ) == place.refusal("resume", f"{run}0")


@pytest.mark.parametrize(
    ("evaluator", "error"),
    [
        (
            "returns_a_number",
            (
                "evaluator returns_a_number returned float, not a Score; write: return "
                "Score(value, passed, reason)"
            ),
        ),
        ("goes_too_far", "the value of a score is a number from 0 to 1, not 2"),
    ],
)
def test_what_an_evaluator_gets_wrong_is_the_error_of_each_sample(
    place: EvalDirectory, evaluator: str, error: str
) -> None:
    facts = place.json_output(
        "run", place.dataset(*passing_samples(2)), "app:loop", "--evaluator", f"app:{evaluator}"
    )
    results = place.report(facts["run"])["results"]
    assert (["error", "error"], {1}) == (
        [each["ended"] for each in results],
        set(place.notes("begin").values()),
    )
    assert {True} == {each["error"].endswith(error) for each in results}


# --- the tutorial ---


def test_the_tutorial_does_what_it_says(place: EvalDirectory) -> None:
    blocks = Page.read(ROOT / "docs" / "tutorial-evals.md").blocks
    python = [block.text for block in blocks if block.info == ("python",)]
    [samples] = [block.text for block in blocks if block.info == ("json",)]
    shown = [block.text for block in blocks if block.info == ("text",)]
    (place.cwd / "capitals.jsonl").write_text(samples)
    (place.cwd / "answers.py").write_text(python[0])
    (place.cwd / "checks.py").write_text(python[1])
    words = ("run", "capitals.jsonl", "answers:loop", "--attempts", "1", "--evaluator")
    first = place.eval(*words, "longwatch.evals:contains")
    assert (0, _without_times(shown[0])) == (first.returncode, _without_times(first.stdout)), (
        first.stderr
    )
    (place.cwd / "answers.py").write_text(python[0].replace("Sydney", "Canberra"))
    second = place.json_output(*words, "checks:judge")
    before = first.stdout.split()[-2].removesuffix(":")
    compared = place.eval("compare", before, second["run"])
    assert (0, _without_times(shown[1])) == (
        compared.returncode,
        _without_times(compared.stdout),
    ), compared.stderr


def _without_times(text: str) -> list[str]:
    """Without what is different each time: names of evaluations, latencies, and how many spaces
    that leaves between words.
    """
    plain = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b|[+±-]?\d+\.\d ms", "…", text)
    return [" ".join(line.split()) for line in plain.splitlines()]
