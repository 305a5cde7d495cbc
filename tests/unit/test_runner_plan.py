from __future__ import annotations

from pathlib import Path

import pytest

from longwatch.app import runner_plan as module
from longwatch.app.plans import make_plans
from longwatch.app.runner_plan import DIGEST_VARIABLE, runner_faults, store_url
from longwatch.config.settings import Settings, load_settings
from longwatch.errors import ConfigError
from longwatch.supervisor.plan import ProgramPlan

FILE = """
[runner]
{}
[runner.source.prod]
url = "https://events.example.org/stream"
[runner.agent]
command = ["sh"]
"""
ENVIRON = {"PATH": "/usr/bin:/bin"}


def load(tmp_path: Path, runner: str = "", **env: str) -> Settings:
    path = tmp_path / "longwatch.toml"
    path.write_text(FILE.format(runner), encoding="utf-8")
    return load_settings(path=path, environ=env, flags={})


def plan(tmp_path: Path, runner: str = "", **env: str) -> ProgramPlan:
    plans = make_plans(load(tmp_path, runner, **env), base=tmp_path, environ=ENVIRON | env)
    return plans["runner"]


def test_a_file_with_nothing_but_a_runner_has_one_program(tmp_path: Path) -> None:
    made = plan(tmp_path)

    assert ["-m", "longwatch", "runner", "--config", f"{tmp_path}/longwatch.toml"] == list(
        made.process.argv[1:6]
    )
    assert str(tmp_path) == made.process.cwd
    assert made.stop.grace > 35  # the drain and the grace of an agent


def test_its_ports_are_off_unless_they_are_set(tmp_path: Path) -> None:
    unset = plan(tmp_path).process.argv
    in_file = plan(tmp_path, "health_port = 8081").process.argv
    in_environment = plan(tmp_path, METRICS_PORT="9091").process.argv

    assert ("--health-port", "off", "--metrics-port", "off") == tuple(unset[6:10])
    assert "--health-port" not in in_file
    assert "--metrics-port" not in in_environment


def test_it_gets_its_variables_and_no_others_of_ours(tmp_path: Path) -> None:
    env = plan(
        tmp_path, LONGWATCH_RUNNER_MAX_ATTEMPTS="4", LONGWATCH_CONFIG="x", AGENT_TIMEOUT_SECONDS="9"
    ).process.env

    assert ("4", "9") == (env["LONGWATCH_RUNNER_MAX_ATTEMPTS"], env["AGENT_TIMEOUT_SECONDS"])
    assert "LONGWATCH_CONFIG" not in env


def test_other_settings_make_a_reload_restart_it(tmp_path: Path) -> None:
    before, same, after = plan(tmp_path), plan(tmp_path), plan(tmp_path, "max_attempts = 4")

    assert not before.needs_restart(same)
    assert before.needs_restart(after)
    assert before.process.env[DIGEST_VARIABLE] != after.process.env[DIGEST_VARIABLE]


def test_what_the_machine_lacks_is_a_fault_of_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path)
    with pytest.raises(ConfigError, match=r"runner\.agent\.command: command 'sh' was not found"):
        make_plans(settings, base=tmp_path, environ={"PATH": "/nowhere"})


def test_a_library_that_is_not_installed_is_named_by_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(tmp_path).runner
    assert runner is not None
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    [fault] = runner_faults(runner, base=tmp_path, environ=ENVIRON)

    assert "source.prod.kind" == fault.where
    assert "run: pip install 'aiohttp>=3.11'" == fault.cure


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("sqlite:///runner.db", "sqlite:////base%20dir/runner.db"),
        ("sqlite:////var/runner.db", "sqlite:////var/runner.db"),
        ("postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_the_path_of_a_store_begins_at_the_file(url: str, absolute: str) -> None:
    assert absolute == store_url(url, Path("/base dir"))
