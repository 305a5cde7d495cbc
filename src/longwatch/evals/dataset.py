"""Samples, datasets in JSON lines, and the function that sends a dataset to an EvalLoop."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from longwatch.core.error_text import json_reason, os_reason
from longwatch.core.sanitize import is_storable
from longwatch.errors import (
    ConfigError,
    Fault,
    InvalidParameterError,
    SerializationError,
    UsageError,
)
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.request import MainLoopRequest

MAX_ID_LENGTH = 200
_ID_RULE = f"text of 1 to {MAX_ID_LENGTH} characters"
_MAX_FAULTS = 20
"""Maximum number of faults in one error."""


class Sample(msgspec.Struct, frozen=True):
    """One input for the loop under test, and the output that the evaluator expects."""

    id: str
    input: Any
    expected: Any = None


class Dataset(Sequence[Sample]):
    """A sequence of samples with unique ids. Raises ConfigError with all faults if the samples are
    no dataset.
    """

    def __init__(self, samples: Iterable[Sample], *, name: str = "dataset") -> None:
        self.name = name
        self._samples = tuple(samples)
        if faults := list(islice(_faults(self._samples, name), _MAX_FAULTS)):
            raise ConfigError(*faults)

    @classmethod
    def load(cls, path: str | Path) -> Dataset:
        """Read a file with one JSON object per line: `{"id": …, "input": …, "expected": …}`. Empty
        lines are skipped.
        """
        file = Path(path)
        try:
            text = file.read_bytes()
        except OSError as error:
            raise UsageError(
                f"the dataset {file} cannot be read: {os_reason(error)}; name a file with one JSON "
                f"object a line"
            ) from None
        return cls(_parse_samples(text, str(file)), name=str(file))

    def save(self, path: str | Path) -> None:
        """Write the samples to a file that `load` reads."""
        Path(path).write_bytes(
            b"".join(msgspec.json.encode(sample) + b"\n" for sample in self._samples)
        )

    @property
    def ids(self) -> list[str]:
        return [sample.id for sample in self._samples]

    @property
    def digest(self) -> str:
        """A hash of the samples that does not depend on their order or their file."""
        lines = sorted(
            msgspec.json.encode(sample, order="deterministic") for sample in self._samples
        )
        return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def __repr__(self) -> str:
        return f"<Dataset {self.name} of {len(self)} samples>"


def _faults(samples: Sequence[Sample], name: str) -> Iterator[Fault]:
    if not samples:
        yield Fault(
            name, "has no samples", 'write at least one: {"id": "1", "input": "…", "expected": "…"}'
        )
    wrong = next(
        (
            number
            for number, each in enumerate(samples, 1)
            if not _is_valid_id(getattr(each, "id", None))
        ),
        None,
    )
    if wrong is not None:
        yield Fault(
            name,
            f"number {wrong} is no Sample with an id: {repr(samples[wrong - 1])[:80]}",
            f"an id is {_ID_RULE}",
        )
        return
    for duplicate, count in Counter(sample.id for sample in samples).items():
        if count > 1:
            yield Fault(name, f"has {count} samples with the id {duplicate!r}", "give each its own")


def _parse_samples(data: bytes, source: str) -> list[Sample]:
    """Parse every line. Raises ConfigError with the number of each faulty line."""
    samples: list[Sample] = []
    faults: list[Fault] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            sample = _parse_sample(line)
        except ValueError as error:
            faults.append(Fault(f"{source}:{number}", str(error)))
            continue
        first = seen.setdefault(sample.id, number)
        if first != number:
            faults.append(
                Fault(
                    f"{source}:{number}",
                    f"has the id {sample.id!r}, which line {first} has too",
                    "give each its own",
                )
            )
        samples.append(sample)
    if faults:
        more = len(faults) - _MAX_FAULTS
        raise ConfigError(
            *faults[:_MAX_FAULTS], *([Fault(source, f"and {more} more")] if more > 0 else [])
        )
    return samples


def _parse_sample(line: bytes) -> Sample:
    """Parse one line. Raises ValueError, in plain words, if it is no sample."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {json_reason(str(error))}") from None
    if not isinstance(found, dict):
        raise ValueError('is not an object; write {"id": …, "input": …, "expected": …}')  # noqa: TRY004 - one kind of fault
    if missing := [key for key in ("id", "input") if key not in found]:
        raise ValueError(f"has no {' and no '.join(missing)}")
    if unknown := sorted(found.keys() - {"id", "input", "expected"}):
        raise ValueError(f"has unknown keys: {', '.join(unknown)}; put them into input")
    identity = str(found["id"]) if type(found["id"]) is int else found["id"]
    if not _is_valid_id(identity):
        raise ValueError(f"has an id that is not {_ID_RULE}, nor a whole number")
    return Sample(identity, found["input"], found.get("expected"))


def _is_valid_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and is_storable(value)


_SEND_ERRORS = (SerializationError, InvalidParameterError)


def submit_dataset(
    dataset: Dataset | Iterable[Sample],
    requests: Mailbox[Any],
    *,
    reply_to: Mailbox[Any] | str,
    tx: Any = None,
) -> list[str]:
    """Send all samples or none, with replies to `reply_to`. Returns the message ids in the order of
    the samples.
    """
    samples = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    bodies = [MainLoopRequest(sample, sample.id) for sample in samples]
    try:
        return requests.send_many(bodies, reply_to=reply_to, tx=tx)
    except _SEND_ERRORS as error:
        if (unsendable := _first_unsendable(bodies, requests)) is None:
            raise
        raise type(error)(f"sample {unsendable!r} cannot be sent: {error}") from None


def _first_unsendable(
    bodies: Iterable[MainLoopRequest[Sample]], requests: Mailbox[Any]
) -> str | None:
    """The id of the first sample that the mailbox refuses; None if it takes all."""
    for body in bodies:
        try:
            requests.codec.encode(body)
        except _SEND_ERRORS:
            return body.request_id
    return None
