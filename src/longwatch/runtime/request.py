"""Requests and results of a loop, and the decoding of message bodies to requests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from longwatch.errors import SerializationError, UsageError
from longwatch.mailbox.records import MessageRecord, new_id
from longwatch.store.json_codec import Codec, CodecWording, is_checkable

RequestT = TypeVar("RequestT")
OutputT = TypeVar("OutputT")
_OUTPUT_WORDING = CodecWording("an output", "the loop declares", action="decoded")


def _now() -> datetime:
    return datetime.now(UTC)


class MainLoopRequest(msgspec.Struct, Generic[RequestT], frozen=True):
    """A request with its id, deadline, time and trace. `deadline` and `created_at` have a time
    zone.
    """

    request: RequestT
    request_id: str = msgspec.field(default_factory=new_id)
    deadline: datetime | None = None
    """The time after which the reply is useless. A later request is answered without
    being handled.
    """
    created_at: datetime = msgspec.field(default_factory=_now)
    trace: dict[str, str] = msgspec.field(default_factory=dict)
    """The trace context: `traceparent` and other headers."""

    def __post_init__(self) -> None:
        for name in ("deadline", "created_at"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise ValueError(
                    f"{name} needs a time zone; write datetime.now(UTC), not datetime.now()"
                )


class MainLoopResult(msgspec.Struct, Generic[OutputT], frozen=True):
    """The reply to a request: its output, or the error of its last attempt."""

    request_id: str
    output: OutputT | None = None
    error: str | None = None
    attempt: int = 1
    """The number of the attempt, from 1."""
    completed_at: datetime = msgspec.field(default_factory=_now)
    trace: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.error is None


_ENVELOPE_FIELDS = frozenset(MainLoopRequest.__struct_fields__)


class RequestDecoder(Generic[RequestT]):
    """Decodes message bodies to requests. A body is an envelope (a mapping with `request` and no
    foreign keys) or the request itself.
    """

    def __init__(self, request_type: type[RequestT] | Any) -> None:
        self._type = request_type
        self._envelope: Any = MainLoopRequest[request_type]  # type: ignore[valid-type] # known only now
        try:
            msgspec.json.Decoder(self._envelope)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"requests of type {request_type!r} cannot be read from a mailbox: {error}; "
                f"give request_type="
            ) from None

    def decode(self, body: Any, record: MessageRecord) -> MainLoopRequest[RequestT]:
        """Decode a body. Raises SerializationError if it is neither envelope nor request."""
        try:
            if isinstance(body, MainLoopRequest):
                return (
                    self._convert_envelope(msgspec.to_builtins(body))
                    if self._type is not Any
                    else body
                )
            if (
                isinstance(body, Mapping)
                and "request" in body
                and _ENVELOPE_FIELDS.issuperset(body)
            ):
                return self._convert_envelope(body)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise SerializationError(f"a request cannot be read: {error}") from None
        return MainLoopRequest(
            self.convert(body),
            record.id,
            created_at=datetime.fromtimestamp(record.enqueued_at, UTC),
        )

    def convert(self, body: Any) -> Any:
        """Convert a body without envelope to a request. Raises SerializationError if that is
        impossible.
        """
        try:
            return body if self._type is Any else msgspec.convert(body, self._type)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise SerializationError(f"a request cannot be read: {error}") from None

    def _convert_envelope(self, body: Any) -> MainLoopRequest[RequestT]:
        request: MainLoopRequest[RequestT] = msgspec.convert(body, self._envelope)
        return request


class OutputCheck:
    """Checks the outputs of a loop against the type that its class declares, `MainLoop[Url, Page]`.

    A class that declares no output, or one that JSON cannot hold, has no check.
    """

    def __init__(self, output_type: Any) -> None:
        self._codec: Codec[Any] | None = None
        if output_type is not Any and is_checkable(output_type | None):
            self._codec = Codec(output_type | None, max_bytes=sys.maxsize, wording=_OUTPUT_WORDING)

    def check(self, output: Any) -> None:
        """Raise SerializationError for an output that receivers of the reply could not decode."""
        if self._codec is not None:
            self._codec.encode(output)
