"""Event sources that others wrote: sse-starlette under uvicorn, kubernetes-mcp-server."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from event_source_rig import running
from longwatch.core.events.runner import SseConnectionFailed, SubscribeToolMissing
from longwatch.runner.policy import SourceKind, SourceSpec
from longwatch.runner.seams import StreamItem
from loopback import free_port
from requires import skip_without_program

SERVER = Path(__file__).parent.parent / "sse_starlette_server.py"
NPM_PACKAGE = "kubernetes-mcp-server-linux-amd64"
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
"""


@contextmanager
def started(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_sse_starlette_under_uvicorn_is_read_over_reconnects(tmp_path: Path) -> None:
    """Chunked bodies, CRLF, comments, retry, replay: each event comes once and in order."""
    port = free_port()
    spec = SourceSpec(name="east", url=f"http://127.0.0.1:{port}/events")

    async def scenario() -> None:
        async with running(spec) as rig:
            await rig.until(lambda: len(rig.intake.items) >= 20)
        expected = [StreamItem(f"event {n}\nsecond line", str(n)) for n in range(1, 21)]
        assert expected == rig.intake.items[:20]
        assert "server_restart" == rig.of(SseConnectionFailed)[-1].reason

    with started(sys.executable, str(SERVER), str(port), log=tmp_path / "log"):
        asyncio.run(scenario())


@pytest.fixture
def kubernetes_mcp_server(tmp_path: Path) -> Path:
    """The program, from the npm package that ships it."""
    skip_without_program("npm", "kubernetes-mcp-server")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip(f"{NPM_PACKAGE} runs on Linux on x86-64 only")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), NPM_PACKAGE]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install {NPM_PACKAGE}: {done.stderr[-500:]}")
    package = tmp_path / "node_modules" / NPM_PACKAGE
    return next(path for path in package.rglob("kubernetes-mcp-server*") if path.is_file())


def test_a_released_kubernetes_mcp_server_has_no_subscribe_tool(
    kubernetes_mcp_server: Path, tmp_path: Path
) -> None:
    """The source reports it once, with the tools that the server has, and retries slowly."""
    port = free_port()
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    command = (str(kubernetes_mcp_server), "--port", str(port), "--bind-address", "127.0.0.1")
    options = ("--kubeconfig", str(config), "--cluster-provider", "kubeconfig")
    spec = SourceSpec(name="east", url=f"http://127.0.0.1:{port}/mcp", kind=SourceKind.MCP)

    async def scenario() -> None:
        async with running(spec) as rig:
            missing = await rig.first(SubscribeToolMissing)
            count = len(rig.of(SseConnectionFailed))
            failed = await rig.first(SseConnectionFailed, count + 2)
        assert 1 == len(rig.of(SubscribeToolMissing))
        assert "events_subscribe" == missing.tool
        assert "pods_list" in missing.tools
        assert ("http_status", 60.0) == (failed.reason, failed.retry_in)
        assert "pods_list" in failed.error

    with started(*command, *options, log=tmp_path / "log"):
        asyncio.run(scenario())
