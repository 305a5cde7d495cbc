"""A small web server with bad habits: `/crash` ends it, `/hang` makes it stop answering, and now
and then it just dies.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

LIFETIME_SECONDS = (4.0, 7.0)
"""Seconds until it dies by itself, drawn anew at each start."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/crash":
            os._exit(1)
        if self.path == "/hang":
            time.sleep(3600)
        body = json.dumps({"status": "healthy", "pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing about requests."""


def die() -> None:
    print("server: something went badly wrong", flush=True)
    os._exit(1)


if __name__ == "__main__":
    if os.environ.get("CRASH_AT_RANDOM") == "1":
        timer = threading.Timer(random.uniform(*LIFETIME_SECONDS), die)  # noqa: S311 - a mood, not a secret
        timer.daemon = True
        timer.start()
    server = HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
    print(f"server: listening on 127.0.0.1:{server.server_port} as pid {os.getpid()}", flush=True)
    server.serve_forever()
