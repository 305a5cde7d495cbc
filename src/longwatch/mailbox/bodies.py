"""Bodies on their way in and out: msgspec JSON, typed by what the mailbox was opened with."""

from __future__ import annotations

from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from longwatch.errors import InvalidParameterError, SerializationError
from longwatch.mailbox.bounds import LARGEST_BODY

BodyT = TypeVar("BodyT")


class Codec(Generic[BodyT]):
    """Encodes any plain JSON type, dataclass, Struct or TypedDict; decodes to `body_type`."""

    def __init__(self, body_type: type[BodyT] | Any = Any, *, largest: int = LARGEST_BODY) -> None:
        self.largest = largest
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[BodyT] = msgspec.json.Decoder(body_type)
        self._body_type = body_type

    def encode(self, body: BodyT) -> bytes:
        try:
            data = self._encoder.encode(body)
        except (TypeError, ValueError, RecursionError, UnicodeError) as error:
            raise _unwritable(body, str(error)) from None
        self._require_readable(body, data)
        if len(data) > self.largest:
            raise InvalidParameterError(
                f"a body of {len(data)} bytes is larger than {self.largest}; send where it is stored instead, or raise largest_body"
            )
        return data

    def decode(self, data: bytes) -> BodyT:
        try:
            return self._decoder.decode(data)
        except Exception as error:  # noqa: BLE001 - the body type's own code runs here, and may raise anything
            raise SerializationError(f"a body cannot be read: {error}") from None

    def _require_readable(self, body: BodyT, data: bytes) -> None:
        """What nobody could read as it was meant is refused here, where its sender still is; the usual body costs two looks."""
        if b"null" in data and not isinstance(body, msgspec.Raw) and _has_no_number(msgspec.to_builtins(body)):
            raise _unwritable(body, "JSON has no NaN and no infinity")
        if self._body_type is not Any and type(body) is not self._body_type:
            try:
                self.decode(data)
            except SerializationError as error:
                raise _unwritable(body, f"this mailbox was opened for {self._body_type!r}; {error}") from None


def _unwritable(body: object, why: str) -> SerializationError:
    return SerializationError(f"a body of type {type(body).__name__} cannot be sent: {why}")


def _has_no_number(value: Any) -> bool:
    """Whether a float that is no number is anywhere in it."""
    if isinstance(value, float):
        return not isfinite(value)
    if isinstance(value, dict):
        return any(map(_has_no_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_no_number, value))
