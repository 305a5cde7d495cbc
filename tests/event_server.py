"""A server of event streams for tests: sends what it is given, and keeps its connections open."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/events"


class EventServer(ThreadingHTTPServer):
    """Serves one stream at `PATH`. Each event is sent once to each connection that has not got it
    by its Last-Event-ID.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StreamHandler)
        self.events: list[str] = []
        self.requests: list[Mapping[str, str]] = []
        self.changed = threading.Condition()
        self.is_closing = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{PATH}"

    def send_text(self, data: str) -> None:
        """Send an event with this data to all who listen, now and later."""
        with self.changed:
            self.events.append(data)
            self.changed.notify_all()

    def send(self, *, resource: str = "pod/a", severity: str = "error", **facts: object) -> None:
        """Send a fault."""
        self.send_text(json.dumps({"severity": severity, "resource": resource, **facts}))


class _StreamHandler(BaseHTTPRequestHandler):
    server: EventServer

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(dict(self.headers.items()))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        sent = int(self.headers.get("Last-Event-ID") or 0)
        while not server.is_closing:
            with server.changed:
                if len(server.events) == sent and not server.is_closing:
                    server.changed.wait(5)
                new = server.events[sent:]
            text = "".join(
                f"id: {number}\ndata: {data}\n\n" for number, data in enumerate(new, sent + 1)
            )
            sent += len(new)
            try:
                self.wfile.write((text or ":\n\n").encode())
                self.wfile.flush()
            except OSError:
                return

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base names it
        pass


@contextmanager
def serving_events() -> Iterator[EventServer]:
    server = EventServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with server.changed:
            server.is_closing = True
            server.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
