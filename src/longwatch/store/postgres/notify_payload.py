"""The payload of a NOTIFY: `CLIENT/CHANNEL`, with further channels in further lines.

A payload without a channel notifies every channel. A tab after the name of a channel, which is
printable, asks every receiver to look; idle ones may ignore other hints. The server's listeners
skip payloads of their own process, because it has already woken its own subscriptions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from longwatch.store.notify.listener import Received

MAX_PAYLOAD_BYTES = 7900
"""Bytes in one payload. PostgreSQL takes fewer than 8000."""
MAX_PAYLOADS = 4
"""Payloads at once. More channels than they can name are notified by one payload for all."""


_FOR_ALL = "\t"


def for_all_receivers(channels: Iterable[str]) -> set[str]:
    """Return the names under which these channels are notified for every receiver."""
    return {f"{channel}{_FOR_ALL}" for channel in channels}


def encode_payloads(client_id: str, channels: Iterable[str]) -> list[str]:
    """Return the payloads that notify these channels."""
    head = f"{client_id}/"
    payloads: list[str] = []
    room = 0
    for channel in sorted(channels):
        size = len(channel.encode()) + 1
        if size <= room:
            payloads[-1] += f"\n{channel}"
        elif size > MAX_PAYLOAD_BYTES - len(head) or len(payloads) == MAX_PAYLOADS:
            return [head]
        else:
            payloads.append(f"{head}{channel}")
            room = MAX_PAYLOAD_BYTES - len(head)
        room -= size
    return payloads


def decode_payloads(client_id: str, payloads: Collection[str]) -> Received:
    """Return the channels that other processes have notified. Ignores what is no payload."""
    parts = [payload.partition("/") for payload in payloads]
    theirs = [channels for sender, slash, channels in parts if slash and sender != client_id]
    if "" in theirs:
        return Received(hinted=None)
    names = {channel for channels in theirs for channel in channels.split("\n")}
    marked = {name for name in names if name.endswith(_FOR_ALL)}
    return Received(names - marked, {name.removesuffix(_FOR_ALL) for name in marked})
