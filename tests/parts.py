"""Parts of the machine that a test needs: missing at home it is skipped, missing in CI it fails."""

from __future__ import annotations

import os

import pytest

import debian_parts


def require(name: str) -> None:
    """Go on only when the part works here; its entry in tools/debian_parts.py says how that is
    known.
    """
    part = debian_parts.part(name)
    if part.works():
        return
    reason = (
        f"{name} does not work here (Debian package {part.package}); needed by {part.needed_by}"
    )
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
