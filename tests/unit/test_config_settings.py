from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.config.settings import (
    VARIABLES,
    LogSettings,
    RunSettings,
    Settings,
    flag_name,
    load_settings,
    masked_settings,
)
from longwatch.config.tables import BackoffSettings, BreakerSettings, HealthSettings
from longwatch.core.events.base import Level
from longwatch.errors import ConfigError


def load(
    text: str = "",
    *,
    tmp_path: Path | None = None,
    environ: dict[str, str] | None = None,
    **flags: object,
) -> Settings:
    path = None
    if tmp_path is not None:
        path = tmp_path / "longwatch.toml"
        path.write_text(text)
    return load_settings(
        path=path,
        environ=environ or {},
        flags={name.replace("__", "."): value for name, value in flags.items()},
    )


def fault_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path=tmp_path)
    (fault,) = caught.value.faults
    return str(fault).removeprefix(f"{tmp_path}/longwatch.toml: ")


def test_the_defaults_are_the_ones_that_are_documented() -> None:
    run = load().run

    assert (15.0, 60.0, "on-failure", None) == (
        run.stop_grace,
        run.stable_after,
        run.restart,
        run.stop_signal,
    )
    assert BackoffSettings(initial=1.0, factor=2.0, cap=30.0, jitter=0.0) == run.backoff
    assert BreakerSettings(restarts=5, window=60.0, cooldown=300.0) == run.breaker
    assert (
        HealthSettings(path="/health", interval=30.0, timeout=5.0, failures=3, start_grace=10.0)
        == run.health
    )
    assert (
        LogSettings(level=Level.INFO, format="auto", max_bytes=10 * 1024 * 1024, keep=5) == run.log
    )
    assert Path(".longwatch") == load().state_path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    settings = load(
        """
        state_dir = "off"
        [run]
        name = "web-1"
        command = ["python3", "-m", "http.server", ""]
        cwd = "/srv"
        env = {LANG = "C"}
        restart = "always"
        restart_codes = [2]
        no_restart_codes = [7]
        stop_signal = "SIGINT"
        [run.backoff]
        initial = 0
        jitter = 0.5
        [run.breaker]
        cooldown = "off"
        [run.log]
        level = "error"
        format = "json"
        """,
        tmp_path=tmp_path,
    )

    assert settings.state_path is None
    assert signal.SIGINT is settings.run.stop_signal_number
    assert RunSettings(
        name="web-1", command=["python3", "-m", "http.server", ""], cwd="/srv",
        env={"LANG": "C"}, restart="always", restart_codes=[2], no_restart_codes=[7],
        stop_signal="SIGINT", backoff=BackoffSettings(initial=0.0, jitter=0.5),
        breaker=BreakerSettings(cooldown="off"), log=LogSettings(level=Level.ERROR, format="json"),
    ) == settings.run  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "text", "checked", "url"),
    [
        ({}, "", False, "http://127.0.0.1:8080/health"),
        ({"PORT": "3000"}, "", True, "http://127.0.0.1:3000/health"),
        ({"PORT": ""}, "", False, "http://127.0.0.1:8080/health"),
        ({}, "port = 9000\npath = '/up'", True, "http://127.0.0.1:9000/up"),
        ({"PORT": "3000"}, "port = 9000", True, "http://127.0.0.1:3000/health"),
        ({}, "enabled = true", True, "http://127.0.0.1:8080/health"),
        ({"PORT": "3000"}, "enabled = false", False, "http://127.0.0.1:3000/health"),
        (
            {"PORT": "3000", "HEALTH_CHECK_ENABLED": "false"},
            "",
            False,
            "http://127.0.0.1:3000/health",
        ),
        ({"HEALTH_CHECK_ENABLED": "No"}, "enabled = true", False, "http://127.0.0.1:8080/health"),
        ({"HEALTH_CHECK_ENABLED": "0"}, "port = 9000", False, "http://127.0.0.1:9000/health"),
        ({"HEALTH_CHECK_ENABLED": "true"}, "", False, "http://127.0.0.1:8080/health"),
        ({"HEALTH_CHECK_ENABLED": "1", "PORT": "3000"}, "", True, "http://127.0.0.1:3000/health"),
    ],
)
def test_health_is_checked_when_a_port_is_set_and_nobody_turned_it_off(
    tmp_path: Path,
    environ: dict[str, str],
    text: str,
    checked: bool,  # noqa: FBT001 - a column of the table
    url: str,
) -> None:
    health = load(f"[run.health]\n{text}", tmp_path=tmp_path, environ=environ).run.health

    assert (checked, url) == (health.effective_enabled, health.url)


def test_the_health_flag_counts_more_than_the_variable_that_turns_checks_off() -> None:
    assert load(
        environ={"HEALTH_CHECK_ENABLED": "false"}, run__health__enabled=True
    ).run.health.effective_enabled


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("1", Level.DEBUG),
        ("true", Level.DEBUG),
        ("YES", Level.DEBUG),
        ("0", Level.INFO),
        ("", Level.INFO),
        ("app:*", Level.INFO),
    ],
)
def test_debug_makes_the_log_loud_and_other_peoples_use_of_it_is_left_alone(
    value: str, level: Level
) -> None:
    assert level is load(environ={"DEBUG": value}).run.log.level


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ("kind = 'tcp'", True),
        ("kind = 'heartbeat'", True),
        ("command = 'true'", True),
        ("interval = 5", False),
    ],
)
def test_a_kind_or_a_command_turns_the_checks_of_run_on_too(
    tmp_path: Path,
    text: str,
    checked: bool,  # noqa: FBT001
) -> None:
    assert checked == load(f"[run.health]\n{text}", tmp_path=tmp_path).run.health.effective_enabled


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("'ls -l'", ["ls", "-l"]),
        ("""'serve "a b" --name=x\\ y'""", ["serve", "a b", "--name=x y"]),
        ("['ls', '-l $HOME', '|']", ["ls", "-l $HOME", "|"]),
    ],
)
def test_a_command_is_a_list_of_words_or_a_text_that_is_split_into_them(
    tmp_path: Path, command: str, words: list[str]
) -> None:
    assert words == load(f"run.command = {command}", tmp_path=tmp_path).run.argv


@pytest.mark.parametrize(
    "word", ["|", "&&", "&", ";", ">", ">>log", "2>&1", "<", "$HOME", "a:${B}", "$(date)", "`date`"]
)
def test_a_text_that_was_meant_for_a_shell_is_refused_with_the_way_to_one(
    tmp_path: Path, word: str
) -> None:
    cure = 'write ["sh", "-c", "…"], or a list if it is meant as it is'
    fault = f"run.command: has {word!r}, which only a shell understands; {cure}"

    assert fault == fault_of(tmp_path, f"run.command = 'a {word}'")


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("2097152", 2097152),
        ("'512MB'", 512_000_000),
        ("'512 MiB'", 512 << 20),
        ("'2gib'", 2 << 30),
        ("'1TB'", 10**12),
    ],
)
def test_sizes_go_by_thousands_and_those_with_an_i_by_1024(
    tmp_path: Path, size: str, count: int
) -> None:
    assert count == load(f"run.limits.memory = {size}", tmp_path=tmp_path).run.limits.memory_bytes


def test_a_umask_is_octal(tmp_path: Path) -> None:
    assert 0o027 == load("run.umask = '027'", tmp_path=tmp_path).run.umask_number


def test_the_state_directory_comes_from_its_flag_else_its_variable_else_the_file(
    tmp_path: Path,
) -> None:
    text, environ = "state_dir = 'a'", {"LONGWATCH_STATE_DIR": "b"}

    assert "a" == load(text, tmp_path=tmp_path).state_dir
    assert "b" == load(text, tmp_path=tmp_path, environ=environ).state_dir
    assert "c" == load(text, tmp_path=tmp_path, environ=environ, state_dir="c").state_dir


def test_nothing_is_read_from_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, "nonsense")

    assert Settings() == load()


EXAMPLES = 'for example 300, "90s" or "5m" (units: d, h, m, s, ms)'
PERIOD = f"duration (more than 0, a year at most), {EXAMPLES}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "run.stop_grace = -1",
            f"run.stop_grace: must be a duration (0 to a year), {EXAMPLES}, not -1",
        ),
        (
            "run.stop_grace = 1e12",
            f"run.stop_grace: must be a duration (0 to a year), {EXAMPLES}, not 1000000000000.0",
        ),
        (
            "run.health.interval = 0",
            f"run.health.interval: must be a {PERIOD}, not 0",
        ),
        (
            "run.health.timeout = 0",
            f"run.health.timeout: must be a {PERIOD}, not 0",
        ),
        (
            "run.breaker.window = 0",
            f"run.breaker.window: must be a {PERIOD}, not 0",
        ),
        (
            "run.breaker.restarts = 0",
            "run.breaker.restarts: must be a whole number from 1 to 1000, not 0",
        ),
        (
            "run.breaker.cooldown = 'no'",
            f'run.breaker.cooldown: must be "off" or a {PERIOD}, not "no"',
        ),
        (
            "run.backoff.factor = 0.5",
            "run.backoff.factor: must be a number from 1 to 1000, not 0.5",
        ),
        ("run.backoff.jitter = 1.1", "run.backoff.jitter: must be a number from 0 to 1, not 1.1"),
        (
            "run.backoff.cap = 0.5",
            (
                "run.backoff.cap: must not be less than initial (1), not 0.5; raise cap or lower "
                "initial"
            ),
        ),
        ("run.health.port = 0", "run.health.port: must be a whole number from 1 to 65535, not 0"),
        (
            "run.health.port = 65536",
            "run.health.port: must be a whole number from 1 to 65535, not 65536",
        ),
        (
            "run.health.path = 'up'",
            'run.health.path: must be a URL path that begins with "/" and has no spaces, not "up"',
        ),
        (
            'run.health.path = "/a\\r\\nX: y"',
            (
                r'run.health.path: must be a URL path that begins with "/" and has no spaces, not '
                r'"/a\r\nX: y"'
            ),
        ),
        (
            "run.stop_signal = 'TREM'",
            (
                'run.stop_signal: must be the name of a signal, such as "TERM", not "TREM"; did '
                "you mean TERM?"
            ),
        ),
        (
            "run.restart = 'alway'",
            (
                'run.restart: must be "always", "never" or "on-failure", not "alway"; did you '
                "mean always?"
            ),
        ),
        (
            "run.restart_codes = [256]",
            "run.restart_codes[0]: must be a whole number from 0 to 255, not 256",
        ),
        (
            "run = {restart_codes = [3, 4], no_restart_codes = [4]}",
            (
                "run.no_restart_codes: has 4, which is in restart_codes too; take it out of one "
                "of the two"
            ),
        ),
        (
            "run.command = []",
            "run.command: names no program; write the program first, then its arguments",
        ),
        (
            "run.command = ['', 'x']",
            "run.command: names no program; write the program first, then its arguments",
        ),
        (
            "run.command = ' '",
            "run.command: names no program; write the program first, then its arguments",
        ),
        (
            "run.command = 5",
            (
                'run.command: must be a list such as ["python3", "worker.py"], or a text that is '
                "split, not 5; put it in quotes"
            ),
        ),
        (
            "run.command = 'a \"b'",
            (
                "run.command: cannot be split into words (no closing quotation); close the "
                "quotes, or write it as a list"
            ),
        ),
        (
            'run.command = "a\\u0000b"',
            "run.command: has a null byte, which no command can; take it out",
        ),
        (
            "run.umask = 22",
            'run.umask: must be three octal digits in quotes, such as "022", not 22',
        ),
        (
            "run.umask = '089'",
            'run.umask: must be three octal digits in quotes, such as "022", not "089"',
        ),
        (
            "run.limits.memory = '5M'",
            (
                'run.limits.memory: must be a number of bytes, or a size such as "512MB" or '
                '"2GiB", not "5M"'
            ),
        ),
        (
            "run.limits.memory = '1MB'",
            (
                "run.limits.memory: is 1000000 bytes, with which nothing can start; give it more, "
                'such as "512MB"'
            ),
        ),
        (
            "run.limits.open_files = 3",
            "run.limits.open_files: must be a whole number from 16 to 1073741824, not 3",
        ),
        ("run.limits.nice = 20", "run.limits.nice: must be a whole number from -20 to 19, not 20"),
        (
            "supervisor.keep_days = 0",
            'supervisor.keep_days: must be a whole number from 1 to 36500 or "off", not 0',
        ),
        (
            "run.env = {'A=B' = 'x'}",
            'run.env."A=B": must be named without \'=\', and not empty, not "A=B"',
        ),
        (
            "run.name = 'a/b'",
            (
                "run.name: must be letters, digits, '.', '_' and '-', 64 at most, no '.' first, "
                'not "a/b"'
            ),
        ),
        (
            "run.name = '..'",
            (
                "run.name: must be letters, digits, '.', '_' and '-', 64 at most, no '.' first, "
                'not ".."'
            ),
        ),
        ("run.log.keep = -1", "run.log.keep: must be a whole number from 0 to 1000, not -1"),
        ("run.log.levle = 'x'", "run.log.levle: unknown key; did you mean level?"),
        ("state_dir = ''", 'state_dir: must be text that is not empty, not ""'),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused_with_what_it_must_be(
    tmp_path: Path, text: str, fault: str
) -> None:
    assert fault == fault_of(tmp_path, text)


def test_a_null_byte_cannot_get_into_a_command(tmp_path: Path) -> None:
    assert fault_of(tmp_path, 'run.command = ["a\\u0000b"]').startswith(
        "run.command[0]: must be text"
    )


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PORT", "abc"), ("PORT", "0"), ("PORT", "80.5"), ("HEALTH_CHECK_ENABLED", "maybe")],
)
def test_a_variable_with_a_value_it_cannot_have_is_refused(variable: str, value: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"environment variable {variable}: must be .*{value}.*correct it or unset it",
    ):
        load(environ={variable: value})


def test_the_shown_settings_are_plain_json_without_secrets() -> None:
    shown = json.dumps(
        masked_settings(
            load(
                run__env={"API_KEY": "s3cret", "LANG": "C"},
                run__command=["serve", "--token=s3cret", "a://u:s3cret@h"],
            )
        )
    )

    assert "s3cret" not in shown
    assert '"LANG": "C"' in shown


def test_secrets_of_commands_that_are_written_as_texts_are_masked_too(tmp_path: Path) -> None:
    text = (
        "program.web = {command = 'serve --token=s3cret', health.command = 'probe "
        "--password=s3cret'}"
    )
    shown = json.dumps(masked_settings(load(text, tmp_path=tmp_path)))

    assert "s3cret" not in shown
    assert '"--token=***"' in shown


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        ("state_dir", "--state-dir"),
        ("run.stop_grace", "--stop-grace"),
        ("run.health.port", "--health-port"),
        ("run.health.enabled", "--health"),
        ("supervisor.log.level", "--log-level"),
    ],
)
def test_a_flag_is_called_after_its_setting(path: str, flag: str) -> None:
    assert flag == flag_name(path)


@pytest.mark.parametrize(
    ("text", "seconds"), [('"5m"', 300), ('"1h30m"', 5400), ('"90"', 90), ("1.5", 1.5)]
)
def test_a_duration_in_the_file_is_seconds_or_a_text_with_units(
    tmp_path: Path, text: str, seconds: float
) -> None:
    settings = load(f"run.stop_grace = {text}\nrun.breaker.cooldown = {text}", tmp_path=tmp_path)
    assert (seconds, seconds) == (settings.run.stop_grace, settings.run.breaker.cooldown)


@pytest.mark.parametrize("text", ["5x", "-5m", "nan", "inf", "366d", "1e999", ""])
def test_a_text_that_is_no_duration_of_up_to_a_year_is_refused(tmp_path: Path, text: str) -> None:
    fault = fault_of(tmp_path, f'run.stop_grace = "{text}"')
    assert fault.startswith("run.stop_grace: must be a duration (0 to a year), for example 300")


def test_durations_in_the_environment_and_in_flags_may_have_units_too() -> None:
    assert 300 == load(run__stop_grace="5m").run.stop_grace


def test_a_wrong_flag_is_named_as_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match=r"^--stop-grace takes a duration .*; got '-1.0'$"):
        load(run__stop_grace=-1.0)


@given(
    st.dictionaries(
        st.sampled_from([variable.name for variable in VARIABLES]),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_whatever_the_environment_says_there_are_settings_or_faults(
    environ: dict[str, str],
) -> None:
    try:
        load(environ=environ)
    except ConfigError as error:
        assert all(str(fault).isprintable() for fault in error.faults)  # noqa: PT017 - raising is allowed, not required
