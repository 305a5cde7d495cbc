"""The stream events of the simulator: invented faults of a cluster, and the journal of those sent.

The journal is a file with one JSON object a line: `source`, `id`, `data`. An event is written to it
before any client gets it, so it names every event that a client may have. A simulator that is
started again with the same file goes on after the last line, and can send the file's events again.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from longwatch.core.error_text import os_reason
from longwatch.errors import UsageError

FAULTS: tuple[tuple[str, str, str, str], ...] = (
    ("CrashLoopBackOff", "error", "Pod", "back-off restarting failed container"),
    ("OOMKilled", "critical", "Pod", "container exceeded its memory limit"),
    ("ImagePullBackOff", "warning", "Pod", "the registry does not have the tag"),
    ("Unhealthy", "warning", "Pod", "readiness probe failed with status 503"),
    ("FailedScheduling", "warning", "Pod", "0 of 5 nodes have enough memory"),
    ("NodeNotReady", "critical", "Node", "the kubelet has stopped posting its status"),
    ("FailedMount", "error", "PersistentVolumeClaim", "the volume is attached to another node"),
    ("BackoffLimitExceeded", "error", "Job", "the job has reached its backoff limit"),
    ("ScalingReplicaSet", "info", "Deployment", "scaled up to 3 replicas"),
    ("Pulled", "debug", "Pod", "the image is on the node already"),
)
"""Fault type, severity, kind of resource, message."""
NAMESPACES = ("shop", "payments", "search", "monitoring")
WORKLOADS = ("cart", "checkout", "catalogue", "gateway", "indexer", "mailer")


BAD_BYTE = "\ufffd"
"""The character that a client reads for a byte that is not UTF-8. In the data of an event it stands
for such a byte on the wire.
"""


class SentEvent(NamedTuple):
    """One stream event of one source. `number` is its id on the wire; the first one has 1."""

    source: str
    number: int
    data: str

    def encode(self) -> bytes:
        """Return the bytes of its block. Data with bad bytes is preceded by a line of bad bytes."""
        lines = "".join(f"data: {line}\n" for line in self.data.split("\n"))
        text = f"id: {self.number}\nevent: fault\n{lines}\n"
        if BAD_BYTE not in text:
            return text.encode()
        return b"\xfe\xff: \xc3\n" + text.encode().replace(BAD_BYTE.encode(), b"\xff")


class FaultGenerator:
    """Invents the fault with a given number. The same seed, source and number give the same fault,
    but for its timestamp.
    """

    def __init__(
        self, source: str, *, seed: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._source = source
        self._seed = seed
        self._now = now

    def data(self, number: int, *, has_bad_bytes: bool = False) -> str:
        """Return the data of one stream event. It has bad bytes as the client will read them."""
        fault = self._fault(number)
        if has_bad_bytes:
            fault["note"] = f"not UTF-8: {BAD_BYTE}{BAD_BYTE}"
        return json.dumps(fault, ensure_ascii=False)

    def _fault(self, number: int) -> dict[str, object]:
        chance = random.Random(f"{self._seed}/{self._source}/{number}")  # noqa: S311 - invented data
        fault_type, severity, kind, message = chance.choice(FAULTS)
        namespace, workload = chance.choice(NAMESPACES), chance.choice(WORKLOADS)
        name, node = f"{workload}-{chance.getrandbits(20):05x}", f"node-{chance.randrange(1, 6)}"
        return {
            "cluster": self._source,
            "severity": severity,
            "resource": f"Node/{node}" if kind == "Node" else f"{kind}/{namespace}/{name}",
            "faultId": f"{self._source}-{self._seed}-{number}",
            "faultType": fault_type,
            "context": {
                "namespace": namespace,
                "message": message,
                "restarts": chance.randrange(20),
                "node": node,
            },
            "timestamp": self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }


class History:
    """The events of one source that can be sent again: the newest in memory, all of them in the
    journal if there is one.
    """

    def __init__(self, source: str, *, limit: int, journal: Journal | None) -> None:
        self.newest = 0
        self._source = source
        self._recent: deque[SentEvent] = deque(maxlen=limit)
        self._journal = journal
        for event in journal.events(source) if journal else ():
            self._keep(event)

    def add(self, data: str) -> SentEvent:
        """Number an event and keep it. It is in the journal when this returns."""
        event = SentEvent(self._source, self.newest + 1, data)
        if self._journal:
            self._journal.append(event)
        self._keep(event)
        return event

    def after(self, number: int) -> list[SentEvent]:
        """Return the events after this number, as far as they are kept. An unknown number, as from
        an earlier run of the simulator, counts as 0.
        """
        number = number if 0 <= number <= self.newest else 0
        first = self._recent[0].number if self._recent else self.newest + 1
        older: list[SentEvent] = []
        if self._journal and number + 1 < first:
            stored = self._journal.events(self._source)
            older = [event for event in stored if number < event.number < first]
        wanted = self.newest - max(number, first - 1)
        return older + list(islice(reversed(self._recent), wanted))[::-1]

    def _keep(self, event: SentEvent) -> None:
        self._recent.append(event)
        self.newest = event.number


class Journal:
    """The file of the sent events. An unfinished last line, left by a kill, is removed, because no
    client has its event.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _cut_unfinished_line(path)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(
                f"the journal {path} cannot be written: {os_reason(error)}; give --journal a "
                f"file in a writable directory"
            ) from None

    def append(self, event: SentEvent) -> None:
        line = {"source": event.source, "id": str(event.number), "data": event.data}
        self._file.write(json.dumps(line) + "\n")

    def events(self, source: str) -> Iterator[SentEvent]:
        return (event for event in read_journal(self.path) if event.source == source)

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[SentEvent]:
    """Yield the events of a journal in the order in which they were sent."""
    try:
        opened = path.open("rb")
    except OSError as error:
        raise UsageError(
            f"the journal {path} cannot be read: {os_reason(error)}; give --journal the file of "
            f"`longwatch simulate events --journal`"
        ) from None
    with opened as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                fields = json.loads(line)
                yield SentEvent(fields["source"], int(fields["id"]), fields["data"])
            except (ValueError, KeyError, TypeError):
                raise UsageError(
                    f"line {number} of {path} is not a sent event; expected a journal of "
                    f"`longwatch simulate events --journal`"
                ) from None


def _cut_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
