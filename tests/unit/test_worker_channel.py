"""The parent's end of the channel to its worker processes."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.host.parent_channel import encode_datagram
from longwatch.workers.channel import WorkerChannel

MANY = 50_000


def test_a_program_that_never_stops_sending_does_not_hold_the_caller(tmp_path: Path) -> None:
    """The supervisor's loop reads what has arrived whenever a worker ends."""
    path, clock, accepted = tmp_path / "line", SystemClock(), 0
    data = encode_datagram({"about": "events", "pid": 1})

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:

        def accept(_: Mapping[str, Any]) -> None:
            """Send the next report, so that there is always one in the socket."""
            nonlocal accepted
            accepted += 1
            if accepted < MANY:
                sender.sendto(data, str(path))

        channel = WorkerChannel(path, accept)
        try:
            sender.sendto(data, str(path))
            channel.accept_arrived()
            assert accepted < MANY
        finally:
            channel.close(clock, Deadline.after(30.0, clock))
