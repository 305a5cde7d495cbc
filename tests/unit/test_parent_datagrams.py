"""The datagrams from worker processes to their parent."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from longwatch.core.events.flow import AttemptsEnded
from longwatch.host.parent_channel import (
    MAX_DATAGRAM_BYTES,
    MAX_MESSAGE_BYTES,
    ParentChannel,
    decode_datagram,
    encode_datagram,
)
from longwatch.observe.counters import EventCounters


@pytest.mark.parametrize("length", [0, 10, 100_000])
def test_a_message_arrives_as_it_was_sent(length: int) -> None:
    message = {"about": "state", "text": "ü" * length}
    assert message == decode_datagram(encode_datagram(message))


def test_a_short_message_is_plain_json() -> None:
    """A parent of an older release reads it."""
    assert {"about": "group"} == json.loads(encode_datagram({"about": "group"}))


def test_the_metrics_of_a_thousand_nodes_fit_into_one_datagram(tmp_path: Path) -> None:
    counters = EventCounters()
    for number in range(1000):
        for state, cause in (("success", "done"), ("failed", "raised")):
            counters(
                AttemptsEnded(
                    graph="scrape",
                    node=f"the_pages_of_site_{number}",
                    state=state,
                    cause=cause,
                    attempts=number + 1,
                    durations=(number / 7, number / 11),
                )
            )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as parent:
        parent.bind(str(tmp_path / "line"))
        ParentChannel(str(tmp_path / "line")).send("state", samples=counters.samples())
        received = decode_datagram(parent.recv(MAX_DATAGRAM_BYTES))
    assert json.loads(json.dumps(counters.samples())) == received["samples"]


def test_a_datagram_that_unpacks_to_too_much_is_refused() -> None:
    message = {"about": "events", "lines": "a" * MAX_MESSAGE_BYTES}
    data = encode_datagram(message)

    assert len(data) < MAX_DATAGRAM_BYTES
    with pytest.raises(ValueError, match="at most"):
        decode_datagram(data)
