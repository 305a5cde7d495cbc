"""What the contenders read, and the server that sends it: a process of its own that writes ready
blocks to a socket, so that it costs no contender anything but the kernel's time.

python -m sse_bench.workload EVENTS    prints its port
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CHUNK = 16_384
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def stream(count: int) -> bytes:
    """So many events of about 355 bytes."""
    return b"".join(_event(number) for number in range(count))


def _event(number: int) -> bytes:
    fault = {
        "severity": "warning",
        "resource": f"Pod/shop/cart-{number % 977:04d}",
        "faultId": f"f-{number:08d}",
        "faultType": "CrashLoopBackOff",
        "context": {"restarts": number % 9, "message": "back-off restarting failed container " * 3},
        "timestamp": f"2031-05-06T12:00:00.{number % 1000:03d}Z",
    }
    return f"id: {number}\nevent: fault\ndata: {json.dumps(fault)}\n\n".encode()


def chunks(data: bytes) -> list[bytes]:
    return [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]


@contextmanager
def serving(count: int, *, module: str = "sse_bench.workload") -> Iterator[str]:
    """The URL of a server that sends the stream to each client, and by default closes."""
    command = [sys.executable, "-m", module, str(count)]
    place = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.kill()


def serve(count: int) -> None:
    body = stream(count)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            with client, suppress(ConnectionError):
                client.recv(65_536)
                client.sendall(HEAD)
                client.sendall(body)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
