"""What a source says when the packages for its kind are not installed."""

from __future__ import annotations

import sys

import pytest

from longwatch.errors import UsageError
from longwatch.runner.connection import load_opener
from longwatch.runner.policy import SourceKind


@pytest.mark.parametrize(
    ("kind", "module", "package", "installed"),
    [
        (SourceKind.SSE, "sse_stream", "aiohttp", "'aiohttp>=3.11'"),
        (SourceKind.MCP, "mcp_stream", "mcp", "'aiohttp>=3.11' 'mcp>=2'"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, kind: SourceKind, module: str, package: str, installed: str
) -> None:
    monkeypatch.delitem(sys.modules, f"longwatch.runner.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    expected = f"needs the package {package}; run: pip install {installed}$"
    with pytest.raises(UsageError, match=expected):
        load_opener(kind)
