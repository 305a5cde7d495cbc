"""The pages about the runner, followed as they stand: their settings, prompts and programs."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from event_server import serving_events
from markdown_files import ROOT, Block, Page
from run_process import run_longwatch, start_process
from runner_process import (
    LONGWATCH,
    WITHIN,
    runner_json,
    start_runner,
    wait_for_runs,
    write_runner,
)
from up_process import unused_port

AGENTS = Page.read(ROOT / "docs" / "how-to" / "agent-command.md")
TUTORIAL = Page.read(ROOT / "docs" / "tutorial-runner.md")
STAND_IN = ROOT / "tests" / "stand_in_agent.py"


def blocks(page: Page, kind: str) -> list[Block]:
    return [block for block in page.blocks if block.info[:1] == (kind,)]


def settings_of(block: Block) -> dict[str, Any]:
    """The table `runner` of a file of settings."""
    found: dict[str, Any] = tomllib.loads(block.text)["runner"]
    return found


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_the_command_line_of_a_coding_agent_works(name: str, tmp_path: Path) -> None:
    """The program is a stand-in that knows the flags; it gets prompt and event on its standard
    input and the variables that are named, and a run without the report has failed.
    """
    [settings] = [
        each
        for each in map(settings_of, blocks(AGENTS, "toml"))
        if each["agent"]["command"][0] == name
    ]
    [prompt] = blocks(AGENTS, "text")
    (tmp_path / "prompt.md").write_text(prompt.text)
    program = tmp_path / "bin" / name
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{STAND_IN.read_text()}")
    program.chmod(0o755)
    keys = {key: "secret" for key in settings["agent"]["env_names"] if key.endswith("_KEY")}
    path = f"{program.parent}:{os.environ['PATH']}"
    with serving_events() as stream:
        rest = {key: value for key, value in settings.items() if key not in {"source", "agent"}}
        write_runner(tmp_path, {"prod": stream.url}, settings["agent"], max_attempts=1, **rest)
        with start_runner(tmp_path, env={"PATH": path, "OTHER_KEY": "x", **keys}) as runner:
            stream.send(faultId="f1", note="`quoted`")
            stream.send(faultId="f2", give_up=True)
            runner.wait_for_event("agent_run_ended", times=2)
            [success] = wait_for_runs(tmp_path, 1, status="success")
            [failure] = wait_for_runs(tmp_path, 1, status="failure")
    assert "invalid_output" == failure["cause"]
    report = json.loads((Path(success["workspace"]) / "output" / "report.md").read_text())
    assert prompt.text.strip() == report["instructions"].strip()
    assert "`quoted`" == report["event"]["note"]
    assert {*keys, "LONGWATCH_RUN_ID", "LONGWATCH_DEADLINE"} <= set(report["environment"])
    assert "OTHER_KEY" not in report["environment"]


def test_the_tutorial_leads_from_the_simulator_to_an_agent_of_ones_own(tmp_path: Path) -> None:
    """Its settings with the scripted agent, then its `agent.py`: each event has one outcome."""
    port = unused_port()
    first, second = map(settings_of, blocks(TUTORIAL, "toml"))
    sources = {
        name: source["url"].replace("8090", str(port)) for name, source in first["source"].items()
    }
    [own] = blocks(TUTORIAL, "python")
    (tmp_path / "agent.py").write_text(own.text)
    second["agent"]["command"][1] = str(tmp_path / "agent.py")
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for count, settings in ((4, first), (8, second)):
        rest = {key: value for key, value in settings.items() if key not in {"source", "agent"}}
        write_runner(tmp_path, sources, settings["agent"], **rest)
        options = ("--sources", "3", "--rate", "50", "--count", f"{count}", "--port", f"{port}")
        command: list[str | Path] = [*WITHIN, LONGWATCH, "simulate", "events", *options]
        with (
            start_process([*command, "--journal", "sent.jsonl"], tmp_path),
            start_runner(tmp_path, env=path) as runner,
        ):
            runner.wait_for_event("sse_connection_established", times=3)
            checked = run_longwatch(
                LONGWATCH,
                tmp_path,
                *("simulate", "check", "--journal", "sent.jsonl", "--wait", "25"),
                within=WITHIN,
            )
            assert 0 == checked.returncode, checked.stdout + checked.stderr
    assert {"success"} == {run["status"] for run in runner_json(tmp_path, "runs", "ls")}
