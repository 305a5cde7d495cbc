"""Events are for logs, metrics and tests. Code that acts is called directly, through a typed seam
such as `ProgramListener`, because `Events.emit` ignores what an observer raises.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "longwatch"

OBSERVERS = {
    ("app/run.py", "console.log"): "writes the log",
    ("app/runner.py", "console.log"): "writes the log",
    ("app/runner.py", "self._metrics.observe"): "counts for the metrics",
    ("app/up.py", "console.log"): "writes the log",
    ("app/up_health.py", "self._counters"): "counts for the metrics",
    ("app/worker.py", "console.log"): "writes the log",
    ("engine/event_logging.py", "log_event"): "writes to the standard library's logging",
    ("page/command.py", "console.log"): "writes the log",
    ("runtime/group_run.py", "metrics.observe"): "counts for the metrics",
    ("testing/graph_run.py", "self.observer"): "the RecordingObserver of a test",
    ("testing/stepped_worker.py", "self._forward_event"): "passes on to the observer of a test",
    ("workers/parent.py", "self.monitor.observe"): "counts for the metrics",
    ("workers/program_relay.py", "self._relay.log"): "the log of events of the parent",
    ("workers/worker_process.py", "log"): "writes the log",
    ("workers/worker_process.py", "relay.log"): "the log of events of the parent",
}
"""What may subscribe, by file and observer, and why that is no action."""

READERS = ("core/events/", "observe/", "engine/event_logging.py")
"""Where the class of an event is looked at: to write it and to count it."""


def subscriptions(tree: ast.AST) -> Iterator[str]:
    """The observers that are given to `Events(…)` or to `….events.subscribe(…)`."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        names = ast.unparse(call.func).split(".")
        if names[-1] in {"Events", "LoggedEvents"} or (
            names[-1] == "subscribe" and names[-2].strip("_").endswith("events")
        ):
            yield from (ast.unparse(argument) for argument in call.args)


def event_classes(tree: ast.AST) -> set[str]:
    """The names that a module imports from the events."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("longwatch.core.events")
        for alias in node.names
    } - {"Events", "Level", "Observer"}


def distinctions(tree: ast.AST) -> Iterator[str]:
    """Where code asks what kind of event it was given: `isinstance` and `case`."""
    classes = event_classes(tree)
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        for each in asked:
            if classes & {name.id for name in ast.walk(each) if isinstance(name, ast.Name)}:
                yield ast.unparse(each)


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text(encoding="utf-8"))


def test_only_logs_metrics_and_tests_subscribe_to_events() -> None:
    found = {(path, observer) for path, tree in modules() for observer in subscriptions(tree)}
    assert set(OBSERVERS) == found


def test_no_feature_asks_what_kind_of_event_happened() -> None:
    assert [] == [
        (path, asked)
        for path, tree in modules()
        if not path.startswith(READERS)
        for asked in distinctions(tree)
    ]


@pytest.mark.parametrize(
    ("code", "observers"),
    [
        ("Events(self._act)", ["self._act"]),
        ("self._events.subscribe(self._act)", ["self._act"]),
        ("group.events.subscribe(lambda event: act())", ["lambda event: act()"]),
        ("events.subscribe(act)", ["act"]),
        ("Events()", []),
        ("wakeup.subscribe(act)", []),
    ],
)
def test_a_subscription_is_found(code: str, observers: list[str]) -> None:
    assert observers == list(subscriptions(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(event, ProgramEnded)",
        "isinstance(event, (int, ProgramEnded))",
        "isinstance(event, int | ProgramEnded)",
        "match event:\n    case ProgramEnded(restart=False): act()",
    ],
)
def test_a_question_for_the_kind_of_an_event_is_found(code: str) -> None:
    imported = "from longwatch.core.events.programs import ProgramEnded\n"
    assert 1 == len(list(distinctions(ast.parse(imported + code))))
    assert [] == list(distinctions(ast.parse(code)))
