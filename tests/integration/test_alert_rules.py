"""The alert rules of deploy/prometheus: promtool takes them, every alert is tried and explained."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

import requires
from markdown_files import ROOT, Page
from prometheus_server import promtool
from promql import unknown_parts

DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "alerts.yml"
CASES = DEPLOY / "alerts_test.yml"
HOW_TO = ROOT / "docs" / "how-to" / "alerts-and-dashboards.md"
RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks.md"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def cases() -> list[tuple[str, bool]]:
    """Each question of the cases: the alert, and whether it must fire."""
    tests = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    questions = [question for test in tests for question in test["promql_expr_test"]]
    return [
        (re.findall(r'alertname="(\w+)"', each["expr"])[0], bool(each["exp_samples"]))
        for each in questions
    ]


@pytest.fixture
def _promtool() -> None:
    requires.require_tool("promtool")


@pytest.mark.usefixtures("_promtool")
def test_promtool_takes_the_rules_and_the_example_of_a_configuration() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("check", "config", DEPLOY / "prometheus.yml")


@pytest.mark.usefixtures("_promtool")
def test_every_alert_fires_and_is_silent_as_its_cases_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    assert {(rule["alert"], fires) for rule in rules() for fires in (True, False)} == set(cases())


def test_every_alert_has_its_paragraph_in_the_runbooks_in_the_same_order() -> None:
    headings = [text for level, text in Page.read(RUNBOOKS).headings() if level == 2]
    assert [rule["alert"] for rule in rules()] == headings


def test_every_alert_has_a_severity_a_summary_a_description_and_its_runbook() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert {"summary", "description", "runbook"} == set(rule["annotations"])
        assert f"docs/how-to/runbooks.md#{rule['alert'].lower()}" == rule["annotations"]["runbook"]


def test_every_metric_and_label_in_a_rule_exists() -> None:
    assert [] == [(rule["alert"], part) for rule in rules() for part in unknown_parts(rule["expr"])]


def test_the_example_for_kubernetes_makes_an_object_with_the_same_rules() -> None:
    [example] = [block.text for block in Page.read(HOW_TO).blocks if block.info == ("sh",)]
    done = subprocess.run(
        ["sh", "-c", example.replace("kubectl apply -f -", "cat")],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    made = yaml.safe_load(done.stdout)
    assert "PrometheusRule" == made["kind"]
    assert yaml.safe_load(RULES.read_text(encoding="utf-8")) == made["spec"]
