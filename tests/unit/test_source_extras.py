"""What a source says when the packages for its kind are not installed."""

from __future__ import annotations

import sys

import pytest

from longwatch.errors import UsageError
from longwatch.runner.connection import load_opener
from longwatch.runner.policy import SourceKind


@pytest.mark.parametrize(
    ("kind", "module", "package", "extra"),
    [
        (SourceKind.SSE, "sse_stream", "aiohttp", "runner"),
        (SourceKind.MCP, "mcp_stream", "mcp", "mcp"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, kind: SourceKind, module: str, package: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"longwatch.runner.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    expected = f"needs the package {package}; run: pip install 'longwatch\\[{extra}\\]'"
    with pytest.raises(UsageError, match=expected):
        load_opener(kind)
