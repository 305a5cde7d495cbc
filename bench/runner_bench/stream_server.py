"""A server of ready streams, in a process of its own: each client gets the same events as fast as
it reads them, then an open connection.

python -m runner_bench.stream_server EVENTS    prints its port; 0 events: nothing but comments
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sse_bench.workload import HEAD, stream

COMMENT_INTERVAL = 15.0


@contextmanager
def serving(count: int) -> Iterator[str]:
    """The URL of such a server."""
    command = [sys.executable, "-m", "runner_bench.stream_server", str(count)]
    place = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/"
        finally:
            server.kill()


def serve(count: int) -> None:
    body = stream(count)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_send, args=(client, body), daemon=True).start()


def _send(client: socket.socket, body: bytes) -> None:
    pause = threading.Event()
    with client, suppress(OSError):
        client.recv(65_536)
        client.sendall(HEAD + body)
        while not pause.wait(COMMENT_INTERVAL):
            client.sendall(b":\n\n")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
