"""Parts of the machine that a test needs: missing at home it is skipped, missing in CI it fails."""

from __future__ import annotations

import os
import shutil

import pytest

import system_tools


def require_tool(name: str) -> None:
    """Go on only when the part works here; its entry in tools/system_tools.py says how that is
    known.
    """
    part = system_tools.tool_named(name)
    if part.is_usable():
        return
    _skip_or_fail(
        f"{name} does not work here (Debian package {part.package}); needed by {part.needed_by}"
    )


def skip_without_program(name: str, needed_by: str) -> None:
    """Go on only when this program is in PATH. No test run installs it and none fails without it:
    it is no part of the product.
    """
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not in PATH; needed by {needed_by}")


def _skip_or_fail(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
