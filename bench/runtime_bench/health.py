"""The health port under wrk, alone and with a hundred clients that say nothing, beside the
standard library's server untuned.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

IDLE_CLIENTS = 100
SECONDS = 5
_OURS = """
import sys, threading
from longwatch.runtime import HealthServer
server = HealthServer(host="127.0.0.1", port=0, readiness_check=lambda: True)
server.start()
print(server.address[1], flush=True)
sys.stdin.read()
server.stop()
"""
_STDLIB = """
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b'{"status": "healthy"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


@dataclass(frozen=True)
class HttpLoad:
    """Requests a second, and the 99th percentile of their milliseconds."""

    rate: float
    p99: float


def measure() -> dict[str, HttpLoad] | None:
    """By what was asked; None without wrk."""
    wrk = shutil.which("wrk")
    if wrk is None:
        return None
    found: dict[str, HttpLoad] = {}
    with _served(_OURS) as port:
        found["/health/live"] = _load(wrk, port, "/health/live")
        found["/health/ready, its check asked in a thread"] = _load(wrk, port, "/health/ready")
        with _idle(port):
            found[f"/health/live, with {IDLE_CLIENTS} idle clients"] = _load(
                wrk, port, "/health/live"
            )
    with _served(_STDLIB) as port:
        found["ThreadingHTTPServer, untuned"] = _load(wrk, port, "/health/live")
    return found


@contextmanager
def _served(program: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.stdin.close()


@contextmanager
def _idle(port: int) -> Iterator[None]:
    """Clients that have connected and ask for nothing; they are let go before their time is up."""
    with ExitStack() as clients:
        for _ in range(IDLE_CLIENTS):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield


def _load(wrk: str, port: int, path: str) -> HttpLoad:
    command = [wrk, "-t1", "-c16", f"-d{SECONDS}", "--latency", f"http://127.0.0.1:{port}{path}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [rate] = re.findall(r"Requests/sec:\s+([\d.]+)", said)
    [(number, unit)] = re.findall(r"99%\s+([\d.]+)(us|ms|s)", said)
    return HttpLoad(float(rate), float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit])
