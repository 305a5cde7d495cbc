"""The recipes of the Makefile are valid for the shell, also where nothing is installed yet."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
TARGETS = re.findall(r"^([a-z]+):.*## ", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_the_recipes_of_a_new_checkout_are_valid_shell(target: str, tmp_path: Path) -> None:
    variables = [f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    dry_run = ["make", "--dry-run", "--no-print-directory", *variables, target]
    recipe = subprocess.run(
        dry_run, cwd=MAKEFILE.parent, capture_output=True, text=True, check=True
    )
    shell = subprocess.run(
        ["sh", "-n"], input=recipe.stdout, capture_output=True, text=True, check=False
    )
    assert "" == shell.stderr
