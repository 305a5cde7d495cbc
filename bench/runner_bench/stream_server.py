"""A server of ready streams, in a process of its own: each client gets the same events as fast as
it reads them, then an open connection.

python -m runner_bench.stream_server EVENTS    prints its port; 0 events: nothing but comments
"""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import AbstractContextManager, suppress

from sse_bench import workload
from sse_bench.workload import HEAD, stream

COMMENT_INTERVAL = 15.0


def serving(count: int) -> AbstractContextManager[str]:
    """The URL of such a server."""
    return workload.serving(count, module="runner_bench.stream_server")


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
