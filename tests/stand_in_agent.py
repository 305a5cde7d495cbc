"""Stand-ins for coding agents, of the same shape on the command line: `claude` and `codex`, by the
name under which this file is called. They accept the flags that the docs use and no others.

An event with `give_up` makes them end with 0 and without a report, as agents do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def claude_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="claude", allow_abbrev=False)
    parser.add_argument("-p", "--print", action="store_true", required=True)
    parser.add_argument("--max-turns", type=int, required=True)
    parser.add_argument("--max-budget-usd", type=float, required=True)
    parser.add_argument("--permission-mode", choices=["acceptEdits", "plan"], required=True)
    parser.add_argument("--allowedTools", required=True)
    parser.add_argument("--output-format", choices=["text", "json", "stream-json"], required=True)
    return parser.parse_args()


def codex_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="codex", allow_abbrev=False)
    parser.add_argument("command", choices=["exec"])
    parser.add_argument("--skip-git-repo-check", action="store_true", required=True)
    parser.add_argument("--sandbox", choices=["read-only", "workspace-write"], required=True)
    parser.add_argument("--output-last-message", type=Path, required=True)
    parser.add_argument("prompt", choices=["-"])
    return parser.parse_args()


def main() -> int:
    name = Path(sys.argv[0]).name
    options = claude_options() if name == "claude" else codex_options()
    prompt = sys.stdin.read()
    instructions, _, rest = prompt.partition("```json\n")
    event = json.loads(rest.partition("\n```")[0])
    if "give_up" in event:
        return 0
    report = Path("output/report.md") if name == "claude" else options.output_last_message
    facts = {"instructions": instructions, "event": event, "environment": sorted(os.environ)}
    report.write_text(json.dumps(facts))
    sys.stdout.write(json.dumps({"type": "result", "total_cost_usd": 0.01}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
