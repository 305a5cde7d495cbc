"""A small web shop with bad habits: it crashes several times a minute, and now and then it hangs,
alive but without an answer.

`/crash` ends it at once, `/hang` makes it hang.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

LIFETIME_SECONDS = (8.0, 25.0)
"""Seconds until it fails by itself, drawn anew at each start."""
HANGS = 0.3
"""The share of its failures in which it hangs instead of crashing."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/crash":
            os._exit(1)
        if self.path == "/hang" or self.server.hangs:  # type: ignore[attr-defined]
            time.sleep(3600)
        body = json.dumps({"status": "healthy", "pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


class Shop(HTTPServer):
    hangs = False

    def fail(self) -> None:
        if random.random() < HANGS:  # noqa: S311 - chance, not a secret
            print("shop: waiting for a lock that is never released", flush=True)
            self.hangs = True
        else:
            print("shop: the price of a book is negative, giving up", flush=True)
            os._exit(1)


if __name__ == "__main__":
    server = Shop(("127.0.0.1", int(os.environ["PORT"])), Handler)
    timer = threading.Timer(random.uniform(*LIFETIME_SECONDS), server.fail)  # noqa: S311 - as above
    timer.daemon = True
    timer.start()
    print(f"shop: open on 127.0.0.1:{server.server_port} as pid {os.getpid()}", flush=True)
    server.serve_forever()
