"""The command line as people meet it: its help, and what it says about wrong use."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longwatch.cli.command_groups import HELP_GROUPS
from longwatch.cli.main import main, root

ROOT: Any = root
HELP_WIDTH = 78
"""What the library leaves of a terminal of 80 columns."""
EXAMPLES = "for example 300, 90s or 5m (units: d, h, m, s, ms)"
YEAR = f"duration from 0 s to 365 days, {EXAMPLES}"


def groups(command: Any, path: str = "longwatch") -> Iterator[tuple[str, Any]]:
    """Every group of commands below this one, itself included, with its name."""
    if hasattr(command, "commands"):
        yield path, command
        for name, child in command.commands.items():
            yield from groups(child, f"{path} {name}")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below this one, groups included, with the words that name it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(ROOT))
OPTIONS = [
    pytest.param(path, param, id=" ".join((*path, param.opts[0])))
    for path, command in COMMANDS.items()
    for param in command.params
    if param.param_type_name == "option"
]
PARSED = [
    pytest.param(path, param, id=" ".join((*path, param.opts[0])))
    for path, command in COMMANDS.items()
    for param in command.params
    if param.param_type_name == "option" and param.type.name == "parse"
]


def refused_lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines on stderr about wrong use."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert (2, "") == (ended.value.code, captured.out), captured.err
    return captured.err.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr about wrong use."""
    [line] = refused_lines(capsys, *words)
    assert line.startswith("longwatch: ")
    return line.removeprefix("longwatch: ")


def test_every_command_is_in_exactly_one_group_of_the_help() -> None:
    listed = Counter(name for names in HELP_GROUPS.values() for name in names)
    assert dict.fromkeys(ROOT.commands, 1) == listed


@pytest.mark.parametrize(
    ("path", "group"), [pytest.param(*each, id=each[0]) for each in groups(ROOT)]
)
def test_help_has_one_whole_line_for_each_command_at_80_columns(path: str, group: Any) -> None:
    parent = ROOT.make_context("longwatch", [], resilient_parsing=True, terminal_width=HELP_WIDTH)
    context = group.make_context(path, [], parent=parent, resilient_parsing=True)
    lines = group.get_help(context).splitlines()
    for name, command in group.commands.items():
        *_, line = [line for line in lines if line.startswith(f"  {name} ")]
        text = line.removeprefix(f"  {name} ").strip()
        first = " ".join(command.help.split("\n\n")[0].split())
        assert len(line) <= HELP_WIDTH
        assert first.startswith(text)
        assert text.endswith("."), "the line is cut"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_h_shows_the_help_of_every_command(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for option in ("--help", "-h"):
        with pytest.raises(SystemExit) as ended:
            main([*path, option])
        shown.append((ended.value.code, *capsys.readouterr()))
    assert shown[0] == shown[1]
    assert (0, "") == (shown[0][0], shown[0][2])
    assert "-h, --help" in shown[0][1]


def test_the_help_names_the_groups_in_their_order() -> None:
    context = ROOT.make_context("longwatch", [], resilient_parsing=True)
    titles = re.findall(r"^(\w[\w ]*):$", ROOT.get_help(context), re.MULTILINE)
    assert ["Options", *HELP_GROUPS] == titles


@pytest.mark.parametrize(("path", "param"), OPTIONS)
def test_no_option_leaves_the_check_of_its_value_to_the_library(
    path: tuple[str, ...], param: Any
) -> None:
    """The library's words are those of Python types: `'two' is not a valid int range`."""
    assert param.is_flag or param.type.name in {"path", "parse", "text", "valid_text"}, path


@pytest.mark.parametrize(("path", "param"), PARSED)
def test_a_value_that_an_option_does_not_take_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], path: tuple[str, ...], param: Any
) -> None:
    name = max(param.opts, key=len)
    line = refusal(capsys, *path, name, "two!")
    assert re.fullmatch(rf"{name} takes [^;]*[;,] got 'two!'(; did you mean [\w-]+\?)?", line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("worker", "app:group", "--processes", "two"),
            "--processes takes a whole number from 1 to 256, got 'two'",
        ),
        (
            ("worker", "app:group", "--processes=257"),
            "--processes takes a whole number from 1 to 256, got '257'",
        ),
        (
            ("mailbox", "send", "jobs", "1", "--delay", "5x"),
            f"--delay takes a duration, {EXAMPLES}; got '5x'",
        ),
        (
            ("mailbox", "send", "jobs", "1", "--delay", "366d"),
            f"--delay takes a {YEAR}; got '366d'",
        ),
        (
            ("mailbox", "send", "jobs", "1", "--delay", "1e999"),
            f"--delay takes a {YEAR}; got '1e999'",
        ),
        (
            ("mailbox", "send", "jobs", "1", "--delay", "nan"),
            f"--delay takes a duration, {EXAMPLES}; got 'nan'",
        ),
        (
            ("logs", "-n", "-1"),
            "--lines takes a whole number, 0 or more; got '-1'",
        ),
        (
            ("eval", "resume", "x", "--min-pass-rate", "nan"),
            "--min-pass-rate takes a number from 0 to 1, got 'nan'",
        ),
        (
            ("runner", "events", "tail", "--outcome", "droped"),
            (
                "--outcome takes open, run, expired, filtered, dead-lettered or dropped; got "
                "'droped'; did you mean dropped?"
            ),
        ),
        (("mailbox", "stats"), "NAME is missing; write: longwatch mailbox stats NAME"),
        (("mailbox", "send"), "NAME is missing; write: longwatch mailbox send NAME [BODY|-]"),
        (
            ("simulate", "check"),
            "--journal is missing; write: longwatch simulate check --journal FILE",
        ),
        (("init", "extra", "more"), "'extra more' is too much; write: longwatch init"),
        (("status", "--jsn"), "`longwatch status` has no option --jsn; did you mean --json?"),
        (
            ("mailbox", "ls", "--xyzzy"),
            "`longwatch mailbox ls` has no option --xyzzy; see `longwatch mailbox ls --help`",
        ),
        (("run", "--heath"), "`longwatch run` has no option --heath; did you mean --health?"),
        (("status", "-x"), "`longwatch status` has no option -x; see `longwatch status --help`"),
        (("statsu",), "`longwatch` has no command 'statsu'; did you mean status?"),
        (("xyzzy",), "`longwatch` has no command 'xyzzy'; see `longwatch --help`"),
        (
            ("mailbox", "dead", "replya"),
            "`longwatch mailbox dead` has no command 'replya'; did you mean replay?",
        ),
        (
            ("mailbox", "peek", "jobs", "--limit"),
            "--limit needs a value, and there is none; see `longwatch mailbox peek --help`",
        ),
        (("status", "--json=1"), "--json takes no value; write --json alone"),
        (("a\nb",), r"`longwatch` has no command 'a\nb'; see `longwatch --help`"),
        (("init", "a\x1bb"), r"'a\x1bb' is too much; write: longwatch init"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_one_line_with_what_to_write(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    assert line == refusal(capsys, *words)


def test_debug_shows_the_traceback_of_wrong_use_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mailbox", "stats", "--debug"])
    text = capsys.readouterr().err
    assert "Traceback (most recent call last)" in text
    assert text.endswith("longwatch: NAME is missing; write: longwatch mailbox stats NAME\n")


def test_a_value_in_an_error_is_masked_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    line = refusal(capsys, "mailbox", "peek", "jobs", "--limit", "http://me:word@h/\x1b[31m")
    assert line.isprintable()
    assert "word" not in line


def test_faults_that_say_the_same_are_listed_three_times_and_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "longwatch.toml"
    programs = [f"[program.p{number}]\ncommand = 'true'\nstop_grase = 1" for number in range(500)]
    file.write_text("\n".join([*programs, "[program.other]\ncommand = 5"]))
    words = ["check", "--config", str(file)]
    lines = refused_lines(capsys, *words)
    assert [f"program.p{number}.stop_grase" in lines[number] for number in range(3)] == 3 * [True]
    assert "longwatch: … and 497 more like this: unknown key (--debug lists them all)" == lines[3]
    assert "program.other.command" in lines[4]
    assert 5 == len(lines)
    everything = refused_lines(capsys, "--debug", *words)
    assert 501 == sum(line.startswith("longwatch: ") for line in everything)


def test_help_loads_neither_the_application_nor_the_settings() -> None:
    """`--help` is instant because commands import what they need only when they run."""
    code = (
        "import sys\n"
        "from longwatch.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert "Run things:" in done.stdout
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    packages = {".".join(name.split(".")[:2]) for name in done.stderr.split()}
    assert set() == loaded & {"msgspec", "aiohttp", "asyncio", "rich", "sqlite3"}
    assert {"cli", "core", "errors", "lazy"} == {
        name.removeprefix("longwatch.") for name in packages if name.startswith("longwatch.")
    }
