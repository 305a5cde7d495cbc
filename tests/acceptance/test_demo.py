from __future__ import annotations

import subprocess
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


def test_the_demo_shows_its_four_acts_and_ends_by_itself(wheel_python: Path) -> None:
    done = subprocess.run(
        [wheel_python, DEMO], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (0, "") == (done.returncode, done.stderr)
    for act in range(1, 5):
        assert f"act {act}: " in done.stdout
