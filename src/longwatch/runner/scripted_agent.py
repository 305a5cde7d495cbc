"""A scripted agent for demos and tests: it reads `event.json` and does one scripted action.

    python -m longwatch.runner.scripted_agent [OPTIONS]

The first of these chooses the action: the field `script` of the event, the first matching
`--when FIELD=VALUE:DO`, `--do`. FIELD may be a path into the event, as in `context.namespace`.

    succeed          write output/report.md, exit 0
    no-output        exit 0 without a report
    fail             write to stderr, exit 1
    crash            end by SIGSEGV
    hang             sleep for ever; SIGTERM ends it
    ignore-sigterm   sleep for ever; only SIGKILL ends it
    fork             leave a child that sleeps for ever and ignores SIGTERM, then succeed
    escape           as fork, with the child in a session of its own
    hold-pipe        leave a child that holds stdout and stderr open, then succeed
    flood            write `--flood-bytes` to stdout, then succeed
    fail-first       fail at the first attempt of an event, then succeed

It needs nothing but the standard library, so it starts as quickly as Python does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOREVER = 10**8
CHUNK = b"x" * 4095 + b"\n"


class ScriptedAgent:
    """One run of the agent in the current directory, its workspace."""

    def __init__(self, event: Mapping[str, Any], options: argparse.Namespace) -> None:
        self._event = event
        self._options = options

    def run(self, action: str) -> int:
        """Do one action. Return the exit code."""
        time.sleep(self._options.seconds)
        return ACTIONS[action](self)

    def succeed(self) -> int:
        report = Path("output") / "report.md"
        report.parent.mkdir(exist_ok=True)
        fault = json.dumps(self._event, indent=2, ensure_ascii=False)
        report.write_text(
            f"# {self._event.get('faultType', 'Fault')} of {self._event.get('resource')}\n\n"
            f"A scripted agent has looked at it. There was nothing to repair.\n\n"
            f"```json\n{fault}\n```\n",
            encoding="utf-8",
        )
        os.write(1, f"report written: {report}\n".encode())
        return 0

    def no_output(self) -> int:
        return 0

    def fail(self) -> int:
        os.write(2, b"scripted agent: this run fails, as its script says\n")
        return 1

    def crash(self) -> int:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
        return self.hang()

    def hang(self) -> int:
        os.write(1, b"hanging\n")
        time.sleep(FOREVER)
        return 1

    def ignore_sigterm(self) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self.hang()

    def fork(self) -> int:
        self._leave_child()
        return self.succeed()

    def escape(self) -> int:
        self._leave_child(has_own_session=True)
        return self.succeed()

    def hold_pipe(self) -> int:
        self._leave_child(keeps_pipes=True)
        return self.succeed()

    def flood(self) -> int:
        left = self._options.flood_bytes
        while left > 0:
            left -= os.write(1, CHUNK[:left])
        return self.succeed()

    def fail_first(self) -> int:
        return self.fail() if run_facts(self._event).get("attempt", 1) == 1 else self.succeed()

    def _leave_child(self, *, has_own_session: bool = False, keeps_pipes: bool = False) -> None:
        if os.fork():
            return
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if has_own_session:
            os.setsid()
        if not keeps_pipes:
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
        time.sleep(FOREVER)
        os._exit(0)


ACTIONS: Mapping[str, Callable[[ScriptedAgent], int]] = {
    "succeed": ScriptedAgent.succeed,
    "no-output": ScriptedAgent.no_output,
    "fail": ScriptedAgent.fail,
    "crash": ScriptedAgent.crash,
    "hang": ScriptedAgent.hang,
    "ignore-sigterm": ScriptedAgent.ignore_sigterm,
    "fork": ScriptedAgent.fork,
    "escape": ScriptedAgent.escape,
    "hold-pipe": ScriptedAgent.hold_pipe,
    "flood": ScriptedAgent.flood,
    "fail-first": ScriptedAgent.fail_first,
}


def choose_action(event: Mapping[str, Any], options: argparse.Namespace) -> str:
    """Return the action for this event."""
    if (ordered := event.get("script")) in ACTIONS:
        return str(ordered)
    for field, value, action in options.when:
        if str(field_value(event, field)) == value:
            return str(action)
    return str(options.do)


def field_value(event: Mapping[str, Any], path: str) -> object:
    """Return a field of the event by its path; None if it does not exist."""
    found: Any = event
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def run_facts(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts that the runner adds to an event: run, event, source, attempt."""
    facts = event.get("longwatch")
    return facts if isinstance(facts, Mapping) else {}


def parse_rule(text: str) -> tuple[str, str, str]:
    """Parse a `--when` rule into field, value and action."""
    condition, _, action = text.rpartition(":")
    field, equals, value = condition.partition("=")
    if not equals or action not in ACTIONS:
        raise argparse.ArgumentTypeError(
            f"expected FIELD=VALUE:DO with DO one of {', '.join(ACTIONS)}, got {text!r}"
        )
    return field, value, action


def parse_options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m longwatch.runner.scripted_agent")
    parser.add_argument("--do", choices=ACTIONS, default="succeed", help="what to do")
    parser.add_argument(
        "--when", type=parse_rule, action="append", default=[], metavar="FIELD=VALUE:DO"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="how long it works first")
    parser.add_argument("--flood-bytes", type=int, default=1 << 30)
    parser.add_argument("--event", type=Path, default=Path("event.json"))
    parser.add_argument("--log", type=Path, help="append a line for each run to this file")
    return parser.parse_args(words)


def log_run(path: Path, event: Mapping[str, Any]) -> None:
    """Append a line for a run that begins. Lines of several processes do not mix."""
    facts = run_facts(event)
    line = {
        "run": facts.get("run"),
        "event": facts.get("event"),
        "attempt": facts.get("attempt"),
        "fault": event.get("faultId"),
        "pid": os.getpid(),
    }
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def main(words: Sequence[str] | None = None) -> int:
    options = parse_options(sys.argv[1:] if words is None else words)
    event = json.loads(options.event.read_bytes())
    if options.log:
        log_run(options.log, event)
    return ScriptedAgent(event, options).run(choose_action(event, options))


if __name__ == "__main__":
    sys.exit(main())
