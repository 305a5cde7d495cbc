"""What a slip of the pen gets: one line with the cure, exit 2, nothing started, nothing left
behind.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from run_process import clean_environment, run_longwatch

CHILD = ("touch", "started")
"""A command that would show that it was started."""


class Refusal:
    """Calls `longwatch run` wrongly in a directory and returns the lines it says, after making
    sure that nothing else happened.
    """

    def __init__(self, longwatch: Path, cwd: Path, *, within: Sequence[str] = ()) -> None:
        self.longwatch = longwatch
        self.cwd = cwd
        self.within = within

    def __call__(self, *arguments: str | Path, **env: str) -> str:
        """The one line, without its `longwatch: `."""
        [line] = self.lines("run", *arguments, **env)
        return line

    def lines(self, *arguments: str | Path, **env: str) -> list[str]:
        done = run_longwatch(self.longwatch, self.cwd, *arguments, within=self.within, env=env)
        said = done.stderr.removesuffix("\n").split("\n")
        assert (2, "") == (done.returncode, done.stdout), done.stderr
        assert [] == [line for line in said if not line.startswith("longwatch: ")]
        assert [] == [name for name in ("started", ".longwatch") if (self.cwd / name).exists()]
        return [line.removeprefix("longwatch: ") for line in said]

    def of_file(self, content: str | bytes) -> str:
        """What it says to this content of longwatch.toml."""
        self.write(content)
        return self("--config", "longwatch.toml", "--", *CHILD)

    def write(self, content: str | bytes) -> Path:
        path = self.cwd / "longwatch.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


@pytest.fixture
def refusal(longwatch_bin: Path, tmp_path: Path) -> Refusal:
    return Refusal(longwatch_bin, tmp_path)


@pytest.fixture
def unprivileged(longwatch_bin: Path) -> Iterator[Refusal]:
    """Calls `longwatch` as somebody for whom file permissions hold, in a directory that anyone
    can reach.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Refusal(longwatch_bin, Path(folder), within=as_other_user(longwatch_bin))


def as_other_user(longwatch: Path) -> tuple[str, ...]:
    """What to start it with to be another user than root."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if os.geteuid() != 0:
        return ()
    if shutil.which(nobody[0]) is None:
        pytest.skip(
            "as root, permissions can only be tested with setpriv (Debian package util-linux)"
        )
    if (
        subprocess.run(
            [*nobody, longwatch, "--version"], check=False, capture_output=True
        ).returncode
        != 0
    ):
        pytest.skip("other users than root cannot reach this checkout")
    return nobody


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


# --- the command ---


def test_no_command_is_told_where_to_write_it(refusal: Refusal) -> None:
    assert (
        "no command to run; write it after `--`, as in: longwatch run -- python app.py" == refusal()
    )


def test_a_command_that_is_not_found_gets_the_nearest_name(
    refusal: Refusal, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "serve-pages", "#!/bin/sh\n")
    line = refusal("--", "serv-pages", PATH=str(tmp_path / "bin"))
    assert "command 'serv-pages' was not found on the PATH; did you mean serve-pages?" == line


def test_a_command_like_no_other_is_told_to_check_its_spelling(refusal: Refusal) -> None:
    line = refusal("--", "zzqy-not-a-command")
    assert (
        "command 'zzqy-not-a-command' was not found on the PATH; check the spelling or give "
        "its full path" == line
    )


def test_a_path_that_does_not_exist_is_told_so(refusal: Refusal) -> None:
    assert "'./no/such' does not exist; check the path" == refusal("--", "./no/such")


def test_a_file_that_is_not_executable_gets_the_chmod(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    line = refusal("--", "./app.py")
    assert (
        "'./app.py' is not executable; make it so with chmod +x, or run it through its interpreter"
        == line
    )


@pytest.mark.parametrize("command", ["/etc", "./folder", "folder"])
def test_a_directory_is_no_command(refusal: Refusal, tmp_path: Path, command: str) -> None:
    (tmp_path / "folder").mkdir()
    assert f"{command!r} is a directory, not a command; name the program inside it" == refusal(
        "--", command
    )


def test_an_empty_command_is_told_so(refusal: Refusal) -> None:
    assert "the command is empty; write the program first, then its arguments" == refusal("--", "")


def test_a_file_of_this_directory_gets_its_dot_and_slash(refusal: Refusal, tmp_path: Path) -> None:
    executable(tmp_path / "app", "#!/bin/sh\n")
    assert "'app' is not on the PATH; for the file in this directory write ./app" == refusal(
        "--", "app"
    )


def test_a_file_name_with_a_newline_stays_on_one_line(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "two\nlines").touch()
    assert (
        r"'two\nlines' is not on the PATH; for the file in this directory write './two\nlines'"
        == refusal("--", "two\nlines")
    )


def test_a_script_whose_interpreter_is_missing_is_told_which(
    refusal: Refusal, tmp_path: Path
) -> None:
    executable(tmp_path / "app", "#! /no/such/python -u\n")
    line = refusal("--", "./app")
    assert (
        "'./app' needs the interpreter '/no/such/python', which does not exist; correct its "
        "first line" == line
    )


def test_a_script_saved_with_windows_line_ends_is_told_so(refusal: Refusal, tmp_path: Path) -> None:
    executable(tmp_path / "app", "#!/bin/sh\r\n")
    line = refusal("--", "./app")
    assert (
        r"'./app' needs the interpreter '/bin/sh\r', which does not exist; correct its first line"
        == line
    )


def test_a_file_the_kernel_cannot_execute_is_told_the_cure(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """Known only by trying: this one has begun its log, but says its one line all the same."""
    executable(tmp_path / "app", "echo no interpreter line\n")
    done = run_longwatch(longwatch_bin, tmp_path, "run", "--", "./app")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (2, "") == (done.returncode, done.stdout)
    expected = (
        "cannot execute './app': Exec format error; give it a #! line, or run it through its "
        "interpreter"
    )
    assert [f"longwatch: {expected}"] == lines
    assert (
        '"exit_code":2'
        in (tmp_path / ".longwatch" / "logs" / "watchdog.log")
        .read_text(encoding="utf-8")
        .splitlines()[-1]
    )


def test_a_missing_working_directory_is_told_so(refusal: Refusal, tmp_path: Path) -> None:
    line = refusal("--cwd", "no/where", "--", *CHILD)
    assert (
        f"the working directory '{tmp_path}/no/where' does not exist; correct --cwd, or cwd "
        f"in the settings" == line
    )


def test_a_fifo_as_command_is_told_so_and_does_not_block(refusal: Refusal, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o700)
    assert "'./pipe' is not a file that can be executed; check the path" == refusal("--", "./pipe")


def test_a_file_as_working_directory_is_told_so(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = refusal("--cwd", "file", "--", *CHILD)
    assert (
        f"the working directory '{tmp_path}/file' is not a directory; correct --cwd, or cwd "
        f"in the settings" == line
    )


def test_a_working_directory_without_permission_is_told_so(unprivileged: Refusal) -> None:
    cure = "correct --cwd, or cwd in the settings"
    (unprivileged.cwd / "closed").mkdir(mode=0)
    line = unprivileged("--cwd", "closed", "--", *CHILD)
    assert (
        f"the working directory '{unprivileged.cwd}/closed' cannot be entered (permission "
        f"denied); {cure}" == line
    )
    line = unprivileged("--cwd", "closed/inside", "--", *CHILD)
    assert (
        f"the working directory '{unprivileged.cwd}/closed/inside' cannot be reached "
        f"(permission denied); {cure}" == line
    )


def test_a_current_directory_that_was_deleted_is_told_so(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    script = 'cd gone && rmdir ../gone && exec "$0" run --state-dir off -- true'
    done = run_longwatch(Path("sh"), tmp_path, "-c", script, longwatch_bin)
    assert (2, "longwatch: the current directory no longer exists; change to one that does\n") == (
        done.returncode,
        done.stderr,
    )


def test_a_folder_on_the_path_without_permission_is_passed_over(unprivileged: Refusal) -> None:
    (unprivileged.cwd / "closed").mkdir(mode=0)
    line = unprivileged(
        "--", "zzqy-not-a-command", PATH=f"{unprivileged.cwd}/closed:{os.environ['PATH']}"
    )
    assert (
        "command 'zzqy-not-a-command' was not found on the PATH; check the spelling or give "
        "its full path" == line
    )


def test_the_name_of_our_own_log_cannot_be_the_programs(refusal: Refusal) -> None:
    line = refusal("--name", "watchdog", "--", *CHILD)
    assert "the name 'watchdog' belongs to our own log; choose another with --name" == line


# --- the file ---


def test_a_missing_file_is_told_so(refusal: Refusal) -> None:
    line = refusal("--config", "no.toml", "--", *CHILD)
    assert (
        "no.toml: cannot be read: no such file or directory; name a TOML file that you may read"
        == line
    )


def test_a_directory_as_file_is_told_so(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "folder: is a directory; name a TOML file" == refusal("--config", "folder", "--", *CHILD)


def test_a_file_without_permission_is_told_so(unprivileged: Refusal) -> None:
    unprivileged.write("").chmod(0)
    line = unprivileged("--config", "longwatch.toml", "--", *CHILD)
    assert (
        "longwatch.toml: cannot be read: permission denied; name a TOML file that you may read"
        == line
    )


def test_invalid_toml_gets_file_line_and_column(refusal: Refusal) -> None:
    line = refusal.of_file('state_dir = ".state"\n[run]\nname = \n')
    assert "longwatch.toml:3:8: is not valid TOML: invalid value; text needs quotes" == line


def test_a_file_that_is_not_utf8_gets_the_place_of_the_byte(refusal: Refusal) -> None:
    line = refusal.of_file(b'[run]\nname = "caf\xe9"\n')
    assert "longwatch.toml:2:12: is not UTF-8 text; save the file as UTF-8" == line


def test_an_unknown_key_gets_the_nearest_one(refusal: Refusal) -> None:
    line = refusal.of_file("[run]\nstop_grase = 3\n")
    assert "longwatch.toml: run.stop_grase: unknown key; did you mean stop_grace?" == line


def test_a_wrong_type_is_told_the_right_one(refusal: Refusal) -> None:
    line = refusal.of_file('[run.breaker]\nrestarts = "5"\n')
    expected = 'must be a whole number from 1 to 1000, not "5"; write it without quotes'
    assert f"longwatch.toml: run.breaker.restarts: {expected}" == line


def test_a_negative_duration_is_told_the_range(refusal: Refusal) -> None:
    line = refusal.of_file("[run]\nstop_grace = -1\n")
    assert (
        "longwatch.toml: run.stop_grace: must be a duration (0 to a year), for example 300, "
        '"90s" or "5m" (units: d, h, m, s, ms), not -1' == line
    )


def test_several_faults_are_told_at_once_in_a_line_each(refusal: Refusal) -> None:
    refusal.write('[run]\nstop_grase = 3\nrestart = "alway"\n')
    lines = refusal.lines(
        "run", "--config", "longwatch.toml", "--health-interval", "0", "--", *CHILD, PORT="abc"
    )
    assert [
        "longwatch.toml: run.stop_grase: unknown key; did you mean stop_grace?",
        (
            'longwatch.toml: run.restart: must be "always", "never" or "on-failure", not "alway"; '
            "did you mean always?"
        ),
        (
            'environment variable PORT: must be a whole number from 1 to 65535, not "abc"; '
            "correct it or unset it"
        ),
        (
            "--health-interval takes a duration (more than 0, a year at most), for example 300, "
            "90s or 5m (units: d, h, m, s, ms); got '0'"
        ),
    ] == lines


# --- environment and options ---


@pytest.mark.parametrize(
    ("port", "shown"), [("abc", '"abc"'), ("0", "0"), ("65536", "65536"), ("80 80", '"80 80"')]
)
def test_a_port_that_is_none_is_told_the_range(refusal: Refusal, port: str, shown: str) -> None:
    expected = (
        f"environment variable PORT: must be a whole number from 1 to 65535, not {shown}; correct "
        f"it or unset it"
    )
    assert expected == refusal("--", *CHILD, PORT=port)


def test_a_port_in_use_is_told_the_ways_out(refusal: Refusal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = refusal("--", *CHILD, PORT=str(port))
    assert line.startswith(
        f"port {port} is not free (address already in use), so health checks would ask "
        f"another server;"
    )
    assert line.endswith(
        "; stop that one, choose another PORT, or turn the checks off with --no-health"
    )


def test_an_unknown_option_is_told_of_the_help(refusal: Refusal) -> None:
    assert "`longwatch run` has no option --bogus; see `longwatch run --help`" == refusal(
        "--bogus", "--", *CHILD
    )


def test_an_unknown_option_cannot_write_to_the_terminal(refusal: Refusal) -> None:
    line = refusal("--bo\x1b[31m\ngus", "--", *CHILD)
    assert line.isprintable()


def test_an_option_without_its_value_is_told_so(refusal: Refusal) -> None:
    assert "--stop-grace needs a value, and there is none; see `longwatch run --help`" == refusal(
        "--stop-grace"
    )


def test_an_unknown_command_gets_the_nearest_one(refusal: Refusal) -> None:
    assert ["`longwatch` has no command 'rnu'; did you mean run?"] == refusal.lines(
        "rnu", "--", *CHILD
    )


DURATION = "a duration (0 to a year), for example 300, 90s or 5m (units: d, h, m, s, ms)"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--restart", "sometimes", "takes always, never or on-failure; got 'sometimes'"),
        (
            "--restart",
            "allways",
            "takes always, never or on-failure; got 'allways'; did you mean always?",
        ),
        (
            "--stop-signal",
            "TREM",
            "takes the name of a signal, such as TERM; got 'TREM'; did you mean TERM?",
        ),
        ("--stop-signal", "15", "takes the name of a signal, such as TERM; got '15'"),
        ("--stop-grace", "-1", f"takes {DURATION}; got '-1'"),
        ("--stop-grace", "soon", f"takes {DURATION}; got 'soon'"),
        (
            "--name",
            "a/b",
            "takes letters, digits, '.', '_' and '-', 64 at most, no '.' first; got 'a/b'",
        ),
        (
            "--log-level",
            "loud",
            "takes debug, info, warning, error or critical; got 'loud'",
        ),
    ],
)
def test_a_bad_value_is_told_what_would_be_a_good_one(
    refusal: Refusal, option: str, value: str, expected: str
) -> None:
    assert f"{option} {expected}" == refusal(option, value, "--", *CHILD)


# --- the state directory ---


def test_a_state_directory_below_a_file_is_told_the_ways_out(
    refusal: Refusal, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    line = refusal("--state-dir", "file/state", "--", *CHILD)
    cure = "choose another with --state-dir DIR, or keep no files with --state-dir off"
    assert f"cannot write to the state directory 'file/state' (not a directory); {cure}" == line


def test_a_state_directory_without_permission_is_told_the_ways_out(unprivileged: Refusal) -> None:
    """One that was asked for; without the default one, the command runs all the same."""
    unprivileged.cwd.chmod(0o555)
    line = unprivileged("--state-dir", "state", "--", *CHILD)
    cure = "choose another with --state-dir DIR, or keep no files with --state-dir off"
    assert f"cannot write to the state directory 'state' (permission denied); {cure}" == line


def test_a_log_directory_without_permission_is_told_the_ways_out(unprivileged: Refusal) -> None:
    logs = unprivileged.cwd / "state" / "logs"
    logs.mkdir(parents=True)
    (logs.parent / ".gitignore").touch()
    logs.chmod(0o555)
    line = unprivileged("--state-dir", "state", "--", *CHILD)
    cure = "choose a directory you may write to with --state-dir (`off`: no files)"
    assert f"cannot write the log state/logs/watchdog.log: permission denied; {cure}" == line


# --- the traceback ---


def test_only_debug_shows_the_traceback_and_still_ends_with_the_line(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    done = run_longwatch(longwatch_bin, tmp_path, "--debug", "run", "--", "./no/such")
    first, *_, last = done.stderr.splitlines()
    assert (2, "Traceback (most recent call last):") == (done.returncode, first)
    assert "longwatch: './no/such' does not exist; check the path" == last
    assert "in check_command" in done.stderr


def test_a_refused_run_leaves_no_process_behind(longwatch_bin: Path, tmp_path: Path) -> None:
    """Whoever were left would hold the pipe open, and the read would not end."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pipe:
        subprocess.run(
            [longwatch_bin, "run", "--", "./no/such"],
            check=False,
            cwd=tmp_path,
            env=clean_environment(),
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        assert b"longwatch: './no/such' does not exist; check the path\n" == pipe.read()
