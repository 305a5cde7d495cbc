from __future__ import annotations

from pathlib import Path

import pytest

from longwatch.config.runner import OPTIONS, RunnerSettings, variable_name
from longwatch.config.runner_specs import (
    agent_spec,
    masked_runner_settings,
    missing_variables,
    runner_policy,
    source_spec,
)
from longwatch.config.settings import flag_name, load_settings
from longwatch.errors import ConfigError
from longwatch.runner.policy import AgentSpec, RunnerPolicy, SourceKind, SourceSpec

FILE = """
[runner]
{}
[runner.source.prod]
url = "https://events.example.org/stream"
{}
[runner.agent]
command = ["agent"]
{}
"""

CHAPTER = {
    "AGENT_TIMEOUT_SECONDS": ("--agent-timeout", 300),
    "MAX_QUEUE_AGE_SECONDS": ("--max-queue-age", 600),
    "QUEUE_SWEEP_INTERVAL_SECONDS": ("--queue-sweep-interval", 60),
    "SHUTDOWN_TIMEOUT_SECONDS": ("--shutdown-timeout", 30),
    "METRICS_HOST": ("--metrics-host", "0.0.0.0"),
    "HEALTH_HOST": ("--health-host", "0.0.0.0"),
    "SSE_RECONNECT_INITIAL_DELAY_SECONDS": ("--sse-reconnect-initial-delay", 1),
    "SSE_RECONNECT_MAX_DELAY_SECONDS": ("--sse-reconnect-max-delay", 60),
    "SSE_READ_TIMEOUT_SECONDS": ("--sse-read-timeout", 120),
    "SEVERITY_THRESHOLD": ("--severity-threshold", "info"),
    "MAX_CONCURRENT_AGENTS": ("--max-concurrent-agents", 5),
    "LONGWATCH_RUNNER_MAX_CONCURRENT_PER_SOURCE": ("--max-concurrent-per-source", 1),
    "LONGWATCH_RUNNER_SOURCE_QUEUE_SIZE": ("--source-queue-size", 1000),
    "LONGWATCH_RUNNER_QUEUE_OVERFLOW_POLICY": ("--queue-overflow-policy", "drop-oldest"),
    "LONGWATCH_RUNNER_DEDUP_WINDOW_SECONDS": ("--dedup-window", 300),
    "LONGWATCH_RUNNER_MAX_ATTEMPTS": ("--max-attempts", 3),
    "LONGWATCH_RUNNER_WORK_BREAKER_FAILURES": ("--work-breaker-failures", 5),
    "LONGWATCH_RUNNER_WORK_BREAKER_COOLDOWN_SECONDS": ("--work-breaker-cooldown", 300),
    "LONGWATCH_RUNNER_STORE_URL": ("--store-url", "sqlite:///longwatch.db"),
    "LONGWATCH_RUNNER_METRICS_NAMESPACE": ("--metrics-namespace", "longwatch_runner"),
    "LONGWATCH_RUNNER_PROGRESS_TIMEOUT_SECONDS": ("--progress-timeout", "off"),
    "LONGWATCH_RUNNER_MAX_THREADS": ("--max-threads", "off"),
    "LONGWATCH_RUNNER_MAX_TASKS": ("--max-tasks", "off"),
    "LONGWATCH_RUNNER_MAX_RSS_MB": ("--max-rss-mb", "off"),
}


def loaded(
    tmp_path: Path, runner: str = "", source: str = "", agent: str = "", **env: str
) -> RunnerSettings:
    path = tmp_path / "longwatch.toml"
    path.write_text(FILE.format(runner, source, agent), encoding="utf-8")
    settings = load_settings(path=path, environ=env, flags={}).runner
    assert settings is not None
    return settings


def faults(tmp_path: Path, *tables: str, **env: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, *tables, **env)
    return str(refused.value)


def test_names_and_defaults_of_the_settings_are_fixed(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    options = {variable_name(option): option for option in OPTIONS}

    assert {
        name: (flag_name(f"runner.{options[name]}"), getattr(settings, options[name]))
        for name in CHAPTER
    } == CHAPTER
    assert "METRICS_PORT" in options
    assert "HEALTH_PORT" in options


def test_the_defaults_are_those_of_a_runner_made_in_code(tmp_path: Path) -> None:
    settings = loaded(tmp_path)

    assert RunnerPolicy() == runner_policy(settings)
    assert AgentSpec(command=("agent",), workspace=tmp_path / "runs") == agent_spec(
        settings.agent, base=tmp_path
    )
    source = source_spec("prod", settings.source["prod"], base=tmp_path, environ={})
    assert SourceSpec(name="prod", url="https://events.example.org/stream") == source


def test_a_flag_is_stronger_than_the_environment_and_that_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(FILE.format("agent_timeout = 1\nmax_attempts = 7", "", ""), encoding="utf-8")
    environ = {"AGENT_TIMEOUT_SECONDS": "2", "MAX_QUEUE_AGE_SECONDS": "off"}
    found = load_settings(path=path, environ=environ, flags={"runner.agent_timeout": "3"}).runner
    assert found is not None

    policy = runner_policy(found)

    assert (3.0, None, 7) == (policy.agent_timeout, policy.max_queue_age, policy.max_attempts)


def test_the_variables_of_a_runner_are_nothing_to_a_file_without_one() -> None:
    """HEALTH_PORT and its like are words that other programs use, too."""
    assert load_settings(path=None, environ={"HEALTH_PORT": "abc"}, flags={}).runner is None


def test_all_faults_are_reported_at_once_each_with_its_cure(tmp_path: Path) -> None:
    runner = """
        agent_timout = 3
        max_attempts = 0
        agent_timeout = 0
        severity_threshold = "warn"
        store_url = "redis://user:hunter2@host"
    """
    text = faults(tmp_path, runner, 'urll = "x"', 'success = {file = "../x"}', METRICS_PORT="-1")

    assert "runner.agent_timout: unknown key; did you mean agent_timeout?" in text
    assert "runner.max_attempts: must be a whole number from 1" in text
    assert 'runner.agent_timeout: must be "off" or a duration (more than 0' in text
    assert "runner.severity_threshold: must be" in text
    assert "did you mean warning?" in text
    assert "runner.store_url: must be a SQL store" in text
    assert "hunter2" not in text
    assert "runner.source.prod.urll: unknown key; did you mean url?" in text
    assert "runner.agent.success.file: is outside the workspace" in text
    assert "environment variable METRICS_PORT: must be a port" in text


@pytest.mark.parametrize(
    ("runner", "source", "agent", "words"),
    [
        ("sse_reconnect_initial_delay = 90", "", "", "sse_reconnect_max_delay: must not be less"),
        ("health_port = 1234\nmetrics_port = 1234", "", "", "metrics_port: is 1234, as health_"),
        ("", 'headers = {"a b" = "x"}', "", "is not the name of a header"),
        ("", 'headers = {Accept = "x"}', "", "a header that the connection sets itself"),
        ("", 'headers = {A = "x\\ny"}', "", "has a control character"),
        ("", 'token_file = "t"\nheaders.Authorization = "x"', "", "is set, and token_file too"),
        ("", 'key_file = "k"', "", "is set, and cert_file is not"),
        ("", 'logger = "other"', "", 'is for kind "mcp"'),
        ("", "", "env_names = 3", "must be a list"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, runner: str, source: str, agent: str, words: str
) -> None:
    assert words in faults(tmp_path, runner, source, agent)


@pytest.mark.parametrize("url", ["ftp://x/y", "host/path", "http://", "http://a b/", "http://a:b"])
def test_a_url_that_no_stream_can_have_is_refused(tmp_path: Path, url: str) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(
        f'[runner.source.prod]\nurl = "{url}"\n[runner.agent]\ncommand = "agent"\n',
        encoding="utf-8",
    )
    with pytest.raises(ConfigError, match=r'source\.prod\.url: .*write it as "https://host/path"'):
        load_settings(path=path, environ={}, flags={})


@pytest.mark.parametrize("source", ["", "[runner.source]"])
def test_a_runner_without_a_source_or_an_agent_is_refused(tmp_path: Path, source: str) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(f"[runner]\n{source}\n[runner.agent]\ncommand = 'x'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runner\.source.*\[runner\.source\.NAME\]"):
        load_settings(path=path, environ={}, flags={})
    path.write_text(f"[runner]\n{source}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"runner\.agent\.command: is missing"):
        load_settings(path=path, environ={}, flags={})


def test_a_secret_comes_from_the_variable_that_the_file_names(tmp_path: Path) -> None:
    source = 'headers = {Authorization = {env = "TOKEN"}, X-Plain = "abc"}\nkind = "mcp"'
    settings = loaded(tmp_path, "", source).source["prod"]

    spec = source_spec("prod", settings, base=tmp_path, environ={"TOKEN": "Bearer hunter2"})

    assert {"Authorization": "Bearer hunter2", "X-Plain": "abc"} == spec.headers
    assert SourceKind.MCP is spec.kind
    assert [("Authorization", "TOKEN")] == list(missing_variables(settings, {}))


def test_no_secret_is_in_the_settings_that_are_shown(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        'store_url = "postgresql://user:hunter2@host/db"',
        'headers = {X-Plain = "hunter2"}',
        'env.API_KEY = "hunter2"',
    )

    shown = masked_runner_settings(settings)

    assert "hunter2" not in repr(shown)
    assert 300.0 == shown["agent_timeout"]


def test_a_program_cannot_have_the_name_of_the_runner(tmp_path: Path) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(FILE.format("", "", "") + "[program.runner]\ncommand = 'x'\n", "utf-8")
    with pytest.raises(ConfigError, match=r"program\.runner: has the name of the runner"):
        load_settings(path=path, environ={}, flags={})


def test_a_value_in_place_of_the_agent_table_has_one_fault(tmp_path: Path) -> None:
    """Its keys are not reported as missing, too."""
    path = tmp_path / "longwatch.toml"
    path.write_text(
        '[runner]\nagent = "x"\n[runner.source.prod]\nurl = "https://events.example.org/"\n',
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as refused:
        load_settings(path=path, environ={}, flags={})
    [fault] = refused.value.faults
    assert str(fault).endswith('runner.agent: must be a table, not "x"')
