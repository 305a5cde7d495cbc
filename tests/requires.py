"""Parts of the machine that a test needs: missing at home it is skipped, missing in CI it fails."""

from __future__ import annotations

import os

import pytest

import system_tools


def require_tool(name: str) -> None:
    """Go on only when the part works here; its entry in tools/system_tools.py says how that is
    known.
    """
    part = system_tools.tool_named(name)
    if part.is_usable():
        return
    reason = (
        f"{name} does not work here (Debian package {part.package}); needed by {part.needed_by}"
    )
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
